"""Drawn weights of ids, and the planted signal that needs them."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.metrics import roc_auc_score

from dataloading import prepare_synthetic_dataset, transcribe, validate
from dataloading.feature_spec import generator_spec
from dataloading.features import DatasetError
from dataloading.generate_feature_spec import main as generate
from dataloading.id_weights import ids_and_weights, joined
from dataloading.synthetic.dataset import SyntheticDataset, write_dataset
from dataloading.synthetic.split import SyntheticSplit
from dataloading.tf_raw import TfRawSplit
from tests.dataloading.make_data import least_squares
from tests.helpers.commands import do
from tests.helpers.datasets import spec_in
from utils.errors import UserError

ROWS = 1 << 15


def spec_of(rows=(500, 500, 2000, 30), hotness=(1, 7, 3, 20), means=(2,), shared=(), weighted=(0, 1, 2, 3), num_numerical=2):
    """Return a generator specification; the others are indices of features."""
    spec = generator_spec(rows, num_numerical, 1.3, hotness=hotness)
    features = [
        replace(one, weights=i in weighted, pooling="mean" if i in means else "sum", table="t" if i in shared else None)
        for i, one in enumerate(spec.categorical)
    ]
    return replace(spec, categorical=tuple(features))


def logits(probabilities):
    p = probabilities.astype(np.float64)
    return np.log(p / (1 - p))


# Draws --------------------------------------------------------------------------------------------------------------------


def test_lists_hold_distinct_ids_with_weights_of_mean_1():
    split, plain = SyntheticSplit(spec_of(), "train", ROWS, 0), SyntheticSplit(spec_of(weighted=(), means=()), "train", ROWS, 0)
    for i, hotness in enumerate((1, 7, 3, 20)):
        values = split.read_ids(i, 0, ROWS)
        assert values.shape == (ROWS, 2 * hotness) and values.dtype == np.int32
        ids, weights = ids_and_weights(values)
        assert_array_equal(ids, plain.read_ids(i, 0, ROWS).reshape(ROWS, -1))  # weights change no id
        # five standard deviations of the mean of ROWS weights
        assert weights.mean() == pytest.approx(1, abs=5 * 0.6 / np.sqrt(weights.size)) and (weights == 0).mean() == pytest.approx(0.05, abs=0.006)
        assert weights.min() == 0 and weights[weights > 0].min() >= 0.1 and 1.99 < weights.max() <= 2
        assert abs(np.corrcoef(ids[:, 0], weights[:, 0])[0, 1]) < 0.03
    one, other = (ids_and_weights(split.read_ids(i, 0, ROWS))[1][:, 0] for i in (1, 2))
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.03


def test_rows_do_not_depend_on_the_range_read():
    split = SyntheticSplit(spec_of(shared=(0, 1)), "train", 1000, 4)
    numerical, ids, labels, probabilities = split.read_rows(0, 600)
    for start, stop in ((0, 1), (17, 300), (599, 600), (5, 5)):
        for i, column in enumerate(ids):
            assert_array_equal(split.read_ids(i, start, stop), column[start:stop])
        assert_array_equal(split.probabilities(start, stop), probabilities[start:stop])
        assert_array_equal(split.read_labels(start, stop), labels[start:stop])
        assert_array_equal(split.read_numerical(start, stop), numerical[start:stop])
    assert (
        SyntheticSplit(spec_of(), "test", 1000, 4).read_ids(1, 0, 9).tolist()
        != SyntheticSplit(spec_of(), "train", 1000, 4).read_ids(1, 0, 9).tolist()
    )
    assert SyntheticSplit(spec_of(weighted=(0, 1, 2)), "train", 1000, 4).fingerprint() != SyntheticSplit(spec_of(), "train", 1000, 4).fingerprint()


# The planted signal -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "seed"),
    [
        (spec_of(), 0),
        (spec_of(), 1),
        (spec_of(), 2),
        (spec_of(hotness=(1, 1, 1, 1), means=(), num_numerical=0), 1),
        (spec_of(rows=(60, 60, 60, 60), hotness=(3, 1, 1, 4), means=(0,), shared=(0, 1, 2, 3)), 2),
        (spec_of(means=(1, 2, 3), num_numerical=0), 0),
        (spec_of(weighted=(1, 3), shared=(0, 1)), 1),
        (spec_of(rows=(4, 9, 9, 9), hotness=(4, 9, 2, 3)), 2),
        (spec_of(rows=(100_000,) * 4, hotness=(1, 60, 4, 1), means=(1,)), 0),
    ],
    ids=["all", "all, seed 1", "all, seed 2", "one id", "one table", "means", "some", "full lists", "large tables"],
)
def test_logit_deviation_equals_the_signal_and_its_mean_does_not_drift(spec, seed):
    _, _, labels, probabilities = SyntheticSplit(spec, "test", ROWS, seed).read_rows(0, ROWS)
    found = logits(probabilities)
    assert found.std() == pytest.approx(1.6, rel=0.04) and labels.mean() == pytest.approx(0.25, abs=0.02)
    unweighted = replace(spec, categorical=tuple(replace(one, weights=False, pooling="sum") for one in spec.categorical))
    assert found.mean() == pytest.approx(logits(SyntheticSplit(unweighted, "test", ROWS, seed).probabilities(0, ROWS)).mean(), abs=0.15)


def test_an_effect_is_multiplied_by_the_weight_of_its_id():
    """Pairs are left out: the features are too few for one with itself."""
    split = SyntheticSplit(spec_of(rows=(50,), hotness=(3,), means=(), weighted=(0,), num_numerical=0), "train", 10, 0)

    def logit(ids, weights):
        return float(logits(split.planted.probabilities([joined(np.array([ids]), np.array([weights]))], np.empty((1, 0), np.float16)))[0])

    rare = 40  # ids beyond the tenth have no effect
    none = logit([rare, 41, 42], [1, 1, 1])
    for place in range(3):
        ids = np.array([rare, 41, 42])
        ids[place] = 2
        effect = logit(ids, [1, 1, 1]) - none
        assert abs(effect) > 0.01
        for weight in (0.0, 0.5, -1.0, 2.0):
            weights = np.ones(3)
            weights[place] = weight
            assert logit(ids, weights) - none == pytest.approx(weight * effect, abs=1e-5)
    assert logit([-1, -1, -1], [0, 0, 0]) == pytest.approx(none, abs=1e-6)
    both = logit([2, 3, rare], [1.5, 0.25, 1]) - none
    assert both == pytest.approx(1.5 * (logit([2, 41, 42], [1, 1, 1]) - none) + 0.25 * (logit([41, 3, 42], [1, 1, 1]) - none), abs=1e-5)


def test_of_a_mean_the_effects_are_weighted_and_divided():
    split = SyntheticSplit(spec_of(rows=(50,), hotness=(3,), means=(0,), weighted=(0,), num_numerical=0), "train", 10, 0)

    def logit(ids, weights):
        return float(logits(split.planted.probabilities([joined(np.array([ids]), np.array([weights]))], np.empty((1, 0), np.float16)))[0])

    none, effect = logit([40, 41, 42], [1, 1, 1]), logit([2, 40, 41], [1, 0, 0]) - logit([40, 41, 42], [1, 1, 1])
    assert abs(effect) > 0.01
    for weights in ((1.0, 1.0, 1.0), (0.5, 0.0, 2.0), (2.0, 0.25, 0.0)):
        assert logit([2, 40, 41], weights) - none == pytest.approx(weights[0] / sum(weights) * effect, abs=1e-5)
        assert logit([2, 40, 41], [7 * one for one in weights]) == pytest.approx(logit([2, 40, 41], weights), abs=1e-5)
    assert logit([2, 3, 4], [0, 0, 0]) == logit([-1, -1, -1], [0, 0, 0]) == pytest.approx(none, abs=1e-6)


def test_a_model_with_weights_learns_more_than_one_without():
    spec, rows = spec_of(), 30_000

    def design(split, weigh):
        numerical, ids, labels, probabilities = split.read_rows(0, rows)
        columns = [numerical.astype(np.float32)]
        for feature, column in zip(spec.categorical, ids, strict=True):
            found, weights = ids_and_weights(column)
            weights = weights if weigh else np.ones_like(weights)
            pooled = np.zeros((rows, 40), np.float32)
            np.add.at(pooled, (np.arange(rows)[:, np.newaxis], np.minimum(found, 39)), weights)
            total = weights.sum(axis=1, keepdims=True)
            columns.append((np.divide(pooled, total, where=total > 0, out=pooled) if feature.pooling == "mean" else pooled)[:, :39])
        return np.hstack(columns), labels, probabilities

    found = {}
    for weigh in (True, False):
        x, y, _ = design(SyntheticSplit(spec, "train", rows, 0), weigh)
        test_x, test_y, probabilities = design(SyntheticSplit(spec, "test", rows, 0), weigh)
        found[weigh] = roc_auc_score(test_y, test_x @ least_squares(x, y))
    best = roc_auc_score(test_y, probabilities)
    assert best > found[True] > found[False] + 0.02 and best - found[True] < 0.03, (best, found)


# Commands -----------------------------------------------------------------------------------------------------------------


def test_written_rows_equal_drawn_rows(tmp_path):
    spec = spec_of(shared=(0, 1))
    (tmp_path / "feature_spec.yaml").write_text(spec.to_yaml())
    flags = ["--src_dataset_type", "synthetic", "--src_dataset_path", str(tmp_path), "--dst_dataset_path", str(tmp_path / "d")]
    assert do(transcribe, *flags, "--max_batches_train", "2", "--max_batches_test", "40", "--src_batch_size", "100", "--seed", "5") == 0
    assert do(validate, "--dataset_path", tmp_path / "d") == 0
    written = spec_in(tmp_path / "d")
    drawn, stored = SyntheticSplit(spec, "test", 4000, 5), TfRawSplit(written, "test")
    for i in range(4):
        assert_array_equal(stored.read_ids(i, 0, 4000), drawn.read_ids(i, 0, 4000))
    best = roc_auc_score(drawn.read_labels(0, 4000), drawn.probabilities(0, 4000))
    assert written.metadata["bayes_auc"] == pytest.approx(best, abs=2e-6) and best > 0.75


def test_a_kept_dataset_has_the_same_weights(tmp_path):
    dataset = SyntheticDataset(spec_of(), {"train": 300, "test": 100}, 3)
    assert write_dataset(tmp_path / "d", dataset, keep=True) and not write_dataset(tmp_path / "d", dataset, keep=True)
    assert dataset.bytes == sum(path.stat().st_size for path in (tmp_path / "d").rglob("*.bin"))
    other = replace(dataset, spec=spec_of(weighted=(0, 1, 2)))
    with pytest.raises(DatasetError, match="holds another dataset: categorical features"):
        write_dataset(tmp_path / "d", other, keep=True)
    (tmp_path / "feature_spec.yaml").write_text(dataset.spec.to_yaml())
    words = ["--feature_spec", tmp_path / "feature_spec.yaml", "--synthetic_dataset_dir", tmp_path / "e", "--synthetic_dataset_num_entries", 300]
    assert do(prepare_synthetic_dataset, *words, "--synthetic_dataset_batch_size", 100, "--seed", 3) == 0
    assert (tmp_path / "d/train/cat_1.weights.bin").read_bytes() == (tmp_path / "e/train/cat_1.weights.bin").read_bytes()


def test_specifications_with_weights_are_generated(tmp_path):
    def weighted(text):
        words = ["--variant", "small_synthetic", "--hotness", "3", "--id_weights", text, "--dst", str(tmp_path / "feature_spec.yaml")]
        assert generate(words) == 0
        return [one.name for one in spec_in(tmp_path).categorical if one.weights]

    assert weighted("cat_20, cat_3") == ["cat_3", "cat_20"] and weighted("all") == [f"cat_{i}" for i in range(26)]
    for text in ("", "cat_26", "all,cat_1", "3"):
        with pytest.raises(UserError, match=r"--id_weights: there is no feature '.*'; expected all, or names from cat_0 to cat_25"):
            weighted(text)
