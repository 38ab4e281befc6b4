"""Times in another unit than the first rows' are bad values, in preprocessing, in splits by time and in scores of raw values."""

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from dataloading.features import DatasetError
from preproc.table import command as table
from tests.helpers.commands import do
from tests.helpers.folders import write
from tests.preproc.table.tables import make
from utils.encoding.columns import made
from utils.encoding.recipe import recipe_of

UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
START = datetime(2024, 1, 5, 3, tzinfo=UTC)
FLAGS = ("--label", "y", "--categorical", "c", "--times", "at")


def rows(unit, count=60):
    """Return a table with an hour more in each row, counted in the unit, or written as ISO texts."""
    times = [START + timedelta(hours=i) for i in range(count)]
    told = [f"{time:%Y-%m-%d %H:%M:%S}" if unit == "iso" else str(int(time.timestamp()) * UNITS[unit]) for time in times]
    return "c,at,y\n" + "".join(f"c{i % 3},{at},{i % 2}\n" for i, at in enumerate(told))


@pytest.mark.parametrize("train", [*UNITS, "iso"])
def test_a_file_in_another_unit_is_named_with_the_units(tmp_path, train):
    for other in UNITS:
        if other != train:
            said = f"{train} since 1970 from July 1979" if train != "iso" else "no number, but as in 2020-01-31 13:45:00"
            with pytest.raises(DatasetError, match=rf"{other}-test.csv, line 2, column at: '1704\d+', expected a time, .*{said}.* 13 like ms"):
                make(tmp_path, rows(train), rows(other), *FLAGS, dst=other)
    hours = make(tmp_path, rows(train), rows("iso"), *FLAGS, dst="dates")  # ISO texts are times in any column
    assert hours["test"] == hours["train"] and sorted(map(int, hours.values("at_hour"))) == list(range(24))


def test_two_units_in_one_column_are_an_error(tmp_path):
    both = rows("s") + rows("ms").split("\n", 1)[1]
    with pytest.raises(DatasetError, match=r"train.csv, line 2, column at: '1704423600', expected a time, as in the first training rows: ms since"):
        make(tmp_path, both, rows("s"), *FLAGS)
    for one, other, said in ((both, "s", r"s \(1704\d+\) and ms \(17\d+\)"), (rows("iso") + rows("ms").split("\n", 1)[1], "iso", "s .* and ms .*")):
        path = write(tmp_path / f"{other}.csv", one)
        words = ("--train", path, "--split_by", "at", "--test_fraction", 0.5, "--label", "y", "--categorical", "c")
        with pytest.raises(DatasetError, match=rf"--split_by at: holds times in {said} since 1970; expected one unit"):
            do(table, *words, "--dst", tmp_path / f"split-{other}")


def test_a_stated_unit_has_every_year_and_so_have_dates(tmp_path):
    early = "c,at,y\n" + "".join(f"c,{3600 * i},{i % 2}\n" for i in range(48))
    assert len(make(tmp_path, early, early, *FLAGS, "--time_unit", "s").values("at_hour")) == 24
    dates = "c,at,y\na,1931-02-03,1\nb,9999-12-31,0\n"
    assert len(make(tmp_path, dates, dates, *FLAGS, dst="dates").values("at_weekday")) == 2


def test_raw_values_of_a_column_of_iso_texts_are_no_counts(tmp_path):
    entries = make(tmp_path, rows("iso"), rows("iso"), *FLAGS).metadata["transforms"]
    given = pl.DataFrame({"at": ["2024-01-05 03:00:00", "1704423600000", "", None]})
    found = made(recipe_of("at_hour", entries["at_hour"], fitted=True), given.schema)
    assert given.select(found.bad).to_series().to_list() == [False, True, False, False] and "no number" in found.expected
    older = {name: value for name, value in entries["at_hour"].items() if name != "guessed"}  # datasets of earlier versions take counts of seconds
    assert not given.select(made(recipe_of("at_hour", older, fitted=True), given.schema).bad).to_series().any()
