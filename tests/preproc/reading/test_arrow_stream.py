"""Arrow streams read batch by batch, compared with Polars' reading of the whole."""

import io
import struct

import polars as pl
import pytest

from dataloading.features import DatasetError
from preproc.reading.arrow_stream import stream_batches, stream_schema
from tests.helpers.folders import write
from tests.preproc.table.tables import make


def frame(first: int, rows: int) -> pl.DataFrame:
    numbers = pl.int_range(first, first + rows, eager=True)
    return pl.DataFrame({"y": numbers % 2, "k": "k" + (numbers % 3).cast(pl.String), "l": numbers.reshape((rows, 1)).cast(pl.List(pl.Int64))})


def stream(*rows: int) -> bytes:
    """Return a stream with a batch of each number of rows: Polars writes one batch, so those of several streams follow one schema."""
    content, first = b"", 0
    for count in rows:
        out = io.BytesIO()
        frame(first, count).write_ipc_stream(out)
        schema_bytes = 8 + struct.unpack("<4xI", out.getvalue()[:8])[0]  # the schema's message has no body
        content = (content or out.getvalue()[:schema_bytes]) + out.getvalue()[schema_bytes:-8]
        first += count
    # The mark of the end: a continuation marker, and a length of 0.
    return content + b"\xff\xff\xff\xff\0\0\0\0"


def test_batches_together_are_the_whole_stream(tmp_path):
    path = write(tmp_path / "t", stream(5, 1, 700))
    read = []
    batches = list(stream_batches(path, read.append))
    assert [batch.height for batch in batches] == [5, 1, 700]
    assert pl.concat(batches).equals(pl.read_ipc_stream(path)) and stream_schema(path) == batches[0].schema
    assert path.stat().st_size - 8 <= sum(read) <= path.stat().st_size  # all but the mark of the end


def test_categories_of_a_dictionary(tmp_path):
    pl.DataFrame({"k": pl.Series(["a", "b", None, "a"], dtype=pl.Categorical)}).write_ipc_stream(tmp_path / "t")
    (batch,) = stream_batches(tmp_path / "t")
    assert batch["k"].cast(pl.String).to_list() == ["a", "b", None, "a"]


def test_a_dataset_of_several_batches(tmp_path):
    path = write(tmp_path / "t", stream(4, 3))
    made = make(tmp_path, path, path, config={"label": "y", "features": {"k": "categorical", "l": {"kind": "list", "max_hotness": 1}}})
    assert made.vocabulary("k") == [("k0", 1, 3), ("k1", 2, 2), ("k2", 3, 2)] and made["train"]["k"] == [1, 2, 3, 1, 2, 3, 1]


@pytest.mark.parametrize("share", [0.3, 0.9, 0.99])
def test_truncated_stream_is_an_error(tmp_path, share):
    content = stream(50, 40)
    path = write(tmp_path / "t", content[: int(len(content) * share)])
    with pytest.raises(DatasetError, match="damaged or truncated Arrow stream, before byte"):
        list(stream_batches(path))


def test_invalid_message_is_an_error(tmp_path):
    for content in (b"\xff" * 4 + b"\x10\0\0\0" + b"\x99" * 16, stream(3)[:-8] + b"rubbish and more"):
        with pytest.raises(DatasetError, match="damaged or truncated Arrow stream"):
            list(stream_batches(write(tmp_path / "t", content)))
