"""Tests that a step's compiled parts lower for the GPU platform. They need TensorFlow's GPU build, no GPU: DLRM_GPU_PYTHON names a Python with it.

python -m venv /tmp/gpu && /tmp/gpu/bin/python -m pip install tensorflow==2.21.0
DLRM_GPU_PYTHON=/tmp/gpu/bin/python ./scripts/test tests/training/test_gpu_lowering.py
"""

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT, PYTHON = Path(__file__).parents[2], os.environ.get("DLRM_GPU_PYTHON")
WEIGHTS = 4  # forward products of the tiny model's four layers; its interaction has one more


@pytest.mark.skipif(not PYTHON, reason="DLRM_GPU_PYTHON names no Python with TensorFlow's GPU build")
@pytest.mark.timeout(900)
def test_every_precision_and_optimizer():
    script = Path(__file__).with_name("lowering.py")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run([PYTHON, script, sysconfig.get_path("purelib")], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    version, *found = [line.split() for line in result.stdout.splitlines()]
    assert version[1] == "True"
    # Each layer has products forward and for the gradients by its inputs and weights, except by the numerical features; the interaction has two.
    expected = 3 * WEIGHTS - 1 + 2
    assert len(found) == 3 * 5
    for dtype, optimizer, products, lines, *missing in found:
        assert (int(products), missing) == (expected, []) and int(lines) > 10, (dtype, optimizer)
