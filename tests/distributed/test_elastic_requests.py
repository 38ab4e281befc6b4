"""Tests of the flags of scripts/elastic and of its decisions, value by value."""

import pytest

from run.elastic.allotment import allot, choose, smallest
from run.elastic.diagnosis import restart_reason
from run.elastic.request import Request, resume_flags
from scripts import house
from utils.dialects.command_line import parse
from utils.dialects.programs import PROGRAMS
from utils.errors import UserError


@pytest.mark.parametrize(
    ("slots", "minimum", "maximum", "batch", "workers"),
    [
        (4, 1, 4, 48, 4),
        (5, 1, 8, 48, 4),  # 5 does not divide 48 samples
        (7, 1, None, 48, 6),
        (100, 1, None, 48, 48),
        (8, 1, 3, 48, 3),
        (3, 4, 8, 48, None),  # too few
        (5, 5, 8, 48, None),  # enough slots, but no number of workers in [5, 8] that fits them divides 48
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
        (137, [], False, "the workers were ended by SIGKILL"),  # mpirun itself was killed
        (143, [STOPPED], False, "the workers were ended by SIGTERM"),  # one worker got the signal and all stopped; the supervisor got no signal
        (205, [LOST_HOST], False, "a host was lost"),
        (255, ["ORTE was unable to reliably start one or more daemons."], False, "a host could not be reached"),
        (1, ["Traceback (most recent call last):", "RuntimeError: could not connect to some hosts via ssh"], False, "a host could not be reached"),
        (1, [OTHER], False, "a worker was lost"),
        (137, [GONE], False, "the workers were ended by SIGKILL"),  # horovodrun was killed
        (143, [GONE.replace("stopped because ", "")], False, "the workers were ended by SIGTERM"),
        (1, [NAN], False, None),
        (1, [NAN], True, "the hosts have changed"),
        (1, [NAN, OTHER], False, None),
        (137, [NAN, KILLED.format("9 (Killed)")], False, None),
        (1, [DEFECT, OTHER], False, None),
        (1, [], False, None),
        (2, ["horovodrun: error: unrecognized arguments"], False, None),
        (134, ["mpirun was unable to find the specified executable file"], False, None),
        (213, [], False, None),  # an exit code of mpirun's own, not 128 + a signal
    ],
)
def test_restart_reasons(code, lines, changed, reason):
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
def test_resume_flags_before_and_after_the_first_checkpoint(flags, begin, go_on):
    options = parse([*SAVE, *flags], "").training
    assert resume_flags(options, saved=False) == begin
    assert resume_flags(options, saved=True) == go_on
    then = parse([*SAVE, *flags, *go_on], "").training
    assert (then.restore_checkpoint_path in (None, "C"), then.resume, then.allow_growth) == (True, "auto", False)


def request(*flags, command=("python", "dlrm.py", *SAVE, "--checkpoint_every_steps", "5")):
    return Request.parse([*flags, "--", *command])


def test_request_is_parsed():
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
            "no number of workers from 3 to 3 divides the batch sizes evenly; expected a divisor of 65536",
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
        (("python", "train.py"), "a command that runs dlrm.py, dcnv2.py, fm.py, deepfm.py, finalmlp.py, wide_and_deep.py or main.py"),
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
def test_every_program_that_trains_is_accepted(program, flags, path, interaction, batch):
    """Each program's command is read with its own defaults and flags, and each program understands the flags that elastic adds."""
    command = ("python", "-u", f"project/{program}", *flags)
    found = request("--hosts", "a:1", command=command)
    assert (found.training.save_checkpoint_path, found.batch) == (path, batch)
    for saved in (False, True):
        then = parse([*flags, *resume_flags(found.training, saved)], "", program, *PROGRAMS[program])
        assert (then.training.resume, then.training.save_checkpoint_path, then.model.interaction) == ("auto", path, interaction)


@pytest.mark.parametrize("program", PROGRAMS)
def test_error_of_any_programs_worker_prevents_a_restart(program):
    assert restart_reason(1, [NAN.replace("dlrm.py", program)], False) is None
    assert restart_reason(1, [OTHER.replace("dlrm.py", program)], False) == "a worker was lost"


def test_every_entry_program_is_known():
    assert {f"{name}.py" for name in house.ENTRY} == set(PROGRAMS)


def test_run_without_checkpoints_gives_a_warning(capsys):
    request("--hosts", "a:1", command=("python", "dlrm.py", *SAVE))
    named = "--checkpoint_every_steps, --checkpoint_every_minutes or --checkpoint_every_epoch"
    assert capsys.readouterr().err == f"elastic: warning: without {named}, a lost worker costs the whole run\n"
    request("--hosts", "a:1", command=("python", "dlrm.py", *SAVE, "--checkpoint_every_minutes", "5"))
    assert capsys.readouterr().err == ""
    request("--hosts", "a:1", command=("python", "dlrm.py", *SAVE, "--checkpoint_every_epoch"))
    assert capsys.readouterr().err == ""
    request("--hosts", "a:1", command=("python", "main.py", "--model_dir", "C"))  # saves after every epoch
    assert capsys.readouterr().err == ""
