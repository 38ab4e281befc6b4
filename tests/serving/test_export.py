"""Tests of `--mode export`: its errors, the files it leaves behind, and the files it writes beside the weights."""

import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from children import ROOT
from served_models import LISTS, PLAIN, export, train, write

import dlrm
import run.export
from serving import proof
from serving.live import versions
from serving.repository import remove_version
from serving.triton_config import Tensor, config_text, interface
from serving.weights import verified
from utils.config.serving import ExportConfig
from utils.errors import UserError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    train(write(folder / "data", PLAIN), folder / "c")
    write(folder / "other", LISTS, ("x", "y"))
    return folder


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--formats", "triton,tensorrt"), "--formats triton,tensorrt: expected one or more of triton, savedmodel, onnx"),
        (("--precision", "int4"), "int4.*float32, bfloat16, float16, int8"),
        (("--max_batch_size", "0"), "--max_batch_size 0"),
        (("--max_batch_size", "64", "--preferred_batch_size", "32,65"), "--preferred_batch_size 32,65: expected sizes from 1 to --max_batch_size 64"),
        (("--model_name", "../dlrm"), "--model_name ../dlrm: expected letters"),
        (("--model_name", ".hidden"), "--model_name .hidden: expected letters"),
        (("--model_version", "0"), "--model_version 0"),
        (("--instances", "0"), "--instances 0"),
        (("--inputs", "raw"), "does not record how raw values became feature x"),
        (("--inputs", "raw", "--formats", "onnx"), "--formats onnx takes ids"),
        (("--embedding_dim", "9"), "--embedding_dim 9: the checkpoint's model has 8"),
    ],
)
def test_invalid_flags_are_refused_and_leave_no_files(folder, tmp_path, flags, message):
    with pytest.raises(UserError, match=re.escape(message) if "*" not in message else message):
        export(folder / "c", tmp_path / "r", *flags)
    assert list(tmp_path.iterdir()) == []


def test_a_dataset_of_another_model_is_refused(folder, tmp_path):
    with pytest.raises(UserError, match="has no table for feature user"):
        export(folder / "c", tmp_path / "r", "--dataset_path", folder / "other")
    assert list(tmp_path.iterdir()) == []


def test_existing_version_and_changed_inputs_are_refused(folder, tmp_path):
    export(folder / "c", tmp_path / "r")
    before = (tmp_path / "r/dlrm/1/MODEL.md").read_text()
    with pytest.raises(UserError, match=r"dlrm/1: already exists, and versions are never replaced; use --model_version 2"):
        export(folder / "c", tmp_path / "r")
    assert (tmp_path / "r/dlrm/1/MODEL.md").read_text() == before
    other = train(folder / "other", tmp_path / "c2")
    with pytest.raises(UserError, match="have other inputs than this export"):
        export(other, tmp_path / "r", "--model_version", "2")
    export(folder / "c", tmp_path / "r", "--model_version", "2", "--instances", "2")
    assert versions(tmp_path / "r/dlrm") == [1, 2] and sorted(path.name for path in (tmp_path / "r").iterdir()) == ["dlrm"]
    assert "count: 2" in (tmp_path / "r/dlrm/2/config.pbtxt").read_text()
    text = (tmp_path / "r/dlrm/config.pbtxt").read_text()  # unchanged: the new version is not announced yet
    assert "count: 1" in text and "version_policy: { specific: { versions: [ 1 ] } }" in text
    remove_version(tmp_path / "r/dlrm", 1)
    assert sorted(path.name for path in (tmp_path / "r/dlrm").iterdir()) == ["2", "MODEL.md", "config.pbtxt"]


def test_export_with_wrong_scores_never_becomes_visible(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(proof, "DIFFERENCE", {"float32": 1e-12})
    with pytest.raises(UserError, match=r"dlrm(_savedmodel)? \((triton|savedmodel)\): a score differs by .*; nothing is exported"):
        export(folder / "c", tmp_path / "r", "--formats", "triton,savedmodel")
    assert not (tmp_path / "r").exists()


def test_a_damaged_checkpoint_is_refused(folder, tmp_path):
    import shutil

    copy = shutil.copytree(folder / "c", tmp_path / "c")
    chunk = next(path for path in copy.rglob("*") if "tables/b/weights/c/0" in str(path) and path.is_file())
    content = bytearray(chunk.read_bytes())
    content[5] ^= 1  # the length and the recorded checksum stay the same
    chunk.write_bytes(content)
    with pytest.raises(UserError, match=r"tables/b/weights: .*do not match their checksum; the checkpoint is damaged"):
        export(copy, tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_weights_are_hard_links_that_outlive_the_checkpoint(folder, tmp_path):
    import shutil

    copy = shutil.copytree(folder / "c", tmp_path / "c")
    export(copy, tmp_path / "r")
    chunks = [path for path in (tmp_path / "r/dlrm/1/checkpoint/tables").rglob("*") if path.is_file() and path.name != "zarr.json"]
    assert len(chunks) == 3 and all(os.stat(path).st_nlink == 2 for path in chunks)
    assert not list((tmp_path / "r").rglob("*momentum*"))  # optimizer state is not exported
    expected = dlrm.load(copy).score({name: [1] for name in "xyzabc"})
    shutil.rmtree(copy)
    np.testing.assert_array_equal(dlrm.load(tmp_path / "r/dlrm/1/checkpoint").score({name: [1] for name in "xyzabc"}), expected)


def test_proof_on_dataset_rows_reports_the_auc_and_the_card_too(folder, tmp_path, capsys):
    export(folder / "c", tmp_path / "r", "--dataset_path", folder / "data", "--precision", "int8")
    assert re.search(r"dlrm: triton, int8: 400 rows: largest difference .*; AUC 0\.\d+, changed by", capsys.readouterr().out)
    card = (tmp_path / "r/dlrm/MODEL.md").read_text()
    for word in ("| precision | int8 |", "| numerical | FP32 | [B, 3] |", "| b | 300 | 8 |", "`--precision int8`", "AUC"):
        assert word in card
    flags = json.loads((tmp_path / "r/dlrm/1/flags.json").read_text())
    assert flags[flags.index("--precision") + 1] == "int8" and "--export_path" not in flags


def test_export_for_a_gpu_without_one_warns_that_the_cpu_computed_the_proof(folder, tmp_path, capsys):
    export(folder / "c", tmp_path / "r", "--device", "gpu")
    found = capsys.readouterr().err
    assert found.count("--device gpu: no GPU is used here, so the CPU computes the proof; the server needs a GPU") == 1, found
    assert "KIND_GPU" in (tmp_path / "r/dlrm/config.pbtxt").read_text()


def test_triton_configuration():
    options = ExportConfig(model_name="m", max_batch_size=4096, max_queue_delay_us=500, instances=2)
    inputs = [Tensor("numerical", "FP32", 13), Tensor('a "b"\n', "STRING", 1)]
    text = config_text(options, "triton", inputs, {"KEY": "value"})
    assert 'backend: "python"' in text and "max_batch_size: 4096" in text and "instance_group [ { count: 2 kind: KIND_CPU } ]" in text
    assert "dynamic_batching { preferred_batch_size: [ 2048, 4096 ] max_queue_delay_microseconds: 500 }" in text
    assert r'name: "a \042b\042\012" data_type: TYPE_STRING dims: [ 1 ]' in text
    assert 'parameters: { key: "KEY" value: { string_value: "value" } }' in text
    assert len(interface(text)) == 2 and interface(text) == interface(config_text(options, "onnx", inputs, {}))
    still = ExportConfig(max_queue_delay_us=0, device="gpu")
    assert "dynamic_batching" not in config_text(still, "triton", inputs, {}) and "KIND_GPU" in config_text(still, "triton", inputs, {})


def test_proof_tolerates_auc_changes_that_few_rows_cannot_show():
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 2, 50_000)
    scores = (draw.random(50_000) + labels).astype(np.float32)
    same = proof.prove(lambda: scores, lambda: proof.ExportScores(scores, 0.0), labels)
    assert (same.difference, same.auc_change, same.auc_error) == (0, 0, 0)
    worse = (scores + 0.3 * draw.normal(size=50_000)).astype(np.float32)
    found = proof.prove(lambda: scores, lambda: proof.ExportScores(worse, 0.0), labels)
    assert found.auc_change < -1e-3 and found.auc_error < 1e-3
    with pytest.raises(UserError, match=r"the AUC of 50,000 rows is off by -.*int8 allows 0\.001"):
        proof.check(found, "m", "int8")
    few = proof.prove(lambda: scores[:30], lambda: proof.ExportScores(scores[:30] + 1e-9 * worse[:30], 0.0), labels[:30])
    proof.check(few, "m", "int8")
    broken = proof.prove(lambda: scores[:3], lambda: proof.ExportScores(np.array([1, np.nan, 1], np.float32), 0.0), None)
    for precision in ("float32", "int8"):
        with pytest.raises(UserError, match="differs by inf"):
            proof.check(broken, "m", precision)


def test_version_is_written_outside_the_repository(folder, tmp_path, monkeypatch):
    """An export is written beside the repository: Triton takes each folder in it, even hidden ones, for a model, and fails to start if one is not."""
    from run import export as module

    seen = []

    def look(*given):
        seen.append(sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_dir() and path.name.startswith(".")))
        return prove(*given)

    prove = module.prove
    monkeypatch.setattr(module, "prove", look)
    export(folder / "c", tmp_path / "a/r")
    export(folder / "c", tmp_path / "a/r", "--model_version", "2")
    assert [len(found) for found in seen] == [1, 1] and all(found[0].startswith("a/.writing-") for found in seen)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["r"]


def test_different_scores_in_another_batch_size_fail_the_proof():
    """The proof fails where rows score right one by one and wrong in a batch."""
    scores = np.array([0.1, 0.2, 0.3], np.float32)
    found = proof.prove(lambda: scores, lambda: proof.ExportScores(scores, 0.0, np.array([0.1, 0.3], np.float32), np.array([0, 1])), None)
    with pytest.raises(UserError, match=r"a score differs by 1\.00e-01"):
        proof.check(found, "m", "float32")


def test_newest_step_is_exported_if_the_chosen_one_is_removed_meanwhile(folder, tmp_path, monkeypatch, capfd):
    """The export takes the newest checkpoint if a training run replaces its only one meanwhile, on a file system without locks."""
    shutil.copytree(folder / "c", tmp_path / "c")
    step = next((tmp_path / "c").glob("step-*"))

    def late(checkpoint, times=[]):  # noqa: B006
        if not times:
            times.append(checkpoint)
            shutil.copytree(step, step.with_name("step-00000099"))
            (tmp_path / "c/latest").write_text("step-00000099\n")
            shutil.rmtree(step)
        verified(checkpoint)

    monkeypatch.setattr(run.export, "verified", late)
    export(tmp_path / "c", tmp_path / "r")
    assert f"{step}: was removed while it was read, by the run that writes there; using the newest one" in capfd.readouterr().out
    assert versions(tmp_path / "r/dlrm") == [1]
    with pytest.raises(UserError, match="no such folder"):
        export(step, tmp_path / "other")  # a step that was given explicitly is not replaced by another


def test_failed_write_names_the_folder(folder, tmp_path):
    """A failed write, as on a full disk, is reported with the folder, since the system's error names no file."""
    words = [sys.executable, ROOT / "dlrm.py", "--mode", "export", "--cpu", "--log_path", "", "--restore_checkpoint_path", folder / "c"]
    limited = ["bash", "-c", 'ulimit -f 1; exec "$@"', "bash", *words, "--export_path", tmp_path / "r"]
    done = subprocess.run(list(map(str, limited)), capture_output=True, text=True, check=False, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == f"dlrm.py: error: {tmp_path / 'r'}: File too large"
    assert list(tmp_path.iterdir()) == []
