"""Tests of scripts/elastic: the choice of workers, their restarts, and that only the steps since the last checkpoint are lost."""

import os
import re
import signal
import sys
import time

import numpy as np
import pytest
from launching import ROOT, launch, processes, wait_for
from small_data import BATCH, DIM, FLAGS, write_dataset

from run.elastic.request import saved_step
from tests.clones import clone, double_the_learning_rate
from tests.distributed.resident import do_in_turn
from utils.checkpoint.reading import Checkpoint

START_S = 240  # limit for the start and some steps; they take ten seconds on an idle machine

# The supervisor alone, with a stub for horovodrun ---------------------------------------------------------------------------


def elastic(tmp_path, *flags, dlrm_flags, path=None, program="dlrm.py", **options):
    """Run scripts/elastic with checkpoints in tmp_path/C; horovodrun is looked up in `path` first."""
    checkpoints = ("--save_checkpoint_path", tmp_path / "C", "--checkpoint_every_steps", "20", "--log_path", tmp_path / "log.json")
    worker = (sys.executable, "-u", ROOT / program, *dlrm_flags, *checkpoints)
    before = ("env", f"PATH={path}:{os.environ['PATH']}") if path else ()
    command = (*before, sys.executable, ROOT / "scripts/elastic", "--mpi-args=--oversubscribe", *flags, "--", *worker)
    return launch(1, *command, **{"limit_s": 2 * START_S} | options)


@pytest.fixture
def stub(tmp_path):
    """Return a function that runs scripts/elastic with a shell script in place of horovodrun; the script finds the checkpoints in C."""

    def run(script, *flags, during=None):
        program = tmp_path / "horovodrun"
        program.write_text(f"#!/bin/sh\ncd {tmp_path}\n{script}\n")
        program.chmod(0o755)
        return elastic(tmp_path, *flags, dlrm_flags=("--dataset_type", "synthetic", *FLAGS), path=tmp_path, during=during)

    return run


def said(result):
    return [line.removeprefix("elastic: ") for line in result.err.splitlines() if line.startswith("elastic: ")]


@pytest.mark.parametrize("program", ["dlrm.py", "dcnv2.py", "wide_and_deep.py", "main.py"])
def test_every_program_is_started(tmp_path, program):
    horovodrun = tmp_path / "horovodrun"
    horovodrun.write_text("#!/bin/sh\nexit 0\n")
    horovodrun.chmod(0o755)
    result = elastic(tmp_path, "--hosts", "localhost:2", program=program, dlrm_flags=("--dataset_type", "synthetic"), path=tmp_path)
    assert result.code == 0, result.err
    assert said(result)[0] == "start 1: 2 workers on localhost:2, from the beginning"


def test_restarts_without_progress_are_counted(stub):
    result = stub("kill -9 $$", "--hosts", "localhost:2", "--reset-limit", "1")
    assert result.code == 137
    assert said(result) == [
        "start 1: 2 workers on localhost:2, from the beginning",
        "the workers were ended by SIGKILL (code 137): restart",
        "start 2: 2 workers on localhost:2, from the beginning",
        "the workers were ended by SIGKILL (code 137); no restart: --reset-limit 1 restarts have brought no newer checkpoint",
    ]


def test_progress_resets_the_count(stub):
    step = "n=$(ls -d C/step-* 2>/dev/null | wc -l); [ $n = 3 ] && exit 0; d=C/step-0000001$n; mkdir -p $d; echo {} >$d/manifest.json; kill -9 $$"
    result = stub(step, "--hosts", "localhost:1", "--reset-limit", "0")
    assert result.code == 0, result.err
    assert "start 4: 1 worker on localhost:1, from step 12 (latest checkpoint)" in said(result)


def test_too_few_hosts_is_one_line_error(stub):
    result = stub("exit 0", "--host-discovery-script", "echo localhost:1", "--min-np", "2", "--timeout", "5")
    assert result.code == 1
    assert said(result) == [
        "waiting for hosts: 1 slot found (localhost:1), 2 needed",
        "error: not enough hosts after 5 s (--timeout): 1 slot found (localhost:1), 2 needed",
    ]


# Hosts with other code -------------------------------------------------------------------------------------------------------

OTHER_CODE = "host odd has other code than this host: training/schedule.py differs; it is left out until its code is the same"


@pytest.fixture
def odd(tmp_path):
    """Clone the project with other code for the host `odd`; return the clone.

    A stub of ssh knows the hosts `odd`, `even` (the same code) and `bare` (no project).
    """
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
        f"host bare has other code than this host: {ROOT / 'dlrm.py'} is missing; it is left out until its code is the same",
    }
    # A host that ssh cannot reach is kept: horovodrun or the workers report it.
    assert said(result)[-2] == "start 1: 3 workers on localhost:1,even:1,gone:1, from the beginning"


def test_too_few_hosts_have_the_code(stub, odd):
    result = stub("exit 0", "--hosts", "odd:1,localhost:1", "--min-np", "2", "--timeout", "2")
    assert result.code == 1
    first, *waiting, last = said(result)
    assert first == OTHER_CODE and last == "error: not enough hosts after 2 s (--timeout): 1 slot found (localhost:1), 2 needed"
    assert waiting in ([], ["waiting for hosts: 1 slot found (localhost:1), 2 needed"])  # none where a look at the hosts took all the time


@pytest.mark.costly("waits until the joining host has been looked at")
def test_joining_host_with_other_code_does_not_interrupt_training(stub, odd, tmp_path):
    """The workers are asked to stop when the new host's code becomes the same, and not before."""
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
    assert said(result)[-1] == "error: stopped by SIGINT while no worker ran; to resume, run the same command"


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
        )  # before the discovery script's time limit of a minute ends
        running.end_within(120)

    # The stub's worker; the supervisor finds it by its command and environment.
    worker = f"touch {tmp_path}/up; export OMPI_COMM_WORLD_RANK=0; exec {sys.executable} {tmp_path}/dlrm.py"
    (tmp_path / "dlrm.py").write_text(
        f"import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: (open('{tmp_path}/stopped', 'w'), sys.exit(143)))\ntime.sleep(1000)\n"
    )
    result = stub(worker, "--host-discovery-script", script, during=during)
    assert result.code == 143
    assert said(result)[-1].startswith("error: stopped by SIGTERM while " + ("no worker ran" if hangs == "at the first call" else "training"))


def test_closed_terminal_is_not_a_second_signal(stub, tmp_path):
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


def test_second_signal_ends_all_workers_at_once(stub, tmp_path):
    def during(running):
        wait_for((tmp_path / "up").exists, "a start")
        running.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        running.process.send_signal(signal.SIGTERM)
        running.end_within(60)

    result = stub("touch up; setsid sleep 1000 & sleep 1000", "--hosts", "localhost:1", during=during)
    assert result.code == 143
    assert said(result)[-1] == "error: stopped by SIGTERM while training; nothing is saved; to resume, run the same command"


def test_killed_supervisor_leaves_no_process(stub, tmp_path):
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


@pytest.mark.costly("three starts of real workers by scripts/elastic")
@pytest.mark.parametrize(("program", "flags"), [("dlrm.py", training), ("main.py", wide_and_deep)])
def test_a_lost_worker_and_its_slot_change_no_bit_of_the_result(data, tmp_path, program, flags):
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:2\n")

    def during(running):
        wait_for(lambda: "step 10/" in running.out, "ten steps", START_S)
        worker = running.worker(1)  # before the checkpoint: searching all processes takes the time of some steps
        wait_for(lambda: (saved_step(tmp_path / "C") or 0) >= 20, "a checkpoint", START_S)
        hosts.write_text("localhost:1\n")
        os.kill(worker, signal.SIGKILL)

    result = elastic(tmp_path, "--host-discovery-script", f"cat {hosts}", program=program, dlrm_flags=flags(data, 6), during=during)
    assert result.code == 0, result.err
    noticed = "the hosts have changed: the workers finish a step and save"  # printed only if the job takes long to end
    lines = [line for line in said(result) if line != noticed]
    assert lines[:2] == ["start 1: 2 workers on localhost:2, from the beginning", "the hosts have changed (code 137): restart"]
    origin = re.fullmatch(r"start 2: 1 worker on localhost:1, from step (\d+) \(latest checkpoint\)", lines[2])
    assert 20 <= int(origin[1]) < 600 and int(origin[1]) % 20 == 0
    assert lines[3:] == ["training is complete: step 600"]
    unbroken = (*flags(data, 6), "--save_checkpoint_path", tmp_path / "whole", "--log_path", "")
    whole = do_in_turn(1, [unbroken], ROOT / program)
    assert whole.code == 0, whole.err
    found, expected = contents(tmp_path / "C"), contents(tmp_path / "whole")
    assert found.keys() == expected.keys() and any(name.startswith("optimizer/") for name in found)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_user_error_is_not_retried(data, tmp_path):
    result = elastic(tmp_path, "--hosts", "localhost:1", dlrm_flags=training(data / "nope", 3))
    assert result.code == 1
    assert len(result.errors) == 1 and "nope/feature_spec.yaml: no such file" in result.errors[0]
    assert said(result)[1:] == ["the workers ended with code 1, and would fail again: no restart"]


@pytest.mark.costly("two starts of real workers by scripts/elastic")
def test_more_hosts_join_and_sigterm_ends_with_a_checkpoint(data, tmp_path):
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
    assert lines[-1] == f"error: stopped by SIGTERM while training; step {step} is saved in {tmp_path / 'C'}; to resume, run the same command"
    assert f"stopped by SIGTERM after step {step}, which is saved" in result.err
    assert "Traceback" not in result.err
