"""Tests of the parts that XLA compiles, and of the messages about them."""

import pytest

from model import compilation
from model.compilation import Compiled, compilation_described, compiled, compiled_by, warn_without_effect
from tests.model.tiny_model import config


@pytest.fixture(params=[False, True], ids=["CPU", "GPU"])
def gpu(request, monkeypatch):
    """Make the module find a GPU or none; return True if it finds one."""
    monkeypatch.setattr(compilation, "on_gpu", lambda: request.param)
    return request.param


def test_compiled_parts(gpu):
    assert compiled(False) == Compiled() == Compiled(dense=False, optimizer=False)
    assert compiled(True) == Compiled(dense=gpu, optimizer=True)
    assert compiled("all") == Compiled(dense=True, optimizer=True)


@pytest.mark.parametrize(
    ("flags", "on_cpu", "on_gpu"),
    [
        ((), "", ""),
        (("--xla",), ", XLA: dense optimizer", ", XLA: dense forward and backward pass, dense optimizer"),
        (("--xla", "all"), ", XLA: dense forward and backward pass, dense optimizer", ", XLA: dense forward and backward pass, dense optimizer"),
        (("--xla", "--mode", "inference"), "", ", XLA: dense forward pass"),
        (("--xla", "all", "--mode", "inference"), ", XLA: dense forward pass", ", XLA: dense forward pass"),
        (("--xla", "all", "--mode", "eval"), ", XLA: dense forward pass", ", XLA: dense forward pass"),
    ],
)
def test_run_announces_compiled_parts(gpu, flags, on_cpu, on_gpu):
    assert compilation_described(config(*flags)) == (on_gpu if gpu else on_cpu)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--xla", "--mode", "inference"), "--xla has no effect with --mode inference on a CPU; --xla all compiles the dense forward pass"),
        (("--xla", "all", "--mode", "inference"), None),
        (("--noxla", "--mode", "inference"), None),
        (("--mode", "inference"), None),
        (("--xla",), None),
    ],
)
def test_a_flag_that_compiles_nothing_is_a_warning(flags, expected):
    said = []
    warn_without_effect(config(*flags), 1, said.append)
    assert said == ([expected] if expected else [])


def test_batch_norm_on_several_workers_is_not_compiled_and_says_so(gpu):
    trains, evaluates = config("--xla", "all", "--batch_norm"), config("--xla", "all", "--batch_norm", "--mode", "eval")
    said = []
    assert compiled_by(trains, 1) == compiled_by(evaluates, 2) == compiled("all")
    assert compiled_by(trains, 2) == Compiled(dense=False, optimizer=True)
    assert compilation_described(trains, 2) == ", XLA: dense optimizer"
    warn_without_effect(trains, 2, said.append)
    assert len(said) == 1 and said[0].startswith("--batch_norm on several workers: XLA does not compile the dense part")
    warn_without_effect(trains, 1, said.append)
    assert len(said) == 1
