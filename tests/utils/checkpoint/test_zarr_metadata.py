"""An array's own `zarr.json` with wrong values and right checksums is refused before TensorStore acts on it."""

import json
import os

import numpy as np
import pytest

from utils.checkpoint import manifest
from utils.checkpoint.manifest import DamagedError
from utils.checkpoint.reading import Checkpoint
from utils.checkpoint.writing import Array, ArrayPart, save
from utils.distributed import World

VALUES = np.arange(28, dtype=np.float32).reshape(7, 4)


@pytest.fixture
def folder(tmp_path):
    """Save a checkpoint of one array."""
    return save(tmp_path, 1, {"a": Array(VALUES.shape)}, [ArrayPart("a", lambda start, stop: VALUES[start:stop])], {}, World())


def rewrite(folder, content):
    """Replace the array's `zarr.json`, and put its new checksum into the manifest."""
    (folder / "a/zarr.json").write_text(content if isinstance(content, str) else json.dumps(content))
    manifest.write(folder, {name: value for name, value in manifest.read(folder).items() if name not in ("format", "files")})


def test_valid_metadata_is_accepted_in_any_json_layout(folder):
    content = json.loads((folder / "a/zarr.json").read_text())
    rewrite(folder, json.dumps(dict(reversed(content.items())), indent=4))
    np.testing.assert_array_equal(Checkpoint(folder).read("a"), VALUES)


def grid(*chunk):
    return {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk)}}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data_type": "float64"}, "data_type is float64, expected float32"),
        ({"data_type": "int32"}, "data_type is int32, expected float32"),
        (grid(2**60, 4), r"chunk_shape \[1152921504606846976, 4\] does not fit shape \[7, 4\]"),  # would be std::bad_alloc in TensorStore
        (grid(7), "does not fit"),
        (grid(0, 4), "expected whole numbers of at least 1"),
        (grid(7, 5), "does not fit"),
        (grid(7.0, 4), "expected whole numbers"),
        (grid(True, 4), "expected whole numbers"),
        ({"chunk_grid": 3}, "chunk_shape is None"),
        ({"shape": [2**40, 2**20]} | grid(2**40, 2**20), "does not fit"),
        ({"shape": [8, 4]}, r"shape \[8, 4\], the manifest says \[7, 4\]"),
        ({"shape": "x"}, "shape is x"),
        ({"codecs": [{"name": "gzip"}]}, "codecs is"),
        ({"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}, "codecs is"),
        ({"zarr_format": 2}, "zarr_format"),
    ],
    ids=str,
)
def test_inconsistent_metadata_is_a_one_line_error(folder, change, message):
    rewrite(folder, json.loads((folder / "a/zarr.json").read_text()) | change)
    with pytest.raises(DamagedError, match=message) as raised:
        Checkpoint(folder).read("a")
    assert str(raised.value).startswith(f"{folder}/a: ") and "\n" not in str(raised.value)


@pytest.mark.parametrize("content", ["", "null", "[]", "{", "\0", "[" * 100_000])
def test_malformed_metadata_is_a_one_line_error(folder, content):
    rewrite(folder, content)
    with pytest.raises(DamagedError, match=r"zarr\.json (is not JSON|describes no array); the checkpoint is damaged"):
        Checkpoint(folder).read("a")


@pytest.mark.parametrize("listed", [True, False])
def test_named_pipe_does_not_block(folder, listed):
    path = folder / "a/zarr.json"
    if not listed:
        content = {name: value for name, value in manifest.read(folder).items() if name not in ("format", "files")}
    path.unlink()
    if not listed:
        manifest.write(folder, content)
    os.mkfifo(path)
    with pytest.raises(DamagedError, match=r"not a file|is missing"):
        Checkpoint(folder).read("a")
