"""Tests of the C++ operations against TensorFlow's, bit by bit."""

import ctypes

import numpy as np
import pytest
import tensorflow as tf

from model.embedding.row_squares import node_sum
from model.embedding.table_memory import new_table
from model.embedding.touched_rows import TouchedRows, sum_repeated
from model.native import Lookup, RowRule
from tests.model.native_library import built_operations
from training.optimizers.adagrad import Adagrad, RowwiseAdagrad
from training.optimizers.adam import Adam
from training.optimizers.ftrl import Ftrl
from training.optimizers.rmsprop import Rmsprop
from training.optimizers.sgd import Momentum, Sgd
from utils.initial_rows import ConstantRows

OPTIMIZERS = {
    "sgd": lambda width: Sgd(),
    "momentum": lambda width: Momentum(0.9),
    "adagrad": lambda width: Adagrad(),
    "rowwise_adagrad": RowwiseAdagrad,
    "adam": lambda width: Adam(0.9, 0.999),
    "ftrl": lambda width: Ftrl(0.01, 0.001, -0.5),
    "rmsprop": lambda width: Rmsprop(0.9),
    "rmsprop legacy": lambda width: Rmsprop(0.9, outside_root=True),
}
RATE, STEP = 0.3, 5


@pytest.fixture(scope="module")
def native():
    return built_operations()


def scalars_of(rule, rate=RATE):
    return rule.scalars(tf.constant(rate), tf.constant(STEP, tf.int64))


def arithmetic(rule, rate=RATE):
    return RowRule(rule.name, scalars_of(rule, rate), rule.constants)


class Piece:
    """A table, or a slice of its columns, with the slots of an optimizer."""

    def __init__(self, optimizer, num_rows, width, id_row, column, seed=0):
        draw = np.random.default_rng(seed)
        self.id_row, self.column, self.width = id_row, column, width
        self.start = [draw.standard_normal((num_rows, width)).astype(np.float32)]
        for slot in optimizer.slots:
            drawn = draw.random((num_rows, 1 if slot.per_row else width))
            # RMSprop's slot `touched` is the number of a step, a whole number
            self.start.append((np.floor(drawn * STEP) if slot.name == "touched" else slot.start + drawn).astype(np.float32))

    def variables(self):
        return [tf.Variable(values) for values in self.start]


def by_tensorflow(optimizer, pieces, ids, gradients, loss_scale):
    """Return tables and slots after an update by TensorFlow's operations, as `DistributedEmbedding.update` does it."""
    flat = tf.reshape(gradients, [len(ids[0]), -1])
    out = []
    for piece in pieces:
        table, *slots = piece.variables()
        by_row = tf.cast(flat[:, piece.column : piece.column + piece.width], tf.float32)
        by_row = by_row if loss_scale == 1 else by_row / loss_scale
        distinct, sums = sum_repeated(tf.constant(ids[piece.id_row]), by_row)
        optimizer.apply(TouchedRows(table, slots, distinct), sums, scalars_of(optimizer), node_sum(sums) if optimizer.needs_squares else None)
        out += [table, *slots]
    return [variable.numpy() for variable in out]


def by_native(native, optimizer, pieces, ids, gradients, loss_scale, parts=1):
    variables = [piece.variables() for piece in pieces]
    native.update(
        arithmetic(optimizer),
        [table for table, *_ in variables],
        [slot for _, *slots in variables for slot in slots],
        tf.constant(ids),
        [Lookup(i, piece.id_row) for i, piece in enumerate(pieces)],
        tf.split(gradients, parts),
        [piece.column for piece in pieces],
        loss_scale,
    )
    return [variable.numpy() for group in variables for variable in group]


def assert_same_bits(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))


def draw_ids(kind, num_rows, batch, seed=0):
    draw = np.random.default_rng(seed)
    if kind == "uniform":
        return draw.integers(0, num_rows, batch)
    if kind == "one":
        return np.full(batch, num_rows - 1)
    if kind == "heavy":  # two samples of three have the same id
        return np.where(draw.random(batch) < 2 / 3, num_rows // 2, draw.integers(0, num_rows, batch))
    return np.minimum(draw.pareto(0.45, batch), num_rows - 1).astype(np.int64)  # a power law, as in the synthetic data


def gradients_of(shape, dtype="float32", seed=1):
    values = np.random.default_rng(seed).standard_normal(shape)
    values[np.random.default_rng(seed + 1).random(shape) < 0.05] = -0.0
    return tf.cast(tf.constant(values, tf.float32), dtype)


def check(native, name, tables, batch, dtype="float32", loss_scale=1.0, parts=1):
    """Check an update bit by bit against TensorFlow's; `tables` are (rows, width, kind of ids).

    Row-wise Adagrad is built for one width, so it updates the tables of each width separately.
    """
    columns = np.cumsum([0, *(width for _, width, _ in tables)])
    ids = np.stack([draw_ids(kind, rows, batch, i) for i, (rows, _, kind) in enumerate(tables)]).astype(np.int32)
    gradients = gradients_of([batch, columns[-1]], dtype)
    by_width: dict = {}
    for i, (rows, width, _) in enumerate(tables):
        by_width.setdefault(width if name == "rowwise_adagrad" else None, []).append((i, rows, width))
    for some in by_width.values():
        optimizer = OPTIMIZERS[name](some[0][2])
        pieces = [Piece(optimizer, rows, width, i, int(columns[i]), i) for i, rows, width in some]
        expected = by_tensorflow(optimizer, pieces, ids, gradients, loss_scale)
        assert_same_bits(by_native(native, optimizer, pieces, ids, gradients, loss_scale, parts), expected)


SHAPES = {
    "one sample": ([(5, 16, "uniform"), (1, 16, "one")], 1),
    "few rows": ([(1, 128, "one"), (2, 128, "uniform"), (40, 128, "uniform")], 64),
    "odd widths": ([(50, 1, "uniform"), (60, 3, "uniform"), (70, 17, "power law"), (80, 37, "heavy"), (9, 300, "uniform"), (40, 64, "one")], 96),
    "direct": ([(3000, 128, "uniform"), (3000, 128, "power law"), (3000, 128, "heavy")], 2048),
    # Whether ids are hashed, and how they are cut, follows from the numbers of rows and of ids, not from the width.
    "hashed": ([(100_000, 16, "uniform"), (100_000, 24, "power law"), (100_000, 32, "heavy")], 2048),
    "one large table": ([(200_000, 16, "heavy")], 8192),
    "only one id": ([(200_000, 16, "one")], 8192),
}
LARGE = ("hashed", "one large table", "only one id")
CASES = [(shape, name) for shape in SHAPES for name in OPTIMIZERS if shape not in LARGE or name in ("sgd", "rowwise_adagrad", "adam", "rmsprop")]


@pytest.mark.parametrize(("shape", "name"), CASES)
def test_update_has_the_same_bits_as_tensorflow(native, name, shape):
    check(native, name, *SHAPES[shape])


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_of_16_bits_are_widened_first(native, name, dtype):
    check(native, name, [(500, 128, "uniform"), (5000, 20, "power law")], 1024, dtype)


@pytest.mark.parametrize("loss_scale", [65536.0, 0.125, 3.0])
def test_the_loss_scale_divides_each_gradient(native, loss_scale):
    check(native, "sgd", [(50, 128, "uniform"), (50, 20, "uniform")], 256, "float16", loss_scale)


@pytest.mark.parametrize("parts", [2, 8])
def test_gradients_may_come_in_parts(native, parts):
    check(native, "adam", [(50, 32, "uniform"), (5000, 16, "power law")], 512, parts=parts)


@pytest.mark.parametrize("kind", ["uniform", "power law"])
def test_large_batches(native, kind):
    check(native, "sgd", [(100_000, 32, kind), (300, 32, kind)], 65536)


def test_denormals_are_zero_as_in_tensorflow(native):
    optimizer = Sgd()
    piece = Piece(optimizer, 4, 128, 0, 0)
    piece.start[0] *= np.float32(2e-38)
    gradients = gradients_of([512, 128]) * 1e-38
    ids = draw_ids("uniform", 4, 512)[np.newaxis].astype(np.int32)
    assert_same_bits(by_native(native, optimizer, [piece], ids, gradients, 1.0), by_tensorflow(optimizer, [piece], ids, gradients, 1.0))


def test_column_slices_share_ids_and_take_the_given_gradient_columns(native):
    optimizer = Adagrad()
    pieces = [Piece(optimizer, 30, 48, 1, 128), Piece(optimizer, 30, 80, 1, 176), Piece(optimizer, 7, 128, 0, 0)]
    ids = np.stack([draw_ids("uniform", 7, 64), draw_ids("heavy", 30, 64)]).astype(np.int32)
    gradients = gradients_of([64, 3, 128])  # the third feature's gradients belong to no table here
    expected = by_tensorflow(optimizer, pieces, ids, gradients, 1.0)
    assert_same_bits(by_native(native, optimizer, pieces, ids, gradients, 1.0, parts=4), expected)


def test_no_samples_change_nothing(native):
    piece = Piece(Sgd(), 5, 8, 0, 0)
    found = by_native(native, Sgd(), [piece], np.empty((1, 0), np.int32), tf.zeros([0, 8]), 1.0)
    assert_same_bits(found, piece.start)


@pytest.mark.parametrize("bad", [-1, 30, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("position", [0, 63])
def test_ids_out_of_range_raise_and_touch_no_row(native, bad, position):
    optimizer = Sgd()
    pieces = [Piece(optimizer, 30, 16, 0, 0), Piece(optimizer, 30, 16, 1, 16)]
    ids = np.stack([draw_ids("uniform", 30, 64, seed) for seed in (0, 1)]).astype(np.int32)
    ids[1, position] = bad
    tables, lookups = [tf.Variable(piece.start[0]) for piece in pieces], [Lookup(0, 0), Lookup(1, 1)]
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"ids\[1, {position}\] = {bad} is not in \[0, 30\)"):
        native.update(arithmetic(optimizer), tables, [], tf.constant(ids), lookups, [gradients_of([64, 32])], [0, 16], 1.0)
    assert_same_bits([table.numpy() for table in tables], [piece.start[0] for piece in pieces])
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"ids\[1, {position}\] = {bad} is not in \[0, 30\)"):
        native.look_up(tables, tf.constant(ids), lookups, tf.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"columns": [17]}, "within the 32 of gradients, received first column 17"),
        ({"columns": [-1]}, "within the 32 of gradients, received first column -1"),
        ({"columns": []}, "a column for each of 1 lookups, received 0"),
        ({"lookups": [Lookup(0, 2)]}, r"rows \[2, 3\) are not within the 2 rows of ids"),
        ({"lookups": [Lookup(0, -1)]}, r"rows \[-1, 0\) are not within the 2 rows of ids"),
        ({"lookups": [Lookup(0, 1, 2)]}, r"rows \[1, 3\) are not within the 2 rows of ids"),
        ({"lookups": [Lookup(0, 0, 0)]}, "lookup 0: .* received table 0, hotness 0"),
        ({"lookups": [Lookup(1, 0)]}, "expected a table below 1 .* received table 1, hotness 1"),
        ({"slots": [tf.Variable(tf.zeros([30, 15]))]}, r"expected \[30, 16\], received \[30, 15\]"),
        ({"slots": []}, "1 tables received 0 slots"),
        ({"gradients": [tf.zeros([63, 32])]}, "equal parts of 64 samples"),
        ({"gradients": [tf.zeros([32, 32]), tf.zeros([32, 16])]}, "equal parts of 64 samples"),
    ],
    ids=lambda value: str(list(value)) if isinstance(value, dict) else "",
)
def test_invalid_arguments_are_an_error(native, change, message):
    arguments = {
        "tables": [tf.Variable(tf.zeros([30, 16]))],
        "slots": [tf.Variable(tf.zeros([30, 16]))],
        "ids": tf.zeros([2, 64], tf.int32),
        "lookups": [Lookup(0, 0)],
        "gradients": [tf.zeros([64, 32])],
        "columns": [0],
        "loss_scale": 1.0,
    }
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        native.update(arithmetic(Adagrad()), **(arguments | change))


def test_table_is_updated_in_place(native):
    """An update changes the table in its own memory, since a table may be too large for a second copy."""
    addresses = []

    def make_variable(tensor):
        addresses.append(np.frombuffer(memoryview(tensor), np.float32).__array_interface__["data"][0])
        return tf.Variable(tensor)

    table = new_table(1000, 16, ConstantRows(1.0), make_variable)
    memory = np.ctypeslib.as_array(ctypes.cast(addresses[0], ctypes.POINTER(ctypes.c_float)), (1000, 16))
    for step in range(1, 3):
        ids, gradients = tf.fill([1, 4], 7), [tf.ones([4, 16])]
        native.update(arithmetic(Sgd(), 0.25), [table], [], ids, [Lookup(0, 0)], gradients, [0], 1.0)
        np.testing.assert_array_equal(memory[6:9, 0], [1, 1 - step, 1])
        np.testing.assert_array_equal(native.look_up([table], ids, [Lookup(0, 0)], tf.float32), np.full((4, 16), 1 - step, np.float32))


def test_a_tensor_read_before_an_update_keeps_its_values(native):
    table = tf.Variable(tf.ones([10, 4]))
    read = table.read_value()
    native.update(arithmetic(Sgd(), 1.0), [table], [], tf.zeros([1, 4], tf.int32), [Lookup(0, 0)], [tf.ones([4, 4])], [0], 1.0)
    np.testing.assert_array_equal(read, np.ones((10, 4)))
    np.testing.assert_array_equal(table[:2], [[-3.0] * 4, [1.0] * 4])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("batch", [1, 7, 64, 1000])
def test_lookup_has_the_same_bits_as_gathers_and_casts(native, dtype, batch):
    shapes = [(50, 128), (1, 128), (70, 3), (100_000, 64)]
    tables = [tf.Variable(np.random.default_rng(i).standard_normal(shape).astype(np.float32) * 10.0 ** (3 * i - 6)) for i, shape in enumerate(shapes)]
    ids = np.stack([draw_ids("uniform", rows, batch, rows) for rows, _ in shapes]).astype(np.int32)
    expected = tf.concat([tf.cast(tf.gather(table, row), dtype) for table, row in zip(tables, ids, strict=True)], axis=1)
    found = native.look_up(tables, tf.constant(ids), [Lookup(i, i) for i in range(len(tables))], tf.as_dtype(dtype))
    assert found.dtype == dtype and found.shape == expected.shape
    assert tf.io.serialize_tensor(found).numpy() == tf.io.serialize_tensor(expected).numpy()


def test_the_shape_of_a_lookup_is_known_in_a_graph(native):
    tables = [tf.Variable(tf.zeros([5, 8])), tf.Variable(tf.zeros([5, 4]))]

    @tf.function
    def look_up(ids):
        vectors = native.look_up(tables, ids, [Lookup(0, 0), Lookup(1, 0)], tf.float32)
        assert vectors.shape == [3, 12]
        return vectors

    look_up(tf.zeros([1, 3], tf.int32))
