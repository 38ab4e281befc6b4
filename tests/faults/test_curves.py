"""A run that is killed at random, again and again, and resumed has the curves and the weights of an unbroken run: every figure, every bit."""

import json
import random
import time
from pathlib import Path

import pytest
from victim import Victim, differing

from tests.cli.runs import write_dataset
from tests.distributed.resident import do_in_turn

KILLS, STEPS, EVERY = 10, 96, 5
MODEL = ("--cpu", "--embedding_dim", "8", "--bottom_mlp_dims", "8", "--top_mlp_dims", "8,1", "--gradient_slices", "2")
# One table is cut by columns where there are two workers, one is whole, and one is replicated.
PLACEMENT = ("--column_slice_threshold", "2400", "--data_parallel_threshold", "100")
DATA = ("--batch_size", "16", "--valid_batch_size", "128", "--shuffle_batch_order", "--evals_per_epoch", "2", "--epochs", "4")
OPTIMIZER = ("--optimizer", "adam", "--learning_rate", "0.01", "--warmup_steps", "50")
FIGURES = ("--log_norms", "--print_freq", "7")
RUN = (*MODEL, *PLACEMENT, *DATA, *OPTIMIZER, *FIGURES)
HALF = ("--amp", "--amp_dtype", "float16", "--loss_scale", "dynamic")  # the scale begins so large that the first steps are skipped
EXEMPT = ("_ms", "samples_per_s", "memory_gib")  # times and memory


@pytest.fixture(autouse=True)
def _end_what_was_started():
    yield
    Victim.end_all()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Write a dataset of 24 batches an epoch, the last one partial."""
    return write_dataset(tmp_path_factory.mktemp("curves") / "dataset", (600, 50, 9), {"train": 16 * 24 - 5, "test": 300})


def entries(path: Path) -> list[dict]:
    """Return the lines of a log; a line that was cut is left out."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line.removeprefix("DLLL ")))
        except ValueError:
            continue
    return [entry for entry in found if entry["type"] == "LOG"]


def curves(path: Path) -> dict[tuple[str, int], dict]:
    """Return the last figures of each step that the run kept, but for times and memory, by kind of line and step."""
    found: dict[tuple[str, int], dict] = {}
    for entry in entries(path):
        step, data = entry["step"], entry["data"]
        if step == "RUN":
            found = {key: figures for key, figures in found.items() if data["resumed_step"] is not None and key[1] <= data["resumed_step"]}
            continue
        if isinstance(step, list) and step:
            key = ("evaluation" if "test_loss" in data else "training", step[1])
        elif step in ("TABLES", "EVALUATION"):
            key = (step, data["step"])
        else:
            key = (str(step), 0)
        if key[0] in ("training", "evaluation", "TABLES", "EVALUATION"):
            found[key] = {name: value for name, value in data.items() if not name.endswith(EXEMPT)}
        elif step == []:
            found["end", STEPS] = {name: data[name] for name in ("auc", "best_auc", "best_epoch", "train_loss", "samples", "steps")}
    return found


def last_step(path: Path) -> int:
    """Return the step of the last training line."""
    return max((entry["step"][1] for entry in entries(path) if isinstance(entry["step"], list) and "loss" in entry["data"]), default=0)


def flags(folder: Path, name: str, dataset: Path, more: tuple[str, ...]) -> tuple:
    """Return the flags of a run whose checkpoints are in FOLDER/NAME."""
    saved = ("--save_checkpoint_path", folder / name, "--checkpoint_every_steps", EVERY, "--resume", "auto")
    return ("--dataset_path", dataset, *saved, *RUN, *more)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, dataset):
    """Return a function that returns the log of an unbroken run on some workers, with further flags."""
    folder, ended = tmp_path_factory.mktemp("unbroken"), {}

    def of(workers: int, more: tuple[str, ...] = ()) -> Path:
        name = f"{workers}{'half' if more else ''}"
        if name not in ended:
            run = do_in_turn(workers, [(*flags(folder, name, dataset, more), "--log_path", folder / f"{name}.json")])
            assert run.code == 0, run.err
            ended[name] = folder / f"{name}.json"
        return ended[name]

    return of


@pytest.mark.costly("a run is killed and started again on each number of workers")
@pytest.mark.parametrize(
    ("workers", "more", "kills"),
    [(1, (), 2), (2, HALF, 1), *(pytest.param(workers, (), KILLS, marks=pytest.mark.slow) for workers in (1, 2))],
)
def test_killed_run_has_the_curves_and_weights_of_an_unbroken_one(tmp_path, dataset, unbroken, workers, more, kills):
    draw, expected, log, killed = random.Random(workers), curves(unbroken(workers, more)), tmp_path / "cut.json", 0
    while True:
        run = Victim(tmp_path, *flags(tmp_path, "cut", dataset, more), workers=workers, log=("--log_path", log))
        begin = last_step(log)
        if killed == kills:
            assert run.end() == 0, run.err
            break
        wanted = min(begin + draw.randint(1, 2 * STEPS // kills - 7), STEPS - 7 * (kills - killed))
        assert run.wait_until(lambda: last_step(log) >= wanted or last_step(log) >= begin + 7), run.err  # noqa: B023
        time.sleep(draw.uniform(0, 0.2))
        run.kill(draw.randint(0, 7))
        killed += run.end() != 0
    found = curves(log)
    assert found.keys() == expected.keys()
    for key, figures in expected.items():
        assert found[key] == figures, key
    assert differing(unbroken(workers, more).with_suffix(""), tmp_path / "cut") == []
    resumed = [entry["data"]["resumed_step"] for entry in entries(log) if entry["step"] == "RUN"]
    assert sum(step is not None for step in resumed) >= kills - 2  # a kill before the first checkpoint begins anew


def test_norms_and_touched_rows_are_the_same_on_two_workers(unbroken):
    one, two = (curves(unbroken(workers)) for workers in (1, 2))
    assert one.keys() == two.keys()
    norms = {"gradient_norm/dense", "gradient_norm/tables", "weight_norm/dense", "weight_norm/tables"}
    for kind, step in one:
        mine, other = one[kind, step], two[kind, step]
        if kind == "training":
            assert {"loss", "learning_rate", "samples"} | norms <= mine.keys() == other.keys()
            assert [other[name] for name in norms] == pytest.approx([mine[name] for name in norms], rel=1e-6)
            assert other["samples"] == mine["samples"] and other["learning_rate"] == mine["learning_rate"]
        elif kind == "TABLES":
            assert mine["touched"] == other["touched"] and other["norms"] == pytest.approx(mine["norms"], rel=1e-6)
    shares = [one["TABLES", step]["touched"] for step in (12, 24, STEPS)]
    assert 0 < shares[0]["cat_0"] < shares[1]["cat_0"] == shares[2]["cat_0"] < 1 and shares[0].keys() == {"cat_0", "cat_1", "cat_2"}


def test_workers_log_the_time_of_their_exchanges_and_their_memory(unbroken):
    for workers in (1, 2):
        lines = entries(unbroken(workers))
        training = [entry["data"] for entry in lines if isinstance(entry["step"], list) and "loss" in entry["data"]]
        assert all(("exchange_ms" in data) == (workers == 2) for data in training)
        assert all(data["input_ms"] >= 0 and data["saving_ms"] >= 0 and 0.1 < data["memory_gib"] < 100 for data in training)
        assert max(data["saving_ms"] for data in training) > 0
        if workers == 2:
            assert all(data["exchange_ms"] > 0 for data in training)
        peaks = [entry["data"]["memory_gib"] for entry in lines if entry["step"] == "TABLES" and "memory_gib" in entry["data"]]
        assert len(peaks) == 1 and len(peaks[0]) == workers and min(peaks[0]) > 0.1
