"""Synthetic lists of ids: no id twice within a row, drawn from the stated distribution, with a signal that pooled embeddings can learn."""

import itertools
from dataclasses import replace
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn.metrics import roc_auc_score

from dataloading import transcribe, validate
from dataloading.feature_spec import Categorical, FeatureSpec, FeatureSpecError, generator_spec
from dataloading.generate_feature_spec import main as generate
from dataloading.sources import read_spec
from dataloading.synthetic.distinct_ids import distinct_ids
from dataloading.synthetic.power_law import cumulative
from dataloading.synthetic.split import SyntheticSplit
from dataloading.tf_raw import TfRawSplit
from tests.dataloading.make_data import least_squares, rich_spec
from tests.helpers.commands import do
from tests.helpers.datasets import spec_in
from utils.config.data import DataConfig
from utils.errors import UserError

ROWS = 200_000


def drawn(rows, hotness, alpha, start=0, stop=1000, seed=0, **options):
    return distinct_ids(Categorical("a", rows, "int32", hotness, alpha), (seed, "ids"), start, stop, **options)


@pytest.mark.parametrize("turns", [0, 1, 4], ids=["restricted law", "one turn", "repeated draws"])
@pytest.mark.parametrize(("rows", "alpha"), [(5, 1.45), (4, 1.0), (6, 0.0), (5, 0.5), (4, 4.0)])
def test_ids_follow_the_law_without_replacement(turns, rows, alpha):
    ids = drawn(rows, 3, alpha, 0, ROWS, turns=turns)
    share = np.diff(cumulative(np.arange(-1, rows), rows, alpha)) if alpha else np.full(rows, 1 / rows)
    found = np.bincount(ids @ [rows**2, rows, 1], minlength=rows**3) / ROWS
    for a, b, c in itertools.permutations(range(rows), 3):
        expected = share[a] * share[b] / (1 - share[a]) * share[c] / (1 - share[a] - share[b])
        # five standard deviations of a binomial share; the seed is fixed
        assert found[a * rows**2 + b * rows + c] == pytest.approx(expected, abs=5 * np.sqrt(expected / ROWS) + 1e-9)
    assert found.sum() == pytest.approx(1)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 400), st.data(), st.sampled_from([None, 0.3, 1.0, 1.45, 6.0, 100.0]), st.integers(0, 500), st.integers(1, 40))
def test_ids_of_a_row_are_distinct_and_independent_of_the_range_read(rows, data, alpha, start, count):
    hotness = data.draw(st.integers(1, min(rows, 60)))
    ids = drawn(rows, hotness, alpha, start, start + count)
    assert ids.shape == (count, hotness) and ids.dtype == np.int32 and ids.min() >= 0 and ids.max() < rows
    ordered = np.sort(ids, axis=1)
    assert (ordered[:, 1:] != ordered[:, :-1]).all()
    assert_array_equal(drawn(rows, hotness, alpha, start + count // 2, start + count), ids[count // 2 :])


def test_block_size_does_not_change_ids():
    assert_array_equal(drawn(50_000, 40, 1.45, 3, 503, block_values=1), drawn(50_000, 40, 1.45, 3, 503))


@pytest.mark.parametrize(("rows", "hotness", "alpha"), [(2**31 - 2, 100, 3.0), (3000, 2500, 100.0), (700, 700, 1.45), (2**31 - 2, 5, 100.0)])
def test_steep_laws_and_full_lists_terminate(rows, hotness, alpha):
    ids = np.sort(drawn(rows, hotness, alpha, 0, 4), axis=1)
    assert (np.diff(ids) > 0).all() and ids[0, 0] == 0 and ids.max() < rows


def test_single_ids_equal_those_of_earlier_versions():
    numerical, ids, labels, _ = SyntheticSplit(generator_spec([5, 126, 40_000], 3, 1.2), "test", 2000, 3).read_rows(0, 2000)
    content = b"".join(column.tobytes() for column in (numerical, *ids, labels))
    assert blake2b(content, digest_size=8).hexdigest() == "e5f97e033481a6a4"  # computed before lists of ids existed


def several() -> FeatureSpec:
    """Return a specification with two features of one table, short and long lists, and one feature with one id per sample."""
    spec = generator_spec((500, 500, 2000, 30, 100_000), 2, 1.3, hotness=(2, 7, 1, 3, 60))
    first, second, *others = spec.categorical
    return replace(spec, categorical=(replace(first, table="both"), replace(second, table="both", alpha=1.1), *others))


def test_rows_do_not_depend_on_the_range_read():
    spec = several()
    split = SyntheticSplit(spec, "train", 1000, 4)
    numerical, ids, labels, probabilities = split.read_rows(0, 600)
    assert [column.dtype.name for column in ids] == ["int16", "int16", "int16", "int8", "int32"]
    for start, stop in ((0, 1), (17, 300), (599, 600), (5, 5)):
        for i, column in enumerate(ids):
            assert_array_equal(split.read_ids(i, start, stop), column[start:stop])
        assert_array_equal(split.probabilities(start, stop), probabilities[start:stop])
        assert_array_equal(split.read_labels(start, stop), labels[start:stop])
        assert_array_equal(split.read_numerical(start, stop), numerical[start:stop])
    other = SyntheticSplit(replace(spec, categorical=(*spec.categorical[:4], replace(spec.categorical[4], hotness=59))), "train", 1000, 4)
    assert other.fingerprint() != split.fingerprint()


@pytest.mark.parametrize(
    "spec", [several(), replace(several(), numerical=()), generator_spec((50, 50), 0, 1.0)], ids=["all", "no numericals", "plain"]
)
def test_logit_deviation_equals_the_signal_and_labels_match(spec):
    _, _, labels, probabilities = SyntheticSplit(spec, "test", 1 << 15, 1).read_rows(0, 1 << 15)
    assert np.log(probabilities / (1 - probabilities)).std() == pytest.approx(1.6, abs=0.08)
    assert labels.mean() == pytest.approx(probabilities.mean(dtype=np.float64), abs=0.01) and 0.2 < labels.mean() < 0.3


@pytest.mark.parametrize(("hotness", "seed"), [((1, 1, 1, 1), 0), ((3, 1, 1, 4), 1), ((2, 5, 3, 8), 2), ((3, 1, 1, 4), 0)])
def test_shared_tables_do_not_shift_the_mean_logit(hotness, seed):
    def logits(table):
        spec = generator_spec((60, 60, 60, 60), 1, 1.2, hotness=hotness)
        spec = replace(spec, categorical=tuple(replace(feature, table=table) for feature in spec.categorical))
        p = SyntheticSplit(spec, "test", 1 << 14, seed).probabilities(0, 1 << 14).astype(np.float64)
        return np.log(p / (1 - p))

    shared, own = logits("t"), logits(None)
    assert shared.mean() == pytest.approx(own.mean(), abs=0.1) and shared.std() == pytest.approx(1.6, abs=0.1)


def test_features_of_a_table_share_effects_with_own_weights():
    split = SyntheticSplit(several(), "train", 10, 2)
    numerical, ids, _, _ = split.read_rows(0, 1)

    def logits(feature, place):
        column = np.repeat(ids[feature], 40, axis=0)
        column[:, place] = np.arange(40)
        others = [column if i == feature else np.repeat(other, 40, axis=0) for i, other in enumerate(ids)]
        p = split.planted.probabilities(others, np.repeat(numerical, 40, axis=0)).astype(np.float64)
        return np.log(p / (1 - p))

    first, second = logits(0, 1), logits(1, 4)
    assert np.ptp(first) > 0.05 and abs(np.corrcoef(first, second)[0, 1]) > 0.999


def test_a_linear_model_of_pooled_ids_comes_near_the_best_score():
    features, rows = several(), 30_000

    def design(split):
        numerical, ids, labels, probabilities = split.read_rows(0, rows)
        columns = [numerical.astype(np.float32)]
        for column in ids:
            counts = np.zeros((rows, 40), np.float32)
            np.add.at(counts, (np.arange(rows)[:, np.newaxis], np.minimum(column.reshape(rows, -1), 39)), 1)
            columns.append(counts[:, :39])
        return np.hstack(columns), labels, probabilities

    x, y, _ = design(SyntheticSplit(features, "train", rows, 0))
    test_x, test_y, probabilities = design(SyntheticSplit(features, "test", rows, 0))
    scores = test_x @ least_squares(x, y)
    best = roc_auc_score(test_y, probabilities)
    assert 0.78 < best < 0.87 and 0 < best - roc_auc_score(test_y, scores) < 0.03


@pytest.mark.parametrize("hotness", [(3, 1), (4, 2)])
def test_lists_of_all_rows_carry_no_signal(hotness):
    spec = generator_spec((4, 2), 0, 1.0, hotness=hotness)
    _, _, _, probabilities = SyntheticSplit(spec, "test", 1000, 0).read_rows(0, 1000)
    assert np.isfinite(probabilities).all()
    assert (np.ptp(probabilities) == 0) == (hotness == (4, 2))


@pytest.mark.parametrize("form", [{}, {"num_numerical": 0}, {"numerical_dtype": "float32", "group": "int32"}])
def test_written_rows_equal_drawn_rows_and_metadata_has_the_best_score(form, tmp_path):
    spec = rich_spec(**form)
    (tmp_path / "feature_spec.yaml").write_text(spec.to_yaml())
    flags = ["--src_dataset_type", "synthetic", "--src_dataset_path", str(tmp_path), "--dst_dataset_path", str(tmp_path / "d")]
    assert do(transcribe, *flags, "--max_batches_train", "2", "--max_batches_test", "40", "--src_batch_size", "100", "--seed", "5") == 0
    assert do(validate, "--dataset_path", tmp_path / "d") == 0
    written = spec_in(tmp_path / "d")
    drawn, stored = SyntheticSplit(spec, "test", 4000, 5), TfRawSplit(written, "test")
    for i in range(4):
        assert_array_equal(stored.read_ids(i, 0, 4000), drawn.read_ids(i, 0, 4000))
    assert_array_equal(stored.read_numerical(0, 4000), drawn.read_numerical(0, 4000))
    assert stored.read_numerical(0, 1).dtype == spec.numerical_dtype
    assert_array_equal(stored.read_group(0, 4000), np.arange(4000) // 10)
    best = roc_auc_score(drawn.read_labels(0, 4000), drawn.probabilities(0, 4000))
    assert written.metadata["bayes_auc"] == pytest.approx(best, abs=2e-6) and best > 0.75
    stored.close()


def test_command_and_flag_accept_hotness(tmp_path, capsys):
    mlperf = "3,2,1,2,6,1,1,1,1,7,3,8,1,6,9,5,1,1,1,12,100,27,10,3,1,1"
    assert generate(["--variant", "small_synthetic", "--hotness", mlperf, "--dst", str(tmp_path / "a.yaml")]) == 0
    spec = FeatureSpec.from_yaml(tmp_path / "a.yaml")
    assert ",".join(map(str, spec.hotness)) == mlperf
    assert generate(["--variant", "small_synthetic", "--hotness", "3", "--dst", str(tmp_path / "b.yaml")]) == 0
    assert set(FeatureSpec.from_yaml(tmp_path / "b.yaml").hotness) == {3}
    for text, message in (("5", "feature cat_5: hotness 5 is above its cardinality 4"), ("1,2", "2 hotnesses for 26 features")):
        with pytest.raises(UserError, match=f"--hotness {text}: {message}"):
            generate(["--variant", "small_synthetic", "--hotness", text, "--dst", str(tmp_path / "c.yaml")])
    for text in ("", "0", "-1", "a", "1,,2", "65537", "99999999999", "1.5", "²"):
        with pytest.raises(UserError, match=r"--hotness .*expected one number from 1 to 65536, or one for each feature"):
            generate(["--hotness", text, "--dst", str(tmp_path / "c.yaml")])
    assert not (tmp_path / "c.yaml").exists()
    options = {"dataset_type": "synthetic", "synthetic_dataset_cardinalities": (9, 20)}
    assert read_spec(DataConfig(**options)).hotness == (1, 1)
    assert read_spec(DataConfig(**options, synthetic_dataset_hotness=(9,))).hotness == (9, 9)
    assert read_spec(DataConfig(**options, synthetic_dataset_hotness=(1, 20), synthetic_dataset_num_numerical_features=0)).hotness == (1, 20)


def test_unsupported_dtype_is_rejected_before_drawing():
    for spec in (rich_spec(numerical_dtype="float64"), rich_spec(group="int8")):
        with pytest.raises(FeatureSpecError, match=r"dtype is (float64|int8), "):
            SyntheticSplit(spec, "train", 10, 0)
