"""scripts/elastic: which workers are started, when they are started again, and that nothing but steps since a checkpoint is lost."""

import os
import re
import signal
import sys
import time

import numpy as np
import pytest
from launching import ROOT, launch, processes, wait_for
from small_data import BATCH, DIM, FLAGS, write_dataset

from scripts import house
from tests.clones import clone, double_the_learning_rate
from utils.checkpoint.reading import Checkpoint
from utils.cluster.elastic import Request, allot, choose, restart_reason, resume_flags, saved_step, smallest
from utils.config import parse
from utils.errors import UserError
from utils.programs import PROGRAMS

START_S = 240  # for starting and some steps, at most; ten seconds where nothing else runs

# What is asked for, value by value -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "minimum", "maximum", "batch", "workers"),
    [
        (4, 1, 4, 48, 4),
        (5, 1, 8, 48, 4),  # 48 samples are not shared by 5
        (7, 1, None, 48, 6),
        (100, 1, None, 48, 48),
        (8, 1, 3, 48, 3),
        (3, 4, 8, 48, None),  # too few
        (5, 5, 8, 48, None),  # enough slots, none of these numbers
        (0, 1, 8, 48, None),
    ],
)
def test_the_number_of_workers(slots, minimum, maximum, batch, workers):
    assert choose(slots, minimum, maximum, batch) == workers


def test_the_smallest_number_of_workers():
    assert [smallest(least, 48) for least in (1, 5, 17, 48, 49)] == [1, 6, 24, 48, None]


def test_hosts_are_filled_in_their_order():
    assert allot({"a": 2, "b": 4, "c": 4}, 5) == {"a": 2, "b": 3}
    assert allot({"a": 2, "b": 4}, 2) == {"a": 2}


LOST_HOST = "ORTE has lost communication with a remote daemon."
KILLED = "mpirun noticed that process rank 1 with PID 0 on node vm exited on signal {}."
NAN = "[1,0]<stderr>:dlrm.py: error: step 3: the loss is nan; nothing is saved."
OTHER = "[1,0]<stderr>:dlrm.py: error: worker 0: another worker ended, so this one does"
STOPPED = "[1,0]<stderr>:dlrm.py: error: stopped by SIGTERM after step 20, which is saved"
GONE = "[1,0]<stderr>:dlrm.py: error: stopped because the launcher (horovodrun, process 7) is gone, after step 20, which is saved"
DEFECT = "[1,1]<stderr>:Traceback (most recent call last):"


@pytest.mark.parametrize(
    ("code", "lines", "changed", "reason"),
    [
        (137, [KILLED.format("9 (Killed)"), OTHER], False, "a worker was ended by SIGKILL"),
        (139, [KILLED.format("11 (Segmentation fault)")], False, "a worker was ended by SIGSEGV"),
        (134, [KILLED.format("6 (Aborted)")], False, "a worker was ended by SIGABRT"),
        (137, [], False, "the workers were ended by SIGKILL"),  # mpirun itself
        (143, [STOPPED], False, "the workers were ended by SIGTERM"),  # one worker got it, all stopped; the supervisor got none
        (205, [LOST_HOST], False, "a host was lost"),
        (255, ["ORTE was unable to reliably start one or more daemons."], False, "a host could not be reached"),
        (1, ["Traceback (most recent call last):", "RuntimeError: could not connect to some hosts via ssh"], False, "a host could not be reached"),
        (1, [OTHER], False, "a worker was lost"),
        (137, [GONE], False, "the workers were ended by SIGKILL"),  # horovodrun
        (143, [GONE.replace("stopped because ", "")], False, "the workers were ended by SIGTERM"),
        (1, [NAN], False, None),
        (1, [NAN], True, "the hosts have changed"),
        (1, [NAN, OTHER], False, None),
        (137, [NAN, KILLED.format("9 (Killed)")], False, None),
        (1, [DEFECT, OTHER], False, None),
        (1, [], False, None),
        (2, ["horovodrun: error: unrecognized arguments"], False, None),
        (134, ["mpirun was unable to find the specified executable file"], False, None),
        (213, [], False, None),  # mpirun's own, no signal
    ],
)
def test_whether_a_run_is_started_again(code, lines, changed, reason):
    assert restart_reason(code, lines, changed) == reason


SAVE = ("--dataset_type", "synthetic", "--save_checkpoint_path", "C")


@pytest.mark.parametrize(
    ("flags", "begin", "go_on"),
    [
        ((), ["--resume", "auto"], ["--resume", "auto"]),
        (("--resume", "weights"), ["--resume", "auto"], ["--resume", "auto"]),
        (("--restore_checkpoint_path", "R"), [], ["--restore_checkpoint_path", "C", "--resume", "auto"]),
        (("--restore_checkpoint_path", "R", "--resume", "weights"), [], ["--restore_checkpoint_path", "C", "--resume", "auto"]),
        (("--restore_checkpoint_path", "R", "--allow_growth"), [], ["--restore_checkpoint_path", "C", "--noallow_growth", "--resume", "auto"]),
    ],
)
def test_what_is_restored(flags, begin, go_on):
    options = parse([*SAVE, *flags], "").training
    assert resume_flags(options, saved=False) == begin
    assert resume_flags(options, saved=True) == go_on
    then = parse([*SAVE, *flags, *go_on], "").training
    assert (then.restore_checkpoint_path in (None, "C"), then.resume, then.allow_growth) == (True, "auto", False)


def request(*flags, command=("python", "dlrm.py", *SAVE, "--checkpoint_every_steps", "5")):
    return Request.parse([*flags, "--", *command])


def test_a_request():
    found = request("-np", "3", "--min-np", "2", "--max-np", "4", "--hosts", "a:4", "--mpi-args=--oversubscribe", "--timeout", "9")
    assert (found.first, found.minimum, found.maximum, found.timeout_s, found.reset_limit) == (3, 2, 4, 9, 10)
    assert found.launcher == ["--mpi-args=--oversubscribe"] and found.hosts == {"a": 4}
    assert found.batch == 65536
    assert request("-np", "2", "--hosts", "a:4").minimum == 2


def test_workers_must_divide_the_batch_sizes_that_were_given(tmp_path):
    file = tmp_path / "flags.yaml"
    file.write_text("valid_batch_size: 24\nbatch_size: 36\n")
    assert request("--hosts", "a:4", command=("python", "dlrm.py", *SAVE, "--config", str(file))).batch == 12


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "either --host-discovery-script"),
        (("--hosts", "a", "--host-discovery-script", "x"), "either --host-discovery-script"),
        (("--hosts", "a:1", "--min-np", "2"), "--hosts: found slots for 1, expected at least 2"),
        (("--hosts", "a:4", "--min-np", "3"), None),
        (("--hosts", "a:3", "--min-np", "3"), "--hosts: found slots for 3, expected at least 4"),
        (
            ("--hosts", "a:3", "--min-np", "3", "--max-np", "3"),
            "no number of workers from 3 to 3 shares the batch sizes evenly: it must divide 65536",
        ),
        (("--hosts", "a:3", "--min-np", "2", "--max-np", "1"), "--max-np 1|from 2 to 1"),
        (("--hosts", "a:3", "--min-np", "two"), "'two' is not a whole number of 1 or more"),
        (("--hosts", "a:3", "--min-pn", "2"), "unknown flag --min-pn; did you mean --min-np"),
    ],
)
def test_user_errors_end_before_anything_starts(flags, message):
    if message is None:
        request(*flags)
    else:
        with pytest.raises(UserError, match=message):
            request(*flags)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("python", "train.py"), "a command with dlrm.py, dcnv2.py, wide_and_deep.py or main.py in it"),
        (("no-such-program", "dlrm.py", *SAVE), "no-such-program: no such program"),
        (("python", "dlrm.py", *SAVE, "--bach_size", "3"), "unknown flag --bach_size"),
        (("python", "dlrm.py", "--dataset_type", "synthetic"), "--save_checkpoint_path is missing"),
        (("python", "dlrm.py", *SAVE, "--mode", "eval"), "--mode eval: expected train"),
        (("python", "main.py", "--evaluate", "--use_checkpoint"), "--evaluate: expected train"),
        (("python", "wide_and_deep.py", "--benchmark"), "--save_checkpoint_path is missing"),
    ],
)
def test_the_workers_command_is_checked(command, message):
    with pytest.raises(UserError, match=message):
        request("--hosts", "a:1", command=command)


@pytest.mark.parametrize(
    ("program", "flags", "path", "interaction", "batch"),
    [
        ("dlrm.py", SAVE, "C", "dot", 65536),
        ("dcnv2.py", SAVE, "C", "cross", 65536),
        ("wide_and_deep.py", ("--model_dir", "C"), "C/checkpoint", "wide_and_deep", 131072),
        (
            "main.py",
            ("--global_batch_size", "36", "--eval_batch_size", "24", "--use_checkpoint"),
            "/outbrain/checkpoints/checkpoint",
            "wide_and_deep",
            12,
        ),
    ],
)
def test_every_program_that_trains_is_taken(program, flags, path, interaction, batch):
    """By the defaults and the flags that it has itself; and what elastic adds is understood by it."""
    command = ("python", "-u", f"project/{program}", *flags)
    found = request("--hosts", "a:1", command=command)
    assert (found.training.save_checkpoint_path, found.batch) == (path, batch)
    for saved in (False, True):
        then = parse([*flags, *resume_flags(found.training, saved)], "", program, *PROGRAMS[program])
        assert (then.training.resume, then.training.save_checkpoint_path, then.model.interaction) == ("auto", path, interaction)


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_a_worker_of_any_program_has_said_is_no_reason_to_try_again(program):
    assert restart_reason(1, [NAN.replace("dlrm.py", program)], False) is None
    assert restart_reason(1, [OTHER.replace("dlrm.py", program)], False) == "a worker was lost"


def test_every_program_that_has_a_file_of_its_own_is_known():
    assert {f"{name}.py" for name in house.ENTRY} == set(PROGRAMS)


def test_a_run_that_writes_no_checkpoints_is_warned_of(capsys):
    request("--hosts", "a:1", command=("python", "dlrm.py", *SAVE))
    assert "a lost worker costs the whole run" in capsys.readouterr().err
    request("--hosts", "a:1", command=("python", "dlrm.py", *SAVE, "--checkpoint_every_minutes", "5"))
    assert capsys.readouterr().err == ""
    request("--hosts", "a:1", command=("python", "main.py", "--model_dir", "C"))  # saves after every epoch
    assert capsys.readouterr().err == ""


# The supervisor alone, with a program in horovodrun's place -----------------------------------------------------------------


def elastic(tmp_path, *flags, dlrm_flags, path=None, program="dlrm.py", **options):
    """Run scripts/elastic, with checkpoints in tmp_path/C; `path` is searched for horovodrun first."""
    checkpoints = ("--save_checkpoint_path", tmp_path / "C", "--checkpoint_every_steps", "20", "--log_path", tmp_path / "log.json")
    worker = (sys.executable, "-u", ROOT / program, *dlrm_flags, *checkpoints)
    before = ("env", f"PATH={path}:{os.environ['PATH']}") if path else ()
    command = (*before, sys.executable, ROOT / "scripts/elastic", "--mpi-args=--oversubscribe", *flags, "--", *worker)
    return launch(1, *command, **{"limit_s": 2 * START_S} | options)


@pytest.fixture
def stub(tmp_path):
    """Run scripts/elastic with a shell script in the place of horovodrun; it finds the checkpoints in C."""

    def run(script, *flags, during=None):
        program = tmp_path / "horovodrun"
        program.write_text(f"#!/bin/sh\ncd {tmp_path}\n{script}\n")
        program.chmod(0o755)
        return elastic(tmp_path, *flags, dlrm_flags=("--dataset_type", "synthetic", *FLAGS), path=tmp_path, during=during)

    return run


def said(result):
    return [line.removeprefix("elastic: ") for line in result.err.splitlines() if line.startswith("elastic: ")]


def test_restarts_without_progress_are_counted(stub):
    result = stub("kill -9 $$", "--hosts", "localhost:2", "--reset-limit", "1")
    assert result.code == 137
    assert said(result) == [
        "start 1: 2 workers on localhost:2, from the beginning",
        "the workers were ended by SIGKILL (code 137): restart",
        "start 2: 2 workers on localhost:2, from the beginning",
        "the workers were ended by SIGKILL (code 137); no restart: --reset-limit 1 restarts have brought no newer checkpoint",
    ]


def test_progress_ends_the_count(stub):
    step = "n=$(ls -d C/step-* 2>/dev/null | wc -l); [ $n = 3 ] && exit 0; d=C/step-0000001$n; mkdir -p $d; echo {} >$d/manifest.json; kill -9 $$"
    result = stub(step, "--hosts", "localhost:1", "--reset-limit", "0")
    assert result.code == 0, result.err
    assert "start 4: 1 worker on localhost:1, from step 12 (latest checkpoint)" in said(result)


def test_never_enough_hosts_is_one_line(stub):
    result = stub("exit 0", "--host-discovery-script", "echo localhost:1", "--min-np", "2", "--timeout", "5")
    assert result.code == 1
    assert said(result) == [
        "waiting for hosts: 1 slot found (localhost:1), 2 needed",
        "error: not enough hosts after 5 s (--timeout): 1 slot found (localhost:1), 2 needed",
    ]


# Hosts with other code -------------------------------------------------------------------------------------------------------

OTHER_CODE = "host odd has other code than this one: training/schedule.py differs; it is left out until it has the same"


@pytest.fixture
def odd(tmp_path):
    """A clone that the host `odd` has where this host has the project; ssh knows it, `even` (the same code) and `bare` (no project)."""
    double_the_learning_rate(clone(tmp_path / "odd"))
    program = tmp_path / "ssh"
    program.write_text(f"""#!/bin/sh
for host; do [ $# -le 2 ] && break; shift; done
echo "$1" >>{tmp_path}/asked
case $1 in
    odd|bare) exec sh -c "$(printf %s "$2" | sed "s#{ROOT}/dlrm.py#{tmp_path}/$1/dlrm.py#")" ;;
    even) exec sh -c "$2" ;;
    *) echo "ssh: connect to host $1 port 22: No route to host" >&2; exit 255 ;;
esac
""")
    program.chmod(0o755)
    return tmp_path / "odd"


def test_a_host_with_other_code_is_left_out(stub, odd):
    result = stub('echo "$@" >words', "--hosts", "odd:2,localhost:1,even:1,bare:1,gone:1", "--ssh-port", "2222")
    assert result.code == 0, result.err
    assert set(said(result)[:-2]) == {
        OTHER_CODE,
        f"host bare has other code than this one: there is no {ROOT / 'dlrm.py'}; it is left out until it has the same",
    }
    # What cannot be asked is left to horovodrun, and to the workers.
    assert said(result)[-2] == "start 1: 3 workers on localhost:1,even:1,gone:1, from the beginning"


def test_too_few_hosts_have_the_code(stub, odd):
    result = stub("exit 0", "--hosts", "odd:1,localhost:1", "--min-np", "2", "--timeout", "2")
    assert result.code == 1
    assert said(result) == [
        OTHER_CODE,
        "waiting for hosts: 1 slot found (localhost:1), 2 needed",
        "error: not enough hosts after 2 s (--timeout): 1 slot found (localhost:1), 2 needed",
    ]


def test_a_host_that_joins_with_other_code_disturbs_no_training_until_it_has_the_same(stub, odd, tmp_path):
    """The workers are asked to stop when the clone is brought up to date, and not before."""
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:1\n")
    path = odd / "training/schedule.py"

    def during(running):
        wait_for((tmp_path / "up").exists, "a start")
        hosts.write_text("localhost:1\nodd:1\n")
        wait_for(lambda: (tmp_path / "asked").exists(), "a question")
        looks = len((tmp_path / "looks").read_text())
        wait_for(lambda: len((tmp_path / "looks").read_text()) > looks + 2, "two more looks")
        assert not (tmp_path / "stopped").exists()
        path.write_text((ROOT / "training/schedule.py").read_text())
        running.end_within(120)

    (tmp_path / "dlrm.py").write_text(
        f"import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: (open('{tmp_path}/stopped', 'w'), sys.exit(143)))\n"
        f"open('{tmp_path}/up', 'w')\ntime.sleep(1000)\n"
    )
    worker = f"[ -e stopped ] && exit 0; export OMPI_COMM_WORLD_RANK=0; exec {sys.executable} {tmp_path}/dlrm.py"
    result = stub(worker, "--host-discovery-script", f"printf x >>{tmp_path}/looks; cat {hosts}", during=during)
    assert result.code == 0, result.err
    assert said(result)[:-1] == [
        "start 1: 1 worker on localhost:1, from the beginning",
        OTHER_CODE,
        "host odd has the same code now",
        "the hosts have changed: the workers finish a step and save",
        "the hosts have changed (code 143): restart",
        "start 2: 2 workers on localhost:1,odd:1, from the beginning",
    ]


def test_ctrl_c_ends_the_wait_for_hosts(stub, tmp_path):
    def during(running):
        wait_for((tmp_path / "asked").exists, "a look at the hosts")
        time.sleep(0.5)
        running.process.send_signal(signal.SIGINT)
        running.end_within(60)

    result = stub("exit 0", "--host-discovery-script", f"touch {tmp_path / 'asked'}", during=during)
    assert result.code == 130
    assert said(result)[-1] == "error: stopped by SIGINT while no worker ran; to go on, run the same command"


@pytest.mark.parametrize("hangs", ["at the first call", "while workers run"])
def test_sigterm_is_obeyed_while_the_discovery_script_hangs(stub, tmp_path, hangs):
    script = f"[ -e {tmp_path}/up ] || {{ echo localhost:1; exit; }}; touch {tmp_path}/asked; sleep 1000"
    if hangs == "at the first call":
        (tmp_path / "up").touch()

    def during(running):
        wait_for((tmp_path / "asked").exists, "the script hangs", 120)
        running.process.send_signal(signal.SIGTERM)
        wait_for(
            lambda: (tmp_path / "stopped").exists() or running.process.poll() is not None, "the signal is heard", 40
        )  # not when the script's minute is over
        running.end_within(120)

    # The stand-in's own worker, which the supervisor finds by its command and environment.
    worker = f"touch {tmp_path}/up; export OMPI_COMM_WORLD_RANK=0; exec {sys.executable} {tmp_path}/dlrm.py"
    (tmp_path / "dlrm.py").write_text(
        f"import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: (open('{tmp_path}/stopped', 'w'), sys.exit(143)))\ntime.sleep(1000)\n"
    )
    result = stub(worker, "--host-discovery-script", script, during=during)
    assert result.code == 143
    assert said(result)[-1].startswith("error: stopped by SIGTERM while " + ("no worker ran" if hangs == "at the first call" else "training"))


def test_a_closed_terminal_is_no_second_signal(stub, tmp_path):
    def during(running):
        wait_for((tmp_path / "up").exists, "a start")
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM):
            running.process.send_signal(number)
            time.sleep(0.3)
        (tmp_path / "thrice").touch()
        running.end_within(60)

    program = f"""
import os, signal, sys, time
def stop(number, frame):
    while not os.path.exists("{tmp_path}/thrice"):
        time.sleep(0.05)
    sys.exit(129)
signal.signal(signal.SIGTERM, stop)
open("{tmp_path}/up", "w")
time.sleep(1000)
"""
    (tmp_path / "dlrm.py").write_text(program)
    worker = f"export OMPI_COMM_WORLD_RANK=0; exec {sys.executable} {tmp_path}/dlrm.py"
    result = stub(worker, "--hosts", "localhost:1", during=during)
    assert "ending all at once" not in said(result)
    assert said(result)[-1].startswith("error: stopped by SIGTERM while training")


def test_a_second_signal_ends_all_at_once(stub, tmp_path):
    def during(running):
        wait_for((tmp_path / "up").exists, "a start")
        running.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        running.process.send_signal(signal.SIGTERM)
        running.end_within(60)

    result = stub("touch up; setsid sleep 1000 & sleep 1000", "--hosts", "localhost:1", during=during)
    assert result.code == 143
    assert said(result)[-1] == "error: stopped by SIGTERM while training; nothing is saved; to go on, run the same command"


def test_a_supervisor_that_is_killed_leaves_nothing_behind(stub, tmp_path):
    def during(running):
        wait_for((tmp_path / "up").exists, "a start")
        running.process.kill()
        wait_for(lambda: not processes(running.mark), "the guard ends all", 60)

    assert stub("touch up; sleep 1000 & sleep 1000", "--hosts", "localhost:1", during=during).code == -signal.SIGKILL


# Real workers ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("elastic") / "dataset", {"train": 4800, "test": 100})


def training(data, epochs):
    return ("--dataset_path", data, *FLAGS, "--epochs", epochs, "--evals_per_epoch", "0", "--print_freq", "10")


def wide_and_deep(data, epochs):
    sizes = ("--global_batch_size", BATCH, "--eval_batch_size", "96", "--deep_hidden_units", "16", "--embedding_dim", DIM)
    length = ("--num_epochs", epochs, "--deep_warmup_epochs", "1", "--evals_per_epoch", "0", "--print_freq", "10")
    return ("--dataset_path", data, "--cpu", *sizes, "--gradient_slices", "8", "--nocheckpoint_every_epoch", *length)


def contents(path):
    checkpoint = Checkpoint(path)
    return {name: checkpoint.read(name) for name in checkpoint.names("")}


@pytest.mark.parametrize(("program", "flags"), [("dlrm.py", training), ("main.py", wide_and_deep)])
def test_a_lost_worker_and_its_slot_change_no_bit_of_the_result(data, tmp_path, program, flags):
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:2\n")

    def during(running):
        wait_for(lambda: "step 10/" in running.out, "ten steps", START_S)
        worker = running.worker(1)  # a look at all processes takes some steps
        wait_for(lambda: (saved_step(tmp_path / "C") or 0) >= 20, "a checkpoint", START_S)
        hosts.write_text("localhost:1\n")
        os.kill(worker, signal.SIGKILL)

    result = elastic(tmp_path, "--host-discovery-script", f"cat {hosts}", program=program, dlrm_flags=flags(data, 6), during=during)
    assert result.code == 0, result.err
    noticed = "the hosts have changed: the workers finish a step and save"  # only where the job takes long to end
    lines = [line for line in said(result) if line != noticed]
    assert lines[:2] == ["start 1: 2 workers on localhost:2, from the beginning", "the hosts have changed (code 137): restart"]
    origin = re.fullmatch(r"start 2: 1 worker on localhost:1, from step (\d+) \(latest checkpoint\)", lines[2])
    assert 20 <= int(origin[1]) < 600 and int(origin[1]) % 20 == 0
    assert lines[3:] == ["training is complete: step 600"]
    unbroken = (*flags(data, 6), "--save_checkpoint_path", tmp_path / "whole", "--log_path", "")
    whole = launch(1, sys.executable, ROOT / program, *unbroken)
    assert whole.code == 0, whole.err
    found, expected = contents(tmp_path / "C"), contents(tmp_path / "whole")
    assert found.keys() == expected.keys() and any(name.startswith("optimizer/") for name in found)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_a_user_error_is_not_tried_again(data, tmp_path):
    result = elastic(tmp_path, "--hosts", "localhost:1", dlrm_flags=training(data / "nope", 3))
    assert result.code == 1
    assert len(result.errors) == 1 and "nope/feature_spec.yaml: no such file" in result.errors[0]
    assert said(result)[1:] == ["the workers ended with code 1, and would again: no restart"]


def test_more_hosts_are_taken_in_and_sigterm_ends_with_a_checkpoint(data, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:1\n")

    def during(running):
        wait_for(lambda: "step 10/" in running.out, "ten steps", START_S)
        hosts.write_text("localhost:2\n")
        wait_for(lambda: "train on 2 workers" in running.out, "the second start", START_S)
        steps = running.out.count(": loss ")
        wait_for(lambda: running.out.count(": loss ") > steps + 2, "steps of two workers", START_S)
        running.process.send_signal(signal.SIGTERM)
        running.end_within(120)

    result = elastic(tmp_path, "--host-discovery-script", f"cat {hosts}", dlrm_flags=training(data, 100000), during=during)
    assert result.code == 143
    lines, step = said(result), saved_step(tmp_path / "C")
    assert lines[1:3] == ["the hosts have changed: the workers finish a step and save", "the hosts have changed (code 143): restart"]
    assert re.fullmatch(r"start 2: 2 workers on localhost:2, from step \d+ \(latest checkpoint\)", lines[3])
    assert lines[-1] == f"error: stopped by SIGTERM while training; step {step} is saved in {tmp_path / 'C'}; to go on, run the same command"
    assert f"stopped by SIGTERM after step {step}, which is saved" in result.err
    assert "Traceback" not in result.err
