"""preproc.table --negative_rate: a part of the training split's negatives, and nothing else changes."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml

from dataloading import validate
from dataloading.features import DatasetError
from preproc.table import command as table
from preproc.table import on_spark as table_spark
from preproc.table.negatives import drawn
from tests.helpers.commands import do
from tests.helpers.errors import refused
from tests.helpers.folders import tree, write
from tests.preproc.spark.spark_cluster import needs_spark, on_both
from tests.preproc.table.tables import Made, make
from utils.errors import UserError

RATE = 0.05
CONFIG = {
    "label": "y",
    "group": "g",
    "weight": "w",
    "features": {
        "s": {"kind": "categorical", "frequency_threshold": 30},
        "l": {"kind": "list", "max_hotness": 2},
        "n": "numerical",
        "ns": {"kind": "numerical", "column": "n", "buckets": 5},
    },
}
FLAGS = ("--keep", "no", "--test_fraction", "0.2", "--valid_fraction", "0.1", "--block_bytes", "4000")
SAMPLED = ("--negative_rate", RATE)


def rows(count: int, clicks: float = 0.2) -> str:
    """Draw rows numbered in the column `no`."""
    random = np.random.default_rng(3)
    lines = ["no,s,l,n,g,w,y"]
    for row in range(count):
        values = f"v{random.zipf(1.4) % 90}", "|".join(f"t{random.integers(9)}" for _ in range(random.integers(4))), repr(random.normal(3, 2))
        lines.append(f"{row},{','.join(values)},{row // 6},{random.choice(['0', '0.5', '2'])},{int(random.random() < clicks)}")
    return "\n".join(lines) + "\n"


def numbers(made: Made) -> list[str]:
    """Return the numbers of the training rows."""
    return pl.read_parquet(made.folder / "train/keys.parquet")["no"].to_list()


def by_row(made: Made) -> dict[str, tuple]:
    """Return everything that the training split holds of each row, by the row's number, in the split's order."""
    found = {name: map(str, values) for name, values in made["train"].items()}
    return dict(zip(numbers(made), zip(*found.values(), strict=True), strict=True))


def differing(one: Path, other: Path) -> set[str]:
    """Return the files that two datasets do not have in common, byte by byte."""
    here, there = tree(one), tree(other)
    return {name for name in here | there if here.get(name) != there.get(name)}


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[Made, Made]:
    """Make a dataset with all rows and one of the same rows with sampled negatives."""
    folder = tmp_path_factory.mktemp("pair")
    path = write(folder / "rows.csv", rows(9000))
    return tuple(make(folder, path, None, *FLAGS, *more, config=CONFIG, dst=name) for name, more in (("all", ()), ("part", SAMPLED)))


def test_all_positives_and_the_stated_share_of_negatives_are_kept_in_order(pair):
    whole, part = map(by_row, pair)
    labels = dict(zip(whole, pair[0]["train"]["label"], strict=True))
    assert {row: whole[row] for row in part} == part and list(part) == [row for row in whole if row in part]
    assert [row for row in part if labels[row]] == [row for row in whole if labels[row]]
    negatives = sum(not label for label in labels.values())
    kept = sum(not labels[row] for row in part)
    assert abs(kept - RATE * negatives) < 4 * (negatives * RATE * (1 - RATE)) ** 0.5
    assert do(validate, "--dataset_path", pair[1].folder) == 0


def test_other_files_have_the_same_bytes(pair):
    """Vocabularies, columns.yaml, and the other splits; training's own files hold fewer rows."""
    files = {*tree(pair[0].folder)}
    assert {"vocabulary/s.parquet", "columns.yaml", "test/weight.bin", "valid/keys.parquet"} <= files == {*tree(pair[1].folder)}
    assert differing(*(made.folder for made in pair)) == {"feature_spec.yaml", *(name for name in files if name.startswith("train/"))}


def test_metadata_say_the_rate_and_the_rows_before_and_after(pair):
    whole, part = (made.metadata for made in pair)
    assert "negative_rate" not in whole and (part["negative_rate"], pair[1].spec.negative_rate) == (RATE, RATE)
    found = pair[1]["train"]
    assert part["train"] == {
        "files": ["rows.csv"],
        "rows": len(found["label"]),
        "rows_before_sampling": len(pair[0]["train"]["label"]),
        "click_rate": round(sum(found["label"]) / len(found["label"]), 6),
        "rows_of_weight_0": found["weight"].count(0),
        "bad_lines_skipped": 0,
    }
    changed = {"negative_rate", "train"}
    assert {name: value for name, value in part.items() if name not in changed} == {name: value for name, value in whole.items() if name != "train"}
    assert "unknown_values" in part  # of all training rows, as without the flag


def test_the_last_line_says_it_too(tmp_path, capsys):
    train = "s,y\n" + "a,1\n" * 3 + "b,0\n" * 1000
    made = make(tmp_path, train, "s,y\na,1\nb,0\n", "--label", "y", "--negative_rate", "0.01")
    said, kept = capsys.readouterr(), made["train"]["label"].count(0)
    assert said.err == "" and 0 < kept < 30
    train = f"train {3 + kept} rows (click rate {3 / (3 + kept):.4f}, of 1,003, negatives kept at 0.01)"
    assert f"{train}, test 2 rows (click rate 0.5000); 0 num" in said.out


@pytest.mark.parametrize("block_bytes", [60, 1 << 20])
def test_blocks_of_any_size_keep_the_same_rows(tmp_path, block_bytes):
    path = write(tmp_path / "rows.csv", rows(150))
    flags = (*FLAGS[:-2], "--negative_rate", 0.1)
    first, other = (make(tmp_path, path, None, *flags, "--block_bytes", size, config=CONFIG, dst=str(size)) for size in (1000, block_bytes))
    assert not differing(first.folder, other.folder)


def test_the_number_of_the_row_in_its_split_decides(tmp_path):
    """Rows that are held out do not count: the same training rows from a file of their own are kept alike."""
    header, *lines = rows(2000).splitlines()
    splits = ["test" if row % 4 == 1 else "train" for row in range(2000)]
    path = write(tmp_path / "rows.csv", "\n".join([f"{header},part", *map(",".join, zip(lines, splits, strict=True))]))
    flags = ("--keep", "no", *SAMPLED)
    one = make(tmp_path, path, None, *flags, "--split_column", "part", config=CONFIG, dst="one")
    alone = [line for line, split in zip(lines, splits, strict=True) if split == "train"]
    two = make(tmp_path, "\n".join([header, *alone]), f"{header}\n{lines[1]}\n", *flags, config=CONFIG, dst="two")
    assert by_row(one) == by_row(two)
    kept = [line for row, line in enumerate(alone) if line.endswith(",1") or drawn(RATE, 0, row, 1)[0]]
    assert numbers(one) == [line.split(",")[0] for line in kept]


def test_another_seed_keeps_other_rows_and_a_higher_rate_more(tmp_path, capsys):
    path = write(tmp_path / "rows.csv", rows(3000))
    made = {}
    for name, flags in (("none", SAMPLED), ("zero", (*SAMPLED, "--seed", 0)), ("one", (*SAMPLED, "--seed", 1)), ("more", ("--negative_rate", 0.5))):
        made[name] = set(numbers(make(tmp_path, path, path, "--keep", "no", *flags, config=CONFIG, dst=name)))
    assert made["none"] == made["zero"] != made["one"] and made["none"] < made["more"]
    assert "--seed" not in capsys.readouterr().err
    make(tmp_path, path, path, "--seed", 1, config=CONFIG, dst="idle")
    said = capsys.readouterr().err
    assert "warning: --seed has no effect: no rows are drawn by a hash (--test_fraction without --split_by, --negative_rate)" in said


def test_the_draw():
    """Golden values of SplitMix64, worked out with whole numbers of any size; the draw is that of single rows wherever a range begins."""

    def mixed(value: int) -> int:
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            value = (value ^ (value >> shift)) * factor % 2**64
        return value

    step, rate = 0x9E3779B97F4A7C15, 0.3
    key = mixed((7 * step + int.from_bytes(b"negative", "big")) % 2**64)
    expected = [mixed((key + (row + 1) * step) % 2**64) < int(rate * 2**64) for row in range(100)]
    assert drawn(rate, 7, 0, 100).tolist() == expected and drawn(rate, 7, 40, 60).tolist() == expected[40:]
    for seed in (0, 1, 2**70):
        found = drawn(rate, seed, 10**12, 100_000)
        assert abs(found.mean() - rate) < 4 * (rate * (1 - rate) / len(found)) ** 0.5
    assert not drawn(5e-324, 0, 0, 1000).any() and drawn(np.nextafter(1, 0), 0, 0, 1000).all()


def test_negatives_and_splits_are_drawn_independently(tmp_path):
    """Both hashes are of counters, so with one seed they must be of different streams."""
    path = write(tmp_path / "rows.csv", "s,y\n" + "a,0\n" * 20_000 + "a,1\n")
    made = make(tmp_path, path, None, "--label", "y", "--test_fraction", 0.5, "--negative_rate", 0.5)
    before, kept = made.metadata["train"]["rows_before_sampling"], made.metadata["train"]["rows"]
    assert abs(before - 10_000) < 4 * 5000**0.5 and abs(kept - before / 2) < 4 * (before / 4) ** 0.5


def test_a_dataset_made_from_an_older_one_states_its_own_rate(pair, tmp_path):
    path = write(tmp_path / "rows.csv", rows(1500))
    old = pair[1].folder
    made = make(tmp_path, path, path, "--vocabulary", old, "--extend_vocabulary", dst="all")
    assert "negative_rate" not in made.metadata and len(made["train"]["label"]) == 1500
    again = make(tmp_path, path, path, "--vocabulary", old, "--extend_vocabulary", "--negative_rate", 0.25, dst="part")
    assert again.metadata["negative_rate"] == 0.25 and len(again["train"]["label"]) < 1000
    assert not {name for name in differing(made.folder, again.folder) if not name.startswith("train/")} - {"feature_spec.yaml"}
    test = make(tmp_path, None, path, "--vocabulary", old, dst="test")
    assert "negative_rate" not in test.metadata
    config = make(tmp_path, path, path, "--config", old / "columns.yaml", dst="config")
    assert "negative_rate" not in config.metadata


@pytest.mark.parametrize("value", ["0", "1", "-0.1", "1.5", "nan", "inf", "x", "5%", "1e-400"])
def test_wrong_rates_are_one_line(tmp_path, value):
    with refused("negative_rate: expected a number above 0 and below 1, found "):
        make(tmp_path, "s,y\na,1\nb,0\n", "s,y\na,1\nb,0\n", "--label", "y", f"--negative_rate={value}")
    assert not (tmp_path / "out").exists()


def test_without_training_rows_the_flag_is_refused(pair, tmp_path):
    data = write(tmp_path / "data.csv", rows(10))
    with pytest.raises(UserError, match="--negative_rate has no effect with --mode encode, which takes --data; remove it"):
        make(tmp_path, None, None, "--mode", "encode", "--data", data, "--vocabulary", pair[0].folder, *SAMPLED)
    with pytest.raises(UserError, match="--negative_rate needs --train, the files of the rows whose negatives are sampled"):
        make(tmp_path, None, data, "--vocabulary", pair[0].folder, *SAMPLED)


def test_rows_without_a_label_are_untouched(tmp_path):
    path, data = write(tmp_path / "rows.csv", rows(500)), write(tmp_path / "data.csv", rows(300))
    made = [make(tmp_path, path, path, "--data", data, *more, config=CONFIG, dst=name) for name, more in (("all", ()), ("part", SAMPLED))]
    assert made[0]["new"] == made[1]["new"] and len(made[0]["new"]["s"]) == 300


def test_splits_of_one_label_say_what_became_of_them(tmp_path, capsys):
    both, rare = "s,y\na,1\nb,0\n", ("--label", "y", "--negative_rate", "1e-9")
    make(tmp_path, "s,y\n" + "a,1\n" * 5, both, *rare, dst="positive")
    assert capsys.readouterr().err.splitlines() == [
        "preproc.table: warning: the train split: every label is 1; is --label right?",
        "preproc.table: warning: --negative_rate 1e-09 has no effect on the rows: the train split has no negative",
    ]
    made = make(tmp_path, "s,y\na,1\n" + "b,0\n" * 50, both, *rare, dst="none")
    line = "preproc.table: warning: --negative_rate 1e-09 keeps none of the 50 negatives of the train split, so every label in it is 1\n"
    assert capsys.readouterr().err == line and made["train"]["label"] == [1] and made.metadata["negative_rate"] == 1e-9
    with pytest.raises(DatasetError) as error:
        make(tmp_path, "s,y\n" + "b,0\n" * 50, both, *rare, dst="nothing")
    expected = "--negative_rate 1e-09 keeps no row: the train split has no positive, and none of its 50 negatives is drawn"
    assert str(error.value) == expected and not (tmp_path / "nothing").exists()
    made = make(tmp_path, "s,y\n" + "b,0\n" * 50, both, "--label", "y", "--negative_rate", "0.5", dst="negative")
    assert "every label is 0; is --label right?" in capsys.readouterr().err and 0 < len(made["train"]["label"]) < 50


@pytest.mark.parametrize("stopped", ["statistics_of", "write_keys", "unknown_shares"])
def test_an_interrupted_run_continues_with_the_same_rows(tmp_path, monkeypatch, capsys, stopped):
    path = write(tmp_path / "rows.csv", rows(400))
    flags = (*FLAGS, "--negative_rate", 0.2, "--resume")
    whole = tree(make(tmp_path, path, None, *flags, config=CONFIG, dst="whole").folder)
    monkeypatch.setattr(table, stopped, lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make(tmp_path, path, None, *flags, config=CONFIG, dst="again")
    monkeypatch.undo()
    words = ["--train", path, "--config", tmp_path / "columns.yaml", *flags, "--dst", tmp_path / "again"]
    capsys.readouterr()
    written = {file.name: file.stat().st_size for file in tmp_path.glob("again/.staging-*/dataset/train/*.bin")}
    assert do(table, *words) == 0 and tree(tmp_path / "again") == whole
    assert "--resume: continues in" in capsys.readouterr().err
    files = {Path(name).name: len(whole[name]) for name in whole if name.startswith("train/") and name.endswith(".bin")}
    assert written == ({} if stopped == "statistics_of" else files)


def test_a_run_with_another_rate_starts_over(tmp_path, monkeypatch, capsys):
    path = write(tmp_path / "rows.csv", rows(400))
    monkeypatch.setattr(table, "write_keys", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make(tmp_path, path, None, *FLAGS, *SAMPLED, "--resume", config=CONFIG, dst="out")
    monkeypatch.undo()
    words = ["--train", path, "--config", tmp_path / "columns.yaml", *FLAGS, "--resume", "--dst", tmp_path / "out"]
    capsys.readouterr()
    assert do(table, *words, "--negative_rate", "0.5") == 0
    assert "was left by a run with another --negative_rate (0.05, now 0.5)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [("--test_fraction", 0.2, "--seed", 5), ("--split_by", "n", "--test_fraction", 0.2), ("--split_key", "s", "--test_fraction", 0.3)],
    ids=["rows", "time", "key"],
)
@pytest.mark.usefixtures("one_spark")
@needs_spark
def test_both_engines_keep_the_same_rows(tmp_path, capsys, monkeypatch, flags):
    monkeypatch.setattr(table_spark, "TASKS_A_CORE", 3)
    text = rows(1500)
    if "n" in flags:  # times
        lines = [line.split(",") for line in text.splitlines()]
        text = "\n".join(",".join([*line[:3], str(1_700_000_000 + 60 * int(line[0])), *line[4:]] if line[0] != "no" else line) for line in lines)
    (tmp_path / "columns.yaml").write_text(yaml.safe_dump(CONFIG, sort_keys=False))
    path = write(tmp_path / "rows.csv", text)
    words = ["--train", path, "--config", tmp_path / "columns.yaml", *flags, "--keep", "no", "--negative_rate", 0.02, "--block_bytes", 700]
    on_both(table, tmp_path, words, capsys)
    assert {"group.bin", "weight.bin", "numerical.bin", "l.bin", "keys.parquet"} <= {path.name for path in (tmp_path / "spark/train").iterdir()}
    assert Made(tmp_path / "spark").metadata["train"]["rows"] < 500
