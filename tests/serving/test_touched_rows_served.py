"""A checkpoint that stores only the touched rows of its tables scores, explains and exports like one that stores them whole."""

import numpy as np
import pytest
from served_models import export, train, write

import dlrm
from dataloading.feature_spec import Categorical
from run.served_rows import by_feature, drawn_rows
from utils.checkpoint.reading import Checkpoint
from utils.checkpoint.touched_form import TOUCHED_ROWS, bitmap_name
from utils.checkpoint.writing import Array, ArrayPart, Saving
from utils.distributed import World
from utils.errors import UserError
from utils.initial_rows import Origin, Untouched

FEATURES = (
    Categorical("user", 5000, "int32", alpha=1.1),
    Categorical("bought", 900, "int32", 6, 1.1, table="items"),
    Categorical("item", 900, "int32", alpha=1.1, table="items"),
    Categorical("tags", 30, "int32", 4, 1.2, pooling="mean"),
)


def touched_copy(whole, path, partial):
    """Write a checkpoint again with only the rows of the tables `partial` that training has changed; return how many rows are left out."""
    arrays, parts, described, bits, left_out = {}, [], {}, {}, 0
    for table in partial:
        values = whole.read(f"tables/{table}/weights")
        rows, before = len(values), np.empty_like(values)
        origin = Origin(0, rows, table, rows, values.shape[1], whole.manifest["config"]["seed"], "uniform")
        Untouched([origin])(before, 0)
        bits[table] = np.packbits(changed := (values != before).any(axis=1))
        slots = {name.rpartition("/")[2]: 0.0 for name in whole.names(f"tables/{table}/") if not name.endswith("/weights")}
        described[table] = {"origins": [origin.described()], "slots": slots}
        left_out += np.count_nonzero(~changed)
    for name in whole.names(""):
        values, table = whole.read(name), name.split("/")[1]
        rows = len(values) if name.startswith("tables/") and table in partial else None
        values = values[np.unpackbits(bits[table], count=rows).astype(bool)] if rows else values
        arrays[name] = Array(values.shape, rows=rows)
        parts.append(ArrayPart(name, lambda start, stop, values=values: values[start:stop]))
    about = {name: value for name, value in whole.manifest.items() if name not in ("files", "arrays", "format", "step", "time")}
    saving = Saving(path, whole.step, arrays, parts, about | {TOUCHED_ROWS: described}, World())
    for table, content in bits.items():
        saving.put(bitmap_name(table), content)
    saving.finish()
    return left_out


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("touched")
    train(write(folder / "data", FEATURES, ("x", "y")), folder / "whole")
    whole = Checkpoint(folder / "whole")
    assert touched_copy(whole, folder / "touched", ("user", "items")) > 3000
    for name in whole.names(""):
        np.testing.assert_array_equal(Checkpoint(folder / "touched").read(name), whole.read(name))
    return folder


@pytest.fixture(scope="module")
def samples(folder):
    features = dlrm.load(folder / "whole", cpu=True).features
    return by_feature(drawn_rows(features), features)


@pytest.mark.parametrize("mmap", [False, True])
def test_scores_are_those_of_whole_tables(folder, samples, mmap):
    expected = dlrm.load(folder / "whole", cpu=True).score(samples)
    model = dlrm.load(folder / "touched", mmap=mmap, cpu=True)
    np.testing.assert_array_equal(model.score(samples), expected)
    few = {name: values[5:9] for name, values in samples.items()}
    np.testing.assert_allclose(model.score(few), expected[5:9], rtol=0, atol=1e-6)
    assert np.ptp(expected) > 0.01


def test_contributions_are_those_of_whole_tables(folder, samples):
    few = {name: values[5:9] for name, values in samples.items()}
    whole, touched = (dlrm.load(folder / kind, mmap=True, cpu=True).explain(few, few) for kind in ("whole", "touched"))
    assert touched.contributions.keys() == whole.contributions.keys()
    for name, expected in whole.contributions.items():
        np.testing.assert_allclose(touched.contributions[name], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_an_export_scores_like_its_checkpoint(folder, samples, tmp_path, precision):
    export(folder / "touched", tmp_path / "r", "--precision", precision)
    version = Checkpoint(tmp_path / "r/dlrm/1/checkpoint")
    expected = dlrm.load(folder / "whole", cpu=True).score(samples)
    found = dlrm.load(version.folder, mmap=True, cpu=True).score(samples)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 if precision == "float32" else 0.02)
    assert (version.touched_table("user") is not None) == (precision == "float32")


def test_a_damaged_bitmap_is_found_before_an_export(folder, tmp_path):
    touched_copy(Checkpoint(folder / "whole"), tmp_path / "c", ("user",))
    path = next((tmp_path / "c").glob("step-*")) / bitmap_name("user")
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"touched_rows/user\.bin: its checksum is wrong"):
        export(tmp_path / "c", tmp_path / "r")
