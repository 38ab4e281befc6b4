"""Ids of texts by search in mapped files, compared with the hash table in memory and with a Python dictionary."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from preproc.shared.polars_engine import text_ids
from preproc.table import sorted_texts
from preproc.table.sorted_texts import SortedTexts, hash_ranges, write_hashed, write_texts

texts = st.one_of(st.text(alphabet="ab", max_size=4), st.text(max_size=20), st.sampled_from(["", "é", "e\u0301", "a\0", "a\0\0", "😀", "ab" * 300]))


def made(folder: Path, vocabulary: pl.DataFrame, parts: int, slices: int, group_rows: int = 1 << 14, **options) -> SortedTexts:
    """Write a vocabulary to files in `parts` parts, as that many tasks do; open it."""
    vocabulary.write_parquet(folder / "vocabulary.parquet")
    rows = -(-max(vocabulary.height, 1) // slices)
    hashed = [folder / f"hashed-{number}" for number in range(slices)]
    for number, path in enumerate(hashed):
        write_hashed(folder / "vocabulary.parquet", number * rows, rows, path, group_rows)
    folders = [folder / f"part-{number}" for number in range(parts)]
    for part, (low, high) in zip(folders, hash_ranges(parts), strict=True):
        part.mkdir(exist_ok=True)
        write_texts(hashed, low, high, part)
    return SortedTexts(folders, **options)


def numbered(values: list[str]) -> pl.DataFrame:
    return pl.DataFrame({"value": values, "id": range(1, len(values) + 1)}, schema={"value": pl.String, "id": pl.Int32})


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("texts")


@settings(max_examples=40, deadline=None)
@given(
    st.lists(texts, unique=True, max_size=30), st.lists(st.one_of(st.none(), texts), max_size=30), st.integers(1, 3), st.integers(1, 3), st.booleans()
)
@example([], ["a", None], 2, 1, False)
@example(["a", "b", "", "aa"], ["", "a", "aa", "aaa", None, "b"], 3, 2, True)
def test_files_give_the_ids_of_the_table(folder, values, others, parts, slices, colliding):
    """Ids are right where hashes collide, too: nearly all hashes of two bits do."""
    asked = pl.Series([*others, *values, *others], dtype=pl.String)
    with pytest.MonkeyPatch.context() as patch:
        if colliding:
            patch.setattr(sorted_texts, "hashes_of", lambda found: (found.str.len_bytes().cast(pl.UInt64) % 4) * 2**62)
        found = made(folder, numbered(values), parts, slices).ids(asked)
    ids = {value: number for number, value in enumerate(values, 1)}
    assert found.tolist() == [ids.get(text, 0) for text in asked]
    ((_, expected),) = text_ids([(None, asked)], numbered(values)) if len(asked) and values else [(None, found)]
    assert found.tolist() == expected.tolist() and found.dtype == np.int32


def test_many_texts_in_blocks_larger_than_what_is_compared_at_once(tmp_path):
    values = [f"value {number * 7919 % 100_003}" for number in range(20_000)]
    lookup = made(tmp_path, numbered(values), 5, 3, group_rows=500, at_once=1000)
    asked = pl.Series([f"value {number}" for number in range(30_000)])
    ids = {value: number for number, value in enumerate(values, 1)}
    ((codes, found),) = lookup.of([(pl.Series([1]), asked)])
    assert codes.to_list() == [1] and found.tolist() == [ids.get(text, 0) for text in asked]
    sizes = [(tmp_path / f"part-{number}" / sorted_texts.IDS).stat().st_size // 4 for number in range(5)]
    assert sum(sizes) == 20_000 and min(sizes) > 3500  # the ranges hold about as many texts each
