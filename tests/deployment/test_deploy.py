"""deploy: NVIDIA's command writes a repository from a checkpoint, and each flag without effect and each invalid one is a line."""

import subprocess

import numpy as np
import pytest

import dlrm
from deployment import deploy
from run.served_rows import by_feature, drawn_rows
from tests.serving.real_server import packages
from tests.serving.served_models import PLAIN, train, write
from utils.errors import UserError

FORMATS = ("--dense-format", "tf-savedmodel", "--sparse-format", "tf-savedmodel", "--model-precision", "fp32")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deploy")
    return train(write(folder / "data", PLAIN), folder / "c")


def deployed(checkpoint, repository, *flags, formats=FORMATS):
    words = ("--checkpoint-dir", checkpoint, "--model-repository-path", repository, "--model-name", "criteo", *formats, *flags)
    deploy.main([str(word) for word in words])


def test_repository_holds_the_model_in_both_formats_and_scores_as_the_checkpoint(checkpoint, tmp_path, capsys):
    deployed(checkpoint, tmp_path / "r", "--cpu", "--max-batch-size", 256, "--engine-count-per-device", 2, "--model-version", 3)
    assert sorted(path.name for path in (tmp_path / "r").iterdir() if path.name[0] != ".") == ["criteo", "criteo_savedmodel"]
    config = (tmp_path / "r/criteo/config.pbtxt").read_text()
    assert "max_batch_size: 256" in config and "count: 2 kind: KIND_CPU" in config and "dynamic_batching" not in config
    assert capsys.readouterr().err == ""
    loaded = dlrm.load(checkpoint, mmap=True)
    rows = drawn_rows(loaded.features, seed=7)
    expected = loaded.score(by_feature(rows, loaded.features))
    scorer = dlrm.load(tmp_path / "r/criteo/3/checkpoint", mmap=True).over_arrays()
    np.testing.assert_allclose(scorer.score(*scorer.checked(rows.numerical, rows.ids)), expected, atol=1e-6, rtol=0)


def test_onnx_and_half_precision_for_a_gpu(checkpoint, tmp_path, capsys):
    packages("onnx", "onnxruntime")
    deployed(checkpoint, tmp_path / "r", formats=("--dense-format", "onnx", "--sparse-format", "tf-savedmodel", "--model-precision", "fp16"))
    assert (tmp_path / "r/criteo_onnx/1/model.onnx").is_file()
    assert "kind: KIND_GPU" in (tmp_path / "r/criteo/config.pbtxt").read_text()
    captured = capsys.readouterr()
    assert "criteo: triton, float16" in captured.out and "warning: --cpu is missing: no GPU is used here" in captured.err


def test_existing_version_is_refused_and_another_one_added(checkpoint, tmp_path):
    deployed(checkpoint, tmp_path / "r", "--cpu")
    with pytest.raises(UserError, match=r"r/criteo/1: already exists, and versions are never replaced; use --model-version 2"):
        deployed(checkpoint, tmp_path / "r", "--cpu")
    deployed(checkpoint, tmp_path / "r", "--cpu", "--model-version", 2)
    assert (tmp_path / "r/criteo/2").is_dir()


def test_flags_without_effect_are_named(checkpoint, tmp_path, capsys):
    valued = {name: "1" for name in deploy._NO_EFFECT if name not in deploy._SWITCHES}
    words = [word for name, value in valued.items() for word in (f"--{name}", value)] + [f"--{name}" for name in deploy._SWITCHES]
    deployed(checkpoint, tmp_path / "r", "--cpu", *words)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"deployment.deploy: warning: --{name} has no effect: {reason}" for name, reason in deploy._NO_EFFECT.items()]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--dense-format", "trt"), "--dense-format trt: TensorRT plans are not written; expected tf-savedmodel or onnx"),
        (("--dense-format", "torchscript"), "--dense-format torchscript: TorchScript is not written; expected tf-savedmodel or onnx"),
        (("--dense-format", "x"), "--dense-format x: unknown format; expected tf-savedmodel or onnx"),
        (("--sparse-format", "hps"), "--sparse-format hps: there is no HPS here, .*; expected tf-savedmodel"),
        (("--monolithic",), "--monolithic: each model here is one model, under --model-name, so drop --monolithic"),
        (("--model-precision", "bf16"), "argument --model-precision: invalid choice: 'bf16'"),
        (("--model-version", "0"), "--model-version 0: expected a whole number of at least 1"),
        (("--model-version", "x"), "argument --model-version: 'x' is not a whole number"),
        (("--max-batch-size", "0"), "--max-batch-size 0: expected 1 to"),
        (("--engine-count-per-device", "0"), "--engine-count-per-device 0: expected 1 to"),
        (("--model-name", "../x"), "--model-name ../x: expected letters, digits"),
        (("--checkpoint-dir", "no/where"), "no/where: no such folder; expected a checkpoint"),
        (("--checkpoint-dir", "NVIDIA"), "holds a checkpoint of NVIDIA's application; convert it first: python -m preproc.nvidia_checkpoint"),
        (("--export_path", "x"), "unknown flag --export_path"),
    ],
)
def test_invalid_flags_are_one_line_and_nothing_is_written(checkpoint, tmp_path, flags, message):
    (tmp_path / "nvidia/sparse").mkdir(parents=True)
    with pytest.raises(UserError, match=message) as caught:
        deployed(checkpoint, tmp_path / "r", "--cpu", *(tmp_path / "nvidia" if flag == "NVIDIA" else flag for flag in flags))
    assert "\n" not in str(caught.value) and not (tmp_path / "r").exists()


@pytest.mark.parametrize("missing", ["--checkpoint-dir", "--model-repository-path", "--model-name", "--dense-format", "--sparse-format"])
def test_missing_flag_is_named(tmp_path, missing):
    formats = dict(zip(FORMATS[::2], FORMATS[1::2], strict=True))
    words = {"--checkpoint-dir": "c", "--model-repository-path": str(tmp_path), "--model-name": "m"} | formats
    with pytest.raises(UserError, match=f"{missing}( is missing| .--help|$| \\()"):
        deploy.main([word for name, value in words.items() if name != missing for word in (name, value)])


def test_damaged_checkpoint_is_one_line_and_nothing_is_written(checkpoint, tmp_path):
    step = next(checkpoint.glob("step-*"))
    copy = tmp_path / "c"
    subprocess.run(["cp", "-r", step, copy], check=True)
    (copy / "manifest.json").write_text("{")
    with pytest.raises(UserError, match=r"manifest\.json: .*damaged"):
        deployed(copy, tmp_path / "r", "--cpu")
    assert not (tmp_path / "r").exists()
