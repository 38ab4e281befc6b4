"""Runs with --tensorboard_path, read by TensorBoard itself in its own environment and compared with the log, figure by figure."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from report.tensorboard.events import event_files
from tests.children import child, wait_for
from tests.cli.runs import TRAIN, read_log, write_dataset
from tests.distributed.launching import dlrm as on_workers
from tests.helpers.commands import ROOT, run, run_here
from tests.left_out import left_out
from tests.report.event_files import scalars_of

READER = Path(sys.prefix) / "trackers/bin/python"
# A line's figures and the tags that they must have, without those of groups and tables.
OF_TRAINING = {
    "loss": "train/loss",
    "samples": "train/samples",
    "samples_per_s": "speed/samples_per_s",
    "step_time_ms": "speed/step_ms",
    "input_ms": "speed/input_ms",
    "exchange_ms": "speed/exchange_ms",
    "saving_ms": "speed/saving_ms",
    "learning_rate": "learning_rate/dense",
    "embedding_learning_rate": "learning_rate/tables",
    "memory_gib": "memory/first_worker_gib",
    "skipped_steps": "skipped_steps",
    "ids_out_of_range": "ids_out_of_range",
}
OF_EVALUATION = ("auc", "log_loss", "normalized_entropy", "calibration", "samples", "positives")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset", rows={"train": 4000, "valid": 700, "test": 900})


def command(dataset, folder, *flags):
    words = ["--dataset_path", dataset, *TRAIN, "--tensorboard_path", folder / "board", "--save_checkpoint_path", folder / "saved", *flags]
    return [ROOT / "dlrm.py", *words]


def read(folder):
    """Return what TensorBoard's readers find in a folder."""
    if not READER.exists():
        left_out("TensorBoard is not installed; ./scripts/install --trackers")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = run(Path(__file__).with_name("board_reader.py"), folder, program=READER, env=environment)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def expected(lines):
    """Return the points that lines of a log must give: a value by tag and step; of two lines of one figure and step the last counts."""
    found = {}
    for step, data in ((line["step"], line["data"]) for line in lines if line["type"] == "LOG"):
        if step == "EVALUATION" and not data["final"]:
            found |= {(f"{data['split']}/{name}", data["step"]): data[name] for name in OF_EVALUATION}
        elif step == "EVALUATION":
            found |= {(f"final/{name}", data["step"]): data[name] for name in OF_EVALUATION[:4]}
            found |= {(f"final_run/test_{name}", data["step"]): data[name] for name in OF_EVALUATION[4:]}
        elif step == "TABLES":
            found |= {(f"touched/{table}", data["step"]): share for table, share in data["touched"].items()}
            found |= {(f"table_norm/{table}", data["step"]): norm for table, norm in data.get("norms", {}).items()}
            found |= {(f"memory/peak_gib_of_worker_{rank}", data["step"]): peak for rank, peak in enumerate(data.get("memory_gib", ()))}
        elif step == "CHECKPOINT":
            found |= {(f"saving/{name}", data["step"]): data[name] for name in ("seconds", "waited_seconds")}
        elif isinstance(step, list) and "loss" in data:
            found |= {(OF_TRAINING.get(name, name), step[1]): value for name, value in data.items()}
    return {key: value for key, value in found.items() if value is not None}


def check(board, lines):
    """Check that both readers find exactly the figures of the log's lines; the last line's are the final ones."""
    ((run, accumulated),) = board["accumulated"].items()
    assert board["served"] == board["accumulated"]
    points = {(tag, step): value for tag, points in accumulated.items() for step, value in points}
    assert len(points) == sum(map(len, accumulated.values())), "a step stands there twice"
    final = {key: points.pop(key) for key in list(points) if key[0].startswith("final")}
    wanted = expected(lines)
    of_summary = {key: wanted.pop(key) for key in list(wanted) if key[0].startswith("final")}
    assert points.keys() == wanted.keys()
    for key, value in wanted.items():
        assert points[key] == np.float32(value), key
    last = lines[-1]["data"]
    also = {"final/samples_per_s": last["throughput"], "final/train_loss": last["train_loss"], "final_run/best_auc": last["best_auc"]}
    for tag, value in {**{tag: value for (tag, _), value in of_summary.items()}, **also}.items():
        assert [found for (name, _), found in final.items() if name == tag] == [np.float32(value)], tag
    return run


def test_every_scalar_is_what_the_log_says(dataset, tmp_path):
    flags = ("--epochs", "3", "--print_freq", "4", "--evals_per_epoch", "2", "--log_norms", "--keep_best_checkpoint", "--profiler_start_step", 30)
    result = run_here(*command(dataset, tmp_path, *flags), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert f"tensorboard --logdir {tmp_path / 'board'}" in result.stdout
    assert list((tmp_path / "board/plugins/profile").glob("*/*.xplane.pb")) and not (tmp_path / "profile").exists()
    lines, board = read_log(tmp_path / "dlrm_tf_log.json"), read(tmp_path / "board")
    run = check(board, lines)
    tags = board["accumulated"][run].keys()
    assert {"learning_rate/dense", "speed/input_ms", "memory/first_worker_gib", "gradient_norm/dense", "touched/cat_0", "valid/auc"} <= tags
    row, final = board["table"]["rows"]["."], lines[-1]["data"]
    assert row["status"] == "STATUS_SUCCESS" and row["metrics"]["final/auc"] == np.float32(final["auc"])
    assert row["parameters"]["batch_size"] == 256 and row["parameters"]["optimizer"] == "adam" and row["parameters"]["workers"] == 1
    assert {"batch_size", "optimizer"} <= set(board["table"]["columns"][:15]), "the flags that are not at their defaults come first"
    assert "tensorboard_path" not in row["parameters"]
    summary = [line["data"] for line in lines if line.get("step") == "EVALUATION" and line["data"]["split"] == "valid"][-1]
    check_curves(board, run, summary)


def check_curves(board, run, summary):
    """Check the last curve of precision and recall, the last histograms, and the text about the run."""
    counts = summary["histogram"]
    curve = board["curves"][run]["valid/precision_and_recall"][-1]
    above = {kind: [sum(counts[kind][bin:]) for bin in range(200)] for kind in ("positive", "negative")}
    assert curve["step"] == summary["step"]
    assert curve["true_positives"] == above["positive"] and curve["false_positives"] == above["negative"]
    assert curve["thresholds"] == pytest.approx([bin / 200 for bin in range(200)])
    wanted = [tp / (tp + fp) if tp + fp else 0.0 for tp, fp in zip(above["positive"], above["negative"], strict=True)]
    assert curve["precision"] == pytest.approx(wanted, rel=1e-6)
    step, bins = board["histograms"][run]["valid/deciles/clicks"][-1]
    assert step == summary["step"] and [count for *_, count in bins] == [decile[1] for decile in summary["deciles"]]
    step, bins = board["histograms"][run]["valid/logits_of_positives"][-1]
    assert [count for *_, count in bins] == counts["positive"]
    (text,) = board["texts"][run]["run/text_summary"]
    assert "fingerprints" in text["text"] and "adam" not in text["text"]


def last_lines(lines):
    """Return the lines that count after resumes: of earlier processes those up to the resumed step."""
    kept = []
    for line in lines:
        if line["step"] == "RUN" and (resumed := line["data"]["resumed_step"]) is not None:
            kept = [one for one in kept if not isinstance(step_of(one), int) or step_of(one) <= resumed]
        kept.append(line)
    return kept


def whole_lines(log):
    """Return the lines of a log that a process is still writing."""
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return [json.loads(line.removeprefix("DLLL ")) for line in lines if line.endswith("}\n")]


def step_of(line):
    step = line.get("step")
    return step[1] if isinstance(step, list) and step else line["data"].get("step") if isinstance(step, str) else None


def test_killed_and_resumed_run_has_each_step_once(dataset, tmp_path):
    flags = ("--epochs", "4", "--print_freq", "1", "--evals_per_epoch", "2", "--checkpoint_every_steps", "9", "--resume", "auto")
    words, log, board = [sys.executable, *command(dataset, tmp_path, *flags)], tmp_path / "dlrm_tf_log.json", tmp_path / "board"
    for count in (1, 3):  # steps after the last checkpoint are trained again
        with child(words, cwd=tmp_path) as process:

            def reached(count=count):
                lines = [line for line in whole_lines(log) if line["type"] == "LOG"]
                saved = [step_of(line) for line in lines if line["step"] == "CHECKPOINT"]
                return len(saved) >= count and step_of(lines[-1]) > saved[-1] + 2

            wait_for(reached, process, 200)
            process.kill()
            process.wait()
    ended = run_here(*words[1:], cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    lines = [line for line in whole_lines(log) if line["type"] == "LOG"]
    assert sum(line["step"] == "RUN" for line in lines) == 3 and len(event_files(board)) == 3
    assert len(last_lines(lines)) < len(lines), "no step was trained twice"
    check(read(board), last_lines(lines))
    steps = [step for step, _ in scalars_of(board)["train/loss"]]
    assert steps == list(range(1, 65))


def test_two_workers_write_one_file_and_an_evaluation_beside_it(dataset, tmp_path):
    board = tmp_path / "board"
    flags = ("--dataset_path", dataset, *TRAIN, "--print_freq", "5", "--tensorboard_path", board, "--log_path", tmp_path / "log.json")
    result = on_workers(2, *flags, "--save_checkpoint_path", tmp_path / "saved", limit_s=240)
    assert result.code == 0, result.out
    assert len(event_files(board)) == 1
    exchanges = [line["data"]["exchange_ms"] for line in read_log(tmp_path / "log.json") if "exchange_ms" in line.get("data", ())]
    assert [value for _, value in scalars_of(board)["speed/exchange_ms"]] == [np.float32(value) for value in exchanges]
    flags = ("--mode", "eval", "--dataset_path", dataset, "--restore_checkpoint_path", tmp_path / "saved", "--cpu")
    evaluated = run_here(ROOT / "dlrm.py", *flags, "--tensorboard_path", board, cwd=tmp_path)
    assert evaluated.returncode == 0, evaluated.stderr
    (own,) = [path for path in board.iterdir() if path.is_dir()]
    assert f"--tensorboard_path {board} holds another run: this one writes to {own}" in evaluated.stdout
    final = read_log(tmp_path / "dlrm_tf_log_eval.json")[-1]["data"]
    assert scalars_of(own)["final/auc"] == [(16, np.float32(final["auc"]))]


def test_flag_without_the_package_is_one_line(dataset, tmp_path):
    """tensorboardX is imported where the flag is given, and only there."""
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.modules['tensorboardX'] = None; import dlrm; dlrm.run_command(dlrm.main, 'dlrm.py')"
    )
    result = run("-c", program, *command(dataset, tmp_path, "--max_steps", 1)[1:], cwd=tmp_path)
    assert "dlrm.py: error: --tensorboard_path" in result.stderr and "./scripts/install installs" in result.stderr, result.stderr
    assert "Traceback" not in result.stderr and not (tmp_path / "board").exists()
