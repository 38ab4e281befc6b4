"""Tests of workers started with different code, flags, data, folders or operations: this is reported at the start, before training."""

import shutil
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from launching import ROOT, launch
from small_data import BATCH, DIMS

from scripts import house
from tests.clones import clone, double_the_learning_rate
from utils.checkpoint.reading import Checkpoint
from utils.cluster import agreement, program

RUN = ("--cpu", *DIMS, "--batch_size", str(BATCH), "--max_steps", "6", "--learning_rate", "0.1", "--warmup_steps", "0", "--log_path", "")


def start(*workers, variables=({}, {}), clones=(ROOT, ROOT)):
    """Launch workers, each with its own flags, environment variables and copy of the program."""
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--tag-output"]
    for rank, (flags, own, folder) in enumerate(zip(workers, variables, clones, strict=True)):
        words += [":"] * (rank > 0) + ["-np", "1", "env", *(f"{name}={value}" for name, value in own.items())]
        words += [sys.executable, "-u", folder / "dlrm.py", *map(str, flags)]
    return launch(1, *words, limit_s=240)


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_a_worker_with_other_code_is_named_before_tensorflow_is_imported(dataset, tmp_path, odd):
    other = clone(tmp_path / "other")
    double_the_learning_rate(other)
    (other / "run/infer.py").unlink()
    flags = ("--dataset_path", dataset, *RUN, "--batch_size", "96", "--save_checkpoint_path", tmp_path / "c")
    workers = 2 if odd == 1 else 3
    # Another program may know other flags; the error must name the program, not the flag.
    given = [(*flags, *(("--new_flag", "1") if rank == odd else ())) for rank in range(workers)]
    clones = [other if rank == odd else ROOT for rank in range(workers)]
    result = start(*given, variables=[{"PYTHONPATH": clones[rank]} for rank in range(workers)], clones=clones)
    host, usual = socket.gethostname(), int(odd == 0)
    assert result.code != 0 and result.errors == [
        f"dlrm.py: error: worker {odd} (host {host}) runs other code than worker {usual} (host {host}): run/infer.py and 1 other differ; "
        "expected the same project and packages on all machines"
    ], result.err
    assert not (tmp_path / "c").exists()


def test_workers_with_two_learning_rates_write_no_checkpoint(dataset, tmp_path):
    """Workers whose code differs only in the learning rate stop, although all flags agree and nothing else would end them."""
    other = clone(tmp_path / "other")
    double_the_learning_rate(other)
    flags = ("--dataset_path", dataset, *RUN, "--save_checkpoint_path", tmp_path / "c")
    result = start(flags, flags, variables=[{"PYTHONPATH": ROOT}, {"PYTHONPATH": other}], clones=(ROOT, other))
    assert result.code != 0 and "training/schedule.py" in result.err, result.err
    assert not (tmp_path / "c").exists()


def test_clones_in_different_folders_agree(dataset, tmp_path):
    other, link = clone(tmp_path / "other"), tmp_path / "link"
    link.symlink_to(other)
    (other / "utils/__pycache__").mkdir()
    (other / "utils/__pycache__/old.py").write_text("")
    (other / "utils/.#errors.py").symlink_to("nobody@nowhere")  # an editor's lock file
    (other / "mine.py").write_text("")
    (other / "tests").mkdir()
    (other / "tests/mine.py").write_text("")
    flags = ("--dataset_path", dataset, *RUN, "--max_steps", "2")
    result = start(flags, flags, variables=[{"PYTHONPATH": ROOT}, {"PYTHONPATH": link}], clones=(ROOT, link))
    assert result.code == 0, result.err


def test_script_of_the_user_beside_the_program_is_not_compared(tmp_path):
    before = program.digests(str(ROOT))
    copy = clone(tmp_path / "copy")
    (copy / "experiment.py").write_text("import dlrm\n")
    assert before == program.digests(str(copy)) and len(before) > 300
    path = copy / "ops/dense.h"
    path.write_text(path.read_text() + " ")
    assert program.differing(before, program.digests(str(copy))) == ["ops/dense.h"]


def test_digest_covers_all_sources_of_the_program():
    """The digest covers all sources of the program, the C++ sources and their build script, too."""
    expected = {str(path.relative_to(ROOT)) for path in house.sources(ROOT) if path.relative_to(ROOT).parts[0] not in ("benchmarks", "scripts")}
    native = (path for folder in ("ops", "serving/door") for path in (ROOT / folder).iterdir() if path.suffix in (".cc", ".h"))
    expected |= {str(path.relative_to(ROOT)) for path in native} | {"ops/build"}
    found = program.digests(str(ROOT))
    assert expected <= set(found) and {Path(name).suffix for name in set(found) - expected} <= {".json"}


def test_different_package_version_is_reported(monkeypatch):
    mine = agreement.own_digests()
    assert {"package tensorflow", "package keras", "package numpy"} <= set(mine)
    theirs = mine | {"package keras": "0.1"}

    class Pair:
        size = 2

        def everyone(self, value, name):
            if name == "program":
                return [value, f"program {program.summary(theirs)} on b"]
            return [mine, theirs]

    with pytest.raises(agreement.DivergedError, match=r"worker 1 \(host b\) runs other code .*: package keras differs; expected"):
        agreement.compare_programs(Pair())


def test_worker_older_than_this_comparison_is_reported(monkeypatch):
    class Old:
        size = 2

        def everyone(self, value, name):
            assert name == "program"  # the older program has ended before any other exchange
            return [value, None]

    with pytest.raises(agreement.DivergedError, match=r"worker 1 \(host \?\) runs other code than worker 0 \(host [^)]+\); expected"):
        agreement.compare_programs(Old())


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


def test_unknown_flag_is_reported_once():
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
    script = 'cd "$0" && exec "$@"'  # the relative path `c` is a different folder for each worker
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--tag-output"]
    for rank, folder in enumerate(folders):
        words += [":"] * (rank > 0) + ["-np", "1", "sh", "-c", script, folder, sys.executable, ROOT / "dlrm.py"]
        words += ["--dataset_path", dataset, *RUN, "--save_checkpoint_path", "c"]
    result = launch(1, *words, limit_s=240)
    assert result.code != 0 and len(result.errors) == 1, result.err
    assert "worker 1: --save_checkpoint_path c: this worker does not see the files that the first one writes there" in result.errors[0]
    assert not any((folders[0] / "c").iterdir())


def test_other_operations_on_one_worker_are_a_warning(dataset, tmp_path):
    flags = ("--dataset_path", dataset, *RUN, "--save_checkpoint_path", tmp_path / "c")
    result = start(flags, flags, variables=({}, {"DLRM_NATIVE_OPS": "0"}))
    assert result.code == 0, result.err
    assert result.err.count("dlrm.py: warning: worker 1 computes with ") == 1
    assert Checkpoint(tmp_path / "c").step == 5
