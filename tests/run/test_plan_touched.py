"""Tests of `--mode plan` with lazy tables: the rows that the planned steps touch, expected from the law of drawn ids or counted in a dataset."""

import json
from dataclasses import replace

import numpy as np
import pytest

from dataloading.feature_spec import generator_spec
from dataloading.generate_feature_spec import variant_spec, write_spec
from dataloading.synthetic.dataset import SyntheticDataset, write_dataset
from dataloading.synthetic.touched_ids import Draws, expected_distinct
from dataloading.tf_raw import TfRawWriter
from tests.cli.runs import here

CARDINALITIES, ALPHA, ROWS = (3000, 40, 900), 1.2, 1000
LAZY = ("--mode", "plan", "--table_storage", "lazy", "--embedding_dim", "8", "--bottom_mlp_dims", "16,8", "--batch_size", "64", "--plan_workers", "1")
ABOVE = ("--table_storage_above", 900 * 32)  # the first and the last table


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Return a stored dataset that this program has drawn, and which says so."""
    folder = tmp_path_factory.mktemp("data") / "drawn"
    spec = generator_spec(CARDINALITIES, 2, ALPHA, hotness=(1, 1, 3))
    write_dataset(folder, SyntheticDataset(spec, {"train": ROWS, "test": 50}, 1))
    return folder


def ids_of(folder, feature, rows=ROWS, hotness=1):
    (path,) = folder.glob(f"train/{feature}.bin")
    return np.fromfile(path, np.int16).reshape(ROWS, hotness)[:rows]


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Return a dataset of ids whose law is not known: the rows named are 0 to 99 of 3000, and 7 of 900."""
    folder = tmp_path_factory.mktemp("data") / "real"
    spec = generator_spec(CARDINALITIES, 1, ALPHA)
    count = np.arange(ROWS)
    ids = [(count % 100).astype(np.int16), np.zeros(ROWS, np.int8), np.full(ROWS, 7, np.int16)]
    with TfRawWriter(folder, spec, ("train",)) as writer:
        writer.append("train", np.zeros((ROWS, 1), np.float16), ids, (count % 2).astype(np.uint8))
        writer.publish({})
    return folder


@pytest.fixture
def plan(tmp_path):
    """Return a function that plans for a dataset and returns the part of the plan about lazy tables, and what was printed as errors."""

    def call(folder, *flags, above=ABOVE):
        result = here(tmp_path, *LAZY, "--dataset_path", folder, "--plan_format", "json", *above, *flags)
        assert result.code == 0, result.err
        return json.loads(result.out)["lazy"], result.err

    return call


def rows_of(lazy):
    return {row["table"]: row["touched_rows"] for row in lazy["tables"]}


def expected(samples, cardinality, hotness=1):
    return round(expected_distinct([Draws(samples, cardinality, ALPHA, hotness)]))


def test_rows_of_drawn_data_are_expected(plan, drawn):
    """An epoch of 16 steps has the dataset's samples, each once; more steps meet no further ones."""
    cases = (), ("--max_steps", 3), ("--max_steps", 900), ("--steps_per_epoch", 2)
    for flags, steps, samples in zip(cases, (16, 3, 900, 2), (ROWS, 192, ROWS, 128), strict=True):
        found, err = plan(drawn, *flags)
        assert rows_of(found) == {"cat_0": expected(samples, 3000), "cat_2": expected(samples, 900, 3)}
        assert (found["steps"], found["samples"], found["touched"], found["advice"]) == (steps, samples, "expected", None) and err == ""
    assert found["total"]["touched_rows"] == sum(rows_of(found).values()) and found["touched_bytes_on_fullest"] == 32 * found["total"]["touched_rows"]


def test_rows_are_counted_in_the_dataset(plan, drawn, real):
    for rows, flags in ((ROWS, ()), (192, ("--max_steps", 3)), (500, ("--dataset_subset", 0.5)), (800, ("--valid_fraction", 0.2))):
        found, err = plan(drawn, "--plan_touched", *flags)
        counted = {name: len(np.unique(ids_of(drawn, name, rows, hotness))) for name, hotness in (("cat_0", 1), ("cat_2", 3))}
        assert rows_of(found) == counted and (found["samples"], found["touched"], err) == (rows, "counted", "")
    found, _ = plan(real, "--plan_touched")
    assert rows_of(found) == {"cat_0": 100, "cat_2": 1} and found["total"]["touched_bytes"] == 32 * 101


def test_rows_of_other_data_are_unknown(plan, real):
    found, err = plan(real, "--max_steps", 3)
    assert rows_of(found) == {"cat_0": None, "cat_2": None} and err == ""
    assert (found["touched"], found["advice"]) == (None, "--plan_touched counts them in the dataset")
    assert found["total"]["touched_rows"] is found["touched_bytes_on_fullest"] is None


def test_rows_of_data_to_draw(plan, tmp_path):
    """A specification alone has no epoch; `--dataset_type synthetic` says how many batches there are."""
    write_spec(generator_spec(CARDINALITIES, 2, ALPHA, hotness=(1, 1, 3)), tmp_path / "feature_spec.yaml")
    found, _ = plan(tmp_path)
    assert (found["steps"], found["samples"], found["touched"], found["advice"]) == (None, None, None, "give --max_steps")
    assert rows_of(plan(tmp_path, "--max_steps", 5)[0]) == {"cat_0": expected(320, 3000), "cat_2": expected(320, 900, 3)}
    drawn = ("--dataset_type", "synthetic", "--synthetic_dataset_use_feature_spec", "--synthetic_dataset_train_batches", 10)
    found, _ = plan(tmp_path, *drawn)
    assert rows_of(found) == {"cat_0": expected(640, 3000), "cat_2": expected(640, 900, 3)} and found["steps"] == 10
    assert rows_of(plan(tmp_path, *drawn, "--max_steps", 1)[0])["cat_0"] == expected(64, 3000)
    counted, _ = plan(tmp_path, *drawn, "--plan_touched")
    assert counted["touched"] == "counted" and abs(rows_of(counted)["cat_0"] - expected(640, 3000)) < 4 * expected(640, 3000) ** 0.5


def test_hashed_ids_touch_the_rows_of_a_smaller_table(plan, drawn):
    flags = ("--max_table_size", 100, "--out_of_range", "hash")
    counted, _ = plan(drawn, "--plan_touched", *flags, above=("--table_storage_above", 100 * 32))
    assert rows_of(counted)["cat_0"] == len(np.unique(ids_of(drawn, "cat_0") % 100))
    found, _ = plan(drawn, "--max_steps", 1, *flags, above=("--table_storage_above", 100 * 32))
    assert expected(64, 100) - 10 < rows_of(found)["cat_0"] < expected(64, 3000)


def test_linear_parts_read_the_same_ids(plan, drawn):
    flags = ("--plan_touched", "--interaction", "fm")
    found, _ = plan(drawn, *flags, above=("--table_storage_above", 3000 * 4))
    assert set(rows_of(found)) == {"cat_0", "cat_0_wide", "cat_2"} and rows_of(found)["cat_0"] == rows_of(found)["cat_0_wide"]


def test_shared_tables_are_named_by_all_their_features(plan, tmp_path):
    spec = generator_spec((3000, 3000), 1, ALPHA)
    spec = replace(spec, categorical=tuple(replace(feature, table="both") for feature in spec.categorical))
    write_spec(spec, tmp_path / "feature_spec.yaml")
    assert rows_of(plan(tmp_path, "--max_steps", 10)[0]) == {"both": expected(1280, 3000)}


def test_memory_bounds_what_is_held(plan, drawn):
    found, err = plan(drawn, "--table_memory_gb", "2e-5")
    assert found["memory_bytes"] == 20_000 and [row["held_rows"] for row in found["tables"]] == [313, 312]
    assert found["total"]["held_bytes"] == 20_000 and found["total"]["bytes"] == 3900 * 32
    assert "the rows of two batches may take up to 1.64e-05" not in err  # 512 rows, which fit
    _, err = plan(drawn, "--table_memory_gb", "1.6e-5")
    assert err.count("warning: --batch_size 64: the rows of two batches may take up to 1.64e-05 GB") == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--table_memory_gb", "1e-6"), "--batch_size 64: the rows of two batches take some"),
        (("--table_memory_gb", "6e-8"), "--table_memory_gb: 60 bytes cannot hold one row of each of the 2 lazy tables"),
        (("--table_memory_gb", "1e-2", "--worker_memory_gb", "1e-5"), "or give lazy tables less (--table_memory_gb)"),
    ],
    ids=str,
)
def test_memory_that_does_not_suffice_is_an_error(drawn, tmp_path, flags, words):
    result = here(tmp_path, *LAZY, *ABOVE, "--dataset_path", drawn, *flags)
    assert result.code == 1 and words in result.err and result.err.count("\n") == 1 and result.out == ""


def test_counting_needs_rows(tmp_path, drawn):
    write_spec(generator_spec(CARDINALITIES, 2, ALPHA), tmp_path / "feature_spec.yaml")
    result = here(tmp_path, *LAZY, *ABOVE, "--dataset_path", tmp_path, "--plan_touched")
    words = f"--plan_touched: {tmp_path / 'feature_spec.yaml'} describes data to draw, and holds no rows to read; drop the flag"
    assert (result.code, result.err) == (1, f"dlrm.py: error: {words}\n")


def test_expected_rows_need_no_file_of_the_dataset(plan, drawn, tmp_path):
    (tmp_path / "feature_spec.yaml").write_text((drawn / "feature_spec.yaml").read_text())
    assert plan(tmp_path)[0]["advice"] == "give --max_steps"
    assert rows_of(plan(tmp_path, "--max_steps", 3)[0])["cat_0"] == expected(192, 3000)


def test_options_of_lazy_plans_have_no_effect_on_others(drawn, tmp_path):
    flags = ("--max_steps", "--steps_per_epoch", "--valid_fraction", "--dataset_subset", "--dense_update_rows")
    values = ("3", "2", "0.1", "0.5", "7")
    words = [word for pair in zip(flags, values, strict=True) for word in pair]
    result = here(tmp_path, "--mode", "plan", *LAZY[4:], "--dataset_path", drawn, *words, "--plan_touched")
    assert result.code == 0 and "lazy" not in result.out
    for flag in flags:
        assert f"warning: {flag} has no effect with --mode plan, unless --table_storage lazy" in result.err
    assert "warning: --plan_touched has no effect without --table_storage lazy" in result.err
    assert "no effect" not in here(tmp_path, *LAZY, *ABOVE, "--dataset_path", drawn, *words, "--plan_touched").err


def test_the_model_of_113_billion_parameters(tmp_path):
    """A laptop's plan: 421 GiB of rows of which 2,000 steps of 8192 samples touch some 0.5 GiB."""
    write_spec(variant_spec("criteo_t0_synthetic"), tmp_path / "feature_spec.yaml")
    flags = ("--mode", "plan", "--table_storage", "lazy", "--table_memory_gb", "6", "--plan_workers", "1", "--batch_size", "8192")
    result = here(tmp_path, *flags, "--max_steps", "2000", "--dataset_path", tmp_path, "--worker_memory_gb", "8")
    assert result.code == 0 and result.err == ""
    lines = result.out.splitlines()
    assert lines[0].startswith("112,995,145,600 embedding parameters, 420.94 GiB; 1 workers")
    (total,) = [line.split() for line in lines if line.startswith("all ")]
    assert float(total[2]) > 420 and float(total[3]) == 5.59 and 0.4 < float(total[5]) < 0.7
    assert lines[-1].startswith("touched rows take 0.") and lines[-1].endswith(" GiB on the fullest worker")
