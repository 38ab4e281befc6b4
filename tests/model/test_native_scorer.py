"""Tests of the C++ scorer against a slow model in float64: every interaction, lists, widths, precisions and chunks.

A score's bits depend on its sample alone.
"""

import os
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest

from model.native_scorer import NativeScorer, StoredFeature, native_scorer_library
from model.scored_layers import DenseLayer, DenseLayers
from model.shapes import InteractionShape, layer_shapes
from utils.checkpoint.chunks import Chunks
from utils.checkpoint.packed import pack, unpack

DOT, CAT, CROSS = InteractionShape("dot"), InteractionShape("cat"), InteractionShape("cross", 2, 3)
CASES = {  # number of numericals M, bottom MLP, widths D_f, hotness h of each feature, interaction, top MLP
    "dot": (13, (40, 16), (16,) * 5, (1,) * 5, DOT, (50, 33, 1)),
    "dot of one column": (2, (1,), (1, 1), (1, 1), DOT, (1, 1)),
    "dot of odd widths, lists": (3, (5, 33), (33,) * 3, (1, 4, 7), DOT, (17, 1)),
    "dot without numericals": (0, (), (8,) * 4, (1, 2, 1, 3), DOT, (20, 1)),
    "cat": (5, (7, 9), (3, 12, 1), (2, 1, 1), CAT, (65, 1)),
    "cat without numericals": (0, (), (3, 300), (1, 5), CAT, (1,)),
    "cross": (4, (6, 5), (8, 3, 130), (1, 3, 1), CROSS, (34, 31, 1)),
    "cross of full rank": (4, (6, 5), (8, 3, 130), (1, 3, 1), InteractionShape("cross", 3, 0), (34, 31, 1)),
    "parallel": (4, (6, 5), (8, 3, 130), (1, 3, 1), InteractionShape("cross", 2, 3, True), (34, 31, 1)),
    "parallel of full rank": (0, (), (8, 3), (2, 1), InteractionShape("cross", 1, 0, True), (300, 1)),
    "cross layers alone": (2, (3,), (8, 3), (2, 1), InteractionShape("cross", 2, 0), (1,)),
    "cross without numericals": (0, (), (3, 4), (1, 1), CROSS, (5, 1)),
    "large layers": (2, (24,), (24,) * 2, (1, 1), DOT, (1300, 1300, 1)),  # whose outputs threads divide, for few samples
    "deep": (1, (1030, 24), (24,) * 2, (1, 1), DOT, (515, 700, 1)),  # inputs are summed in blocks of 256, here several
}
ROWS = 50
PRECISIONS = ("float32", "bfloat16", "float16", "int8")


@pytest.fixture(scope="module")
def library():
    if os.environ.get("DLRM_NATIVE_OPS") == "0":
        pytest.skip("DLRM_NATIVE_OPS=0")
    found = native_scorer_library()
    assert found is not None, "the scorer is not built for this machine: run .venv/bin/python ops/build"
    return found


class Table:
    """A table in chunks of `height` rows and `width` columns."""

    def __init__(self, values, precision="float32", height=ROWS, width=None):
        packed, self.scales = pack(values, precision)
        self.values, self.shape, self._precision = unpack(packed, self.scales, precision), values.shape, precision
        width = width or values.shape[1]
        padded = np.zeros((-(-len(values) // height) * height, -(-values.shape[1] // width) * width), packed.dtype)
        padded[: len(values), : values.shape[1]] = packed
        self.arrays = [
            np.ascontiguousarray(padded[row : row + height, column : column + width])
            for row in range(0, len(padded), height)
            for column in range(0, padded.shape[1], width)
        ]

    def chunks(self):
        return Chunks(self.arrays, self._precision, self.scales)


class Model:
    """A model of a case with random weights; it computes logits in float64."""

    def __init__(self, name, precision="float32", height=ROWS, width=None, seed=0):
        self.num_numerical, bottom, dims, hotness, self.shape, top = CASES[name]
        draw = np.random.default_rng(seed)
        tables = [Table(draw.normal(size=(ROWS, dim)).astype(np.float32), precision, height, width) for dim in dims]
        kinds = zip(tables, hotness, strict=True)
        self.features = [StoredFeature(f"f{i}", table, h, "mean" if i % 2 else "sum") for i, (table, h) in enumerate(kinds)]
        layers = [
            draw.normal(0, (2 / inputs) ** 0.5, (inputs, outputs))
            for inputs, outputs in layer_shapes(self.num_numerical, bottom, top, dims, self.shape)
        ]
        biases = [draw.normal(0, 0.3, kernel.shape[1]).astype(np.float32) for kernel in layers]
        layers = [kernel.astype(np.float32) for kernel in layers]
        first, last = len(bottom), len(layers) - len(top)
        crossed = range(first, last)
        self.layers = DenseLayers(
            [DenseLayer(layers[i], biases[i], True) for i in range(first)],
            [DenseLayer(layers[i] / 4, None if self.shape.projection and (i - first) % 2 == 0 else biases[i], False) for i in crossed],
            [DenseLayer(layers[i], biases[i], i < len(layers) - 1) for i in range(last, len(layers))],
        )

    def scorer(self, library, threads=2, computes_in="float32"):
        return NativeScorer(library, self.num_numerical, self.features, self.layers, self.shape, computes_in, threads)

    def samples(self, count, seed=1):
        draw = np.random.default_rng(seed)
        ids = [draw.integers(-1 if one.hotness > 1 else 0, ROWS, (count, one.hotness), np.int32) for one in self.features]
        return draw.normal(size=(count, self.num_numerical)).astype(np.float32), np.concatenate(ids, axis=1)

    def slow(self, numerical, ids, times=lambda x, kernel: x @ kernel.astype(np.float64)):
        vectors, first = [], 0
        for one in self.features:
            some = ids[:, first : first + one.hotness]
            first += one.hotness
            rows = np.where(some[..., np.newaxis] >= 0, one.table.values.astype(np.float64)[np.maximum(some, 0)], 0).sum(axis=1)
            vectors.append(rows / np.maximum((some >= 0).sum(axis=1, keepdims=True), 1) if one.pooling == "mean" else rows)
        bottom = _mlp(self.layers.bottom, numerical.astype(np.float64), times) if self.layers.bottom else None
        everything = [*([] if bottom is None else [bottom]), *vectors]
        if self.shape.kind == "dot":
            pairs = [(everything[i] * everything[j]).sum(axis=1, keepdims=True) for i in range(len(everything)) for j in range(i)]
            joined = np.concatenate([*([] if bottom is None else [bottom]), *pairs], axis=1)
        else:
            joined = start = np.concatenate(everything, axis=1)
            count = 2 if self.shape.projection else 1
            for i in range(0, len(self.layers.cross), count):
                products = joined
                for layer in self.layers.cross[i : i + count]:
                    products = times(products, layer.kernel) + (0 if layer.bias is None else layer.bias)
                joined = start * products + joined
            if self.shape.parallel:
                joined = np.concatenate([joined, _mlp(self.layers.top[:-1], start, times)], axis=1)
                return _mlp(self.layers.top[-1:], joined, times)[:, 0]
        return _mlp(self.layers.top, joined, times)[:, 0]


def _mlp(layers, values, times):
    for layer in layers:
        values = times(values, layer.kernel) + layer.bias
        values = np.maximum(values, 0) if layer.relu else values
    return values


def _check(model, library, count, threads=2):
    numerical, ids = model.samples(count)
    expected = model.slow(numerical, ids)
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(model.scorer(library, threads).logits_of(numerical, ids), expected, atol=2e-6 * scale, rtol=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_a_slow_model(library, name):
    model = Model(name)
    assert np.ptp(model.slow(*model.samples(100))) > 0.1
    for count in (1, 2, 3, 12, 25, 300):
        _check(model, library, count)


def _rounded(values):
    return unpack(*pack(values.astype(np.float32), "bfloat16"), "bfloat16").astype(np.float64)


def _times_in_bfloat16(x, kernel):
    return _rounded(x) @ _rounded(kernel) if kernel.shape[1] > 1 else x @ kernel.astype(np.float64)


@pytest.mark.parametrize("name", CASES)
def test_logits_in_bfloat16_equal_a_slow_model_that_rounds(library, name):
    """A sum next to the middle of two bfloat16 numbers may be rounded to either, which changes that input of the next layer by 2^-8."""
    model = Model(name)
    for count in (1, 12, 300):
        numerical, ids = model.samples(count)
        expected, exact = model.slow(numerical, ids, _times_in_bfloat16), model.slow(numerical, ids)
        difference = np.abs(model.scorer(library, computes_in="bfloat16").logits_of(numerical, ids) - expected)
        scale = max(1.0, float(np.abs(exact).max()))
        assert np.median(difference) < 2e-4 * scale and difference.max() < 0.02 * scale
        rounds = any(layer.kernel.shape[1] > 1 for layer in model.layers.all)
        assert not rounds or count == 1 or difference.mean() < 0.2 * np.abs(exact - expected).mean()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("height", "width"), [(ROWS, None), (16, None), (7, 5)])
def test_tables_of_every_precision_in_chunks(library, precision, height, width):
    if precision == "int8" and width is not None:
        width = None  # int8 rows are kept in a file of whole rows
    for name in ("dot of odd widths, lists", "cat without numericals"):
        _check(Model(name, precision, height, width), library, 40)


@pytest.mark.parametrize("computes_in", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["dot", "cross", "large layers", "deep"])
def test_a_sample_has_the_same_bits_in_any_batch_and_by_any_number_of_threads(library, name, computes_in):
    model = Model(name)
    numerical, ids = model.samples(301)
    one = model.scorer(library, 1, computes_in)
    alone = np.concatenate([one.logits_of(numerical[i : i + 1], ids[i : i + 1]) for i in range(0, 301, 7)])
    for threads in (1, 2, 5):
        scorer = model.scorer(library, threads, computes_in)
        together = scorer.logits_of(numerical, ids)
        np.testing.assert_array_equal(together[::7], alone)
        for count in (2, 11, 130, 250):
            np.testing.assert_array_equal(scorer.logits_of(numerical[:count], ids[:count]), together[:count])


class Rows:
    """A table of which each call gets the rows that it names."""

    partial = True

    def __init__(self, table):
        self.shape, self._values, self.asked = table.shape, table.values, []

    def rows(self, numbers):
        self.asked.append(numbers)
        return self._values[numbers]


@pytest.mark.parametrize("name", ["dot", "dot of odd widths, lists", "dot without numericals", "cat without numericals", "parallel"])
def test_tables_given_by_rows_have_the_bits_of_tables_in_memory(library, name):
    model, count = Model(name), 300
    numerical, ids = model.samples(count)
    expected = model.scorer(library).logits_of(numerical, ids)
    tables = [Rows(one.table) if i != 1 else one.table for i, one in enumerate(model.features)]  # one of them in memory
    model.features = [replace(one, table=table) for one, table in zip(model.features, tables, strict=True)]
    scorer = model.scorer(library)
    for some in (slice(0, 0), slice(0, 1), slice(7, 30), slice(0, count)):
        np.testing.assert_array_equal(scorer.logits_of(numerical[some], ids[some]), expected[some])
    assert all((numbers >= 0).all() for table in tables if isinstance(table, Rows) for numbers in table.asked)
    wrong, last = ids.copy(), sum(one.columns for one in model.features) - 1
    wrong[[3, 5], [0, last]] = -2, ROWS
    with pytest.raises(ValueError, match=f"feature {model.features[0].name}: id -2 of sample 3 is not in .0, {ROWS}."):
        scorer.logits_of(numerical, wrong)


def test_several_threads_call_at_once(library):
    model = Model("dot")
    scorer, found = model.scorer(library, 3), {}
    numerical, ids = model.samples(300)
    expected = scorer.logits_of(numerical, ids)

    def call(number):
        found[number] = [
            scorer.logits_of(numerical[: 1 + (number * 53 + turn * 17) % 300], ids[: 1 + (number * 53 + turn * 17) % 300]) for turn in range(30)
        ]

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for scores in (some for calls in found.values() for some in calls):
        np.testing.assert_array_equal(scores, expected[: len(scores)])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nonfinite_value_affects_only_its_sample(library, value):
    model = Model("dot")
    numerical, ids = model.samples(20)
    good = model.scorer(library).logits_of(numerical, ids)
    numerical[4, 2] = value
    with np.errstate(all="ignore"):
        expected = model.slow(numerical, ids)
    found = model.scorer(library).logits_of(numerical, ids)
    assert np.isfinite(found[4]) == np.isfinite(expected[4])
    np.testing.assert_array_equal(np.delete(found, 4), np.delete(good, 4))
    assert not np.isnan(value) or np.isnan(found[4])


def test_id_out_of_range_is_an_error_that_names_the_feature(library):
    model = Model("dot of odd widths, lists")
    numerical, ids = model.samples(9)
    for place, value, feature in ((0, ROWS, "f0"), (0, -1, "f0"), (3, -2, "f1"), (11, 2**31 - 1, "f2")):
        bad = ids.copy()
        bad[5, place] = value
        with pytest.raises(ValueError, match=rf"feature {feature}: id {value} of sample 5 is not in \[0, {ROWS}\)"):
            model.scorer(library).logits_of(numerical, bad)


def test_no_samples_and_wrong_shapes(library):
    model = Model("dot")
    assert model.scorer(library).logits_of(*model.samples(0)).shape == (0,)
    numerical, ids = model.samples(3)
    for bad in ((numerical[:, 1:], ids), (numerical[:2], ids), (numerical, ids[:, 1:])):
        with pytest.raises(ValueError, match=r"expected \[3, 13\] and \[3, 5\]"):
            model.scorer(library).logits_of(*bad)


def test_no_library_if_switched_off(library, monkeypatch):
    monkeypatch.setenv("DLRM_NATIVE_OPS", "0")
    assert library is not None and native_scorer_library() is None


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_forked_processes_score_and_exit(library):
    """A forked process scores although its parent scores in another thread, so that the fork may copy locks that helper threads hold."""
    model = Model("deep")
    scorer, (numerical, ids) = model.scorer(library, 3), model.samples(300)
    expected = scorer.logits_of(numerical, ids)
    done = threading.Event()
    scoring = threading.Thread(target=lambda: [scorer.logits_of(numerical, ids) for _ in iter(done.is_set, True)])
    scoring.start()
    try:
        for number in range(12):
            child = os.fork()
            if not child:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(120)  # ends a child that hangs
                try:
                    same = number % 5 == 0 or all(np.array_equal(scorer.logits_of(numerical, ids), expected) for _ in range(2))
                    library.dlrm_scorer_delete(
                        scorer.handle
                    )  # ends the threads of this process, or must skip the parent's if this process has not scored
                    os._exit(0 if same else 1)
                finally:
                    os._exit(2)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        done.set()
        scoring.join()
