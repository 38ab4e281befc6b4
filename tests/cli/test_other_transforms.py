"""Tests that a model refuses a dataset prepared with other transforms than its training data; the error names the feature and both values."""

import copy
import random
import shutil

import pytest
import yaml
from runs import TRAIN, edit_spec

from preproc.criteo import command as criteo
from preproc.table import command as table

FEATURES = {
    "user": {"kind": "categorical"},
    "city": {"kind": "categorical", "hash_buckets": 20},
    "hour": {"kind": "time", "column": "when", "part": "hour"},
    "days": {"kind": "time", "column": "when", "part": "days_since", "transform": "none"},
    "pair": {"kind": "cross", "columns": ["user", "city"]},
    "liked": {"kind": "list", "separator": " "},
    "price": {"kind": "numerical", "clip": [0, 40]},
    "range": {"kind": "numerical", "column": "price", "buckets": 3},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Prepare a dataset with every kind of feature from raw rows; return the folder of both."""
    folder, draw = tmp_path_factory.mktemp("made"), random.Random(0)
    rows = ["click,user,city,when,liked,price"]
    for _ in range(120):
        when, liked = f"2024-01-{draw.randint(1, 28):02}T{draw.randint(0, 23):02}:15:00", " ".join(f"i{draw.randint(0, 4)}" for _ in range(2))
        rows.append(f"{draw.randint(0, 1)},u{draw.randint(0, 5)},c{draw.randint(0, 9)},{when},{liked},{draw.randint(1, 50)}")
    (folder / "rows.csv").write_text("\n".join(rows) + "\n")
    (folder / "columns.yaml").write_text(yaml.safe_dump({"label": "click", "features": FEATURES}, sort_keys=False))
    table.main(
        [
            str(word)
            for word in ("--train", folder / "rows.csv", "--test_fraction", 0.2, "--config", folder / "columns.yaml", "--dst", folder / "data")
        ]
    )
    return folder


@pytest.fixture(scope="module")
def model(made):
    from run.command import do

    flags = ("--dataset_path", made / "data", *TRAIN, "--batch_size", 32, "--max_steps", 2, "--evals_per_epoch", 0, "--log_path", "")
    do([str(flag) for flag in (*flags, "--save_checkpoint_path", made / "c")], "dlrm.py", "")
    return made / "c"


@pytest.fixture
def data(made, tmp_path):
    """Return a copy of the dataset that a test may change."""
    return shutil.copytree(made / "data", tmp_path / "data")


def change(data, feature, **options):
    def changed(spec):
        spec["metadata"]["transforms"][feature].update(options)

    edit_spec(data, changed)


def flags(mode, model, folder):
    return {
        "eval": ["--mode", "eval", "--cpu", "--restore_checkpoint_path", model],
        "inference": ["--mode", "inference", "--cpu", "--restore_checkpoint_path", model, "--max_steps", 1, "--benchmark_warmup_steps", 0],
        "predict": ["--mode", "predict", "--cpu", "--restore_checkpoint_path", model, "--predictions_path", folder / "p.parquet"],
        "export": ["--mode", "export", "--restore_checkpoint_path", model, "--export_path", folder / "repository"],
        "resume": [*TRAIN, "--batch_size", 32, "--restore_checkpoint_path", model, "--max_steps", 3],
        "auto": [*TRAIN, "--batch_size", 32, "--resume", "auto", "--save_checkpoint_path", folder / "again", "--max_steps", 3],
        "weights": [*TRAIN, "--batch_size", 32, "--restore_checkpoint_path", model, "--resume", "weights", "--max_steps", 1],
        "growth": [*TRAIN, "--batch_size", 32, "--restore_checkpoint_path", model, "--allow_growth", "--max_steps", 1],
    }[mode]


MODES = ("eval", "inference", "predict", "export", "resume", "auto", "weights", "growth")


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_rejects_other_transforms_unless_allowed(run, model, data, tmp_path, mode):
    change(data, "price", mean=100.5)
    shutil.copytree(model, tmp_path / "again")
    given = [*flags(mode, model, tmp_path), "--dataset_path", data]
    result = run(*given)
    assert result.code == 1 and "Traceback" not in result.err and len(result.err.splitlines()) == 1, result.err
    assert "feature price: mean is 100.5 in" in result.err and "that " in result.err and "--allow_other_transforms" in result.err
    assert not (tmp_path / "p.parquet").exists() and not (tmp_path / "repository" / "dlrm").exists()
    result = run(*given, "--allow_other_transforms")
    assert result.code == 0 and "warning: --allow_other_transforms: feature price: mean is 100.5 in" in result.err, result.err


@pytest.mark.parametrize(
    ("feature", "options", "message"),
    [
        ("price", {"transform": "log1p"}, "feature price: transform is log1p in"),
        ("price", {"clip": [0, 41]}, "feature price: clip is (0, 41) in"),
        ("price", {"missing": 3}, "feature price: missing is 3 in"),
        ("range", {"boundaries": [1.0, 2.0]}, "feature range: boundary 1 is 1.0 in"),
        ("city", {"column": "user"}, "feature city: columns is ['user'] in"),
        ("city", {"hash_buckets": None}, "feature city: hash_buckets is not set in"),
        ("hour", {"part": "weekday"}, "feature hour: part is weekday in"),
        ("days", {"since": "2020-01-31"}, "feature days: since is 2020-01-31 in"),
        ("liked", {"separator": ";"}, "feature liked: separator is ; in"),
        (
            "pair",
            {"parts": [{"kind": "categorical", "column": "city"}, {"kind": "categorical", "column": "user"}]},
            "feature pair: part 1: columns is",
        ),
    ],
)
def test_error_names_the_difference(run, model, data, tmp_path, feature, options, message):
    change(data, feature, **options)
    result = run(*flags("eval", model, tmp_path), "--dataset_path", data)
    assert result.code == 1 and message in result.err, result.err


def test_equivalent_recipes_are_accepted(run, model, data, tmp_path):
    change(data, "price", clip=[0.0, 40.0], missing=None, transform="standardise", embedding_dim=None)
    change(data, "user", frequency_threshold=0, max_ids=10_000, column="user")
    change(data, "hour", unit="s")
    change(data, "liked", max_hotness=7)
    result = run(*flags("eval", model, tmp_path), "--dataset_path", data)
    assert result.code == 0 and "raw values" not in result.err, result.err


@pytest.mark.parametrize("mode", ["eval", "weights"])
def test_dataset_without_recipes_is_one_warning(run, model, data, tmp_path, mode):
    edit_spec(data, lambda spec: spec["metadata"].pop("transforms"))
    result = run(*flags(mode, model, tmp_path), "--dataset_path", data)
    assert result.code == 0 and result.err.count("does not record how raw values became its inputs") == 1, result.err
    assert f"features days, price, user, city, …: {data / 'feature_spec.yaml'} does not record" in result.err


def test_checkpoint_without_recipes_is_one_warning(run, made, data, tmp_path):
    bare = copy.copy(data)
    edit_spec(bare, lambda spec: spec["metadata"].pop("transforms"))
    assert run("--dataset_path", bare, *TRAIN, "--batch_size", 32, "--max_steps", 1, "--save_checkpoint_path", tmp_path / "c").code == 0
    result = run(*flags("eval", tmp_path / "c", tmp_path), "--dataset_path", made / "data")
    assert result.code == 0 and result.err.count("does not record how raw values became its inputs") == 1, result.err


def test_growth_with_an_extended_vocabulary_keeps_the_transforms(run, made, model, tmp_path):
    rows = (made / "rows.csv").read_text().replace(",u1,", ",u99,")
    (tmp_path / "today.csv").write_text(rows)
    words = (
        "--train",
        tmp_path / "today.csv",
        "--test_fraction",
        0.2,
        "--vocabulary",
        made / "data",
        "--extend_vocabulary",
        "--dst",
        tmp_path / "new",
    )
    table.main([str(word) for word in words])
    result = run(*flags("growth", model, tmp_path), "--dataset_path", tmp_path / "new")
    assert result.code == 0 and "raw values" not in result.err, result.err
    change(tmp_path / "new", "range", boundaries=[1.0, 2.0])
    result = run(*flags("growth", model, tmp_path), "--dataset_path", tmp_path / "new")
    assert result.code == 1 and "feature range: boundary 1" in result.err, result.err


def test_criteos_transform_is_compared(run, tmp_path):
    draw = random.Random(0)
    rows = [
        "\t".join([draw.choice("01"), *(str(draw.randint(0, 9)) for _ in range(13)), *(f"{draw.randint(0, 9):x}" for _ in range(26))])
        for _ in range(64)
    ]
    (tmp_path / "day").write_text("\n".join(rows) + "\n")
    for transform in ("log", "none"):
        words = (
            "--train",
            tmp_path / "day",
            "--test",
            tmp_path / "day",
            "--frequency_threshold",
            "0",
            "--numerical_transform",
            transform,
            "--dst",
            tmp_path / transform,
        )
        criteo.main([str(word) for word in words])
    train = (*TRAIN, "--batch_size", 32, "--max_steps", 1, "--evals_per_epoch", 0, "--save_checkpoint_path", tmp_path / "c")
    assert run("--dataset_path", tmp_path / "log", *train).code == 0
    result = run(*flags("eval", tmp_path / "c", tmp_path), "--dataset_path", tmp_path / "none")
    assert result.code == 1 and "feature num_0: the transform is none in" in result.err and "(12 more features differ, too)" in result.err
    assert run(*flags("eval", tmp_path / "c", tmp_path), "--dataset_path", tmp_path / "log").code == 0
