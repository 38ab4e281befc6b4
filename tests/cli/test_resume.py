"""Tests that an interrupted and resumed run ends with the same bits as a run that was never interrupted."""

import functools
import signal
import sys

import numpy as np
import pytest
from runs import ROOT, TRAIN, here

from tests.children import child
from utils.checkpoint.reading import Checkpoint

RUN = (*TRAIN, "--epochs", "2", "--shuffle_batch_order")  # 16 batches an epoch, the last one partial


def contents(path):
    checkpoint = Checkpoint(path)
    return {name: checkpoint.read(name) for name in checkpoint.names("")}


def assert_same(one, other):
    one, other = contents(one), contents(other)
    assert one.keys() == other.keys()
    assert any(name.startswith("optimizer/") for name in one) or not any(name.endswith("momentum") for name in one)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], name)


def steps(folder):
    return sorted(entry.name for entry in folder.iterdir())


@pytest.fixture(scope="module")
def unbroken(dataset, tmp_path_factory):
    """Return a function that trains without an interruption, once for each optimizer; it returns the flags, the checkpoints and the Result."""

    @functools.cache
    def of(optimizer):
        folder = tmp_path_factory.mktemp("whole")
        flags = ("--dataset_path", dataset, *RUN, "--optimizer", optimizer, "--evals_per_epoch", "2")
        return flags, folder / "c", here(folder, *flags, "--save_checkpoint_path", folder / "c")

    return of


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
@pytest.mark.parametrize("cut", [5, 16, 21])  # within the first epoch, at its end, within the second
def test_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(run, unbroken, tmp_path, optimizer, cut):
    flags, folder, whole = unbroken(optimizer)
    assert run(*flags, "--save_checkpoint_path", tmp_path / "cut", "--max_steps", cut).code == 0
    resumed = run(*flags, "--save_checkpoint_path", tmp_path / "cut", "--restore_checkpoint_path", tmp_path / "cut")
    assert f"step {cut}" in resumed.out
    assert_same(folder, tmp_path / "cut")
    for figure in ("auc", "best_auc", "validation_loss", "samples", "steps"):
        assert resumed.final[figure] == whole.final[figure]


@pytest.mark.parametrize(
    "flags",
    [
        ("--optimizer", "rowwise_adagrad"),
        ("--optimizer", "ftrl", "--warmup_steps", "3"),
        ("--optimizer", "rmsprop", "--xla"),
        ("--optimizer", "sgd", "--momentum", "0.9"),
        ("--optimizer", "adam", "--amp", "--amp_dtype", "float16", "--loss_scale", "dynamic"),
        ("--optimizer", "adam", "--embedding_optimizer", "rowwise_adagrad", "--embedding_learning_rate", "0.5"),
    ],
    ids=lambda flags: "-".join(flags[1::2]),
)
def test_every_optimizer_resumes_exactly_and_inherits_its_flags(run, dataset, tmp_path, flags):
    common = ("--dataset_path", dataset, *RUN)
    assert run(*common, *flags, "--save_checkpoint_path", tmp_path / "whole").code == 0
    assert run(*common, *flags, "--save_checkpoint_path", tmp_path / "cut", "--max_steps", "9").code == 0
    resumed = run("--dataset_path", dataset, "--cpu", "--resume", "auto", "--save_checkpoint_path", tmp_path / "cut")
    assert resumed.code == 0, resumed.err
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_other_optimizer_of_the_tables_is_rejected(run, dataset, tmp_path):
    common = ("--dataset_path", dataset, *RUN, "--save_checkpoint_path", tmp_path / "c")
    assert run(*common, "--optimizer", "sgd", "--momentum", "0.5", "--max_steps", "3").code == 0
    for flags, words in (
        (("--embedding_optimizer", "adam"), "its run had embedding_optimizer momentum, this one has adam"),
        (("--momentum", "0"), "its run had optimizer momentum, this one has sgd"),
    ):
        refused = run(*common, "--optimizer", "sgd", *flags, "--resume", "auto")
        assert refused.code == 1 and words in refused.err and len(refused.err.splitlines()) == 1


def test_checkpoint_every_steps_and_keep_checkpoints(run, dataset, tmp_path):
    flags = ("--dataset_path", dataset, *RUN, "--checkpoint_every_steps", "6", "--keep_checkpoints", "2")
    assert run(*flags, "--save_checkpoint_path", tmp_path / "c").code == 0
    assert steps(tmp_path / "c") == ["latest", "step-00000030", "step-00000032"]
    assert run(*flags, "--save_checkpoint_path", tmp_path / "d", "--restore_checkpoint_path", tmp_path / "c/step-00000030").code == 0
    assert_same(tmp_path / "c", tmp_path / "d")


def test_checkpoint_every_minutes(run, dataset, tmp_path):
    flags = ("--dataset_path", dataset, *RUN, "--checkpoint_every_minutes", "1e-9", "--keep_checkpoints", "100")
    assert run(*flags, "--save_checkpoint_path", tmp_path / "c").code == 0
    assert len(steps(tmp_path / "c")) > 10


def test_best_checkpoint_is_kept_beside_the_newest(run, dataset, tmp_path):
    flags = ("--dataset_path", dataset, *RUN, "--evals_per_epoch", "8", "--keep_checkpoints", "1", "--keep_best_checkpoint", "--learning_rate", "0.1")
    result = run(*flags, "--save_checkpoint_path", tmp_path / "c")
    best = tmp_path / "c" / (tmp_path / "c/best").read_text().strip()
    assert Checkpoint(best).manifest["position"]["best_auc"] == result.final["best_auc"]
    assert len([name for name in steps(tmp_path / "c") if name.startswith("step-")]) <= 2


def test_resume_auto_starts_a_new_run_and_then_continues_it(run, dataset, tmp_path):
    flags = ("--dataset_path", dataset, *RUN, "--save_checkpoint_path", tmp_path / "c", "--resume", "auto")
    first = run(*flags, "--max_steps", "3")
    assert first.code == 0 and "resuming" not in first.out
    second = run(*flags)
    assert "resuming at epoch 0, batch 3, step 3" in second.out
    assert second.final["steps"] == 32


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batch_size", "128"], "its run had batch_size 256, this one has 128"),
        (["--seed", "9"], "its run had seed 0, this one has 9"),
        (["--optimizer", "sgd"], "its run had optimizer adam, this one has sgd"),
        (["--shuffle_batch_order"], "its run had shuffle_batch_order False, this one has True"),
        (["--shuffle_window", "4"], "its run had shuffle_window None, this one has 4"),
    ],
)
def test_flags_that_prevent_an_exact_resume_are_rejected(run, trained, dataset, flags, message):
    result = run("--dataset_path", dataset, *TRAIN, *flags, "--restore_checkpoint_path", trained[0])
    assert result.code == 1
    assert message in result.err and "--resume weights" in result.err
    assert "Traceback" not in result.err


def test_resume_auto_needs_save_checkpoint_path(run, dataset):
    result = run("--dataset_path", dataset, *TRAIN, "--resume", "auto")
    assert result.code == 1 and "--resume auto needs --save_checkpoint_path" in result.err


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_finishes_the_step_saves_and_names_the_resume_command(run, dataset, tmp_path, signum, code):
    flags = ["--dataset_path", str(dataset), *TRAIN, "--epochs", "500", "--evals_per_epoch", "0", "--print_freq", "1", "--log_path", ""]
    command = [sys.executable, "-u", str(ROOT / "dlrm.py"), *flags, "--save_checkpoint_path", str(tmp_path / "c")]
    with child(command, cwd=tmp_path) as process:
        for line in process.stdout:
            if "step 20/" in line:
                process.send_signal(signum)
                break
        _, err = process.communicate(timeout=60)
    assert process.returncode == code
    step = Checkpoint(tmp_path / "c").step
    assert step >= 20
    assert f"stopped by {signum.name} after step {step}, which is saved; to resume, run the same command with" in err
    assert "Traceback" not in err
    epochs = str(step // 16 + 1)
    assert run(*flags[:-2], "--epochs", epochs, "--restore_checkpoint_path", tmp_path / "c").final["steps"] == int(epochs) * 16


def test_a_second_signal_ends_at_once(dataset, tmp_path):
    flags = ["--dataset_path", str(dataset), *TRAIN, "--epochs", "500", "--print_freq", "1", "--log_path", ""]
    command = [sys.executable, "-u", str(ROOT / "dlrm.py"), *flags]
    with child(command, cwd=tmp_path) as process:
        for line in process.stdout:
            if "step 5/" in line:
                break
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):  # both signals arrive before the process can finish a step
            process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 143 and err == ""  # only one signal is reported to have stopped it
