"""preproc.criteo --negative_rate: a part of the training split's negatives, and nothing else changes."""

import gzip
import math
import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dlrm
from dataloading import validate
from dataloading.feature_spec import FeatureSpec
from dataloading.features import DatasetError
from preproc.criteo import command as criteo
from preproc.criteo.row_order import shuffle_file
from preproc.shared import resume
from preproc.shared.negatives import drawn
from preproc.table import command as table
from tests.helpers.commands import do
from tests.helpers.datasets import read_yaml, spec_in
from tests.helpers.folders import tree
from tests.preproc.conftest import make_line
from tests.preproc.spark.spark_cluster import needs_spark, on_both
from utils.commands import run_command
from utils.errors import UserError

RATE = 0.05
SAMPLE = Path(os.environ.get("CRITEO_SAMPLE_DIR", "missing"))
real_rows = pytest.mark.skipif("CRITEO_SAMPLE_DIR" not in os.environ, reason="CRITEO_SAMPLE_DIR names no folder with day_0.tsv and day_1.tsv")
FORM = ("--num_numerical", 1, "--num_categorical", 2)


def lines(count: int, seed: int = 0, clicks: float = 0.2) -> list[str]:
    """Draw lines of one integer, the line's number, and two categorical values."""
    random = np.random.default_rng(seed)
    return [f"{int(random.random() < clicks)}\t{row}\t{random.zipf(1.3) % 90:x}\t{random.integers(30):x}" for row in range(count)]


def write(path: Path, content: list[str]) -> Path:
    """Write a log."""
    path.write_text("".join(f"{line}\n" for line in content))
    return path


def words(train: list | Path | None, test: Path | None, *flags: object) -> list[str]:
    """Return a command line but for its destination."""
    given = ["--train", *(train if isinstance(train, list) else [train])] if train else []
    return [*map(str, [*given, *(["--test", test] if test else []), *flags])]


def make(folder: Path, *given: object) -> FeatureSpec:
    """Run the command; return the dataset's specification."""
    assert do(criteo, *words(*given), "--dst", folder) == 0
    return spec_in(folder)


def differing(one: Path, other: Path) -> set[str]:
    """Return the files that two datasets do not have in common, byte by byte."""
    here, there = tree(one), tree(other)
    return {name for name in here | there if here.get(name) != there.get(name)}


def rows_of(folder: Path, split: str = "train") -> list[bytes]:
    """Return everything that a split holds of each row."""
    spec = spec_in(folder)
    labels = np.fromfile(folder / split / "label.bin", np.uint8)
    columns = [np.fromfile(folder / split / f"{feature.name}.bin", feature.dtype) for feature in spec.categorical]
    numbers = [*np.fromfile(folder / split / "numerical.bin", np.float16).reshape(len(labels), -1).T] if spec.numerical else []
    return [b"|".join(value.tobytes() for value in row) for row in zip(labels, *numbers, *columns, strict=True)]


def is_kept(row: int, label: str, rate: float, seed: int = 0) -> bool:
    """Draw one row with whole numbers of any size."""

    def mixed(value: int) -> int:
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            value = (value ^ (value >> shift)) * factor % 2**64
        return value

    step = 0x9E3779B97F4A7C15
    key = mixed((seed * step + int.from_bytes(b"negative", "big")) % 2**64)
    return label == "1" or mixed((key + (row + 1) * step) % 2**64) < int(rate * 2**64)


def check_obvious(folder: Path, train: list[str], test: list[str], threshold: int, rate: float, seed: int = 0) -> None:
    """Compare a dataset of one integer and two values a line with one that is worked out row by row."""
    rows = {"train": [line.split("\t") for line in train], "test": [line.split("\t") for line in test]}
    tables = []
    for field in (2, 3):
        counts = Counter(int(row[field], 16) for row in rows["train"] if row[field])
        values = sorted((value for value in counts if counts[value] >= threshold), key=lambda value: (-counts[value], value))
        tables.append({value: number for number, value in enumerate(values, 1)})
    rows["train"] = [row for number, row in enumerate(rows["train"]) if is_kept(number, row[0], rate, seed)]
    spec = spec_in(folder)
    for split, found in rows.items():
        assert np.fromfile(folder / split / "label.bin", np.uint8).tolist() == [int(row[0]) for row in found]
        logarithms = np.array([math.log(int(row[1]) + 3) for row in found]).astype(np.float16)
        np.testing.assert_array_equal(np.fromfile(folder / split / "numerical.bin", np.float16), logarithms)
        for field, feature in enumerate(spec.categorical):
            expected = [tables[field].get(int(row[2 + field], 16), 0) if row[2 + field] else 0 for row in found]
            assert np.fromfile(folder / split / f"{feature.name}.bin", feature.dtype).tolist() == expected


@settings(max_examples=25, deadline=None)
@given(
    train=st.lists(st.tuples(st.sampled_from("001"), st.integers(0, 30), st.sampled_from(["", "0", "a", "b", "c"])), min_size=1, max_size=60),
    rate=st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.999999999]),
    threshold=st.integers(0, 4),
    seed=st.sampled_from([0, 1, 2**70]),
    block_bytes=st.sampled_from([1, 40, 1 << 20]),
)
def test_equals_the_obvious_implementation(tmp_path_factory, train, rate, threshold, seed, block_bytes):
    folder = tmp_path_factory.mktemp("obvious")
    days = [[f"{label}\t{number}\t{value}\tff" for label, number, value in part] for part in ([("1", 0, ""), *train[::2]], train[1::2])]
    logs = [write(folder / f"day_{day}", content) for day, content in enumerate(days) if content]
    test = [f"0\t{number}\ta\tb" for number in range(5)]
    flags = (*FORM, "--frequency_threshold", threshold, "--negative_rate", repr(rate), "--seed", seed, "--block_bytes", block_bytes)
    make(folder / "d", logs, write(folder / "test", test), *flags)
    check_obvious(folder / "d", days[0] + days[1], test, threshold, rate, seed)


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[Path, Path]:
    """Make a dataset of all rows of two days and one of the same rows with sampled negatives, and a valid split cut off the test split of both."""
    folder = tmp_path_factory.mktemp("pair")
    days = [write(folder / f"day_{day}", lines(4000, day)) for day in range(3)]
    flags = (*FORM, "--frequency_threshold", 20, "--halve_test")
    for name, more in (("all", ()), ("part", ("--negative_rate", RATE))):
        make(folder / name, days[:2], days[2], *flags, *more)
    return folder / "all", folder / "part"


def test_all_positives_and_the_stated_share_of_negatives_are_kept_in_order(pair):
    whole, part = map(rows_of, pair)
    labels = np.fromfile(pair[0] / "train/label.bin", bool)
    kept = [row for row, label in zip(whole, drawn(RATE, 0, 0, len(labels)) | labels, strict=True) if label]
    assert part == kept and [row for row in part if row[0]] == [row for row in whole if row[0]]
    negatives = int((~labels).sum())
    assert abs(len(part) - labels.sum() - RATE * negatives) < 4 * (negatives * RATE * (1 - RATE)) ** 0.5
    assert do(validate, "--dataset_path", pair[1]) == 0


def test_other_files_have_the_same_bytes(pair):
    """Vocabularies, and the other splits; training's own files hold fewer rows."""
    files = {*tree(pair[0])}
    assert {"vocabulary/cat_0.parquet", "test/label.bin", "valid/cat_1.bin", "test/numerical.bin"} <= files == {*tree(pair[1])}
    assert differing(*pair) == {"feature_spec.yaml", *(name for name in files if name.startswith("train/"))}


def test_metadata_say_the_rate_and_the_rows_before_and_after(pair):
    whole, part = (spec_in(folder) for folder in pair)
    assert "negative_rate" not in whole.metadata and (part.metadata["negative_rate"], part.negative_rate) == (RATE, RATE)
    labels = np.fromfile(pair[1] / "train/label.bin", np.uint8)
    of_train = {"files": ["day_0", "day_1"], "rows": len(labels), "rows_before_sampling": 8000}
    assert part.metadata["train"] == of_train | {"click_rate": round(float(labels.mean()), 6), "bad_lines_skipped": 0}
    changed = {"negative_rate", "train"}
    left = [{name: value for name, value in spec.metadata.items() if name not in changed} for spec in (whole, part)]
    assert left[0] == left[1] and part.cardinalities == whole.cardinalities


def test_the_last_line_says_it_too(tmp_path, capsys):
    train = write(tmp_path / "train", ["1\t1\ta\tb"] * 3 + ["0\t1\ta\tb"] * 1000)
    make(tmp_path / "d", train, write(tmp_path / "test", ["1\t1\ta\tb", "0\t1\ta\tb"]), *FORM, "--frequency_threshold", 0, "--negative_rate", 0.01)
    said, kept = capsys.readouterr(), len(rows_of(tmp_path / "d")) - 3
    assert said.err == "" and 0 < kept < 30
    of_train = f"train {3 + kept} rows (click rate {3 / (3 + kept):.4f}, of 1,003, negatives kept at 0.01)"
    assert f"{of_train}, test 2 rows (click rate 0.5000); 2 cat" in said.out


def test_files_blocks_and_compression_keep_the_same_rows(tmp_path):
    """One file or several, whatever the blocks; lines that are skipped are no rows."""
    content = lines(400)
    test, flags = write(tmp_path / "test", content[:9]), (*FORM, "--frequency_threshold", 2, "--negative_rate", 0.1, "--bad_lines", "skip")
    make(tmp_path / "one", write(tmp_path / "all", content), test, *flags)
    cut = [write(tmp_path / f"part_{first}", [*content[first : first + 150], "bad"]) for first in (0, 150)]
    cut.append(tmp_path / "part.gz")
    cut[-1].write_bytes(gzip.compress("\r\n".join(content[300:]).encode()))
    for block_bytes in (1, 90, 1 << 20):
        make(tmp_path / f"{block_bytes}", cut, test, *flags, "--block_bytes", block_bytes)
        assert differing(tmp_path / "one", tmp_path / f"{block_bytes}") == {"feature_spec.yaml"}


def test_preproc_table_keeps_the_same_rows(tmp_path):
    content = lines(2000)
    (tmp_path / "rows.tsv").write_text("\n".join(["y\tn\ta\tb", *content]))
    test = write(tmp_path / "test", content[:5])
    make(tmp_path / "criteo", write(tmp_path / "train", content), test, *FORM, "--frequency_threshold", 0, "--negative_rate", 0.1, "--seed", 4)
    flags = ["--label", "y", "--numerical", "n", "--categorical", "a,b", "--negative_rate", "0.1", "--seed", "4"]
    paths = ["--train", str(tmp_path / "rows.tsv"), "--test", str(tmp_path / "rows.tsv"), "--dst", str(tmp_path / "table")]
    assert do(table, *paths, *flags) == 0
    assert (tmp_path / "table/train/label.bin").read_bytes() == (tmp_path / "criteo/train/label.bin").read_bytes()
    metadata = [spec_in(tmp_path / name).metadata["train"] for name in ("criteo", "table")]
    assert all(metadata[0][name] == metadata[1][name] for name in ("rows", "rows_before_sampling", "click_rate"))


def test_another_seed_keeps_other_rows_and_a_higher_rate_more(tmp_path, capsys):
    log, made = write(tmp_path / "log", lines(3000)), {}
    for name, rate, *seed in (("none", RATE), ("zero", RATE, "--seed", 0), ("one", RATE, "--seed", 1), ("more", 0.5)):
        make(tmp_path / name, log, log, *FORM, "--frequency_threshold", 0, "--negative_rate", rate, *seed)
        made[name] = np.fromfile(tmp_path / name / "train/numerical.bin", np.float16).tolist()
    assert made["none"] == made["zero"] != made["one"] and not Counter(made["none"]) - Counter(made["more"])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("ordering", ["day_random", "total_random"])
def test_kept_rows_are_shuffled_as_any_rows(tmp_path, ordering):
    """Of days without a kept row, too; the order is that of the kept rows of each day, or of all days."""
    parts = [lines(300, 0), ["0\t7\ta\tb"] * 2, lines(200, 2)]
    days, test = [write(tmp_path / f"day_{day}", part) for day, part in enumerate(parts)], write(tmp_path / "test", parts[0][:3])
    flags = (*FORM, "--frequency_threshold", 0, "--negative_rate", 0.001)
    make(tmp_path / "input", days, test, *flags)
    made = make(tmp_path / "random", days, test, *flags, "--output_ordering", ordering)
    numbered = enumerate(line for part in parts for line in part)
    kept = [row for row, line in numbered if is_kept(row, line[0], 0.001)]
    sizes = [sum(first <= row < last for row in kept) for first, last in ((0, 300), (300, 302), (302, 502))]
    assert sizes[1] == 0 and made.metadata["train"]["rows"] == len(kept)
    path = tmp_path / "input/train/numerical.bin"
    shuffle_file(path, 2, sizes if ordering == "day_random" else [len(kept)], 0, tmp_path / "scratch")
    assert path.read_bytes() == (tmp_path / "random/train/numerical.bin").read_bytes()
    assert Counter(rows_of(tmp_path / "random")).total() == len(kept)
    assert made.metadata["output_ordering"] == {"train": ordering, "seed": 0}


def test_a_rate_of_1_is_no_flag(tmp_path, capsys):
    log = write(tmp_path / "log", lines(300))
    make(tmp_path / "none", log, log, *FORM, "--frequency_threshold", 2)
    assert capsys.readouterr().err == ""
    for text in ("1", "1.0", "0.99999999999999999999"):
        make(tmp_path / text, log, log, *FORM, "--frequency_threshold", 2, "--negative_rate", text)
        assert capsys.readouterr().err == "preproc.criteo: warning: --negative_rate 1 has no effect: it keeps every negative\n"
        assert not differing(tmp_path / "none", tmp_path / text)


@pytest.mark.parametrize("value", ["0", "-0.1", "-1", "1.5", "nan", "inf", "x", "", "5%", "0,05", "1e-400"])
def test_wrong_rates_are_the_line_that_preproc_table_has(tmp_path, value):
    log, lines_said = write(tmp_path / "log", lines(5)), []
    flags = [f"--negative_rate={value}", "--train", str(log), "--test", str(log), "--dst", str(tmp_path / "out")]
    for main, more in ((criteo.main, ["--frequency_threshold", "0"]), (table.main, ["--label", "y"])):
        with pytest.raises(UserError) as error:
            main([*flags, *more])
        lines_said.append(str(error.value))
    expected = f"argument --negative_rate: expected a number above 0 and below 1, found {value!r} (--help lists every flag)"
    assert lines_said == [expected, expected]
    assert not (tmp_path / "out").exists()


def test_a_dataset_made_from_an_older_one_states_its_own_rate(tmp_path):
    log, other = write(tmp_path / "log", lines(1500)), write(tmp_path / "other", lines(1500, 1))
    make(tmp_path / "old", log, log, *FORM, "--frequency_threshold", 2, "--negative_rate", 0.1)
    extends = (*FORM, "--vocabulary", tmp_path / "old", "--extend_vocabulary", "--frequency_threshold", 3)
    whole, part = make(tmp_path / "all", other, other, *extends), make(tmp_path / "part", other, other, *extends, "--negative_rate", 0.25)
    assert "negative_rate" not in whole.metadata and whole.metadata["train"]["rows"] == 1500
    assert part.negative_rate == 0.25 and part.metadata["train"]["rows"] < 1000
    assert not {name for name in differing(tmp_path / "all", tmp_path / "part") if not name.startswith("train/")} - {"feature_spec.yaml"}
    frozen = make(tmp_path / "frozen", other, None, *FORM, "--vocabulary", tmp_path / "old", "--negative_rate", 0.25)
    assert frozen.metadata["train"]["rows"] == part.metadata["train"]["rows"]
    with pytest.raises(UserError, match="--negative_rate needs --train, the files of the rows whose negatives are sampled"):
        make(tmp_path / "test", None, other, *FORM, "--vocabulary", tmp_path / "old", "--negative_rate", 0.25)


def test_rows_without_a_label_and_dictionaries_of_all_days_are_untouched(tmp_path):
    train, test = write(tmp_path / "train", lines(900)), write(tmp_path / "test", lines(300, 1))
    new = write(tmp_path / "new", [line.split("\t", 1)[1] for line in lines(200, 2)])
    flags = (*FORM, "--frequency_threshold", 3, "--unlabelled", new, "--valid", test, "--dictionary_days", "all")
    for name, more in (("all", ()), ("part", ("--negative_rate", RATE))):
        make(tmp_path / name, train, test, *flags, *more)
    assert {name.partition("/")[0] for name in differing(tmp_path / "all", tmp_path / "part")} == {"train", "feature_spec.yaml"}


def test_splits_of_one_label_say_what_became_of_them(tmp_path, capsys):
    positive, negative = ["1\t1\ta\tb"], ["0\t1\ta\tb"]
    test, flags = write(tmp_path / "test", positive + negative), (*FORM, "--frequency_threshold", 0, "--negative_rate", "1e-9")
    make(tmp_path / "positive", write(tmp_path / "p", positive * 5), test, *flags)
    assert capsys.readouterr().err == "preproc.criteo: warning: --negative_rate 1e-09 has no effect on the rows: the train split has no negative\n"
    spec = make(tmp_path / "none", write(tmp_path / "pn", positive + negative * 50), test, *flags)
    said = "preproc.criteo: warning: --negative_rate 1e-09 keeps none of the 50 negatives of the train split, so every label in it is 1\n"
    assert capsys.readouterr().err == said and spec.metadata["train"]["rows"] == 1
    with pytest.raises(DatasetError) as error:
        make(tmp_path / "nothing", write(tmp_path / "n", negative * 50), test, *flags)
    expected = "--negative_rate 1e-09 keeps no row: the train split has no positive, and none of its 50 negatives is drawn"
    assert str(error.value) == expected and not (tmp_path / "nothing").exists()


def test_logs_without_integers_and_with_staging_elsewhere(tmp_path):
    log = write(tmp_path / "log", [f"{int(row % 5 == 0)}\t{row % 7:x}" for row in range(600)])
    form = ("--num_numerical", 0, "--num_categorical", 1, "--frequency_threshold", 0, "--negative_rate", 0.3)
    make(tmp_path / "d", log, log, *form)
    make(tmp_path / "other", log, log, *form, "--staging", tmp_path / "staging")
    assert not differing(tmp_path / "d", tmp_path / "other") and not (tmp_path / "staging").exists()
    ids = np.fromfile(tmp_path / "d/train/cat_0.bin", np.int8)
    values = [row % 7 for row in range(600) if is_kept(row, str(int(row % 5 == 0)), 0.3)]
    order = sorted(range(7), key=lambda value: (-len(range(value, 600, 7)), value))
    assert [order[number - 1] for number in ids.tolist()] == values


@pytest.mark.parametrize("ordering", ["input", "day_random"])
@pytest.mark.parametrize("after", range(1, 14, 2))
def test_an_interrupted_run_continues_with_the_same_rows(tmp_path, monkeypatch, capfd, ordering, after):
    days = [write(tmp_path / f"day_{day}", lines(120, day)) for day in range(3)]
    flags = words(days[:2], days[2], *FORM, "--frequency_threshold", 2, "--negative_rate", 0.2, "--output_ordering", ordering, "--halve_test")
    assert do(criteo, *flags, "--dst", tmp_path / "whole") == 0
    done, complete = [], resume.Progress.complete

    def failing(self, stage, *given, **named):
        if len(done) >= after and stage != "publishing":  # threads complete stages, so the number may skip one
            raise OSError(28, "No space left on device", "somewhere")
        complete(self, stage, *given, **named)
        done.append(stage)

    monkeypatch.setattr(resume.Progress, "complete", failing)
    resumed = [*flags, "--dst", str(tmp_path / "out"), "--resume"]
    assert run_command(lambda: do(criteo, *resumed), "command") == 1
    monkeypatch.undo()
    if after == 1:  # another rate starts over
        capfd.readouterr()
        other = [*flags, "--negative_rate", "0.5", "--dst", str(tmp_path / "out"), "--resume"]
        monkeypatch.setattr(resume.Progress, "complete", failing)
        assert run_command(lambda: do(criteo, *other), "command") == 1
        monkeypatch.undo()
        assert "was left by a run with another --negative_rate (0.2, now 0.5)" in capfd.readouterr().err
    assert do(criteo, *resumed) == 0 and tree(tmp_path / "out") == tree(tmp_path / "whole")


@pytest.mark.usefixtures("one_spark")
@pytest.mark.parametrize(
    "flags",
    [(), ("--halve_test", "--output_ordering", "day_random", "--seed", 3), ("--output_ordering", "total_random", "--dictionary_days", "all")],
    ids=["plain", "days", "total"],
)
@needs_spark
def test_both_engines_write_the_same_bytes(tmp_path, capsys, flags):
    days = [write(tmp_path / f"day_{day}", [*lines(1500, day, 0.05), "bad"]) for day in range(2)]
    days.append(tmp_path / "day_2")
    days[2].write_bytes(gzip.compress("\n".join(lines(400, 7)).encode()))
    form = (*FORM, "--frequency_threshold", 3, "--bad_lines", "skip", "--negative_rate", RATE, "--block_bytes", 2000)
    on_both(criteo, tmp_path, words(days, days[0], *form, *flags), capsys)
    assert spec_in(tmp_path / "spark").metadata["train"]["rows_before_sampling"] == 3400
    assert len(rows_of(tmp_path / "spark")) < 1000


@pytest.mark.usefixtures("one_spark")
@needs_spark
def test_both_engines_refuse_a_split_without_kept_rows(tmp_path, capsys):
    log = write(tmp_path / "log", ["0\t1\ta\tb"] * 20)
    given = words([log], log, *FORM, "--frequency_threshold", 0, "--negative_rate", "1e-9")
    assert "--negative_rate 1e-09 keeps no row" in on_both(criteo, tmp_path, given, capsys)[0]


@real_rows
def test_real_rows(tmp_path):
    train, test = SAMPLE / "day_0.tsv", SAMPLE / "day_1.tsv"
    flags = ("--frequency_threshold", 3)
    whole, part = make(tmp_path / "all", train, test, *flags), make(tmp_path / "part", train, test, *flags, "--negative_rate", 0.2)
    assert {name.partition("/")[0] for name in differing(tmp_path / "all", tmp_path / "part")} == {"train", "feature_spec.yaml"}
    labels = [line[0] for line in train.read_text().splitlines()]
    kept = [row for row, (of_all, label) in enumerate(zip(rows_of(tmp_path / "all"), labels, strict=True)) if is_kept(row, label, 0.2) and of_all]
    of_all = rows_of(tmp_path / "all")
    assert rows_of(tmp_path / "part") == [of_all[row] for row in kept]
    negatives = labels.count("0")
    assert abs(len(kept) - labels.count("1") - 0.2 * negatives) < 4 * (negatives * 0.2 * 0.8) ** 0.5
    assert part.cardinalities == whole.cardinalities


def test_training_recalibrates(tmp_path, monkeypatch, capfd):
    """The first lines of a run name the rate and the shift, and the model's scores are those of all rows: their mean is the log's click rate."""
    random = np.random.default_rng(1)
    content = [make_line(str(int(random.random() < 0.1)), {0: random.integers(9)}, {0: f"{random.integers(5):x}"}) for _ in range(6000)]
    log = write(tmp_path / "log", content)
    make(tmp_path / "d", log, log, "--frequency_threshold", 0, "--negative_rate", 0.1)
    model = ["--embedding_dim", "4", "--bottom_mlp_dims", "8,4", "--top_mlp_dims", "8,1", "--optimizer", "adam", "--learning_rate", "0.01"]
    flags = ["--dataset_path", tmp_path / "d", "--cpu", *model, "--warmup_steps", "0", "--batch_size", "64", "--epochs", "3"]
    predicts = ["--dataset_path", tmp_path / "d", "--cpu", "--mode", "predict", "--restore_checkpoint_path", tmp_path / "c"]
    said = []
    capfd.readouterr()
    for command in ([*flags, "--save_checkpoint_path", tmp_path / "c"], [*predicts, "--predictions_path", tmp_path / "p.parquet"]):
        monkeypatch.setattr(sys, "argv", ["dlrm.py", "--log_path", str(tmp_path / "run.json"), *map(str, command)])
        assert run_command(dlrm.main, "dlrm.py") == 0, capfd.readouterr().err
        said.append(capfd.readouterr().out)
    shift = f"logits are shifted by {math.log(0.1):.6g} wherever the model scores"
    assert said[0].splitlines()[:2] == ["negatives were kept at the rate 0.1 (--negatives recalibrate)", shift]
    scores = pl.read_parquet(tmp_path / "p.parquet")["score"]
    rate = np.mean([line[0] == "1" for line in content])
    assert len(scores) == 6000 and abs(scores.mean() - rate) < 0.03
    trained = read_yaml(tmp_path / "d/feature_spec.yaml")["metadata"]["train"]
    assert trained["click_rate"] > 0.4
