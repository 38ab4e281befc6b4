"""Tests of paths that are not UTF-8: every command gives one line of error, before it reads or writes anything."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dlrm
from utils.errors import UserError

ROOT = Path(__file__).parents[2]
ODD = "\udcff\udce9"  # the bytes ff e9
SHOWN = r"\xff\xe9"


def start(*words, folder, variables=()):
    """Run a command in a folder; return its exit code, its standard error and the names then in the folder."""
    words = [sys.executable, *(ROOT / word if word in ("dlrm.py", "wide_and_deep.py", "scripts/elastic") else word for word in words)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | dict(variables)
    result = subprocess.run(list(map(str, words)), cwd=folder, env=environment, capture_output=True, text=True, errors="replace", timeout=240)
    return result.returncode, result.stderr, sorted(os.listdir(folder))


@pytest.mark.parametrize(
    "words",
    [
        ("dlrm.py", "--dataset_type", "synthetic", "--save_checkpoint_path", ODD),
        ("dlrm.py", "--dataset_path", "D", f"--log_path={ODD}/log.json"),
        ("dlrm.py", "--mode", "export", "--restore_checkpoint_path", "C", "--export_path", ODD),
        ("dlrm.py", "--mode", "plan", "--feature_spec", ODD),
        ("wide_and_deep.py", "--model_dir", ODD),
        ("scripts/elastic", "--hosts", "a", "--", "python", "dlrm.py", "--dataset_path", "D", "--save_checkpoint_path", ODD),
        ("-m", "preproc.table", "--train", "t.csv", "--test_fraction", "0.1", "--dst", ODD),
        ("-m", "preproc.table", "--train", "*.txt", "--test_fraction", "0.1", "--dst", "D", "--label", "y"),
        ("-m", "preproc.criteo", "--train", "0", "--test", "1", "--frequency_threshold", "0", "--dst", ODD),
        ("-m", "preproc.outbrain", "--src", ODD, "--dst", "D"),
        ("-m", "preproc.sample_log", "--dst", ODD),
        ("-m", "dataloading.validate", "--dataset_path", ODD),
        ("-m", "dataloading.transcribe", "--src_dataset_path", ODD, "--dst_dataset_path", "D"),
        ("-m", "dataloading.validate", "--dataset_path", "link"),
    ],
    ids=lambda words: "-".join(words[:2]),
)
def test_path_that_is_not_utf8_is_a_one_line_error_that_names_it(tmp_path, words):
    (tmp_path / ODD).mkdir()
    (tmp_path / f"{ODD}.txt").write_text("y,a\n1,x\n0,y\n")
    (tmp_path / "link").symlink_to(ODD)
    before = sorted(os.listdir(tmp_path))
    code, err, after = start(*words, folder=tmp_path)
    assert code == 1 and err.count("\n") == 1 and SHOWN in err and "is not UTF-8" in err, err
    assert after == before and not os.listdir(tmp_path / ODD)


def test_current_folder_that_is_not_utf8_is_a_one_line_error(tmp_path):
    (tmp_path / ODD).mkdir()
    code, err, after = start("-m", "preproc.table", "--train", "t.csv", "--dst", "D", folder=tmp_path / ODD)
    assert code == 1 and after == []
    assert err == f"preproc.table: error: the current folder, '{tmp_path}/{SHOWN}', is not UTF-8; start in another one\n"


@pytest.mark.parametrize("words", [("dlrm.py", "--dataset_type", "synthetic"), ("-m", "preproc.table", "--train", "ü.csv", "--dst", "D")])
def test_environment_without_utf8_file_names_is_a_one_line_error(tmp_path, words):
    """A command stops at once where Python does not encode file names as UTF-8, since files are named after features."""
    code, err, after = start(*words, folder=tmp_path, variables={"PYTHONUTF8": "0", "LC_ALL": "C"}.items())
    name = words[0] if words[0] != "-m" else words[1]
    reason = "the environment (LC_ALL, LANG, PYTHONUTF8) makes Python decode file names as ascii, not UTF-8; set PYTHONUTF8=1"
    assert (code, err, after) == (1, f"{name}: error: {reason}\n", [])


def test_locale_c_alone_is_accepted(tmp_path):
    variables = {"LC_ALL": "C", "PYTHONUTF8": ""}
    code, err, after = start("-m", "preproc.sample_log", "--dst", "ü", "--rows", "10", folder=tmp_path, variables=variables.items())
    assert code == 0 and after == ["ü"], err


@pytest.mark.parametrize("call", [lambda path: dlrm.load(path), lambda path: dlrm.load(path, mmap=True), lambda path: dlrm.train(dataset_path=path)])
def test_python_api_raises_the_same_error(trained, tmp_path, call):
    shutil.copytree(trained[0], tmp_path / ODD)
    with pytest.raises(UserError, match="is not UTF-8"):
        call(str(tmp_path / ODD))


ROWS = "y,a,b\n" + "".join(f"{row % 2},v{row % 5},w{row % 3}\n" for row in range(40))
CLICKS = "".join("\t".join([str(row % 2), *["1"] * 13, *["a"] * 26]) + "\n" for row in range(40))
MADE = ("--train", "rows.csv", "--test_fraction", "0.2", "--label", "y", "--categorical", "a,b")
LITTLE = ("--cpu", "--embedding_dim", "4", "--interaction", "cat", "--top_mlp_dims", "4,1", "--batch_size", "32", "--max_steps", "2")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Write raw files and prepare a dataset from them, with a copy of the dataset in a folder with an odd name; return the folder."""
    folder = tmp_path_factory.mktemp("odd")
    (folder / "rows.csv").write_text(ROWS)
    (folder / "clicks").write_text(CLICKS)
    code, err, _ = start("-m", "preproc.table", *MADE, "--dst", "data", folder=folder)
    assert code == 0, err
    (folder / ODD).mkdir()
    shutil.copytree(folder / "data", folder / ODD / "data")
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "preproc.table", *MADE, "--dst", f"{ODD}/new"),
        ("-m", "preproc.table", "--mode", "encode", "--data", "rows.csv", "--vocabulary", f"{ODD}/data", "--dst", "D"),
        ("-m", "preproc.criteo", "--train", "clicks", "--test", "clicks", "--frequency_threshold", "0", "--dst", ODD),
        ("-m", "dataloading.validate", "--dataset_path", f"{ODD}/data"),
        ("dlrm.py", "--dataset_path", f"{ODD}/data", *LITTLE, "--log_path", ""),
        ("dlrm.py", "--dataset_path", "data", *LITTLE, "--log_path", f"{ODD}/log.json"),
        ("dlrm.py", "--dataset_path", "data", *LITTLE, "--save_checkpoint_path", f"{ODD}/c", "--log_path", ""),
    ],
    ids=lambda words: "-".join(words[:2]),
)
def test_odd_path_in_a_valid_command_is_rejected(data, words):
    before = sorted(data.rglob("*"))
    code, err, _ = start(*words, folder=data)
    assert code == 1 and err.count("\n") == 1 and SHOWN in err and "is not UTF-8" in err, err
    assert sorted(data.rglob("*")) == before
