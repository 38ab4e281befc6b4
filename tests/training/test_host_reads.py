"""Tests that no step reads a tensor's value on the host, which would wait for the device; only reports, a step later, and checkpoints do."""

import json
import traceback
from pathlib import Path

import pytest
from tensorflow.python.framework import ops

from tests.model.tiny_model import batch, config, model_and_trainer
from training.loop import Training
from training.saving import Saver
from utils.console import Console
from utils.logging import RunLog

READS = ("__int__", "__float__", "__bool__", "__index__", "__array__", "numpy", "_numpy")
FLAGS = ("--max_steps", "12", "--print_freq", "5", "--gradient_slices", "1")


class Data:
    """A source of twelve batches."""

    def __len__(self):
        return 12

    def batches(self, epoch, first):
        return (batch(16, seed=step) for step in range(first, 12))


@pytest.fixture
def readers(monkeypatch):
    """Record the project's files and functions that read a tensor's value; return the set."""
    found = set()

    def noting(name, read):
        def noted(tensor, *arguments, **options):
            stack = [frame for frame in traceback.extract_stack()[:-1] if "site-packages" not in frame.filename and frame.name != "noted"]
            found.add((Path(stack[-1].filename).name, stack[-1].name))
            return read(tensor, *arguments, **options)

        return noted

    eager = type(ops.convert_to_tensor(1.0))
    for name in READS:
        monkeypatch.setattr(eager, name, noting(name, getattr(eager, name)))
    return found


def training_of(tmp_path, *flags):
    model, trainer = model_and_trainer(*FLAGS, *flags)
    options = config(*FLAGS, *flags)
    saver = Saver(model, trainer.groups, options.training, {}, alone=True) if options.training.save_checkpoint_path else None
    return Training(trainer, Data(), options, Console(False), RunLog(str(tmp_path / "log.json"), {}), saver=saver)


@pytest.mark.parametrize(("device", "optimizer"), [("CPU", "adam"), ("GPU", "adam"), ("GPU", "sgd")])
def test_only_reports_are_read(tmp_path, monkeypatch, readers, device, optimizer):
    monkeypatch.setenv("DLRM_BUILD_FOR", device)
    training = training_of(tmp_path, "--optimizer", optimizer)
    readers.clear()  # drop the reads of building the model
    assert training.run()["steps"] == 12
    assert readers == {("report.py", "read")}


@pytest.mark.parametrize("device", ["CPU", "GPU"])
def test_checkpoints_read_what_they_write(tmp_path, monkeypatch, readers, device):
    monkeypatch.setenv("DLRM_BUILD_FOR", device)
    training = training_of(tmp_path, "--save_checkpoint_path", str(tmp_path / "saved"), "--checkpoint_every_steps", "4")
    readers.clear()
    assert training.run()["steps"] == 12
    assert readers == {("report.py", "read"), ("state.py", "parts"), ("table_memory.py", "read_rows"), ("snapshot.py", "_settle")}


def test_a_batch_is_measured_where_its_step_is_reported_and_nowhere_else(tmp_path, readers):
    training, measured = training_of(tmp_path), []

    def of_batch(tensors):
        measured.append((training.position.step, float(tensors.inputs.labels[0])))
        return {"auc": "0.5000"}

    training.single_steps.of_batch = of_batch
    readers.clear()
    training.run()
    expected = [(step, float(batch(16, seed=step).host.labels[0])) for step in (4, 9, 11)]
    assert measured == expected
    assert readers == {("report.py", "read"), (Path(__file__).name, "of_batch")}
    lines = [json.loads(line[5:]) for line in (tmp_path / "log.json").read_text().splitlines()]
    assert [line["data"]["auc"] for line in lines if "mean_loss" in line.get("data", {})] == ["0.5000"] * 3


def test_recorder_notices_every_way_to_read(readers):
    tensor = ops.convert_to_tensor(1)
    for read in (int, float, bool, [0, 1].__getitem__, lambda one: one.numpy()):
        readers.clear()
        read(tensor)
        assert readers
