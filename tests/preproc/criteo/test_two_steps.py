"""spark_data_utils.py: NVIDIA's steps make the dataset that one command makes, and wrong steps are one line."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from dataloading import validate
from preproc.criteo import command as criteo
from preproc.criteo import two_steps
from tests.helpers.commands import ROOT, do, run
from tests.helpers.datasets import read_yaml
from tests.helpers.folders import tree
from tests.preproc.conftest import make_line
from tests.preproc.spark.spark_cluster import JAVA, LOCAL, needs_spark
from utils.errors import UserError

POLARS = ("--engine", "polars")


def log(rows, seed):
    """Draw the text of a log."""
    random, lines = np.random.default_rng(seed), []
    for _ in range(rows):
        cat = {i: f"{random.zipf(1.3) % 300:x}" for i in range(26) if random.random() < 0.9}
        lines.append(make_line(str(random.integers(2)), {i: random.integers(-4, 1000) for i in range(13) if random.random() < 0.8}, cat))
    return "".join(f"{line}\n" for line in lines)


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """Write day_0 to day_2, and the halves of day_2 in the folders test and validation."""
    folder = tmp_path_factory.mktemp("raw logs")
    for name, seed in (("day_0", 0), ("day_1", 1), ("day_2", 2)):
        (folder / name).write_text(log(300, seed) + ("what\n" if seed == 0 else ""))
    lines = (folder / "day_2").read_text().splitlines(keepends=True)
    for name, part in (("test", lines[:150]), ("validation", lines[150:])):
        (folder / name).mkdir()
        (folder / name / "day_2").write_text("".join(part))
    return folder


def step(mode, days, source, out, *more, engine=POLARS):
    return do(two_steps, "--mode", mode, "--days", days, "--input_folder", source, "--model_folder", out / "models", *more, *engine)


def all_steps(raw, out, *more, engine=POLARS):
    """Run NVIDIA's four commands."""
    assert step("generate_models", "0-2", raw, out, "--frequency_limit", "2", "--low_mem", *more, engine=engine) == 0
    sizes = ("--model_size_file", out / "model_size.json")
    assert step("transform", "0-1", raw, out, "--output_folder", out / "train", *sizes, *more, engine=engine) == 0
    for name in ("test", "validation"):
        flags = ("--output_folder", out / name, "--output_ordering", "input", *more)
        assert step("transform", "2-2", raw / name, out, *flags, engine=engine) == 0


def check_same_as_one_command(raw, out, one):
    flags = ["--frequency_threshold", 2, "--halve_test", "--output_ordering", "total_random", "--dictionary_days", "all", "--bad_lines", "skip"]
    assert do(criteo, "--train", raw / "day_0", raw / "day_1", "--test", raw / "day_2", *flags, "--dst", one) == 0
    for name, other in (("train", "train"), ("test", "test"), ("validation", "valid")):
        assert tree(out / name) == tree(one / other) and tree(out / name)
    assert tree(out / "vocabulary") == tree(one / "vocabulary") == tree(out / "models/vocabulary")
    found, expected = (read_yaml(folder / "feature_spec.yaml") for folder in (out, one))
    assert found["feature_spec"] == expected["feature_spec"] and list(found["source_spec"]) == ["train", "valid", "test"]
    assert {name: found["metadata"][name]["rows"] for name in ("train", "valid", "test")} == {"train": 600, "valid": 150, "test": 150}
    assert found["metadata"]["output_ordering"] == expected["metadata"]["output_ordering"]
    rows = [feature["cardinality"] for name, feature in expected["feature_spec"].items() if name.startswith("cat_")]
    assert json.loads((out / "model_size.json").read_text()) == {f"_c{14 + i}": count - 1 for i, count in enumerate(rows)}
    assert not [path for path in out.rglob(".*")] and not (out / "models/train").exists()


def test_steps_make_the_dataset_of_one_command(raw, tmp_path, capsys):
    all_steps(raw, tmp_path / "out")
    check_same_as_one_command(raw, tmp_path / "out", tmp_path / "one")
    assert "--low_mem has no effect: memory does not grow with the dictionaries" in capsys.readouterr().err
    assert do(validate, "--dataset_path", tmp_path / "out") == 0


@needs_spark
@pytest.mark.usefixtures("one_spark")
def test_steps_on_spark_make_the_same(raw, tmp_path):
    all_steps(raw, tmp_path / "out", engine=LOCAL)
    check_same_as_one_command(raw, tmp_path / "out", tmp_path / "one")


@needs_spark
def test_spark_submit(raw, tmp_path):
    import pyspark

    submit = [Path(pyspark.__file__).parent / "bin" / "spark-submit", "--master", "local[2]", "--driver-java-options", JAVA]
    words = ["--mode", "generate_models", "--days", "0-1", "--input_folder", raw]
    words += ["--model_folder", tmp_path / "models", "--frequency_limit", "20:7,2"]
    command = [*submit[1:], ROOT / "preproc/spark_data_utils.py", *words]
    result = run(*command, program=submit[0], cwd=tmp_path, env={**os.environ, "PYSPARK_PYTHON": sys.executable})
    assert result.returncode == 0, result.stderr
    metadata = read_yaml(tmp_path / "models/feature_spec.yaml")["metadata"]
    assert metadata["frequency_threshold"] == {"default": 2, "cat_6": 7} and len(list((tmp_path / "models/vocabulary").iterdir())) == 26


def test_existing_output_is_replaced_only_on_request(raw, tmp_path, capsys):
    out = tmp_path / "out"
    all_steps(raw, out)
    before = tree(out)
    for more in (("--output_folder", out / "train"),):
        with pytest.raises(UserError, match=r"--output_folder .*train: exists; choose another one, or give --write_mode overwrite"):
            step("transform", "0-1", raw, out, *more)
    with pytest.raises(UserError, match=r"models holds a dataset already .* pass --write_mode overwrite"):
        step("generate_models", "0-1", raw, out)
    assert tree(out) == before
    all_steps(raw, out, "--write_mode", "overwrite")
    assert tree(out) == before
    assert step("generate_models", "0-0", raw, out, "--write_mode", "overwrite") == 0
    with pytest.raises(UserError, match="holds a dataset of other dictionaries than --model_folder"):
        step("transform", "0-0", raw, out, "--output_folder", out / "val")
    capsys.readouterr()
    assert step("transform", "0-0", raw, out, "--output_folder", out / "train", "--write_mode", "overwrite") == 0
    assert "its other splits were made with other dictionaries, and leave the dataset" in capsys.readouterr().err
    assert list(read_yaml(out / "feature_spec.yaml")["source_spec"]) == ["train"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("generate_models", "0-3"), r"day_3: no such file \(also with .gz, .zst or .tsv\); expected a log for each of --days 0-3"),
        (("generate_models", "2-0"), "argument --days: expected the first and the last day, such as 0-22, found '2-0'"),
        (("generate_models", "all"), "expected the first and the last day"),
        (("generate_models", "0-1", "--frequency_limit", "many"), "--frequency_limit: expected a whole number of at least 0, found 'many'"),
        (("generate_models", "0-1", "--fast"), "unknown flag --fast"),
        (("train", "0-1"), "argument --mode: invalid choice: 'train'"),
        (("transform", "0-1"), "--output_folder is missing; give DATASET/train, DATASET/test or DATASET/validation"),
        (("transform", "0-1", "--output_folder", "OUT/rows"), "--output_folder OUT/rows: expected a folder named train, test, validation"),
        (("transform", "0-1", "--output_folder", "OUT/train"), "holds no dictionaries of this command; make them with --mode generate_models"),
        (("transform", "0-1", "--output_folder", "OUT/train", "--write_mode", "append"), "argument --write_mode: invalid choice: 'append'"),
    ],
)
def test_wrong_steps_are_one_line(raw, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message) as error:
        step(*words[:2], raw, tmp_path, *words[2:])
    assert "\n" not in str(error.value) and list(tmp_path.iterdir()) == []


def test_dictionaries_keep_the_transform(raw, tmp_path):
    assert step("generate_models", "0-1", raw, tmp_path, "--no_numeric_log_col") == 0
    flags = ("--output_folder", tmp_path / "train", "--output_ordering", "any")
    with pytest.raises(UserError, match="was made with --no_numeric_log_col; give the flag in both modes or in none"):
        step("transform", "0-1", raw, tmp_path, *flags)
    assert step("transform", "0-1", raw, tmp_path, *flags, "--no_numeric_log_col") == 0
    assert (np.fromfile(tmp_path / "train/numerical.bin", np.float16) == -4).any()


def test_script_names_itself(tmp_path):
    result = run(ROOT / "preproc/spark_data_utils.py", "--mode", "transform", cwd=tmp_path)
    assert result.returncode == 1 and result.stderr.startswith("spark_data_utils.py: error: ") and result.stderr.count("\n") == 1
