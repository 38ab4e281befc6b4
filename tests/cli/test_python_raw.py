"""Tests of `score_raw`: raw values of a log get the same scores as after preprocessing."""

import os
import random
import shutil
import subprocess
import sys

import numpy as np
import pandas
import polars
import pytest
from runs import ROOT, SMALL, by_threads

import dlrm
from preproc.criteo import command as criteo
from preproc.criteo.clicklog import CATEGORICAL, FIELDS, NUMERICAL
from run.raw_inputs import CriteoInputs
from utils.checkpoint.reading import Checkpoint
from utils.errors import UserError

COLUMNS = (*NUMERICAL, *CATEGORICAL)


def line(draw):
    """Draw a row of a log: some numbers are missing or negative, and some values may not occur in training."""
    numbers = ["" if draw.random() < 0.1 else str(draw.randint(-5, 400)) for _ in NUMERICAL]
    values = ["" if draw.random() < 0.1 else f"{draw.randint(0, 30):0{draw.choice([1, 8])}x}" for _ in CATEGORICAL]
    return "\t".join([draw.choice("01"), *numbers, *(value.upper() if draw.random() < 0.1 else value for value in values)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write the logs `train` and `test`, prepare a dataset from them, and train a model on it; return the folder."""
    folder, draw = tmp_path_factory.mktemp("raw"), random.Random(0)
    for split, rows in (("train", 600), ("test", 150)):
        (folder / split).write_text("\n".join(line(draw) for _ in range(rows)) + "\n")
    flags = ("--train", folder / "train", "--test", folder / "test", "--dst", folder / "data", "--frequency_threshold", "15")
    criteo.main([str(flag) for flag in flags])
    _train(folder / "data", folder / "c", checkpoint_every_steps=2, max_steps=4)
    return folder


def _train(data, checkpoint, **flags):
    widths = {name.removeprefix("--"): value for name, value in zip(SMALL[::2], SMALL[1::2], strict=True)}
    fixed = {"cpu": True, "batch_size": 64, "valid_batch_size": 64, "optimizer": "adam", "learning_rate": 0.01, "warmup_steps": 0, "log_path": ""}
    return dlrm.train(dataset_path=str(data), save_checkpoint_path=str(checkpoint), **widths, **fixed, **flags)


@pytest.fixture(scope="module")
def log(folder):
    """Return the test split's log as a frame of texts, null where a value is missing."""
    frame = polars.read_csv(folder / "test", has_header=False, separator="\t", new_columns=FIELDS, infer_schema=False)
    return frame.select(COLUMNS)


@pytest.fixture(scope="module")
def expected(folder):
    """Return the scores that `--mode predict` gives the test split."""
    from run.command import do

    flags = ("--mode", "predict", "--cpu", "--dataset_path", folder / "data", "--restore_checkpoint_path", folder / "c", "--log_path", "")
    do([str(flag) for flag in (*flags, "--predictions_path", folder / "p.parquet")], "dlrm.py", "")
    scores = polars.read_parquet(folder / "p.parquet")["score"].to_numpy()
    assert len(np.unique(scores)) > 100
    return scores


@pytest.mark.parametrize("mmap", [False, True])
def test_raw_values_score_as_the_dataset(folder, log, expected, mmap):
    model = dlrm.load(folder / "c", mmap=mmap)
    numbers = log.with_columns(polars.col(NUMERICAL).cast(polars.Int64))
    forms = {
        "texts": log,
        "integers": numbers,
        "pandas": pandas.DataFrame({name: numbers[name].to_list() for name in COLUMNS}),  # floats with NaN, and None
        "lists": numbers.to_dict(as_series=False),
        "empty texts": {name: values.fill_null("").to_list() for name, values in zip(COLUMNS, log.iter_columns(), strict=True)},
        "categories": numbers.with_columns(polars.col(CATEGORICAL).cast(polars.Categorical)),
    }
    first = model.score_raw(log)  # with mapped tables, TensorFlow does not score few samples, so the last bits differ from predictions
    np.testing.assert_allclose(first, expected, rtol=0, atol=1e-6 if mmap else 0)
    for form, frame in forms.items():
        np.testing.assert_array_equal(model.score_raw(frame), first, err_msg=form)
    few = model.score_raw(log[3:8])
    np.testing.assert_allclose(few, expected[3:8], rtol=0, atol=1e-6)
    assert model.score_raw({name: [] for name in COLUMNS}).shape == (0,)


def test_eight_threads_get_the_same_scores(folder, log, expected):
    model = dlrm.load(folder / "c")
    for scores in by_threads(lambda _: model.score_raw(log)):
        np.testing.assert_array_equal(scores, expected)


@pytest.mark.parametrize(
    ("feature", "value", "message"),
    [
        ("num_3", "1.5", "feature num_3: value '1.5' of sample 1, expected a whole number of 64 bits, or nothing"),
        ("num_3", "9" * 20, "of sample 1, expected a whole number of 64 bits, or nothing"),
        ("num_3", " 1", "feature num_3: value ' 1' of sample 1"),
        ("cat_7", "xyz", "feature cat_7: value 'xyz' of sample 1, expected up to 8 hexadecimal digits, or nothing"),
        ("cat_7", "0x1", "feature cat_7: value '0x1' of sample 1"),
        ("cat_7", "123456789", "feature cat_7: value '123456789' of sample 1"),
    ],
)
def test_error_names_an_invalid_value(folder, log, feature, value, message):
    samples = log.to_dict(as_series=False)
    samples[feature][1] = value
    with pytest.raises(ValueError) as raised:
        dlrm.load(folder / "c", mmap=True).score_raw(samples)
    assert message in str(raised.value)


def test_error_names_an_invalid_column(folder, log):
    model = dlrm.load(folder / "c", mmap=True)
    for samples, message in [
        (log.drop("cat_2"), "column cat_2: is missing; the model has num_0, num_1, num_2, num_3, … (model.raw_columns)"),
        (log.with_columns(label=polars.lit(1)), "column label: is unknown"),
        (log.with_columns(cat_2=polars.lit(7)), "feature cat_2: holds Int32, expected texts of up to 8 hexadecimal digits"),
        ({**log.to_dict(), "cat_2": ["1"]}, "feature cat_2: has shape [1], expected [150] as num_0 has"),
        ({**log.to_dict(), "num_2": [["1"]] * 150}, "feature num_2: has shape [150, 1], expected [B]"),
        ({**log.to_dict(), "num_2": [True] * 150}, "feature num_2: holds Boolean, expected whole numbers"),
    ]:
        with pytest.raises(ValueError) as raised:
            model.score_raw(samples)
        assert message in str(raised.value)


def test_columns_for_training_only_are_not_read(folder, log):
    """Features of a Criteo log for training only have what is served; the others are as they are without any."""
    checkpoint, served = Checkpoint(folder / "c"), {"num_1": 0.5, "cat_3": 2}
    rows = checkpoint.manifest["features"]["categorical"]
    plain, inputs = CriteoInputs(checkpoint, NUMERICAL, rows), CriteoInputs(checkpoint, NUMERICAL, rows, served)
    assert inputs.optional == {*served} and inputs.columns == tuple(name for name in COLUMNS if name not in served) == tuple(inputs.kinds)
    columns = log.to_dict(as_series=False)
    numbers, ids = plain.encoded(columns)
    numbers[:, NUMERICAL.index("num_1")], ids[CATEGORICAL.index("cat_3")] = 0.5, 2
    without = {name: values for name, values in columns.items() if name not in served}
    for samples in (without, columns, without | {"num_1": ["many"] * 150, "cat_3": [None, 1.5] * 75}):
        found = inputs.encoded(samples)
        assert np.array_equal(found[0], numbers) and np.array_equal(found[1], ids) and found[1].dtype == np.int32
    assert set(inputs.unknown.taken()) == {*CATEGORICAL} - {"cat_3"}
    with pytest.raises(ValueError, match=r"feature cat_3: has shape \[1\], expected \[150\] as num_0 has"):
        inputs.encoded(without | {"cat_3": ["a"]})


def test_steps_share_vocabularies_and_a_copied_step_has_them(folder, log, expected, tmp_path):
    steps = sorted((folder / "c").glob("step-*"))
    assert len(steps) == 2
    kept = [sorted((step / "vocabulary").iterdir()) for step in steps]
    assert [path.name for path in kept[0]] == sorted(f"{name}.parquet" for name in CATEGORICAL)
    assert all(os.path.samefile(*files) for files in zip(*kept, strict=True))
    shutil.copytree(steps[-1], tmp_path / "moved")
    np.testing.assert_array_equal(dlrm.load(tmp_path / "moved").score_raw(log), expected)


def test_resume_without_vocabularies_keeps_the_checkpoints(folder, log, tmp_path):
    shutil.copytree(folder / "data", tmp_path / "data", ignore=shutil.ignore_patterns("vocabulary"))
    _train(tmp_path / "data", tmp_path / "c", restore_checkpoint_path=str(folder / "c"), max_steps=6)
    model = dlrm.load(tmp_path / "c")
    scores = model.score_raw(log)
    assert model.step == 6 and scores.shape == (len(log),) and len(np.unique(scores)) > 100


def test_missing_transforms_or_damaged_vocabulary_is_an_error(folder, log, trained, tmp_path):
    with pytest.raises(UserError, match="does not record how raw values became feature num_0"):
        dlrm.load(trained[0]).score_raw({name: [1] for name in dlrm.load(trained[0]).columns})
    step = shutil.copytree(dlrm.load(folder / "c").checkpoint, tmp_path / "step")
    vocabulary = step / "vocabulary/cat_5.parquet"
    frame = polars.read_parquet(vocabulary)
    frame.with_columns(value=frame["value"].reverse()).write_parquet(vocabulary)
    with pytest.raises(UserError, match=r"cat_5\.parquet: (its values differ from those|[0-9]+ bytes, the manifest says)"):
        dlrm.load(step).score_raw(log)


# Yesterday's model, today's rows --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def today(folder):
    """Write the log of a later day, with values that training has not seen (9 of cat_0); return it as a frame."""
    draw = random.Random(1)
    text = [line(draw).split("\t") for _ in range(400)]
    for row, fields in enumerate(text):
        fields[14] = f"{0x100 + row % 9:x}" if row % 2 else fields[14]
    (folder / "today").write_text("".join("\t".join(fields) + "\n" for fields in text))
    return polars.read_csv(folder / "today", has_header=False, separator="\t", new_columns=FIELDS, infer_schema=False).select(COLUMNS)


def predicted(data, checkpoint, path):
    """Return the scores that `--mode predict` gives a dataset's test split."""
    from run.command import do

    flags = ("--mode", "predict", "--cpu", "--dataset_path", data, "--restore_checkpoint_path", checkpoint, "--log_path", "")
    do([str(flag) for flag in (*flags, "--predictions_path", path)], "dlrm.py", "")
    return polars.read_parquet(path)["score"].to_numpy()


def test_frozen_vocabulary_scores_new_rows_as_score_raw(folder, today):
    criteo.main(["--test", str(folder / "today"), "--vocabulary", str(folder / "data"), "--dst", str(folder / "frozen")])
    scores = predicted(folder / "frozen", folder / "c", folder / "today.parquet")
    np.testing.assert_array_equal(scores, dlrm.load(folder / "c").score_raw(today))


def test_extended_vocabulary_keeps_all_vectors_and_grows_the_model(folder, today):
    flags = ("--train", folder / "today", "--test", folder / "test", "--vocabulary", folder / "data", "--dst", folder / "extended")
    criteo.main([*map(str, flags), "--extend_vocabulary", "--frequency_threshold", "3"])
    old, new = (polars.read_parquet(folder / data / "vocabulary" / "cat_0.parquet") for data in ("data", "extended"))
    assert new["value"][: old.height].equals(old["value"]) and set(range(0x100, 0x109)) <= set(new["value"][old.height :].to_list())
    _train(
        folder / "extended", folder / "grown", restore_checkpoint_path=str(folder / "c"), allow_growth=True, embedding_trainable=False, max_steps=1
    )
    before, after = (Checkpoint(folder / checkpoint).read("tables/cat_0/weights") for checkpoint in ("c", "grown"))
    assert len(after) == new.height + 1 > len(before) == old.height + 1
    np.testing.assert_array_equal(after[: len(before)], before)
    scores = predicted(folder / "extended", folder / "grown", folder / "grown.parquet")
    frame = polars.read_csv(folder / "test", has_header=False, separator="\t", new_columns=FIELDS, infer_schema=False).select(COLUMNS)
    np.testing.assert_array_equal(scores, dlrm.load(folder / "grown").score_raw(frame))


OURS = ("dlrm", "run", "model", "training", "preproc", "dataloading", "serving", "served", "utils")
MODULES = f"""
import sys, warnings
import served.backend
import numpy as np
scorer = served.backend.load(sys.argv[1], raw=sys.argv[2] == "raw", cpu=True)
if sys.argv[2] == "raw":
    columns = {{name: np.array([3], np.float32) if number else ["1f"] for name, number in scorer.numbers.items()}}
    found = scorer.score(*scorer.checked(columns))
else:
    found = scorer.score(*scorer.checked(np.zeros((1, scorer.num_numerical), np.float32), np.zeros((1, scorer.num_ids), np.int32)))
assert found.shape == (1,)
print(*(name for name, module in sys.modules.items() if name.split(".")[0] in {OURS} and not hasattr(module, "__path__")))
print(*({{"tensorflow", "argparse", "horovod", "mpi4py"}} & set(sys.modules)))
"""


@pytest.mark.parametrize("inputs", ["ids", "raw"])
def test_served_model_imports_few_modules_and_no_command_line(folder, inputs):
    """A served model imports only modules that scoring needs, so that others can neither break it nor slow its start."""
    step = Checkpoint(folder / "c").folder
    found = subprocess.run([sys.executable, "-c", MODULES, step, inputs], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    ours, others = (set(line.split()) for line in found.splitlines())
    assert {"run.trained", "model.native_scorer"} <= ours and len(ours) <= 80, f"{len(ours)}: {' '.join(sorted(ours))}"
    assert not [name for name in ours if "dialects" in name or name.startswith("preproc")] and not others
