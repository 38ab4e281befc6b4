"""`python -m benchmarks.published`: the dataset that it makes, a campaign that is cut and goes on, its tables, and bad inputs.

`FRAPPE_DIR` names the folder of the real files, train.csv.gz, valid.csv.gz and test.csv.gz; without it rows of the same form are drawn.
"""

import contextlib
import gzip
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import yaml

from benchmarks.options import parse
from benchmarks.published import data, ours
from benchmarks.published.__main__ import PublishedOptions, joined, main
from benchmarks.published.results import Key, Results, digest
from benchmarks.published.settings import MODELS, PARTS, PEER, PENALTIES, REGRESSION, SPLITS
from dataloading.feature_spec import FeatureSpec
from dataloading.tf_raw import TfRawSplit
from tests.children import child
from tests.helpers.commands import run_here
from utils.config.config import GROUPS
from utils.config.flags import read_yaml
from utils.errors import UserError

FRAPPE = os.environ.get("FRAPPE_DIR")
needs_frappe = pytest.mark.skipif(not FRAPPE, reason="FRAPPE_DIR names no folder with train.csv.gz, valid.csv.gz and test.csv.gz of Frappe")
COLUMNS = ("user", "item", "weather")
SMALL = {"top_mlp_dims": [8, 1], "embedding_dim": 4, "num_cross_layers": 1, "cross_layer_projection_dim": 2, "learning_rate": 0.01}
SMALL |= {"warmup_steps": 0, "batch_size": 64, "valid_batch_size": 64, "epochs": 2, "keep_best_checkpoint": True}


def write(path, text):
    path.write_bytes(gzip.compress(text.encode()))


def draw(folder, rows=300):
    """Draw files of the form of Frappe: numbers as ids, and labels that depend on the item. `test` has an item that `train` lacks."""
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(0)
    for split in SPLITS:
        user, item = random.integers(0, 40, rows), random.integers(100, 120, rows)
        item[0] = 7 if split == "test" else item[0]
        label = (random.random(rows) < np.where(item % 2, 0.8, 0.2)).astype(int)
        lines = [f"{one[0]},{one[1]},{one[2]},{number % 9}" for number, one in enumerate(zip(label, user, item, strict=True))]
        write(folder / f"{split}.csv.gz", "\n".join([",".join(("label", *COLUMNS)), *lines]) + "\n")
    return folder


@pytest.fixture
def drawn(tmp_path):
    return draw(tmp_path / "drawn")


@pytest.fixture
def recipes(tmp_path):
    folder = tmp_path / "recipes"
    folder.mkdir()
    for model in MODELS:
        (folder / f"frappe_{model}.yaml").write_text(yaml.safe_dump(SMALL))
    return folder


@pytest.fixture
def said():
    """Make a report that keeps what is said."""
    lines = []
    return SimpleNamespace(say=lines.append, figures={}, lines=lines)


def options(*words):
    return parse(PublishedOptions, "", [str(word) for word in words])


def frame(folder, split):
    return pl.read_csv(folder / f"{split}.csv.gz", infer_schema_length=None)


@pytest.mark.parametrize("real", [pytest.param(True, marks=needs_frappe), False])
def test_every_id_is_one_id_of_the_dataset(real, tmp_path):
    folder = Path(FRAPPE) if real else draw(tmp_path / "drawn")
    files = data.read(folder)
    made = data.dataset(files, tmp_path)
    if real:
        assert files.rows["valid"] == 57_722 and files.rows["test"] == 28_860 and files.rows["train"] in (202_027, 202_812)
        assert "the published split of Frappe" in files.note() and "not the" not in files.note()
    else:
        assert files.rows == dict.fromkeys(SPLITS, 300) and "not the published split" in files.note()
    spec = FeatureSpec.from_yaml(made / "feature_spec.yaml")
    assert tuple(one.name for one in spec.categorical) == files.columns and not spec.numerical
    ids, frames = {}, {split: frame(folder, split) for split in SPLITS}
    for split in SPLITS:
        with contextlib.closing(TfRawSplit(spec, split)) as rows:
            count = rows.num_samples
            assert count == files.rows[split] == frames[split].height
            assert np.array_equal(rows.read_labels(0, count), frames[split]["label"].to_numpy())
            ids[split] = [rows.read_ids(number, 0, count) for number in range(len(files.columns))]
    for number, name in enumerate(files.columns):
        values = frames["train"][name].to_numpy()
        known = dict(zip(values, ids["train"][number], strict=True))
        assert sorted(known.values()) == list(range(1, len(known) + 1)) and spec.categorical[number].cardinality == len(known) + 1
        for split in SPLITS:
            expected = [known.get(value, 0) for value in frames[split][name].to_numpy()]
            assert np.array_equal(ids[split][number], expected), (split, name)


def test_a_dataset_is_made_once(drawn, tmp_path):
    files = data.read(drawn)
    made = data.dataset(files, tmp_path)
    before = (made / "feature_spec.yaml").stat().st_mtime_ns
    assert data.dataset(files, tmp_path) == made and (made / "feature_spec.yaml").stat().st_mtime_ns == before
    fewer = data.read(drawn, 20, tmp_path / "cut")
    assert fewer.rows == dict.fromkeys(SPLITS, 20) and fewer.digest != files.digest
    with pytest.raises(UserError, match="300 rows in train, the file has 20"):
        data.dataset(data.Files(files.folder, files.columns, fewer.rows, files.digest), tmp_path)


def command(folder, recipes, results, *flags):
    words = ["--data", folder, "--models", "dcnv2", "--seeds", 3, "--only", "ours", REGRESSION, "--recipes", recipes, "--folder", results, *flags]
    return ["-m", "benchmarks.published", *map(str, words)]


def lines_of(results):
    path = results / "results.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_campaign_that_is_cut_goes_on(tmp_path, recipes):
    folder, results = Path(FRAPPE) if FRAPPE else draw(tmp_path / "drawn"), tmp_path / "results"
    words = command(folder, recipes, results, "--max_rows", 250)
    with child([sys.executable, *words]) as process:
        while not lines_of(results) and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    (first,) = lines_of(results)
    assert first["who"] == REGRESSION and process.returncode == 143 and "Traceback" not in errors
    for done in (1, 2):  # goes on; then has nothing left to do
        ended = run_here(*words)
        assert ended.returncode == 0, ended.stderr
        assert [line["who"] for line in lines_of(results)] == [REGRESSION, "ours"] and lines_of(results)[0] == first
        assert ended.stdout.count("(done before)") == done
    mine = lines_of(results)[1]
    assert mine["model"] == "dcnv2" and mine["seed"] == 3 and 0 < mine["auc"] < 1 and len(mine["epochs"]) == 2
    assert 0 < mine["epochs"][0]["seconds"] < mine["epochs"][1]["seconds"] < mine["process_seconds"] and mine["cpu_seconds"] > 0
    assert f"| dcnv2 | this project | 1 | {mine['auc']:.5f} |" in ended.stdout
    assert not list(results.rglob("checkpoints")), "checkpoints were left behind"


def epochs(*aucs, step=10):
    return [{"auc": auc, "seconds": float(step * (number + 1))} for number, auc in enumerate(aucs)]


@pytest.fixture
def finished(drawn, recipes, tmp_path):
    """Write the results of a whole campaign of two seeds, and return the command's flags."""
    folder, files, recipe = tmp_path / "results", data.read(drawn), ours.recipe_of(recipes, "dcnv2")[1]
    folder.mkdir()
    results, reduced = Results(folder), ours.without(recipe | {"dropout": 0.4}, "dropout")
    (recipes / "frappe_dcnv2.yaml").write_text(yaml.safe_dump(recipe | {"dropout": 0.4}))
    whole = {"parameters": 1234, "log_loss": 0.25, "cpu_seconds": 77.0}

    def add(who, model, part, settings, seed, auc, epochs):
        results.add(Key(who, model, seed, part, files.digest, digest(settings)), whole | {"auc": auc, "epochs": epochs})

    add(REGRESSION, REGRESSION, "", PENALTIES, 1, 0.7, epochs(0.71))
    add("peer", "dcnv2", "", PEER["dcnv2"], 1, 0.98, epochs(0.9, 0.985, 0.98))
    add("peer", "dcnv2", "", PEER["dcnv2"], 2, 0.99, epochs(0.9, 0.98, 0.987))
    add("ours", "dcnv2", "", recipe | {"dropout": 0.4}, 1, 0.984, epochs(0.98, 0.986, step=5))
    add("ours", "dcnv2", "", recipe | {"dropout": 0.4}, 2, 0.988, epochs(0.98, 0.9855, 0.97, step=5))
    add("ours", "dcnv2", "dropout", reduced, 1, 0.95, epochs(0.95, step=5))
    add("ours", "dcnv2", "dropout", reduced, 2, 0.96, epochs(0.96, step=5))
    only = ["--only", f"ours,peer,{REGRESSION}", "--leave_out"]
    return ["--data", drawn, "--models", "dcnv2", "--seeds", "1,2", *only, "--folder", folder, "--recipes", recipes]


def test_tables_of_given_results(finished, said):
    """The peer's best valid AUCs are 0.985 and 0.987: their mean less 0.0005 is 0.9855. Nothing is trained."""
    main(options(*finished), said)
    text = "\n".join(said.lines)
    assert "|  | logistic regression | 1 | 0.70000 |  | 0.2500 | 10 |  |  | 77 | 1,234 | 0.9356 |" in text
    published = "0.98382 (mean of 5), 0.98448 (best)"
    assert f"| dcnv2 | FuxiCTR 2.3.10 | 2 | 0.98500 | 0.00707 | 0.2500 | 30 | 30 (1 of 2) | 1.00 | 77 | 1,234 | {published} |" in text
    assert f"| dcnv2 | this project | 2 | 0.98600 | 0.00283 | 0.2500 | 12 | 10 | 0.33 | 77 | 1,234 | {published} |" in text
    assert "| dcnv2 | this project | 0.98400 | 0.98800 |" in text and "| dcnv2 | FuxiCTR 2.3.10 | 0.98000 | 0.99000 |" in text
    assert "| dcnv2 | dropout | 2 | 0.95500 | -0.03100 | 0.2500 | 5 |" in text
    (mine,) = [row for row in said.figures["results"] if row["who"] == "ours"]
    assert mine["goal"] == pytest.approx(0.9845) and mine["valid_auc_to_reach"] == pytest.approx(0.9855)
    assert said.figures["left_out"][0]["difference"] == pytest.approx(-0.031) and len(said.figures["runs"]) == 7
    json.dumps(said.figures, allow_nan=False)


def test_other_settings_or_files_are_other_runs(finished, said, recipes, drawn):
    """A run is done again where the recipe or the files changed: here it cannot be, for its program refuses the recipe."""
    words = [*finished, "--only", "ours"]
    (recipes / "frappe_dcnv2.yaml").write_text(yaml.safe_dump(SMALL | {"dropout": 0.4, "epochs": 0}))
    with pytest.raises(UserError, match=r"dcnv2\.py.*--epochs"):
        main(options(*words), said)
    (recipes / "frappe_dcnv2.yaml").write_text(yaml.safe_dump(SMALL | {"dropout": 0.4}))
    main(options(*words), said)
    before = data.read(drawn).digest
    write(drawn / "test.csv.gz", "label,user,item,weather\n1,1,100,1\n0,2,101,1\n")
    assert data.read(drawn).digest != before


def test_seconds_of_a_log(tmp_path):
    """The first step of 64 samples took 2 s and ended at 12: training began at 10. The last line has the figures of the best weights."""
    entries = [
        (9.0, "RUN", {"batch_size": 64, "samples": {"train": 1000}, "parameters": {"embedding": 30, "dense": 12}}),
        (12.0, [1, 1], {"batch_samplesps": 32.0}),
        (13.0, [1, 2], {"batch_samplesps": 64.0}),
        (15.5, "EVALUATION", {"split": "valid", "final": False, "auc": 0.9}),
        (17.0, [1, 3], {"batch_samplesps": 64.0}),
        (20.0, "EVALUATION", {"split": "valid", "final": False, "auc": 0.8}),
        (23.0, "EVALUATION", {"split": "test", "final": True, "auc": 0.6}),
        (24.0, [], {"auc": 0.7, "validation_loss": 0.3, "mean_step_time_ms": 1000.0}),
    ]
    lines = [{"timestamp": str(when), "type": "LOG", "step": step, "data": values} for when, step, values in entries]
    log = tmp_path / "log.json"
    log.write_text("".join(f"DLLL {json.dumps(line)}\n" for line in [{"type": "METADATA", "metric": "auc"}, *lines]))
    expected = [{"auc": 0.9, "seconds": 5.5}, {"auc": 0.8, "seconds": 10.0}]
    assert ours.figures_of(log) == {"auc": 0.7, "log_loss": 0.3, "epochs": expected, "parameters": 42, "step_ms": 1000.0}
    log.write_text("".join(f"DLLL {json.dumps(line)}\n" for line in lines[:3]))
    with pytest.raises(UserError, match="expected the log of a finished run"):
        ours.figures_of(log)


@pytest.mark.parametrize("model", MODELS)
def test_recipes_are_flags_of_the_programs(model):
    path, recipe = ours.recipe_of(ours.RECIPES, model)
    assert set(read_yaml(str(path), GROUPS)) == set(recipe)
    found = {part for part in PARTS if ours.without(recipe, part) is not None}
    lacks = set() if model == "dcnv2" else {"cross layers beside the MLP"}
    lacks |= {"batch normalisation", "dropout", "clipped gradients"} if model in ("fm", "lr") else set()
    lacks |= {"small initial rows"} if model == "lr" else set()
    assert found == set(PARTS) - lacks


def test_lists_of_words():
    words = ["--models", "dcnv2", "dlrm", "--data", "a", "--seeds", "1", "2", "3", "--leave_out", "--only=ours"]
    assert joined(words) == ["--models", "dcnv2,dlrm", "--data", "a", "--seeds", "1,2,3", "--leave_out", "--only=ours"]
    assert joined(["--seeds", "1,2", "--quick"]) == ["--seeds", "1,2", "--quick"]


def broken(name):
    """Return a function that breaks something in the folder of the drawn files."""

    def change(drawn, recipes, results):
        path = {"train": drawn / "train.csv.gz", "test": drawn / "test.csv.gz", "recipe": recipes / "frappe_dcnv2.yaml"}.get(name.partition(" ")[0])
        if name.endswith("missing"):
            path.unlink()
        elif name.endswith("no gzip"):
            path.write_text("label,user\n1,1\n")
        elif name.endswith("other columns"):
            write(path, "label,user\n1,1\n")
        elif name.endswith("no rows"):
            write(path, "label,user,item,weather\n")
        elif name == "recipe list":
            path.write_text("- 1\n")
        elif name == "line":
            results.mkdir()
            (results / "results.jsonl").write_text('{"who": "ours", "auc": 0.9}\n')

    return change


@pytest.mark.parametrize(
    ("what", "flags", "message"),
    [
        ("test missing", (), r"--data .*drawn: no test\.csv\.gz; expected a folder with train\.csv\.gz, valid\.csv\.gz, test\.csv\.gz"),
        ("train no gzip", (), r"--data .*train\.csv\.gz: .*expected a CSV file in gzip"),
        ("test other columns", (), r"test\.csv\.gz: expected rows, with the columns of train and one of them label; found label,user"),
        ("test no rows", (), r"test\.csv\.gz: expected rows"),
        ("recipe missing", (), r"frappe_dcnv2\.yaml: no such recipe; expected the YAML file of dcnv2\.py --config"),
        ("recipe list", (), r"frappe_dcnv2\.yaml: expected flags and their values"),
        ("line", (), r"results\.jsonl, line 1: not the result of a run .*; remove the line"),
        ("", ("--seeds", "1,1"), r"--seeds 1,1: expected different whole numbers from 0 to"),
        ("", ("--seeds", "-1"), "--seeds"),
        ("", ("--seeds", "x"), "--seeds"),
        ("", ("--models", "ffm"), "--models ffm: expected one or more of lr, fm, wide_and_deep, deepfm, dlrm, dcnv2, finalmlp"),
        ("", ("--only", "theirs"), "--only theirs: expected one or more of ours, peer, logistic_regression, lightgbm"),
        ("", ("--only", "peer", "--peer_python", "/no/such"), "--peer_python /no/such: .*expected a Python with the packages of"),
        (
            "",
            ("--only", "peer", "--peer_python", sys.executable),
            r"No module named .*the packages of requirements-published\.txt",
        ),
    ],
)
def test_bad_inputs_are_one_line(what, flags, message, drawn, recipes, tmp_path, said):
    broken(what)(drawn, recipes, tmp_path / "results")
    words = ["--data", drawn, "--models", "dcnv2", "--seeds", "1", "--only", "ours", "--folder", tmp_path / "results", "--recipes", recipes, *flags]
    with pytest.raises((UserError, ValueError), match=message) as raised:
        main(options(*words), said)
    assert "\n" not in str(raised.value)


def test_without_data(said):
    with pytest.raises(UserError, match="--data is missing"):
        main(options("--quick"), said)
