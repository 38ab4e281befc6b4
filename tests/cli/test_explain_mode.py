"""Tests of `--mode explain` on data with planted weights, and of its errors."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import planted
import pytest
from runs import SMALL, edit_spec, here

from dataloading.feature_spec import Categorical, FeatureSpec
from dataloading.tf_raw import TfRawWriter
from run.explain import explain as in_mode
from utils.errors import AgreedError

USELESS = ("num_none", "cat_none")


@pytest.fixture(scope="module", params=[False, True], ids=["single", "copied"])
def model(request, tmp_path_factory):
    """Train on planted data, with or without a copied feature; return whether, the dataset and the checkpoint."""
    folder = tmp_path_factory.mktemp("planted")
    data = planted.write(folder / "data", copy=request.param)
    assert here(folder, "--dataset_path", data, *planted.FLAGS, "--save_checkpoint_path", folder / "c").code == 0
    return request.param, data, folder / "c"


def importance(result):
    """Return the log line of the importances; its features by name."""
    assert result.code == 0, result.err
    data = next(line["data"] for line in result.log if line.get("step") == "IMPORTANCE")
    return data, {feature["name"]: feature for feature in data["features"]}


def explain(run, data, checkpoint, *flags):
    return run("--cpu", "--mode", "explain", "--dataset_path", data, "--restore_checkpoint_path", checkpoint, *flags)


def test_importance_has_the_order_of_the_planted_weights(run, model):
    copied, data, checkpoint = model
    result = explain(run, data, checkpoint)
    line, found = importance(result)
    assert (line["split"], line["samples"], line["repeats"]) == ("test", 10_000, 5) and result.final["auc"] == line["auc"] > 0.8
    if copied:
        joint = found.pop("cat_a + cat_a_copy")
        apart = found["cat_a"], found.pop(planted.COPY)
        assert joint["columns"] == ["cat_a", "cat_a_copy"] and line["copies"] == [["cat_a", "cat_a_copy", pytest.approx(1)]]
        assert all(joint["auc_lost"][0] > 2 * one["auc_lost"][0] for one in apart)  # each hides the other
        assert "cat_a and cat_a_copy are copies of each other (normalised mutual information 1.0000): each hides" in result.out
        found["cat_a"] = joint
    else:
        assert line["copies"] == [] and "copies" not in result.out
    assert found.keys() == planted.SIZES.keys()
    for metric in ("auc_lost", "log_loss_lost"):
        values = [found[name][metric][0] for name in planted.SIZES]
        assert pd.Series(values).rank().corr(pd.Series(list(planted.SIZES.values())).rank()) >= 0.95  # Spearman's
        for name, size in planted.SIZES.items():
            mean, low, high = found[name][metric]
            assert low < mean < high and (low > 0) == (size > 0), (name, metric)
    lost = [feature["auc_lost"][0] for feature in line["features"]]
    assert lost == sorted(lost, reverse=True)
    listed = [text.split()[0] for text in result.out.split("log loss lost\n")[1].splitlines() if text.startswith("  ")]
    assert listed == [feature["name"].split()[0] for feature in line["features"]]
    assert all(text.count("~") == 2 for text in result.out.splitlines() if text.startswith(tuple(f"  {name}" for name in USELESS)))


def test_all_rows_have_the_metrics_of_an_evaluation_and_a_seed_repeats_the_sample(run, model):
    _, data, checkpoint = model
    evaluated = run("--cpu", "--mode", "eval", "--dataset_path", data, "--restore_checkpoint_path", checkpoint).final
    result = explain(run, data, checkpoint, "--explain_samples", 30_000, "--explain_repeats", 1)
    line, _ = importance(result)
    assert "all 20,000 rows of the test split: the sample (--explain_samples 30,000 asks for more)" in result.out
    assert line["auc"] == pytest.approx(evaluated["auc"], abs=1e-6) and line["log_loss"] == pytest.approx(evaluated["test_loss"], abs=1e-6)
    flags = ("--explain_samples", 700, "--explain_repeats", 2, "--split", "train")
    first, again, other = (importance(explain(run, data, checkpoint, *flags, "--seed", seed))[0] for seed in (1, 1, 2))
    assert first == again and first["auc"] != other["auc"] and first["split"] == "train"


def test_tensorflow_gives_the_figures_of_the_cpp_scorer(run, model, monkeypatch):
    flags = (*model[1:], "--explain_samples", 2000, "--explain_repeats", 1)
    _, native = importance(explain(run, *flags))
    monkeypatch.setenv("DLRM_NATIVE_OPS", "0")
    _, found = importance(explain(run, *flags))
    for name, feature in native.items():
        np.testing.assert_allclose(found[name]["auc_lost"] + found[name]["log_loss_lost"], feature["auc_lost"] + feature["log_loss_lost"], atol=1e-5)


def test_amp_and_wide_and_deep(run, dataset, tmp_path):
    """Wide & Deep reads each column by two features, which move together."""
    for place, flags in enumerate((("--amp",), ("--interaction", "wide_and_deep", "--optimizer", "rmsprop"))):
        training = (*SMALL, "--batch_size", 256, "--max_steps", 10, "--save_checkpoint_path", tmp_path / str(place), *flags)
        assert run("--cpu", "--dataset_path", dataset, *training).code == 0
        line, found = importance(explain(run, dataset, tmp_path / str(place)))
        assert found.keys() == {"num_0", "num_1", "num_2", "cat_0", "cat_1", "cat_2"} and line["samples"] == 900
        evaluated = run("--mode", "eval", "--cpu", "--dataset_path", dataset, "--restore_checkpoint_path", tmp_path / str(place)).final
        assert line["auc"] == pytest.approx(evaluated["auc"], abs=1e-3 if place == 0 else 1e-6)


def rewrite(path, change):
    path.write_bytes(change(path.read_bytes()))


def test_a_single_class_has_no_auc(run, copy, trained):
    rewrite(copy / "test/label.bin", lambda labels: b"\1" * len(labels))
    result = explain(run, copy, trained[0])
    line, found = importance(result)
    assert "all labels of the sample are the same: the AUC is undefined" in result.err and "undefined" in result.out
    assert line["auc"] is None and all(one["auc_lost"] == [None] * 3 for one in found.values())
    lost = [one["log_loss_lost"][0] for one in line["features"]]
    assert lost == sorted(lost, reverse=True)


def test_a_feature_with_one_value_has_no_importance(run, copy, trained):
    rewrite(copy / "test/cat_0.bin", lambda ids: b"\1" * len(ids))
    line, found = importance(explain(run, copy, trained[0]))
    assert found["cat_0"]["auc_lost"] == [0, 0, 0] and found["cat_0"]["log_loss_lost"] == [0, 0, 0] and line["copies"] == []


def test_ids_out_of_range(run, copy, trained):
    rewrite(copy / "test/cat_0.bin", lambda ids: b"\x40" * 3 + ids[3:])
    result = explain(run, copy, trained[0])
    assert result.code == 1 and "cat_0.bin: feature cat_0, row 0: id 64 is not in [0, 50); correct the dataset, or map" in result.err
    result = explain(run, copy, trained[0], "--out_of_range", "clip")
    assert importance(result) and "test: 3 ids out of range (--out_of_range clip)" in result.out


ERRORS = [
    (("--explain_samples", 1), "the sample of the test split holds 1 row; expected at least 2"),
    (("--explain_samples", 0), "--explain_samples 0: expected at least 1"),
    (("--explain_repeats", 0), "--explain_repeats 0: expected at least 1"),
    (("--split", "valid"), "split valid is missing; splits found: train, test"),
]


@pytest.mark.parametrize(("flags", "message"), ERRORS, ids=[message[:30] for _, message in ERRORS])
def test_errors_are_one_line(run, dataset, trained, flags, message):
    result = explain(run, dataset, trained[0], *flags)
    assert result.code == 1 and message in result.err and result.err.count("\n") == 1


def test_a_split_without_labels_and_a_missing_checkpoint_are_errors(run, copy, trained):
    def drop_labels(content):
        content["source_spec"]["test"] = [chunk for chunk in content["source_spec"]["test"] if "label" not in chunk["features"]]

    edit_spec(copy, drop_labels)
    result = explain(run, copy, trained[0])
    assert result.code == 1 and "source_spec.test has no chunk of the label label" in result.err
    result = run("--mode", "explain", "--dataset_path", copy)
    assert result.code == 1 and "--restore_checkpoint_path is missing: --mode explain needs a trained model" in result.err


def test_lists_and_shared_tables_of_a_model_without_numericals(run, tmp_path):
    features = (Categorical("bought", 60, "int32", 5, table="items"), Categorical("item", 60, "int32", table="items"))
    spec = FeatureSpec(features, (), "label", {"bought": "int32", "item": "int32", "label": "bool"})
    draw = np.random.default_rng(1)
    with TfRawWriter(tmp_path / "data", spec, ("train", "test")) as writer:
        for split, count in {"train": 6000, "test": 1500}.items():
            bought, item = draw.integers(0, 60, (count, 5)), draw.integers(0, 60, count)
            bought[np.arange(5) >= draw.integers(0, 6, (count, 1))] = -1
            clicks = draw.random(count) < np.where((bought % 2 == 1).sum(axis=1) > (bought >= 0).sum(axis=1) / 2, 0.8, 0.2)
            writer.append(split, np.empty((count, 0), np.float16), [bought, item], clicks)
        writer.publish({})
    training = ("--cpu", *SMALL, "--optimizer", "adam", "--learning_rate", 0.01, "--warmup_steps", 0, "--batch_size", 128, "--epochs", 3)
    assert run("--dataset_path", tmp_path / "data", *training, "--save_checkpoint_path", tmp_path / "c").code == 0
    line, found = importance(explain(run, tmp_path / "data", tmp_path / "c"))
    assert found["bought"]["columns"] == ["bought"] and found["bought"]["auc_lost"][1] > 0.05 and abs(found["item"]["auc_lost"][0]) < 0.05
    assert line["copies"] == []


def test_several_workers_are_an_error():
    with pytest.raises(AgreedError, match=r"--mode explain runs on one worker, 2 were started; start it without horovodrun"):
        in_mode(SimpleNamespace(world=SimpleNamespace(size=2)))
