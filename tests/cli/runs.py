"""Runs of dlrm.py, and the small dataset that they use."""

import json
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import yaml

import dlrm
from dataloading.feature_spec import generator_spec
from dataloading.synthetic.split import SyntheticSplit
from dataloading.tf_raw import TfRawWriter
from utils.commands import run_command

ROOT = Path(__file__).parents[2]
CARDINALITIES = (50, 300, 7)  # stored as int8, int16, int8
ROWS = {"train": 4000, "test": 900}
GROUPED_ROWS = {"train": 2048, "valid": 700, "test": 900}
SMALL = ("--embedding_dim", "8", "--bottom_mlp_dims", "16,8", "--top_mlp_dims", "16,1")
TRAIN = ("--cpu", *SMALL, "--batch_size", "256", "--valid_batch_size", "512", "--optimizer", "adam", "--learning_rate", "0.01", "--warmup_steps", "0")


@dataclass
class Result:
    """The outcome of a run: its exit code, its output and its log."""

    code: int
    out: str
    err: str
    log: list[dict]

    @property
    def final(self) -> dict:
        """The run's final figures."""
        assert self.code == 0, self.err
        assert self.log[-1]["step"] == []
        return self.log[-1]["data"]


def by_threads(call, count=8):
    """Return the results of `call(0)`, `call(1)`, …, each computed in its own thread, all at the same time."""
    together = threading.Barrier(count)

    def after_all_began(place):
        together.wait()
        return call(place)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(after_all_began, range(count)))


def read_log(path):
    return [json.loads(line.removeprefix("DLLL ")) for line in path.read_text().splitlines()] if path.exists() else []


def child(folder, *flags):
    """Run dlrm.py in a child process, as its users do."""
    log = folder / "child.json"
    command = [sys.executable, str(ROOT / "dlrm.py"), "--log_path", str(log), *map(str, flags)]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    return Result(result.returncode, result.stdout, result.stderr, read_log(log))


def here(folder, *flags, main=dlrm.main, program="dlrm.py"):
    """Run dlrm.py, or the `main` of another program, in this process, which saves the seconds of importing TensorFlow once more.

    The output is Python's: what TensorFlow's libraries write is not in it.
    """
    log = folder / "here.json"
    log.unlink(missing_ok=True)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", [program, "--log_path", str(log), *map(str, flags)])
        with redirect_stdout(out), redirect_stderr(err):
            code = run_command(main, program)
        for file in (out, err):
            file.seek(0)
        return Result(code, out.read(), err.read(), read_log(log))


def write_dataset(folder, cardinalities=CARDINALITIES, rows=ROWS):
    spec = generator_spec(cardinalities, 3, 1.2)
    with TfRawWriter(folder, spec, tuple(rows)) as writer:
        for split, count in rows.items():
            numerical, ids, labels, _ = SyntheticSplit(spec, split, count, seed=1).read_rows(0, count)
            writer.append(split, numerical, ids, labels)
        writer.publish({})
    return folder


def write_grouped(folder, splits=("train", "valid", "test"), dtype="int64"):
    """Write a dataset with about a hundred groups, whose rows are spread over a split; return its folder."""
    spec = generator_spec(CARDINALITIES, 3, 1.2)
    spec = replace(spec, group="display", dtypes=dict(spec.dtypes) | {"display": dtype})
    with TfRawWriter(folder, spec, splits) as writer:
        for split in splits:
            count = GROUPED_ROWS[split]
            numerical, ids, labels, _ = SyntheticSplit(spec, split, count, seed=1).read_rows(0, count)
            groups = np.random.default_rng(len(split)).integers(-60, 60, count) * (np.iinfo(dtype).max // 60)
            writer.append(split, numerical, ids, labels, groups)
        writer.publish({})
    return folder


def edit_spec(folder, change):
    path = folder / "feature_spec.yaml"
    content = yaml.safe_load(path.read_text())
    change(content)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
