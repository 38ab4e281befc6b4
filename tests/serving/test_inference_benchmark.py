"""Tests that benchmarks.inference runs and that its measurements are consistent."""

import importlib.util
import json
import math
import subprocess
import sys

import pytest

from tests.children import ROOT


@pytest.mark.slow
def test_benchmark_measures_the_scorer_and_its_peers(tmp_path):
    words = ["--quick", "--ways", "scorer,savedmodel,litert", "--json", tmp_path / "figures.json", "--folder", tmp_path]
    command = [sys.executable, "-m", "benchmarks.inference", *map(str, words)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    if importlib.util.find_spec("ai_edge_litert") is None:
        assert set(figures["calls"]) == {"scorer", "savedmodel"} and "LiteRT: not measured, ai_edge_litert is not installed" in result.stdout
    assert all(difference <= 1e-5 for difference in figures["differences"].values())
    for sizes in figures["medians"].values():
        assert set(sizes) == {"1", "64"} and all(math.isfinite(value) and value > 0 for value in sizes.values())
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"], "temporary files were left behind"


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", ["dcnv2", "wide_and_deep", "lr", "fm", "deepfm", "finalmlp"])
def test_benchmark_measures_every_model(tmp_path, model, precision):
    words = ["--quick", "--model", model, "--precision", precision, "--json", tmp_path / "figures.json", "--folder", tmp_path]
    command = [sys.executable, "-m", "benchmarks.inference", *map(str, words)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert {"scorer", "inference", "evaluator", "savedmodel"} <= set(figures["calls"]) and "keras" not in figures["calls"]
    assert (max(figures["differences"].values()) > 1e-5) == (precision == "bfloat16" and model != "lr")
