"""Tests of dlrm.py on several workers: checkpoints and predictions do not depend on the number of workers that wrote or read them."""

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars
import pytest
import yaml
from launching import dlrm, launch
from small_data import BATCH, CARDINALITIES, FLAGS, NUM_NUMERICAL, ROWS, SEED

from tests.distributed.resident import NUMBERS, do_in_turn

TRAIN_BATCHES = 6
SLICED = ("--column_slice_threshold", "800")
MIXED = (*SLICED, "--data_parallel_threshold", "504")
SYNTHETIC = ("--dataset_type", "synthetic", "--synthetic_dataset_cardinalities", ",".join(map(str, CARDINALITIES)), "--seed", str(SEED))
SYNTHETIC += ("--synthetic_dataset_num_numerical_features", str(NUM_NUMERICAL), "--synthetic_dataset_train_batches", str(TRAIN_BATCHES))
SYNTHETIC += ("--synthetic_dataset_valid_batches", "4")


@dataclass
class Run:
    """The results of a run: its losses, final figures, files and errors."""

    final: dict
    losses: list[float]
    folder: Path
    err: str  # standard error of all runs of the launch
    summaries: list[dict]  # data of the lines "EVALUATION"

    @classmethod
    def of(cls, folder: Path, err: str) -> "Run":
        lines = [json.loads(line.removeprefix("DLLL ")) for line in (folder / "log.json").read_text().splitlines()]
        losses = [line["data"]["loss"] for line in lines if line["type"] == "LOG" and "loss" in line["data"]]
        summaries = [line["data"] for line in lines if line["type"] == "LOG" and line["step"] == "EVALUATION"]
        return cls(lines[-1]["data"], losses, folder, err, summaries)

    @property
    def predictions(self) -> polars.DataFrame:
        return polars.read_parquet(self.folder / "p.parquet")


def words(folder: Path, flags) -> list[str]:
    """Return the flags of a run of dlrm.py whose files go to a folder; `{folder}` in a flag stands for it."""
    return ["--log_path", str(folder / "log.json"), *(str(flag).replace("{folder}", str(folder)) for flag in flags)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a function that runs dlrm.py on N workers in a folder of its own; horovodrun starts them if N is 2, as users do."""

    def call(workers, *flags):
        folder = tmp_path_factory.mktemp(f"on-{workers}")
        line = words(folder, flags)
        result = dlrm(workers, *line, horovodrun=True) if workers == 2 else do_in_turn(workers, [line])
        assert result.code == 0 and not result.errors and "Traceback" not in result.err, result.err
        return Run.of(folder, result.err)

    return call


@pytest.fixture(scope="module")
def in_turn(tmp_path_factory):
    """Return a function that runs named command lines of dlrm.py in turn on N workers, each in a folder of its own; it returns Runs by name."""

    def call(workers, commands):
        folders = {name: tmp_path_factory.mktemp(name) for name in commands}
        lines = [words(folders[name], flags) for name, flags in commands.items()]
        if workers in NUMBERS:
            result = do_in_turn(workers, lines)
        else:
            path = tmp_path_factory.mktemp("commands") / "commands.json"
            path.write_text(json.dumps(lines))
            result = launch(workers, sys.executable, "-u", Path(__file__).with_name("commands.py"), path)
        assert result.code == 0 and not result.errors and "Traceback" not in result.err, result.err
        return {name: Run.of(folder, result.err) for name, folder in folders.items()}

    return call


@pytest.fixture(scope="module")
def saved(run):
    """Run the same training on 1, 2 and 4 workers, all of which write to its checkpoint in parallel; return the Runs by number of workers."""
    placements = {1: (), 2: SLICED, 4: MIXED}
    train = (*SYNTHETIC, *FLAGS, "--print_freq", "1", "--save_checkpoint_path", "{folder}/checkpoint")
    return {workers: run(workers, *train, *flags) for workers, flags in placements.items()}


@pytest.fixture(scope="module")
def unlabelled(dataset, tmp_path_factory):
    """Return a copy of the dataset whose test split has keys and no labels."""
    folder = shutil.copytree(dataset, tmp_path_factory.mktemp("unlabelled") / "dataset")
    content = yaml.safe_load((folder / "feature_spec.yaml").read_text())
    content["source_spec"]["test"] = [chunk for chunk in content["source_spec"]["test"] if chunk["features"] != ["label"]]
    (folder / "feature_spec.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    polars.DataFrame({"user": [f"u{row}" for row in range(ROWS["test"])]}).write_parquet(folder / "test" / "keys.parquet")
    return folder


@pytest.fixture(scope="module")
def grouped(dataset, tmp_path_factory):
    """Return a copy of the dataset whose test split has a group column; the rows of a group lie in several batches."""
    folder = shutil.copytree(dataset, tmp_path_factory.mktemp("grouped") / "dataset")
    content = yaml.safe_load((folder / "feature_spec.yaml").read_text())
    content["feature_spec"]["session"], content["channel_spec"]["group"] = {"dtype": "int64"}, ["session"]
    del content["source_spec"]["train"]
    content["source_spec"]["test"].append({"type": "split_binary", "features": ["session"], "files": ["test/group.bin"]})
    (folder / "feature_spec.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    (np.arange(ROWS["test"]) % 41 - 2**62).tofile(folder / "test" / "group.bin")
    return folder


@pytest.fixture(scope="module")
def damaged(saved, tmp_path_factory):
    """Copy the checkpoints that four workers wrote and add a newer, damaged one; return the folder and the intact checkpoint."""
    folder = shutil.copytree(saved[4].folder / "checkpoint", tmp_path_factory.mktemp("damaged") / "checkpoint")
    whole = next(folder.glob("step-*"))
    newer = shutil.copytree(whole, folder / "step-00000099")
    (folder / "latest").write_text(f"{newer.name}\n")
    chunk = next(path for path in newer.glob("tables/*/weights/c/**/*") if path.is_file())
    content = bytearray(chunk.read_bytes())
    content[0] ^= 1
    chunk.write_bytes(content)
    return folder, whole


@pytest.fixture(scope="module")
def read(in_turn, saved, dataset, unlabelled, grouped, damaged):
    """Evaluate and predict with the checkpoints on 1, 2 and 3 workers; return the Runs by number of workers and name.

    The number of rows of the test split is prime, so no batch size and no number of workers divides it.
    """
    checkpoints = {workers: result.folder / "checkpoint" for workers, result in saved.items()}

    def evaluate(path, *flags, folder=dataset):
        return ("--cpu", "--mode", "eval", "--dataset_path", folder, "--restore_checkpoint_path", path, *flags)

    def predict(folder, *flags):
        restored = ("--restore_checkpoint_path", checkpoints[4], "--predictions_path", "{folder}/p.parquet")
        return ("--cpu", "--mode", "predict", "--dataset_path", folder, *restored, *flags)

    ranked = evaluate(checkpoints[1], "--ranking_metrics", "map@3,ndcg@5,group_auc", folder=grouped)
    commands = {
        1: {"of_1": evaluate(checkpoints[1]), "of_4": evaluate(checkpoints[4]), "predicted": predict(dataset), "ranked": ranked},
        2: {
            "of_1": evaluate(checkpoints[1]),
            "predicted": predict(dataset),
            "unlabelled": predict(unlabelled, "--split", "test"),
            "fallen_back": evaluate(damaged[0], "--restore_fallback"),
            "ranked": ranked,
        },
        3: {"of_2": evaluate(checkpoints[2], *MIXED), "ranked": ranked},
    }
    return {workers: in_turn(workers, some) for workers, some in commands.items()}


@pytest.mark.costly("trains on 1, 2 and 4 workers for the whole file, two of them by horovodrun")
def test_synthetic_data_is_the_same_for_any_number_of_workers(saved):
    for workers, result in saved.items():
        assert len(result.losses) == TRAIN_BATCHES
        assert result.losses == pytest.approx(saved[1].losses, abs=1e-6), workers
        assert result.final["samples"] == TRAIN_BATCHES * BATCH
        # Gradients of replicated tables are summed in another order. If that swaps one pair of the 384 rows' scores, the AUC changes by 3e-5.
        assert result.final["auc"] == pytest.approx(saved[1].final["auc"], abs=1e-6 if workers < 4 else 6e-5)
        assert result.final["validation_loss"] == pytest.approx(saved[1].final["validation_loss"], abs=1e-6)


@pytest.mark.costly("evaluates and predicts on 1, 2 and 3 workers for the whole file")
def test_checkpoints_evaluate_equally_on_any_number_of_workers(read):
    expected = read[1]["of_1"].final
    assert expected["samples"] == ROWS["test"]
    for workers, name in [(2, "of_1"), (3, "of_2"), (1, "of_4"), (2, "fallen_back")]:  # of_4 and fallen_back: a checkpoint that four workers wrote
        found = read[workers][name].final
        assert found["samples"] == ROWS["test"], (workers, name)
        assert found["auc"] == pytest.approx(expected["auc"], abs=1e-6), (workers, name)
        assert found["test_loss"] == pytest.approx(expected["test_loss"], abs=1e-6), (workers, name)


def test_evaluations_are_summarized_equally_on_any_number_of_workers(read):
    one, two, three = (read[workers][name].summaries for workers, name in ((1, "of_1"), (2, "of_1"), (3, "of_2")))
    assert len(one) == len(two) == len(three) == 1
    for found in (two[0], three[0]):
        for name in ("auc_variance", "log_loss", "log_loss_variance", "calibration"):
            assert found[name] == pytest.approx(one[0][name], rel=1e-3), name
        assert found["samples"] == ROWS["test"] == sum(sum(found["histogram"][one_class]) for one_class in ("negative", "positive"))
        assert [decile[0] for decile in found["deciles"]] == [decile[0] for decile in one[0]["deciles"]]
        assert sum(decile[1] for decile in found["deciles"]) == found["positives"] == one[0]["positives"]


def test_ranking_metrics_are_equal_on_any_number_of_workers(read):
    names = {"map_at_3", "ndcg_at_5", "group_auc", "groups", "groups_with_positive"}
    one, two, three = ({name: read[workers]["ranked"].final[name] for name in names} for workers in (1, 2, 3))
    assert one["groups"] == 41 and 0 < one["map_at_3"] < 1
    assert one == two == three


def test_checkpoints_of_any_number_of_workers_hold_the_same_arrays(saved):
    manifests = [json.loads(next(result.folder.glob("checkpoint/step-*/manifest.json")).read_text()) for result in saved.values()]
    for manifest in manifests:
        assert manifest["arrays"] == manifests[0]["arrays"]
        assert manifest["features"] == manifests[0]["features"]


def test_predictions_of_two_workers_equal_those_of_one(read):
    one, two = (read[workers]["predicted"].predictions for workers in (1, 2))
    assert one["row"].to_list() == two["row"].to_list() == list(range(ROWS["test"]))
    assert one["label"].to_list() == two["label"].to_list()
    assert two["score"].to_list() == pytest.approx(one["score"].to_list(), abs=1e-6)


def test_two_workers_score_a_split_without_labels_and_carry_its_keys(read, unlabelled):
    found, labelled = (read[2][name].predictions for name in ("unlabelled", "predicted"))
    assert found.columns == ["user", "row", "score"] and found.select("user").equals(polars.read_parquet(unlabelled / "test" / "keys.parquet"))
    assert found.select("row", "score").equals(labelled.select("row", "score"))


def test_two_workers_fall_back_to_the_newest_intact_checkpoint(read, damaged):
    result = read[2]["fallen_back"]
    assert f"the checkpoint is damaged; --restore_fallback tries {damaged[1]} instead" in result.err
    assert result.final["auc"] == pytest.approx(read[1]["of_4"].final["auc"], abs=1e-6)
