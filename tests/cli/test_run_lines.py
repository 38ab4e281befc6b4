"""The log's lines about a run, its checkpoints and its end, and the lines that end its output."""

import json
import os
import signal
import sys

import pytest
from runs import CARDINALITIES, ROOT, ROWS, TRAIN, read_log

from tests.children import child, wait_for
from utils.checkpoint.reading import Checkpoint


def lines(log, kind):
    return [line["data"] for line in log if line.get("step") == kind]


@pytest.fixture
def train(dataset, run):
    """Return a function that trains for some steps in this process; further flags follow."""
    return lambda *flags: run("--dataset_path", dataset, *TRAIN, *flags)


def test_a_run_says_what_it_is(train, dataset, tmp_path):
    result = train("--max_steps", "5", "--save_checkpoint_path", tmp_path / "c")
    assert [line["step"] for line in result.log if isinstance(line.get("step"), str)][:2] == ["PARAMETER", "RUN"]
    (about,) = lines(result.log, "RUN")
    assert (about["program"], about["mode"], about["workers"], about["device"], about["dtype"]) == ("dlrm.py", "train", 1, "CPU", "float32")
    assert about["resumed_step"] is about["resumed_epoch"] is about["restored"] is None
    assert about["samples"] == ROWS and set(about["fingerprints"]) == set(ROWS) and about["dataset"] == str(dataset)
    assert (about["steps"], about["steps_per_epoch"], about["batch_size"], about["chosen_by"], about["step_form"]) == (
        5,
        16,
        256,
        "test",
        "epoch,step",
    )
    assert about["numerical"] == ["num_0", "num_1", "num_2"] and about["model"] == "dlrm"
    tables = [{"name": f"cat_{i}", "rows": rows, "dim": 8, "bytes": 3 * 4 * 8 * rows} for i, rows in enumerate(CARDINALITIES)]  # Adam has two slots
    assert about["tables"] == tables and about["parameters"] == {"embedding": 8 * sum(CARDINALITIES), "dense": 457}
    assert about["features"][1] == {"name": "cat_1", "table": "cat_1", "source": "cat_1", "hotness": 1, "pooling": "sum"}
    everything = sum(table["bytes"] for table in tables)
    shards = [[f"cat_{i}", 0, 8] for i in range(3)]
    assert about["placement"] == [{"worker": 0, "bytes": everything, "tables": shards, "ids_per_step": 3 * 256, "sent_bytes_per_step": 0}]
    assert about["replicated"] == [] and about["bits"].startswith("the bits of the weights depend") and about["bits"] not in result.out
    assert Checkpoint(tmp_path / "c").manifest["log"] == {"path": str(tmp_path / "run.json"), "run": about["id"]}


def test_each_checkpoint_has_a_line(train, tmp_path):
    result = train(
        "--epochs",
        "2",
        "--max_steps",
        "20",
        "--checkpoint_every_steps",
        "8",
        "--evals_per_epoch",
        "1",
        "--keep_best_checkpoint",
        "--save_checkpoint_path",
        tmp_path / "c",
    )
    saved = lines(result.log, "CHECKPOINT")
    assert [(one["epoch"], one["step"], one["best"]) for one in saved[:2]] == [(0, 8, False), (0, 16, True)] and saved[-1]["step"] == 20
    for one in saved:
        assert one["folder"] == str(tmp_path / f"c/step-{one['step']:08}") and one["seconds"] >= one["waited_seconds"] > 0
    assert lines(result.log, "FAULT") == [] and result.log[-1]["step"] == []


def test_a_run_keeps_its_id_over_resumes_and_a_new_one_gets_another(train, tmp_path, dataset):
    log, folder = tmp_path / "log.json", tmp_path / "c"
    common = ("--log_path", log, "--evals_per_epoch", "0")
    for steps in (4, 8):
        assert train(*common, "--max_steps", steps, "--save_checkpoint_path", folder, "--resume", "auto").code == 0
    assert train(*common, "--max_steps", 2).code == 0
    assert train(*common, "--max_steps", 12, "--save_checkpoint_path", folder, "--resume", "auto").code == 0
    stretches = lines(read_log(log), "RUN")
    assert len({one["id"] for one in stretches}) == 1 and [one["resumed_step"] for one in stretches] == [None, 4, 8]
    assert [one["restored"] for one in stretches] == [None, str(folder / "step-00000004"), str(folder / "step-00000008")]
    (other,) = (path for path in tmp_path.glob("log.*.json"))
    assert len(lines(read_log(other), "RUN")) == 1 and lines(read_log(other), "RUN")[0]["id"] != stretches[0]["id"]
    assert Checkpoint(folder).manifest["log"]["run"] == stretches[0]["id"]

    weights = train("--log_path", log, "--max_steps", "2", "--resume", "weights", "--restore_checkpoint_path", folder)
    assert weights.code == 0 and lines(read_log(log), "RUN")[0]["id"] != stretches[0]["id"] and len(list(tmp_path.glob("log*.json"))) == 3
    evaluated = tmp_path / "eval.json"
    assert train("--mode", "eval", "--restore_checkpoint_path", folder, "--log_path", evaluated).code == 0
    (about,) = lines(read_log(evaluated), "RUN")
    assert (about["mode"], about["restored_run"], about["steps"], about["resumed_step"]) == ("eval", stretches[0]["id"], None, None)


@pytest.mark.parametrize("entry", [None, "text", {"run": "../../etc"}])
def test_a_checkpoint_that_names_no_run_is_resumed_as_another(train, tmp_path, entry):
    from utils.checkpoint import manifest

    folder = tmp_path / "c"
    assert train("--max_steps", "2", "--save_checkpoint_path", folder).code == 0
    step = Checkpoint(folder).folder
    content = {name: value for name, value in manifest.read(step).items() if name not in ("format", "files", "log")}
    manifest.write(step, content if entry is None else content | {"log": entry})
    result = train("--max_steps", "4", "--save_checkpoint_path", folder, "--resume", "auto")
    assert result.code == 0 and lines(result.log, "RUN")[0]["resumed_step"] == 2 and len(lines(result.log, "RUN")[0]["id"]) == 16


def test_an_error_ends_the_log(train):
    result = train("--learning_rate", "1e30", "--optimizer", "sgd", "--print_freq", "1")
    assert result.code == 1
    (fault,) = lines(result.log, "FAULT")
    assert (fault["message"] in result.err and "is not finite" in fault["message"].replace("are", "is")) or "nan" in fault["message"]
    assert fault["stopped"] is False and fault["step"] >= 1 and fault["epoch"] == 0


def until_a_line(process, log):
    wait_for(lambda: log.exists() and '"loss"' in log.read_text(), process)


@pytest.mark.parametrize(("number", "code", "saves"), [(signal.SIGTERM, 143, True), (signal.SIGINT, 130, False)])
def test_a_signal_ends_the_log(dataset, tmp_path, number, code, saves):
    log = tmp_path / "log.json"
    flags = (
        "--epochs",
        5000,
        "--evals_per_epoch",
        0,
        "--print_freq",
        1,
        "--log_path",
        log,
        *(("--save_checkpoint_path", tmp_path / "c") if saves else ()),
    )
    with child((sys.executable, ROOT / "dlrm.py", "--dataset_path", dataset, *TRAIN, *flags), cwd=tmp_path) as process:
        until_a_line(process, log)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == code
    (fault,) = lines(read_log(log), "FAULT")
    assert fault["message"] in err and number.name in fault["message"] and fault["stopped"] is saves
    assert not saves or Checkpoint(tmp_path / "c").step == fault["step"]


def test_a_signal_outside_the_training_loop_ends_the_log_too(dataset, tmp_path):
    log = tmp_path / "log.json"
    hook = tmp_path / "sitecustomize.py"  # the process stops itself while it builds its model
    hook.write_text(
        "import sys, os, signal\n"
        "def trace(frame, event, argument):\n"
        "    if frame.f_code.co_name == 'model_of' and frame.f_code.co_filename.endswith('run/weights.py'):\n"
        "        sys.setprofile(None); os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.setprofile(trace)\n"
    )
    words = (sys.executable, ROOT / "dlrm.py", "--dataset_path", dataset, *TRAIN, "--log_path", log)
    with child(words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}) as process:
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    (fault,) = lines(read_log(log), "FAULT")
    assert fault == {"epoch": 0, "step": 0, "message": "ended by SIGTERM", "stopped": False}


def test_a_killed_run_goes_on_after_its_cut_line(train, dataset, tmp_path):
    log, folder = tmp_path / "log.json", tmp_path / "c"
    flags = ("--log_path", log, "--save_checkpoint_path", folder, "--resume", "auto", "--checkpoint_every_steps", "10", "--print_freq", "1")
    with child((sys.executable, ROOT / "dlrm.py", "--dataset_path", dataset, *TRAIN, *flags, "--epochs", "500"), cwd=tmp_path) as process:
        wait_for(lambda: log.exists() and log.read_text().count("CHECKPOINT") > 1, process)
        process.kill()
        process.communicate()
    with log.open("rb+") as file:
        file.truncate(log.stat().st_size - 5)
    step = Checkpoint(folder).step
    assert train(*flags, "--max_steps", step + 3, "--evals_per_epoch", "0").code == 0
    text = log.read_text().splitlines()
    whole = [json.loads(line[5:]) for line in text if line.startswith("DLLL {") and line.endswith("}")]
    assert len(whole) >= len(text) - 1 and [one["resumed_step"] for one in lines(whole, "RUN")] == [None, step]
    assert [line["step"][1] for line in whole if line.get("step") and "loss" in line.get("data", {})][-3:] == [step + 1, step + 2, step + 3]


def test_last_lines_name_everything_in_ten(train, tmp_path, dataset):
    folder = tmp_path / "a b"
    result = train("--epochs", "2", "--max_steps", "20", "--save_checkpoint_path", folder, "--valid_fraction", "0.1", "--keep_best_checkpoint")
    last = result.out.splitlines()
    last = last[next(number for number, line in enumerate(last) if line.startswith("trained on ")) :]
    assert len(last) <= 10 and [line.partition(":")[0] for line in last[1:]] == [
        "data",
        "model",
        "time",
        "valid",
        "test",
        "checkpoint",
        "log",
        "next",
    ]
    assert last[0].startswith("trained on ") and " samples in 20 steps: " in last[0]
    assert last[1] == f"data: {dataset}, train 3,600, valid 400, test 900 rows" and last[2] == "model: dlrm, 3 tables, 2,856 embedding parameters"
    assert f"AUC {result.final['auc']:.6f}, log loss {result.final['validation_loss']:.6f}, of the best weights (step " in last[5]
    assert f"AUC {result.final['valid_auc']:.6f}" in last[4] and last[6].startswith(f"checkpoint: {folder}, ")
    assert last[7] == f"log: {tmp_path / 'run.json'}" and last[8] == f"next: python -m report '{folder}' -o report.html"


def test_last_lines_without_a_log_or_a_checkpoint(train, tmp_path):
    result = train("--max_steps", "2", "--log_path", "")
    assert result.out.splitlines()[-1] == "next: --save_checkpoint_path CHECKPOINT keeps the model" and "\nlog: " not in result.out
    result = train("--max_steps", "2", "--log_path", "/dev/null", "--save_checkpoint_path", tmp_path / "c")
    assert result.out.splitlines()[-1] == f"next: python dlrm.py --mode export --restore_checkpoint_path {tmp_path / 'c'} --export_path REPOSITORY"


def test_bits_are_printed_where_they_were_asked_for(train):
    assert "the bits of the weights are the same for 1, 2, 4 or 8 workers" in train("--max_steps", "1", "--gradient_slices", "8").out
    quiet, verbose = train("--max_steps", "1"), train("--max_steps", "1", "--verbose")
    assert "the bits of the weights" not in quiet.out and "the bits of the weights depend" in verbose.out
    (about,) = lines(verbose.log, "RUN")
    for words in (about["id"], about["processor"], "457 dense parameters", "1 step, 16 an epoch", "worker 0: 3 shards", "768 ids a step"):
        assert words in verbose.out
