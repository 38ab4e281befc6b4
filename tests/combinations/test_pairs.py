"""Tests of every pair of values: a run that is cut and resumed has the bits of an unbroken one, and exports score as its model."""

import itertools

import numpy as np
import pytest

import dlrm
from dataloading.feature_spec import FeatureSpec
from dataloading.id_weights import ids_and_weights
from dataloading.tf_raw import TfRawSplit
from model.native_scorer import NativeScorer, native_scorer_library
from tests.combinations.combined import ALL, FLOAT32, LINEAR, OPTIMIZERS, STEPS, VALUES, covering, features_of
from tests.combinations.resumes import cut_of
from utils.checkpoint.reading import Checkpoint

ARRAY = covering()
EXPORTED = [number for number, one in enumerate(ARRAY) if one.precision == FLOAT32]
NORMALISED = {ARRAY[number].model: number for number in EXPORTED if ARRAY[number].batch_norm}  # a row of each model
SKIPPING = next(number for number, one in enumerate(ARRAY) if one.precision == "float16" and one.batch_norm)
REDUCING = next(number for number, one in enumerate(ARRAY) if one.optimizer == "sgd" and one.plateau)


def named(numbers):
    return {"argvalues": list(numbers), "ids": [str(ARRAY[number]) for number in numbers]}


def test_every_pair_of_values_occurs():
    """All but the pairs of a model and an optimizer: optimizers occur with and without a linear part, which has a group of weights of its own."""
    for (first, some), (second, others) in itertools.combinations(enumerate(VALUES), 2):
        for pair in itertools.product(some, others) if (first, second) != (0, 1) else ():
            assert any((one[first], one[second]) == pair for one in ARRAY), (first, second, pair)
    assert {(one.model in LINEAR, one.optimizer) for one in ARRAY} == set(itertools.product((True, False), OPTIMIZERS))
    assert len(ALL) == 16128 and len(ARRAY) == 28 and len({(one.model, one.optimizer) for one in ARRAY}) == 27
    assert {one.model for one in ARRAY if one.batch_norm and one.precision == FLOAT32 and one.tables != "lazy"} == set(VALUES[0])


def test_cuts_are_at_many_steps_in_both_ways():
    cuts = [cut_of(one, number) for number, one in enumerate(ARRAY)]
    assert {cut.begins for cut in cuts} == set(range(3, STEPS - 1)) and len({(cut.how, cut.ends) for cut in cuts}) >= 15
    assert all(cut.begins < cut.ends < STEPS for cut in cuts)
    assert {cut.how for cut, one in zip(cuts, ARRAY, strict=True) if one.plateau} == {cut.how for cut in cuts}


@pytest.mark.parametrize("number", **named(range(len(ARRAY))))
def test_cut_and_resumed_run_has_the_bits_of_an_unbroken_one(unbroken, number):
    run = unbroken(number)
    run.check(cut_of(ARRAY[number], number))
    run.release()


def test_the_array_has_skipped_steps_and_reduced_rates(unbroken):
    assert unbroken(SKIPPING).position["skipped_steps"] >= 3
    assert unbroken(REDUCING).position["rate_reductions"] >= 2


def samples(folder):
    """Return the numerical values and the ids of the test split, as a request has them."""
    split = TfRawSplit(FeatureSpec.from_yaml(folder / "feature_spec.yaml"), "test")
    ids = [split.read_ids(place, 0, split.num_samples).reshape(split.num_samples, -1) for place in range(len(split.spec.categorical))]
    numerical = np.array(split.read_numerical(0, split.num_samples), np.float32)
    split.close()
    return numerical, np.concatenate(ids, axis=1).astype(np.int64)


def inputs_of(lists, numerical, ids):
    """Return the inputs of a server for the values that `samples` returned."""
    only, weights, first = [], [], 0
    for feature in features_of(lists):
        some = ids[:, first : first + feature.columns].astype(np.int32)
        if feature.weights:
            some, of_ids = ids_and_weights(some)
            weights.append(of_ids)
        only.append(some.astype(np.int64))
        first += feature.columns
    found = {"numerical": numerical, "categorical": np.concatenate(only, axis=1)}
    return found | ({"id_weights": np.concatenate(weights, axis=1)} if weights else {})


@pytest.mark.parametrize("number", **named(EXPORTED))
def test_scorers_and_exports_score_as_the_evaluator(unbroken, datasets, number, tmp_path):
    from tests.serving.real_server import packages
    from tests.serving.served_models import export

    packages("onnx", "onnxruntime")
    from serving.onnx_model import OnnxModel
    from serving.saved_model import LoadedModel

    one, run = ARRAY[number], unbroken(number)
    expected = 1 / (1 + np.exp(-run.scores.logits.astype(np.float64)))
    numerical, ids = samples(datasets[one.lists])
    assert len(expected) == len(ids) and np.ptp(expected) > 0.01
    scorer = dlrm.load(run.checkpoints, mmap=True).over_arrays()
    assert isinstance(scorer.engine, NativeScorer) or native_scorer_library() is None or one.tables == "lazy"  # TensorFlow scores partial tables
    inputs = inputs_of(one.lists, numerical, ids)
    found = {"scorer": scorer.score(*scorer.checked(*inputs.values()))}
    saved_model = number in NORMALISED.values()  # of each model, because it takes seconds to trace
    formats = "onnx,savedmodel" if saved_model else "onnx"
    export(run.checkpoints, tmp_path / "r", "--formats", formats, "--precision", FLOAT32)
    found["onnx"] = OnnxModel(tmp_path / "r/dlrm_onnx/1/model.onnx").score(inputs)
    if saved_model:
        found["savedmodel"] = LoadedModel(tmp_path / "r/dlrm_savedmodel/1/model.savedmodel").score(inputs)
    if one.batch_norm:
        checkpoint = Checkpoint(run.checkpoints)
        statistics = [name for name in checkpoint.names("dense/") if name.endswith("moving_mean")]
        assert statistics and all(checkpoint.read(name).any() for name in statistics)
    for name, scores in found.items():
        np.testing.assert_allclose(scores.reshape(-1), expected, atol=1e-6, rtol=0, err_msg=name)
