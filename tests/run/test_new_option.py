"""Tests that a new flag needs changes in two places only, its option and its reader; all else follows from the option."""

import os
import subprocess
import sys

import pytest

from tests.clones import clone

OPTION = '    halved: float = option(1.0, "what is halved", modes=(TRAIN,), resume=INHERIT, pytorch=("halves",), needs="mlp_l2", unit="parts", '
OPTION += 'bounds=Bounds("0 or more", 0))\n'
READER = '    print(f"halved is {options.halved}", flush=True)\n'
SIZE = "--cpu --dataset_type synthetic --synthetic_dataset_cardinalities 9,9 --embedding_dim 4 --bottom_mlp_dims 4 --top_mlp_dims 1 --batch_size 32"
SHORT = f"{SIZE} --valid_batch_size 32 --synthetic_dataset_train_batches 4 --synthetic_dataset_valid_batches 1 --log_path=".split()


def added(text, before, line):
    assert text.count(before) == 1
    return text.replace(before, line + before)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Return a copy of the program with one more flag."""
    folder = clone(tmp_path_factory.mktemp("flag") / "program")
    for name, before, line in (
        ("utils/config/learning.py", "    dropout: float = option(", OPTION),
        ("training/build.py", "    return Regularisation(of_vectors", READER),
    ):
        path = folder / name
        path.write_text(added(path.read_text(), before, line))
    return folder


@pytest.fixture
def run(program):
    def run(*words):
        done = subprocess.run(
            [sys.executable, *map(str, words)], cwd=program, env=os.environ | {"COLUMNS": "500"}, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    return run


def test_option_is_in_the_help_and_in_warnings(run):
    said, _ = run("dlrm.py", "--help")
    assert "--halved X" in said and "what is halved (parts; default: 1.0; only with --mode train)" in said
    _, said = run("dlrm.py", *SHORT, "--halved", "0.5", "--max_steps", "1")
    assert "--halved has no effect without --mlp_l2" not in said  # --mlp_l2 has a default value, 0
    code = "from utils.config.ineffective import warnings; from utils.dialects.command_line import parse; print(warnings(parse(['--mode', 'eval', "
    said, _ = run("-c", code + "'--dataset_path', 'd', '--halved', '2'], '')))")
    assert "--halved has no effect with --mode eval" in said


def test_value_reaches_its_reader_from_every_source_and_a_resumed_run(run, tmp_path):
    folder = tmp_path / "checkpoints"
    said, lines = run("dlrm.py", *SHORT, "--halves", "0.5", "--max_steps", "2", "--save_checkpoint_path", folder)
    assert "halved is 0.5\n" in said and "--halves is --halved here" in lines
    (tmp_path / "flags.yaml").write_text("halved: 0.25\n")
    said, _ = run("dlrm.py", *SHORT, "--config", tmp_path / "flags.yaml", "--max_steps", "1")
    assert "halved is 0.25\n" in said
    pairs = [word.removeprefix("--") for word in SHORT if word not in ("--cpu", "--log_path=")]
    flags = dict(zip(pairs[::2], pairs[1::2], strict=True)) | {"max_steps": 3, "restore_checkpoint_path": str(folder), "cpu": True, "log_path": ""}
    said, _ = run("-c", f"import dlrm; flags = {flags}; dlrm.train(halved=0.125, **flags | {{'resume': 'weights'}}); dlrm.train(**flags)")
    given, resumed = (line for line in said.splitlines() if line.startswith("halved is"))
    assert (given, resumed) == ("halved is 0.125", "halved is 0.5")
    assert "taken over from the checkpoint" in said and "halved 0.5" in said
