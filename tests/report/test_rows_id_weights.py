"""Weights of ids in the figures of a dataset's rows, and in metrics by the values of a feature."""

from dataclasses import replace

import numpy as np
import pytest
from drawn_rows import write_predictions

from dataloading.feature_spec import Categorical, FeatureSpec
from dataloading.id_weights import joined
from dataloading.tf_raw import TfRawWriter
from report.rows import dataset as rows_dataset
from report.rows.describe import WeightFigures, describe
from report.rows.predictions import by_value, read_predictions
from tests.helpers.datasets import spec_in
from utils.errors import UserError

TAGS = Categorical("tags", 9, "int8", hotness=2, weights=True)
ONE = Categorical("one", 300, "int16", weights=True)
IDS = {"tags": [[1, 2], [1, -1], [-1, -1], [2, 3]], "one": [[7], [-1], [8], [7]]}
WEIGHTS = {"tags": [[0.5, -2], [0, 0], [0, 0], [3, 1]], "one": [[0.25], [0], [0], [4]]}


@pytest.fixture
def dataset(tmp_path):
    spec = FeatureSpec((TAGS, ONE), (), "label", {"tags": "int8", "one": "int16", "label": "bool"})
    columns = [joined(np.array(IDS[one.name]), np.array(WEIGHTS[one.name])) for one in spec.categorical]
    with TfRawWriter(tmp_path / "d", spec) as writer:
        writer.append("train", np.empty((4, 0)), columns, np.array([1, 0, 0, 1]))
        writer.append("test", np.empty((2, 0)), [column[[1, 2]] for column in columns], np.array([1, 0]))
        writer.publish({})
    return tmp_path / "d"


@pytest.mark.parametrize("block", [1, 1 << 20])
def test_ids_and_weights_have_figures_of_their_own(dataset, monkeypatch, block):
    monkeypatch.setattr(rows_dataset, "BLOCK_BYTES", block)
    found = describe(dataset)
    tags, one = (next(figures for figures in found.features if (figures.feature, figures.split) == (name, "train")) for name in ("tags", "one"))
    assert (tags.missing, tags.length, tags.distinct, tags.out_of_range) == (0.25, 1.25, 3, 0)
    assert tags.weights == pytest.approx(WeightFigures(mean=0.5, low=-2, high=3, zeros=0.2))
    assert (one.missing, one.length, one.distinct, one.out_of_range) == (0.25, 0.75, 2, 0)  # hotness 1 is a list, too
    assert one.weights == pytest.approx(WeightFigures(mean=4.25 / 3, low=0, high=4, zeros=1 / 3))
    said = "train: the weights of the ids of tags have the mean 0.5 and lie between -2 and 3; 20% are 0: such an id is counted here"
    assert any(note.startswith(said) for note in found.notes) and len(found.notes) == 4
    drift = {one.feature: one.stability_index for one in found.drift}
    assert set(drift) == {"tags", "one"} and all(np.isfinite(value) for value in drift.values())


def test_a_split_of_empty_lists_has_no_figures_of_weights(dataset):
    for name, dtype, hotness in (("tags", np.int8, 2), ("one", np.int16, 1)):
        np.full(2 * hotness, -1, dtype).tofile(dataset / f"test/{name}.bin")
        np.zeros(2 * hotness, np.float32).tofile(dataset / f"test/{name}.weights.bin")
    found = describe(dataset)
    assert [one.weights for one in found.features if one.split == "test"] == [None, None] and len(found.notes) == 2


def test_a_row_counts_for_the_ids_that_have_a_part_in_its_prediction(dataset, tmp_path):
    predictions = read_predictions(write_predictions(tmp_path / "p.parquet", [0.9, 0.2, 0.3, 0.8], [1, 0, 0, 1]))
    tags, one = by_value(predictions, dataset, "tags"), by_value(predictions, dataset, "one")
    assert {found.value: found.rows for found in tags.values} == {"id 2": 2, "id 1": 1, "id 3": 1, "(no id)": 2} and tags.overlap
    assert {found.value: found.rows for found in one.values} == {"id 7": 2, "(no id)": 2} and not one.overlap


def test_weights_that_cannot_be_are_refused(dataset, tmp_path):
    np.array([0.5, -2, np.nan, 0, 0, 0, 3, 1], np.float32).tofile(dataset / "train/tags.weights.bin")
    message = "feature tags, row 1, place 0 of its list: weight nan is not a finite number"
    with pytest.raises(UserError, match=message):
        describe(dataset)
    predictions = read_predictions(write_predictions(tmp_path / "p.parquet", [0.9, 0.2, 0.3, 0.8], [1, 0, 0, 1]))
    with pytest.raises(UserError, match=message):
        by_value(predictions, dataset, "tags")
    spec = spec_in(dataset)
    (dataset / "feature_spec.yaml").write_text(replace(spec, categorical=(replace(TAGS, pooling="mean"), ONE)).to_yaml())
    with pytest.raises(UserError, match="row 0, place 1 of its list: weight -2 is not a finite number of at least 0"):
        describe(dataset)
