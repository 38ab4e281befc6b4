"""preproc.criteo on Spark, local and on a cluster of two workers, writes the same files as Polars."""

import gzip
import os
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import zstandard

from preproc.criteo import command as criteo
from preproc.criteo import on_spark as criteo_spark
from preproc.spark import dictionaries as spark_dictionaries
from tests.helpers.commands import ROOT, do, run
from tests.helpers.folders import tree
from tests.preproc.conftest import make_line
from tests.preproc.spark.spark_cluster import JAVA, LOCAL, needs_spark, on_both

pytestmark = [needs_spark, pytest.mark.usefixtures("one_spark")]


def log(rows: int, seed: int, values: int = 300) -> list[str]:
    """Draw lines in which every kind of value occurs."""
    random, lines = np.random.default_rng(seed), []
    for _ in range(rows):
        num = {i: random.integers(-4, 10 ** random.integers(1, 12)) for i in range(13) if random.random() < 0.8}
        cat = {i: f"{random.zipf(1.3) % values:x}" for i in range(26) if random.random() < 0.9}
        lines.append(make_line(str(random.integers(2)), num, cat))
    return lines


NARROW = ("--num_numerical", 3, "--num_categorical", 6)


def narrow(lines: list[str]) -> list[str]:
    """Keep the fields of NARROW: Spark runs tasks for each, and test_two_steps.py has logs of all 40."""
    return ["\t".join([*cells[:4], *cells[14:20]]) for cells in (line.split("\t") for line in lines)]


def same(folder: Path, arguments: list, capsys) -> dict[str, bytes]:
    """Run both engines, check that their files and their messages about bad lines are the same; return the files."""
    found = on_both(criteo, folder, arguments, capsys)[1]
    assert found
    return found


@pytest.fixture(scope="module")
def logs(tmp_path_factory) -> Path:
    """Write day_2, day_10 (gzip, CRLF) and day_3 (zstd) with malformed and blank lines, day_4 and day_5 without; of few fields, each a task."""
    folder = tmp_path_factory.mktemp("logs with a space")
    lines = narrow(log(1500, 0))
    lines[7], lines[700], lines[1499] = "what", "", lines[3] + "\t"
    (folder / "day_2").write_text("\n".join([*lines, "", ""]))
    (folder / "day_10").write_bytes(gzip.compress("\r\n".join(narrow(log(400, 1))).encode(), mtime=0))
    (folder / "day_3").write_bytes(zstandard.compress("\n".join([*narrow(log(300, 2)), "2" + "\t" * 9]).encode()))
    for number in (4, 5):
        (folder / f"day_{number}").write_text("\n".join([*narrow(log(501, number)), ""]))
    return folder


def arguments(logs: Path, *more: object, threshold: object = 2) -> list:
    days = ("--train", logs / "day_2", logs / "day_10", logs / "day_3", "--test", logs / "day_5", logs / "day_4", logs / "day_5")
    return [*days, *NARROW, "--frequency_threshold", threshold, "--bad_lines", "skip", "--block_bytes", 6000, *more]


@pytest.fixture
def by_sql(monkeypatch):
    """Build dictionaries by Spark SQL, as for very many values."""
    monkeypatch.setattr(spark_dictionaries, "TASK_COUNTS", 0)


def test_several_files_compressed_and_malformed(logs, tmp_path, capsys):
    files = same(tmp_path, arguments(logs), capsys)
    assert len(files["train/label.bin"]) == 1500 - 3 + 400 + 300  # the blank lines at the end do not count as lines


def test_flags_of_splits_and_orders(logs, tmp_path, capsys, by_sql):
    flags = ("--halve_test", "--dictionary_days", "all", "--output_ordering", "day_random", "--seed", 3)
    same(tmp_path, arguments(logs, *flags, threshold="7:9,4:1,0"), capsys)


def test_the_ids_of_another_dataset(logs, tmp_path, capsys, request):
    days = ["--train", logs / "day_4", "--test", logs / "day_5", *NARROW, "--frequency_threshold", 3]
    assert do(criteo, *days, "--dst", tmp_path / "known") == 0
    known = (*NARROW, "--vocabulary", tmp_path / "known")
    (tmp_path / "new").write_text("\n".join(line.split("\t", 1)[1] for line in narrow(log(200, 9))))
    (tmp_path / "frozen").mkdir()
    same(tmp_path / "frozen", ["--unlabelled", tmp_path / "new", "--valid", logs / "day_5", *known], capsys)
    (tmp_path / "extended").mkdir()
    more = ["--train", logs / "day_5", "--test", logs / "day_4", *known, "--extend_vocabulary", "--frequency_threshold", 2]
    expected = same(tmp_path / "extended", more, capsys)
    request.getfixturevalue("by_sql")
    assert do(criteo, *more, "--dst", tmp_path / "sql", *LOCAL) == 0
    assert tree(tmp_path / "sql") == expected


@pytest.mark.parametrize("name", ["a[1] {b}*?", ":ü#%41;&"])
def test_other_fields_transforms_and_special_characters_in_the_folder_name(tmp_path, capsys, by_sql, name):
    folder = tmp_path / name
    folder.mkdir()
    random = np.random.default_rng(0)
    text = "".join(f"{row % 2}\t{row}\t{random.integers(50):X}\t\t{random.integers(2**32):08x}\n" for row in range(3000))
    (folder / "day").write_text(text)
    words = ["--train", folder / "day", "--test", folder / "day", "--num_numerical", 1, "--num_categorical", 3, "--numerical_transform", "none"]
    same(folder, [*words, "--frequency_threshold", 0, "--block_bytes", 9000], capsys)


def test_dictionaries_of_more_than_one_row_group_that_are_searched_in_files(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(criteo_spark, "TABLE_VALUES", 60_000)
    values = np.random.default_rng(0).permutation(2**21)[:270_000] * np.uint32(2039)
    values[5] = 0
    frame = pl.DataFrame({"y": np.arange(270_000) % 2, "v": values}).with_columns(pl.col("v").map_elements("{:x}".format, pl.String))
    (tmp_path / "day").write_bytes(frame.write_csv(separator="\t", include_header=False).encode() + b"0\t\n" * 9)
    words = ["--train", tmp_path / "day", "--test", tmp_path / "day", "--num_numerical", 0, "--num_categorical", 1]
    same(tmp_path, [*words, "--frequency_threshold", 0], capsys)


def test_spark_submit(logs, tmp_path):
    """The command runs from another folder with settings of its own, and prints only its own messages."""
    import pyspark

    words = list(map(str, ["--train", logs / "day_4", "--test", logs / "day_5", *NARROW, "--frequency_threshold", 2]))
    assert do(criteo, *words, "--dst", tmp_path / "polars") == 0
    submit = [Path(pyspark.__file__).parent / "bin" / "spark-submit", "--master", "local[2]", "--driver-java-options", JAVA]
    command = [*submit[1:], ROOT / "preproc" / "spark_submit.py", "preproc.criteo", *words, "--dst", tmp_path / "spark"]
    result = run(*command, program=submit[0], cwd=tmp_path, env={**os.environ, "PYSPARK_PYTHON": sys.executable})
    assert result.returncode == 0, result.stderr
    assert tree(tmp_path / "spark") == tree(tmp_path / "polars") and " INFO " not in result.stderr.partition("Setting Spark log level")[2]
    assert result.stdout.startswith(f"{tmp_path / 'spark'}: train 501 rows")
    result = run(ROOT / "preproc" / "spark_submit.py", "other")
    said = "spark_submit.py: error: other: expected one of preproc.criteo, preproc.outbrain, preproc.table and its flags\n"
    assert (result.returncode, result.stderr) == (1, said)
