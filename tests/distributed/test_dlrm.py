"""dlrm.py on several workers: checkpoints and predictions do not depend on how many wrote or read them."""

import json
import shutil
from dataclasses import dataclass

import polars
import pytest
import yaml
from launching import dlrm
from small_data import BATCH, CARDINALITIES, FLAGS, NUM_NUMERICAL, ROWS, SEED

TRAIN_BATCHES = 6
SLICED = ("--column_slice_threshold", "800")
MIXED = (*SLICED, "--data_parallel_threshold", "504")
SYNTHETIC = ("--dataset_type", "synthetic", "--synthetic_dataset_cardinalities", ",".join(map(str, CARDINALITIES)), "--seed", str(SEED))
SYNTHETIC += ("--synthetic_dataset_num_numerical_features", str(NUM_NUMERICAL), "--synthetic_dataset_train_batches", str(TRAIN_BATCHES))
SYNTHETIC += ("--synthetic_dataset_valid_batches", "4")


@dataclass
class Run:
    """What a run wrote."""

    final: dict
    losses: list[float]
    folder: object
    err: str


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run dlrm.py on N workers in a folder of its own."""

    def call(workers, *flags):
        folder = tmp_path_factory.mktemp(f"on-{workers}")
        log = folder / "log.json"
        result = dlrm(workers, "--log_path", log, *(str(flag).replace("{folder}", str(folder)) for flag in flags), horovodrun=workers == 2)
        assert result.code == 0, result.err
        assert not result.errors and "Traceback" not in result.err
        lines = [json.loads(line.removeprefix("DLLL ")) for line in log.read_text().splitlines()]
        losses = [line["data"]["loss"] for line in lines if line["type"] == "LOG" and "loss" in line["data"]]
        return Run(lines[-1]["data"], losses, folder, result.err)

    return call


@pytest.fixture(scope="module")
def saved(run):
    """By number of workers, the same training, its checkpoint written by all of them side by side."""
    placements = {1: (), 2: SLICED, 4: MIXED}
    train = (*SYNTHETIC, *FLAGS, "--print_freq", "1", "--save_checkpoint_path", "{folder}/checkpoint")
    return {workers: run(workers, *train, *flags) for workers, flags in placements.items()}


@pytest.fixture(scope="module")
def evaluated(run, saved, dataset):
    """Figures of the stored test split, whose rows no batch and no N divides, by workers that wrote and that read the checkpoint."""
    pairs = [(1, 1), (1, 2), (2, 3), (4, 1)]  # and 4 to 2 below
    found = {}
    for wrote, read in pairs:
        path = saved[wrote].folder / "checkpoint"
        where = MIXED if read == 3 else ()
        found[wrote, read] = run(read, "--cpu", "--mode", "eval", "--dataset_path", dataset, "--restore_checkpoint_path", path, *where).final
    return found


def test_synthetic_data_is_the_same_for_any_number_of_workers(saved):
    for workers, result in saved.items():
        assert len(result.losses) == TRAIN_BATCHES
        assert result.losses == pytest.approx(saved[1].losses, abs=1e-6), workers
        assert result.final["samples"] == TRAIN_BATCHES * BATCH
        # Replicated tables are summed in another order, and one pair of the 384 rows in another order is 3e-5 of the AUC.
        assert result.final["auc"] == pytest.approx(saved[1].final["auc"], abs=1e-6 if workers < 4 else 6e-5)
        assert result.final["validation_loss"] == pytest.approx(saved[1].final["validation_loss"], abs=1e-6)


def test_any_number_of_workers_evaluates_what_any_number_wrote(evaluated):
    expected = evaluated[1, 1]
    assert expected["samples"] == ROWS["test"]
    for pair, found in evaluated.items():
        assert found["samples"] == ROWS["test"], pair
        assert found["auc"] == pytest.approx(expected["auc"], abs=1e-6), pair
        assert found["test_loss"] == pytest.approx(expected["test_loss"], abs=1e-6), pair


def test_checkpoints_of_any_number_of_workers_hold_the_same_arrays(saved):
    manifests = [json.loads(next(result.folder.glob("checkpoint/step-*/manifest.json")).read_text()) for result in saved.values()]
    for manifest in manifests:
        assert manifest["arrays"] == manifests[0]["arrays"]
        assert manifest["features"] == manifests[0]["features"]


def test_predictions_of_two_workers_equal_those_of_one(run, saved, dataset):
    predict = ("--cpu", "--mode", "predict", "--dataset_path", dataset, "--restore_checkpoint_path", saved[4].folder / "checkpoint")
    one, two = (polars.read_parquet(run(workers, *predict, "--predictions_path", "{folder}/p.parquet").folder / "p.parquet") for workers in (1, 2))
    assert one["row"].to_list() == two["row"].to_list() == list(range(ROWS["test"]))
    assert one["label"].to_list() == two["label"].to_list()
    assert two["score"].to_list() == pytest.approx(one["score"].to_list(), abs=1e-6)


def test_two_workers_score_a_split_without_labels_and_carry_its_keys(run, saved, dataset, tmp_path):
    folder = shutil.copytree(dataset, tmp_path / "dataset")
    content = yaml.safe_load((folder / "feature_spec.yaml").read_text())
    content["source_spec"]["test"] = [chunk for chunk in content["source_spec"]["test"] if chunk["features"] != ["label"]]
    (folder / "feature_spec.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    keys = polars.DataFrame({"user": [f"u{row}" for row in range(ROWS["test"])]})
    keys.write_parquet(folder / "test" / "keys.parquet")
    predict = ("--cpu", "--mode", "predict", "--restore_checkpoint_path", saved[4].folder / "checkpoint", "--predictions_path", "{folder}/p.parquet")
    labelled = polars.read_parquet(run(2, *predict, "--dataset_path", dataset).folder / "p.parquet")
    found = polars.read_parquet(run(2, *predict, "--dataset_path", folder, "--split", "test").folder / "p.parquet")
    assert found.columns == ["user", "row", "score"] and found.select("user").equals(keys)
    assert found.select("row", "score").equals(labelled.select("row", "score"))


def test_two_workers_fall_back_to_the_newest_checkpoint_that_is_whole(run, saved, evaluated, dataset, tmp_path):
    folder = shutil.copytree(saved[4].folder / "checkpoint", tmp_path / "checkpoint")
    whole = next(folder.glob("step-*"))
    damaged = shutil.copytree(whole, folder / "step-00000099")
    (folder / "latest").write_text(f"{damaged.name}\n")
    chunk = next(path for path in damaged.glob("tables/*/weights/c/**/*") if path.is_file())
    content = bytearray(chunk.read_bytes())
    content[0] ^= 1
    chunk.write_bytes(content)
    result = run(2, "--cpu", "--mode", "eval", "--dataset_path", dataset, "--restore_checkpoint_path", folder, "--restore_fallback")
    assert f"the checkpoint is damaged; --restore_fallback: {whole} is tried instead" in result.err
    assert result.final["auc"] == pytest.approx(evaluated[4, 1]["auc"], abs=1e-6)
