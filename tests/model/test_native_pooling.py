"""Tests of the C++ operations with several ids per sample and shared tables, bit by bit against loops over single rows."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from test_native import OPTIMIZERS, RATE, Piece, arithmetic, assert_same_bits, by_native, draw_ids, gradients_of, scalars_of

from model.embedding.row_squares import node_sum
from model.embedding.touched_rows import TouchedRows
from model.native import Lookup
from tests.model.native_library import built_operations
from training.optimizers.adam import Adam

NONE, ROOT = -1, Path(__file__).parents[2]


@pytest.fixture(scope="module")
def native():
    return built_operations()


class Case(NamedTuple):
    """Tables of (rows, width), lookups in them, the number of samples, and the distribution of the ids."""

    tables: Sequence[tuple[int, int]]
    lookups: Sequence[Lookup]
    batch: int
    kind: str = "uniform"
    absent: float = 0.3  # share of absent ids in features with several ids per sample

    def ids(self) -> np.ndarray:
        """Draw ids `[K, B]`, with the bits of their weights. In lists, the first sample has no id and the second the same id several times."""
        ids = np.zeros((max(lookup.id_row + 2 * lookup.hotness for lookup in self.lookups), self.batch), np.int32)
        rows = {}
        for lookup in self.lookups:
            key = lookup.id_row, lookup.hotness, lookup.weighted
            rows[key] = min(rows.get(key, 2**31), self.tables[lookup.table][0])
        draw = np.random.default_rng(0)
        for (first, hotness, weighted), count in rows.items():
            own = np.stack([draw_ids(self.kind, count, self.batch, first + j) for j in range(hotness)])
            if hotness > 1 or weighted:
                own[draw.random(own.shape) < self.absent] = NONE
                own[:, 1:2] = own[:, :1].max(initial=0)
                own[:, 0] = NONE
            ids[first : first + hotness] = own
            if weighted:  # the third sample has no weight
                drawn = draw.lognormal(0, 1, own.shape).astype(np.float32)
                drawn[:, 2:3] = 0
                ids[first + hotness : first + 2 * hotness] = np.where(own == NONE, np.float32(0), drawn).view(np.int32)
        return ids

    @property
    def columns(self) -> list[int]:
        """The first column of each lookup, and the total."""
        return np.cumsum([0, *(self.tables[lookup.table][1] for lookup in self.lookups)]).tolist()

    def weights(self) -> list[np.ndarray]:
        """Draw the tables' weights; some are −0."""
        draw = np.random.default_rng(1)
        drawn = [draw.standard_normal(shape).astype(np.float32) for shape in self.tables]
        return [np.where(np.abs(values) < 0.1, np.float32(-0.0), values) for values in drawn]


CASES = {
    "one feature": Case([(50, 128)], [Lookup(0, 0, 3)], 70),
    "its mean": Case([(50, 128)], [Lookup(0, 0, 3, mean=True)], 70),
    "beside single ids": Case([(50, 32), (9, 64), (4, 16)], [Lookup(0, 0), Lookup(1, 1, 4), Lookup(2, 5), Lookup(0, 6, 2, True)], 33),
    "a shared table": Case([(40, 128), (7, 20)], [Lookup(0, 0, 2), Lookup(1, 2), Lookup(0, 3), Lookup(0, 4, 3, True)], 100),
    "the same ids in two tables": Case([(20, 1), (30, 128)], [Lookup(0, 0, 5, True), Lookup(1, 0, 5)], 64),
    "the same ids twice in a table": Case([(20, 21)], [Lookup(0, 0, 2), Lookup(0, 0, 2, True)], 64),
    "columns of a table": Case([(30, 48), (30, 80)], [Lookup(0, 1, 4, True), Lookup(1, 1, 4, True)], 50),
    "every width": Case([(6, width) for width in (1, 15, 17, 31, 100, 129, 200, 300)], [Lookup(i, 3 * i, 3, i % 2 == 0) for i in range(8)], 40),
    "all there": Case([(50, 64)], [Lookup(0, 0, 7)], 64, absent=0),
    "none there": Case([(50, 64), (50, 3)], [Lookup(0, 0, 7, True), Lookup(1, 0, 7)], 64, absent=1),
    "single ids in a shared table": Case([(30, 16)], [Lookup(0, 2), Lookup(0, 0), Lookup(0, 1, 1, True)], 65),
    "a table without a lookup": Case([(30, 16), (5, 8)], [Lookup(1, 0, 2)], 20),
    "one sample": Case([(5, 128)], [Lookup(0, 0, 100), Lookup(0, 100)], 1),
    "a hundred ids": Case([(300, 128)], [Lookup(0, 0, 100)], 512),
    "a hundred of a power law": Case([(100_000, 16), (10, 32)], [Lookup(0, 0, 100, True), Lookup(1, 100)], 1000, "power law"),
    "one feature with weights": Case([(50, 128)], [Lookup(0, 0, 3, weighted=True)], 70),
    "its weighted mean": Case([(50, 128)], [Lookup(0, 0, 3, mean=True, weighted=True)], 70),
    "single ids with weights": Case([(50, 64), (7, 3)], [Lookup(0, 0, 1, weighted=True), Lookup(1, 2, 1, True, True)], 40),
    "weights beside none": Case([(40, 32), (7, 20)], [Lookup(0, 0, 2, True, True), Lookup(1, 4), Lookup(0, 5), Lookup(0, 6, 3, True)], 100),
    "the same weights twice in a table": Case([(20, 21)], [Lookup(0, 0, 2, False, True), Lookup(0, 0, 2, True, True)], 64),
    "weights of every width": Case(
        [(6, width) for width in (1, 15, 16, 32, 64, 129, 300)], [Lookup(i, 6 * i, 3, i % 2 == 0, True) for i in range(7)], 40
    ),
    "a hundred weights of a power law": Case([(100_000, 16)], [Lookup(0, 0, 100, True, True), Lookup(0, 200, 2, weighted=True)], 1000, "power law"),
    "gradients that are copied": Case(
        [(300, 128), (40, 20), (9, 16)], [Lookup(0, 0, 20, True), Lookup(0, 20, 30), Lookup(1, 50, 30, True, True), Lookup(2, 110)], 4200, "power law"
    ),
    "heavy": Case([(500, 128), (500, 20)], [Lookup(0, 0, 9), Lookup(0, 0, 9, True), Lookup(1, 9)], 3000, "heavy"),
}


def pooled(table: np.ndarray, ids: np.ndarray, lookup: Lookup) -> np.ndarray:
    """Return the pooled vectors of a lookup, `[B, width]` in float32, summed row by row."""
    own, own_weights = ids_of(ids, lookup)
    if lookup.hotness == 1 and not lookup.weighted:
        return table[own[0]]
    sums, counts = np.zeros((own.shape[1], table.shape[1]), np.float32), np.zeros((own.shape[1], 1), np.float32)
    for row, weights in zip(own, own_weights, strict=True):
        there = row != NONE
        sums[there] = sums[there] + table[row[there]] * weights[there, np.newaxis]
        counts[there] += weights[there, np.newaxis]
    return sums / np.where(counts == 0, np.float32(1), counts) if lookup.mean else sums


def ids_of(ids: np.ndarray, lookup: Lookup) -> tuple[np.ndarray, np.ndarray]:
    """Return a lookup's ids `[h, B]`, and their weights, which are 1 where it has none."""
    end = lookup.id_row + lookup.hotness
    own = ids[lookup.id_row : end]
    return own, ids[end : end + lookup.hotness].view(np.float32) if lookup.weighted else np.ones(own.shape, np.float32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_a_lookup_sums_in_the_order_of_the_ids(native, name, dtype):
    case = CASES[name]
    ids, weights = case.ids(), case.weights()
    expected = np.concatenate([pooled(weights[lookup.table], ids, lookup) for lookup in case.lookups], axis=1)
    found = native.look_up([tf.Variable(table) for table in weights], tf.constant(ids), case.lookups, tf.as_dtype(dtype))
    assert tf.io.serialize_tensor(found).numpy() == tf.io.serialize_tensor(tf.cast(expected, dtype)).numpy()


def slots_of(case: Case, optimizer) -> list[list[np.ndarray]]:
    """Draw each table's initial slots."""
    draw = np.random.default_rng(2)
    by_table = []
    for rows, width in case.tables:
        drawn = [(slot, draw.random((rows, 1 if slot.per_row else width))) for slot in optimizer.slots]
        by_table.append([(np.floor(values * 5) if slot.name == "touched" else slot.start + values).astype(np.float32) for slot, values in drawn])
    return by_table


def summed(case: Case, number: int, ids: np.ndarray, gradients: np.ndarray, loss_scale: float) -> dict[int, np.ndarray]:
    """Return the sum of the gradients of each row of a table that the ids name."""
    width, sums = case.tables[number][1], {}
    for lookup, column in zip(case.lookups, case.columns, strict=False):
        if lookup.table != number:
            continue
        own, own_weights = ids_of(ids, lookup)
        counts = np.zeros(own.shape[1], np.float32)
        for row, of_row in zip(own, own_weights, strict=True):
            counts += np.where(row == NONE, np.float32(0), of_row)
        counts[counts == 0] = 1
        for row, of_row in zip(own, own_weights, strict=True):
            for sample, name in enumerate(row.tolist()):
                if name == NONE:
                    continue
                addend = gradients[sample, column : column + width] / np.float32(loss_scale)
                addend = (addend / counts[sample] if lookup.mean else addend) * of_row[sample]
                sums[name] = sums.get(name, np.zeros(width, np.float32)) + addend
    return sums


def check_update(native, name: str, case: Case, dtype: str = "float32", loss_scale: float = 1.0, parts: int = 1) -> None:
    """Check an update bit by bit. Row-wise Adagrad is built for one width, so it updates the lookups of each width separately."""
    ids, weights = case.ids(), case.weights()
    gradients = gradients_of([case.batch, case.columns[-1]], dtype)
    wide = tf.cast(gradients, tf.float32).numpy()
    for only in sorted({width for _, width in case.tables}) if name == "rowwise_adagrad" else [None]:
        optimizer = OPTIMIZERS[name](only)
        chosen = [i for i, (_, width) in enumerate(case.tables) if only in (None, width)]
        starts = slots_of(case, optimizer)
        tables = [tf.Variable(weights[i]) for i in chosen]
        slots = [[tf.Variable(start) for start in starts[i]] for i in chosen]
        used = [(lookup, column) for lookup, column in zip(case.lookups, case.columns, strict=False) if lookup.table in chosen]
        lookups = [lookup._replace(table=chosen.index(lookup.table)) for lookup, _ in used]
        columns = [column for _, column in used]
        flat = [slot for own in slots for slot in own]
        native.update(arithmetic(optimizer), tables, flat, tf.constant(ids), lookups, tf.split(gradients, parts), columns, loss_scale)
        for i, table, own in zip(chosen, tables, slots, strict=True):
            sums = summed(case, i, ids, wide, loss_scale)
            expected = [tf.Variable(weights[i]), *(tf.Variable(start) for start in starts[i])]
            if sums:
                rows, values = tf.constant(list(sums), tf.int32), tf.constant(np.stack(list(sums.values())))
                squares = node_sum(values) if optimizer.needs_squares else None
                optimizer.apply(TouchedRows(expected[0], expected[1:], rows), values, scalars_of(optimizer), squares)
            assert_same_bits([variable.numpy() for variable in (table, *own)], [variable.numpy() for variable in expected])


# Rules are given the summed gradients of a row, so all cases take a rule without slots and one that needs squares, and four cases all rules.
OF_ALL_RULES = ("beside single ids", "every width", "weights beside none", "a hundred ids")
SMALL = [(case, name) for case in CASES if CASES[case].batch <= 512 for name in (OPTIMIZERS if case in OF_ALL_RULES else ("sgd", "rowwise_adagrad"))]


@pytest.mark.parametrize(("case", "name"), SMALL)
def test_an_update_sums_by_feature_then_id_then_sample(native, name, case):
    check_update(native, name, CASES[case])


@pytest.mark.parametrize(
    ("case", "name"),
    [*((case, "sgd") for case in CASES if CASES[case].batch > 512), ("a hundred of a power law", "rowwise_adagrad"), ("heavy", "rowwise_adagrad")],
)
def test_an_update_of_many_ids(native, name, case):
    check_update(native, name, CASES[case])


@pytest.mark.parametrize("loss_scale", [1.0, 1024.0, 3.0])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_loss_scale_divides_first_then_the_number_of_ids(native, dtype, loss_scale):
    check_update(native, "adagrad", CASES["beside single ids"]._replace(batch=64), dtype, loss_scale, parts=4)
    check_update(native, "adagrad", CASES["weights beside none"]._replace(batch=64), dtype, loss_scale, parts=4)


def test_hotness_does_not_change_the_bits_of_single_ids(native):
    """With one id per sample, at any place of its list, hotness does not change the bits."""
    draw = np.random.default_rng(3)
    single = draw.integers(0, 40, 256).astype(np.int32)
    several = np.full((4, 256), NONE, np.int32)
    several[draw.integers(0, 4, 256), np.arange(256)] = single
    gradients, results = gradients_of([256, 128]), []
    for lookup, ids in ((Lookup(0, 0), single[np.newaxis]), (Lookup(0, 0, 4), several), (Lookup(0, 0, 4, True), several)):
        table = tf.Variable(tf.ones([40, 128]))
        found = native.look_up([table], ids, [lookup], tf.float32)
        native.update(arithmetic(OPTIMIZERS["sgd"](128), RATE), [table], [], ids, [lookup], [tf.sign(gradients)], [0], 1.0)
        results.append([found.numpy(), table.numpy()])
    assert_same_bits(results[1], results[0])
    assert_same_bits(results[2], results[0])


@pytest.mark.parametrize("bad", [-2, 30, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("position", [0, 63])
def test_an_id_out_of_range_is_named_and_no_row_is_touched(native, bad, position):
    ids = np.full((5, 64), NONE, np.int32)
    ids[0], ids[3, position] = 5, bad
    tables, lookups = [tf.Variable(tf.ones([30, 16])) for _ in range(2)], [Lookup(1, 0), Lookup(0, 1, 4)]
    message = rf"ids\[3, {position}\] = {bad} is not in \[0, 30\)"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        native.update(arithmetic(OPTIMIZERS["sgd"](16)), tables, [], tf.constant(ids), lookups, [gradients_of([64, 32])], [0, 16], 1.0)
    assert_same_bits([table.numpy() for table in tables], [np.ones((30, 16), np.float32)] * 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        native.look_up(tables, tf.constant(ids), lookups, tf.float32)


def test_absent_id_is_out_of_range_with_hotness_1(native):
    table, ids = tf.Variable(tf.ones([30, 16])), tf.constant([[1, 2], [3, NONE]])
    native.look_up([table], ids, [Lookup(0, 0, 2)], tf.float32)
    for lookups in ([Lookup(0, 1)], [Lookup(0, 0), Lookup(0, 1)]):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"ids\[1, 1\] = -1 is not in \[0, 30\)"):
            native.look_up([table], ids, lookups, tf.float32)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"ids\[1, 1\] = -1 is not in \[0, 30\)"):
            native.update(arithmetic(OPTIMIZERS["sgd"](16)), [table], [], ids, lookups, [tf.ones([2, 32])], [0, 16][: len(lookups)], 1.0)


WITH_THREADS = """
import sys
from utils.runtime import prepare_tensorflow
prepare_tensorflow()
import numpy as np
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
sys.path.insert(0, "tests/model")
import test_native_pooling as cases
np.savez(sys.argv[2], *cases.updated(cases.built_operations()))
"""


def updated(native):
    """Return what updates of many single ids, and lookups and updates of lists, give."""
    optimizer = Adam(0.9, 0.999)
    pieces = [Piece(optimizer, 3000, 128, 0, 0), Piece(optimizer, 5, 40, 1, 128)]
    ids = np.stack([draw_ids("heavy", 3000, 8192), draw_ids("power law", 5, 8192)]).astype(np.int32)
    found = by_native(native, optimizer, pieces, ids, gradients_of([8192, 168]), 1.0)
    for name in ("a hundred of a power law", "a hundred weights of a power law", "heavy"):
        case = CASES[name]._replace(batch=4096)
        tables, ids = [tf.Variable(values) for values in case.weights()], tf.constant(case.ids())
        found.append(native.look_up(tables, ids, case.lookups, tf.float32).numpy())
        gradients = gradients_of([case.batch, case.columns[-1]])
        native.update(arithmetic(OPTIMIZERS["sgd"](1)), tables, [], ids, case.lookups, [gradients], case.columns[:-1], 3.0)
        found += [table.numpy() for table in tables]
    return found


def test_the_number_of_threads_changes_no_bit(native, tmp_path):
    """Processes with one and with five threads have the bits of this one, which has two (tests/conftest.py)."""
    expected = updated(native)
    for threads in (1, 5):
        out = tmp_path / f"{threads}.npz"
        subprocess.run([sys.executable, "-c", WITH_THREADS, str(threads), str(out)], cwd=ROOT, check=True, timeout=300)
        with np.load(out) as values:
            assert_same_bits([values[name] for name in values.files], expected)
