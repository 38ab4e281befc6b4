"""Tests of the choice of the C++ operations, of the names of their libraries, and of inputs they refuse without ending the process."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from model import native
from model.embedding.blocks import Blocks
from model.native import Lookup, RowRule, library_path, native_operations, operations_description, operations_key, scorer_path
from tests.model.native_library import built_operations
from utils.errors import UserError

ROOT = Path(__file__).parents[2]
SGD = RowRule("sgd", tf.constant(0.5))


@pytest.fixture(scope="module")
def operations():
    return built_operations()


@pytest.fixture
def afresh():
    """Clear the cache of loaded libraries before and after a test, so that the environment is read again."""
    native.operations_at.cache_clear()
    yield
    native.operations_at.cache_clear()


# The choice of operations ----------------------------------------------------------------------------------------------


def test_the_key_names_the_library_its_compiler_and_tiles(operations):
    key = operations_key()
    assert library_path().stem.removeprefix("row_ops-") in key and ("GCC" in key or "lang" in key)
    assert key.endswith(" with AMX") == operations.tiles == operations_description().endswith(" with AMX")
    assert operations_description().startswith("C++ operations")


def test_tiles_are_switched_off_by_the_environment(operations, afresh, monkeypatch):
    monkeypatch.setenv("DLRM_AMX", "0")
    switched = native_operations()
    assert not switched.tiles and operations_description() == "C++ operations"
    assert switched.key == operations.key.removesuffix(" with AMX")


def test_key_and_description_without_the_operations(operations, afresh, monkeypatch):
    monkeypatch.setenv("DLRM_NATIVE_OPS", "0")
    assert native_operations() is None and operations_description() == operations_key() == "TensorFlow's operations"
    assert operations_key() != operations.key


def test_library_names_depend_on_sources_tensorflow_and_processor(monkeypatch, tmp_path):
    sources = shutil.copytree(native.SOURCES, tmp_path / "ops")
    names = library_path(), scorer_path()
    monkeypatch.setattr(native, "SOURCES", sources)
    assert (library_path(), scorer_path()) == names
    (sources / "notes.txt").write_text("of nobody's interest")
    (sources / "scorer.cc~").write_text("an editor's")
    assert (library_path(), scorer_path()) == names
    for name in ("scorer.cc", "ids.h", "build"):
        before = (sources / name).read_text()
        (sources / name).write_text(before + "\n")
        assert library_path() != names[0] and scorer_path() != names[1], name
        (sources / name).write_text(before)
    with monkeypatch.context() as changed:
        changed.setattr(native, "tensorflow_version", lambda: "tensorflow 1.0")
        assert library_path() != names[0] and scorer_path() == names[1]
    with monkeypatch.context() as changed:
        changed.setattr(native, "processor", lambda: "another")
        assert library_path() != names[0] and scorer_path() != names[1]
        monkeypatch.setenv("DLRM_OPS_ARCH", "x86-64-v3")  # for any processor with these instructions
        other = library_path(), scorer_path()
    assert (library_path(), scorer_path()) == other and not set(other) & set(names)


def test_a_missing_library_is_announced(operations, afresh, monkeypatch, tmp_path):
    monkeypatch.setattr(native, "library_path", lambda: tmp_path / "row_ops-0.so")
    assert operations_key() == "TensorFlow's operations"
    assert "the C++ operations are not built; run ops/build" in operations_description()


@pytest.mark.parametrize("content", [b"", b"no library"])
def test_unloadable_library_is_an_error(afresh, monkeypatch, tmp_path, content):
    path = tmp_path / "row_ops-0.so"
    path.write_bytes(content)
    monkeypatch.setattr(native, "library_path", lambda: path)
    with pytest.raises(UserError, match=r"row_ops-0\.so: .*; remove it and run ops/build, or set DLRM_NATIVE_OPS=0") as caught:
        native_operations()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(70, 26, 128), (5, 16, 40), (4, 40, 128), (1, 1, 1)], ids=str)
def test_tiles_and_generic_code_agree(operations, monkeypatch, shape):
    if not operations.tiles:
        pytest.skip("this processor has no matrix tiles, or DLRM_AMX=0; tests/ops tests the code with emulated ones")
    samples, features, width = shape
    draw = np.random.default_rng(0)
    shapes = [(samples, width), shape, (samples, width + features * (features + 1) // 2)]
    bottom, embeddings, upstream = (tf.cast(tf.constant(draw.standard_normal(each), tf.float32), "bfloat16") for each in shapes)
    results = []
    for tiles in (True, False):
        monkeypatch.setattr(operations, "tiles", tiles)
        with tf.GradientTape() as tape:
            tape.watch([bottom, embeddings])
            out = operations.interact(bottom, embeddings)
        results.append([out, *tape.gradient(out, [bottom, embeddings], upstream)])
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(tf.cast(one, tf.float32), tf.cast(other, tf.float32), rtol=2**-7, atol=width * 2**-18)


# Refused inputs --------------------------------------------------------------------------------------------------------


def test_table_given_twice_to_an_update_is_an_error(operations):
    tables = [tf.Variable(tf.ones([4, 2])) for _ in range(2)]
    ids, gradients = tf.zeros([1, 3], tf.int32), [tf.ones([3, 6])]
    with pytest.raises(tf.errors.InvalidArgumentError, match="inputs 0 and 2 are the same variable"):
        operations.update(SGD, [*tables, tables[0]], [], ids, [Lookup(i, 0) for i in range(3)], gradients, [0, 2, 4], 1.0)
    rule = RowRule("adagrad", tf.constant([0.5]), (1e-8,))
    with pytest.raises(tf.errors.InvalidArgumentError, match="inputs 2 and 3 are the same variable"):
        slot = tf.Variable(tf.ones([4, 2]))
        operations.update(rule, tables, [slot, slot], ids, [Lookup(0, 0), Lookup(1, 0)], gradients, [0, 2], 1.0)
    for table in tables:
        np.testing.assert_array_equal(table, np.ones((4, 2)))


def test_table_given_twice_to_a_lookup_is_allowed(operations):
    table, other = tf.Variable([[1.0, 2.0], [3.0, 4.0]]), tf.Variable([[5.0], [6.0]])
    found = operations.look_up([table, other, table], tf.constant([[0, 1], [1, 0]]), [Lookup(0, 0), Lookup(1, 0), Lookup(2, 1)], tf.float32)
    np.testing.assert_array_equal(found, [[1, 2, 5, 3, 4], [3, 4, 6, 1, 2]])


OUT_OF_MEMORY = """
import resource
from utils.runtime import prepare_tensorflow
prepare_tensorflow()
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(2)
from model.native import native_operations
operations = native_operations()

def gradient_of_first(samples, features):
    bottom, embeddings = tf.ones([samples, 1], tf.float16), tf.ones([samples, features, 1], tf.float16)
    with tf.GradientTape() as tape:
        tape.watch(bottom)
        out = operations.interact(bottom, embeddings)
    upstream = tf.ones_like(out)
    yield
    yield tape.gradient(out, bottom, upstream)

print(list(gradient_of_first(1, 1))[1].numpy().tolist())
gradient = gradient_of_first(17, 3071)  # two tasks, each of which wants 36 MiB for its matrix of the dots' gradients
next(gradient)
limits = resource.getrlimit(resource.RLIMIT_AS)
size = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (size + (30 << 20), limits[1]))
try:
    next(gradient)
    print("no error")
except tf.errors.ResourceExhaustedError as error:
    print(error.message)
resource.setrlimit(resource.RLIMIT_AS, limits)
print(list(gradient_of_first(1, 1))[1].numpy().tolist())
"""


def test_lack_of_memory_fails_the_step_not_the_process(operations):
    result = subprocess.run([sys.executable, "-c", OUT_OF_MEMORY], cwd=ROOT, env=os.environ.copy(), capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    before, error, after = result.stdout.splitlines()
    assert "DlrmInteractGradient: out of memory" in error and before == after == "[[2.0]]"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_empty_tensors(operations, dtype):
    """The operations read no memory of a tensor without elements; scripts/sanitize checks the same for the kernels."""
    of = tf.as_dtype(dtype)
    for shape in ((0, 5), (5, 0), (0, 0)):
        empty = tf.zeros(shape, of)
        assert operations.bias_relu(empty, tf.zeros(shape[1:])).shape == shape
        gradient, by_bias = operations.relu_gradient(empty, empty)
        assert gradient.shape == shape and by_bias.shape == shape[1:]
        assert operations.sum_in_pairs([empty, empty]).shape == shape
    assert operations.interact(tf.zeros([0, 4], of), tf.zeros([0, 3, 4], of)).shape == (0, 10)
    assert operations.interact(tf.zeros([2, 4], of), tf.zeros([2, 0, 4], of)).shape == (2, 4)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected \[b, D\]"):
        operations.interact(tf.zeros([2, 0], of), tf.zeros([2, 3, 0], of))
    table, none = tf.Variable(tf.zeros([4, 3])), tf.Variable(tf.zeros([4, 0]))
    for batch in (0, 2):
        ids = tf.zeros([1, batch], tf.int32)
        first, second = Lookup(0, 0), Lookup(1, 0)
        assert operations.look_up([table, none], ids, [first, second], of).shape == (batch, 3)
        assert operations.look_up([none], ids, [first], of).shape == (batch, 0)
        assert operations.look_up([table], ids, [], of).shape == (batch, 0)
        operations.update(SGD, [table, none], [], ids, [first, second], [tf.zeros([batch, 3], of)], [0, 3], 1.0)
        operations.update(SGD, [none], [], ids, [first], [tf.zeros([batch, 0], of)], [0], 1.0)
        operations.update(SGD, [table], [], ids, [], [tf.zeros([batch, 3], of)], [], 1.0)
        blocks = Blocks([0, 3], [3, 0], [0, 0], [0, 3], [3, 0])
        flat = operations.samples_to_blocks([tf.zeros([batch, 3], of)], blocks)
        assert flat.shape == 3 * batch
        assert operations.blocks_to_samples([flat], batch, 3, blocks, [tf.zeros([batch, 0], of)], [3]).shape == (batch, 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not in"):
        operations.look_up([tf.Variable(tf.zeros([0, 3]))], tf.zeros([1, 1], tf.int32), [Lookup(0, 0)], of)


@pytest.mark.parametrize(
    ("samples", "length", "widths"),
    [(-1, 4, [0]), (2**40, 4, [4]), (2, -4, [0]), (2, 4, [-1]), (2, 4, [2**62]), (2, 4, [2**31 - 1, 2**31 - 1])],
    ids=str,
)
def test_overflowing_column_counts_are_an_error(operations, samples, length, widths):
    zeros = [0] * len(widths)
    with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.InternalError), match=r"expected|2\^31|Dimension"):
        operations.blocks_to_samples([tf.zeros([8])], samples, length, Blocks(zeros, widths, zeros, zeros, widths), [], [])
