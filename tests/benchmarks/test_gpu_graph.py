"""A step's graph on a GPU: every operation has a kernel, nothing large passes through host memory, few operations are launched."""

import pytest
import tensorflow as tf

from benchmarks.gpu.graph import cases, problems, traced
from benchmarks.gpu.kernels import load
from benchmarks.gpu.operations import findings
from tests.helpers.commands import ROOT, run
from utils.distributed import World

QUICK = (
    "sgd, float16",
    "scores, bfloat16",
    "adam, float32",
    "rmsprop, bfloat16",
    "adam, float16, FinalMLP",
    "adam, float16, lists of ids",
    "sgd, float32, without XLA",
    "adam, bfloat16, 5 tables in host memory",
)
TWO = ("rowwise_adagrad, bfloat16, tables cut by columns", "sgd, bfloat16, lists of ids, all tables replicated")
KERNELS = load()[1]


@pytest.mark.parametrize("name", QUICK)
def test_one_worker(monkeypatch, name):
    monkeypatch.setenv("DLRM_BUILD_FOR", "GPU")
    (case,) = (case for case in cases(1) if case.name == name)
    found = findings(traced(case, World()), KERNELS)
    assert list(problems(case, found)) == [] and found.count > 0
    assert bool(found.hosted) == bool(case.hosted) and (found.compiled > 0) == ("without" not in name)


def test_two_workers():
    result = run(*TWO, program=ROOT / "scripts/gpu_graph")
    assert result.returncode == 0, result.stdout + result.stderr[-2000:]
    one, two = result.stdout.split("2 workers, ")
    assert "no problems were found" in one and "no problems were found" in two
    assert all(f"| {name} |" in two for name in TWO)


def graph_of(computed, *specs):
    return tf.function(computed, autograph=False).get_concrete_function(*specs).graph


def test_large_int32_tensor_for_a_device_is_a_copy():
    graph = graph_of(tf.gather, tf.TensorSpec([1000, 4]), tf.TensorSpec([500], tf.int32))
    assert findings(graph, KERNELS).transfers == ["int32 (500,) to the device for GatherV2: GatherV2"]
    assert not findings(graph_of(tf.gather, tf.TensorSpec([1000, 4]), tf.TensorSpec([500], tf.int64)), KERNELS).transfers
    assert not findings(graph_of(tf.gather, tf.TensorSpec([1000, 4]), tf.TensorSpec([10], tf.int32)), KERNELS).transfers


def test_missing_kernel_is_found_inside_functions_and_conditions():
    inner = tf.function(lambda labels: tf.split(labels, 2)[0], autograph=False)
    labels = tf.TensorSpec([4096], tf.uint8)
    chosen = lambda labels: tf.cond(tf.cast(labels[0], tf.int64) > 0, lambda: inner(labels), lambda: labels[:2048])  # noqa: E731
    for graph in (graph_of(lambda labels: tf.cast(inner(labels), tf.float32), labels), graph_of(chosen, labels)):
        found = findings(graph, KERNELS)
        assert [line.split(":")[0] for line in found.without_kernel] == ["Split (uint8)"]
    assert found.operations["StatelessIf"] == 1


def test_part_compiled_by_xla_is_one_launch():
    compiled = tf.function(lambda x: tf.exp(x) + tf.exp(2 * x), autograph=False, jit_compile=True)
    found = findings(graph_of(lambda x: compiled(x) * 2, tf.TensorSpec([8])), KERNELS)
    assert found.compiled == 1 and dict(found.operations) == {"Mul": 1}


def test_operation_missing_in_the_kernel_table_is_an_error():
    with pytest.raises(KeyError, match="Lgamma"):
        findings(graph_of(tf.math.lgamma, tf.TensorSpec([8])), KERNELS)
