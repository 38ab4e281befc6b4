"""Tests of `dlrm.load` and `dlrm.train`: they give the same model and the same scores as the command line."""

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars
import pytest
from runs import TRAIN, by_threads

import dlrm
from dataloading.feature_spec import FeatureSpec
from dataloading.tf_raw import TfRawSplit
from utils.errors import UserError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def samples(dataset):
    """Return the test split as a user would have it: a column for each feature."""
    split = TfRawSplit(FeatureSpec.from_yaml(dataset / "feature_spec.yaml"), "test")
    count = split.num_samples
    columns = dict(zip(split.spec.numerical, split.read_numerical(0, count).T, strict=True))
    columns |= {feature.name: split.read_ids(i, 0, count) for i, feature in enumerate(split.spec.categorical)}
    split.close()
    return columns


@pytest.fixture
def predicted(run, dataset, trained, tmp_path):
    """Return a function that returns the scores of `--mode predict` for the test split."""

    def scores(*flags):
        flags = ("--mode", "predict", "--restore_checkpoint_path", trained[0], "--predictions_path", tmp_path / "p.parquet", *flags)
        result = run("--dataset_path", dataset, *flags)
        assert result.code == 0, result.err
        return polars.read_parquet(tmp_path / "p.parquet")["score"].to_numpy()

    return scores


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("batch_size", [None, 64])
def test_scores_match_mode_predict_bit_for_bit(predicted, trained, samples, mmap, batch_size):
    expected = predicted(*(() if batch_size is None else ("--valid_batch_size", batch_size)))
    model = dlrm.load(trained[0], mmap=mmap, batch_size=batch_size)
    found = model.score(samples)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(model.score(polars.DataFrame(samples)), expected)  # float16 becomes float32 and back
    np.testing.assert_array_equal(model.score({name: values.tolist() for name, values in samples.items()}), expected)
    few = model.score({name: values[3:8] for name, values in samples.items()})
    np.testing.assert_allclose(few, expected[3:8], rtol=0, atol=1e-6)
    assert model.score({name: [] for name in samples}).shape == (0,)


def test_bfloat16_model_scores_as_mode_predict(dataset, tmp_path, samples, predicted, trained):
    path = str(tmp_path / "checkpoint")
    result = dlrm.train(dataset_path=str(dataset), cpu=True, amp=True, max_steps=5, save_checkpoint_path=path, log_path="", **_widths())
    assert result.checkpoint == Path(path) and result.figures["steps"] == 5
    expected = predicted("--restore_checkpoint_path", path)
    for mmap in (False, True):
        np.testing.assert_array_equal(dlrm.load(path, mmap=mmap).score(samples), expected)


@pytest.mark.parametrize("amp", [False, True])
def test_wide_and_deep(dataset, tmp_path, samples, predicted, amp):
    """Wide & Deep trains to the same AUC twice; a loaded or mapped model scores whole splits and single rows as `--mode predict` does."""
    path = str(tmp_path / "checkpoint")
    model = {"interaction": "wide_and_deep", "embedding_dim": 8, "top_mlp_dims": "16,1", "optimizer": "rmsprop", "dropout": 0.1}
    flags = {"dataset_path": str(dataset), "cpu": True, "amp": amp, "max_steps": 6, "batch_size": 256, "log_path": "", **model}
    result = dlrm.train(save_checkpoint_path=path, **flags)
    assert result.figures["steps"] == 6 and dlrm.train(**flags).figures["auc"] == result.figures["auc"]
    expected = predicted("--restore_checkpoint_path", path)
    for mmap in (False, True):
        trained = dlrm.load(path, mmap=mmap)
        assert repr(trained).startswith("wide_and_deep of ") and not any("_wide" in column for column in trained.columns)
        np.testing.assert_array_equal(trained.score(samples), expected)
        few = trained.score({name: values[3:8] for name, values in samples.items()})
        np.testing.assert_allclose(few, expected[3:8], rtol=0, atol=1e-2 if amp else 1e-6)


def _widths():
    """Return the flags of TRAIN as keywords."""
    return {name.removeprefix("--"): value for name, value in itertools.pairwise(TRAIN) if name.startswith("--") and not value.startswith("--")}


def test_repr_describes_the_model(trained):
    model = dlrm.load(trained[0])
    text = repr(model)
    assert str(model.checkpoint) in text and f"step {model.step:,}" in text and "last_auc 0." in text
    for name, rows in model.categorical.items():
        assert f"{name} [{rows:,}, " in text


def test_models_in_several_threads_score_the_same(trained, samples):
    models = [dlrm.load(trained[0]), dlrm.load(trained[0], mmap=True)]
    expected = models[0].score(samples)
    for scores in by_threads(lambda place: models[place % 2].score(samples)):
        np.testing.assert_array_equal(scores, expected)


BAD = [
    (lambda s, n: s.pop("cat_1"), "feature cat_1: is missing; the model has "),
    (lambda s, n: s.update(label=np.zeros(n)), "feature label: is unknown; the model has "),
    (lambda s, n: s.update(cat_1=s["cat_1"][:3]), "feature cat_1: has shape [3], expected ["),
    (lambda s, n: s.update(cat_1=np.zeros((n, 2), int)), "feature cat_1: has shape ["),
    (lambda s, n: s.update(cat_1=np.full(n, 10**10)), "feature cat_1: id 10000000000 of sample 0 is not in [0, "),
    (lambda s, n: s.update(cat_1=np.where(np.arange(n) == 7, -1, 0)), "feature cat_1: id -1 of sample 7 is not in [0, "),
    (lambda s, n: s.update(cat_1=np.zeros(n)), "feature cat_1: holds float64, expected whole numbers from 0 to "),
    (lambda s, n: s.update(cat_1=["a"] * n), "feature cat_1: holds <U1, expected whole numbers"),
    (lambda s, n: s.update(num_0=["a"] * n), "feature num_0: holds <U1, expected numbers"),
    (lambda s, n: s.update(num_0=np.full(n, 70000.0)), "feature num_0: value 70000.0 of sample 0 is not a finite float16"),
    (lambda s, n: s.update(num_0=np.where(np.arange(n) == 5, np.nan, 0)), "feature num_0: value nan of sample 5 is not a finite"),
    (lambda s, n: s.update(num_0=None), "feature num_0: has shape [], expected [B]"),
    (lambda s, n: s.update(num_0=np.ma.array(np.zeros(n), mask=np.arange(n) == 3)), "feature num_0: the value of sample 3 is masked"),
    (lambda s, n: s.update(cat_1=np.ma.array(np.zeros(n, int), mask=np.arange(n) == 2)), "feature cat_1: the value of sample 2 is masked"),
]


@pytest.mark.parametrize(("spoil", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_error_of_an_invalid_sample_names_the_feature(trained, samples, spoil, message):
    bad = dict(samples)
    spoil(bad, len(bad["num_0"]))
    with pytest.raises(ValueError, match="^" + message.replace("[", r"\[").replace("(", r"\(")):
        dlrm.load(trained[0]).score(bad)


def test_samples_that_are_no_mapping_are_rejected(trained):
    with pytest.raises(ValueError, match="samples: list, expected a mapping"):
        dlrm.load(trained[0]).score([1, 2])


def test_repeated_training_gives_the_same_figures(dataset, trained):
    dlrm.load(trained[0])
    flags = {"dataset_path": str(dataset), "cpu": True, "max_steps": 6, "log_path": "", **_widths()}
    first, second = dlrm.train(**flags), dlrm.train(**flags)
    assert first.checkpoint is None and first.figures["auc"] == second.figures["auc"] and first.figures["train_loss"] == second.figures["train_loss"]


def test_errors_match_the_command_line(tmp_path):
    with pytest.raises(UserError, match="no such folder; expected a checkpoint"):
        dlrm.load(tmp_path / "none")
    with pytest.raises(UserError, match="unknown flag --learning_rat; did you mean --learning_rate"):
        dlrm.train(dataset_type="synthetic", learning_rat=1)
    with pytest.raises(UserError, match="mode is 'eval', expected 'train'"):
        dlrm.train(mode="eval", dataset_path=str(tmp_path))
    with pytest.raises(UserError, match="no such file; expected a feature specification"):
        dlrm.train(dataset_path=str(tmp_path))


def test_path_that_is_not_utf8_is_an_error():
    with pytest.raises(UserError, match="is not UTF-8; expected a path in UTF-8"):
        dlrm.load("\udcff")


def python(folder, code):
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)


def test_the_import_is_light_and_works_from_another_folder(tmp_path):
    result = python(tmp_path, "import dlrm, sys; print(dlrm.__file__, sorted({'tensorflow', 'numpy', 'keras', 'horovod'} & set(sys.modules)))")
    assert result.stdout == f"{ROOT / 'dlrm.py'} []\n", result.stderr


def test_conflicting_module_name_is_a_clear_error(tmp_path):
    (tmp_path / "utils.py").write_text("")
    result = python(tmp_path, "import dlrm")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith(
        f"ImportError: module 'utils': {tmp_path / 'utils.py'} comes before dlrm's own on Python's path; rename it"
    )
