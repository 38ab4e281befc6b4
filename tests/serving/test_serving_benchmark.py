"""Tests that benchmarks.serving runs and that the server it compares with scores."""

import json
import math
import subprocess
import sys

import pytest
from real_server import needed

from tests.children import ROOT


def quick(name, folder):
    """Run a benchmark with --quick; return its figures and what it printed."""
    needed()
    words = ["-m", f"benchmarks.{name}", "--quick", "--json", folder / "figures.json", "--folder", folder]
    result = subprocess.run([sys.executable, *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stdout + result.stderr
    assert [path.name for path in folder.iterdir()] == ["figures.json"], "temporary files were left behind"
    return json.loads((folder / "figures.json").read_text()), result.stdout


@pytest.mark.slow
def test_benchmark_measures_the_server_its_scorer_and_the_peer(tmp_path):
    found, said = quick("serving", tmp_path)
    figures = found["seconds"]
    assert len(figures) == 3
    for name, sizes in figures.items():
        assert name in said and set(sizes) == {"1", "64"}
        assert all(math.isfinite(value) and value > 0 for values in sizes.values() for value in values)


@pytest.mark.costly("a benchmark that starts servers")
def test_replicas_share_their_tables(tmp_path):
    figures, said = quick("replicas", tmp_path)
    assert figures["processes"] == 2 and 0 < figures["ready_bytes"] < figures["bytes"] and "2 processes, ready after" in said


@pytest.mark.costly("a benchmark that starts servers")
def test_publishing_is_measured_before_during_and_after(tmp_path):
    found, said = quick("publishing", tmp_path)
    (figures,) = found["rounds"]["1"]
    for phase in ("before", "during", "after"):
        shares = [figures[phase][name] for name in ("p50", "p99", "p99.9", "longest")]
        assert shares[0] > 0 and shares == sorted(shares) and phase in said
