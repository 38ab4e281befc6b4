"""Workers that were started with different flags, data, folders or operations: said at the start, before anything is trained."""

import shutil
import sys

import numpy as np
import pytest
import yaml
from launching import ROOT, launch
from small_data import BATCH, DIMS

from utils.checkpoint.reading import Checkpoint

RUN = ("--cpu", *DIMS, "--batch_size", str(BATCH), "--max_steps", "6", "--learning_rate", "0.1", "--warmup_steps", "0", "--log_path", "")


def start(*workers, variables=({}, {})):
    """Two workers, each with flags of its own."""
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--tag-output"]
    for rank, (flags, own) in enumerate(zip(workers, variables, strict=True)):
        words += [":"] * (rank > 0) + ["-np", "1", "env", *(f"{name}={value}" for name, value in own.items())]
        words += [sys.executable, "-u", ROOT / "dlrm.py", *map(str, flags)]
    return launch(1, *words, limit_s=120)


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        ((), ("--optimizer", "sgd"), "worker 1 was started with --optimizer 'sgd', worker 0 with 'adam'"),
        ((), ("--seed", "3"), "worker 1 was started with --seed 3, worker 0 with 0"),
        (("--valid_batch_size", "512"), (), "worker 1 was started with --valid_batch_size 65536, worker 0 with 512"),
        ((), ("--bach_size", "3"), "worker 1: unknown flag --bach_size; did you mean --batch_size?"),
        (("--learning_rate", "x"), (), "worker 0: argument --learning_rate: 'x' is not a number"),
    ],
)
def test_flags_that_differ_are_named_before_tensorflow_is_imported(dataset, tmp_path, one, other, message):
    flags = ("--dataset_path", dataset, *RUN, "--optimizer", "adam", "--save_checkpoint_path", tmp_path / "c")
    result = start((*flags, *one), (*flags, *other))
    assert result.code != 0 and len(result.errors) == 1 and message in result.errors[0], result.err
    assert not (tmp_path / "c").exists()


def test_a_flag_that_no_worker_knows_is_said_once_and_soon():
    result = start(("--bach_size", "3"), ("--bach_size", "3"))
    assert result.code == 1 and result.errors == ["dlrm.py: error: unknown flag --bach_size; did you mean --batch_size? (--help lists every flag)"]


def test_a_copy_of_the_dataset_with_other_rows_is_noticed(dataset, tmp_path):
    copy = shutil.copytree(dataset, tmp_path / "copy")
    spec = yaml.safe_load((copy / "feature_spec.yaml").read_text())
    path = copy / next(chunk["files"][0] for chunk in spec["source_spec"]["train"] if chunk["features"][0] in spec["channel_spec"]["categorical"])
    dtype = spec["feature_spec"][spec["channel_spec"]["categorical"][0]]["dtype"]
    np.roll(np.fromfile(path, dtype), 1).tofile(path)
    flags = (*RUN, "--save_checkpoint_path", tmp_path / "c")
    result = start(("--dataset_path", dataset, *flags), ("--dataset_path", copy, *flags))
    assert result.code != 0 and len(result.errors) == 1 and "worker 1 reads other rows there than worker 0" in result.errors[0], result.err
    assert not (tmp_path / "c").exists()


def test_a_folder_that_the_workers_do_not_share_is_noticed(dataset, tmp_path):
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    script = 'cd "$0" && exec "$@"'  # a relative path that is another folder for each worker
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--tag-output"]
    for rank, folder in enumerate(folders):
        words += [":"] * (rank > 0) + ["-np", "1", "sh", "-c", script, folder, sys.executable, ROOT / "dlrm.py"]
        words += ["--dataset_path", dataset, *RUN, "--save_checkpoint_path", "c"]
    result = launch(1, *words, limit_s=120)
    assert result.code != 0 and len(result.errors) == 1, result.err
    assert "worker 1: --save_checkpoint_path c: this worker does not see what the first one writes there" in result.errors[0]
    assert not any((folders[0] / "c").iterdir())


def test_other_operations_on_one_worker_are_a_warning(dataset, tmp_path):
    flags = ("--dataset_path", dataset, *RUN, "--save_checkpoint_path", tmp_path / "c")
    result = start(flags, flags, variables=({}, {"DLRM_NATIVE_OPS": "0"}))
    assert result.code == 0, result.err
    assert result.err.count("dlrm.py: warning: worker 1 computes with ") == 1
    assert Checkpoint(tmp_path / "c").step == 5
