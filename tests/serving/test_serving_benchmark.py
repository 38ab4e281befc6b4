"""Tests that benchmarks.serving runs and that the server it compares with scores."""

import json
import math
import subprocess
import sys

import pytest
from real_server import needed

from tests.children import ROOT


@pytest.mark.slow
def test_benchmark_measures_the_server_its_scorer_and_the_peer(tmp_path):
    needed()
    words = ["-m", "benchmarks.serving", "--quick", "--json", tmp_path / "figures.json", "--folder", tmp_path]
    result = subprocess.run([sys.executable, *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stdout + result.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())["seconds"]
    assert len(figures) == 3
    for name, sizes in figures.items():
        assert name in result.stdout and set(sizes) == {"1", "64"}
        assert all(math.isfinite(value) and value > 0 for values in sizes.values() for value in values)
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"], "temporary files were left behind"


@pytest.mark.costly("a benchmark that starts servers")
def test_replicas_share_their_tables(tmp_path):
    needed()
    words = ["-m", "benchmarks.replicas", "--quick", "--json", tmp_path / "figures.json", "--folder", tmp_path]
    result = subprocess.run([sys.executable, *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stdout + result.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["processes"] == 2 and 0 < figures["ready_bytes"] < figures["bytes"] and "2 processes, ready after" in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"], "temporary files were left behind"


@pytest.mark.costly("a benchmark that starts servers")
def test_publishing_is_measured_before_during_and_after(tmp_path):
    needed()
    words = ["-m", "benchmarks.publishing", "--quick", "--json", tmp_path / "figures.json", "--folder", tmp_path]
    result = subprocess.run([sys.executable, *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stdout + result.stderr
    (figures,) = json.loads((tmp_path / "figures.json").read_text())["rounds"]["1"]
    for phase in ("before", "during", "after"):
        shares = [figures[phase][name] for name in ("p50", "p99", "p99.9", "longest")]
        assert shares[0] > 0 and shares == sorted(shares) and phase in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"], "temporary files were left behind"
