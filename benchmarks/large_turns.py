"""Measure training of tables larger than memory and of tables in memory by turns of some seconds, so that both meet the same machine.

  python -m benchmarks.large_turns
  python -m benchmarks.large_turns --parts t3 --turns 30 --folder /where/2/GB/are/free

Two runs of dlrm.py are started: of a part's model with lazy tables, and of the model of 4.2 billion parameters with its tables in memory. They train
by turns: while one does, the other is stopped (SIGSTOP). A machine that others use may change its speed by a third within minutes, which runs one
after the other (`benchmarks.large`) take for a difference. The default takes 25 minutes on two processors, 21 GB of memory, and 4 GB of disk.

  t3, t0   the models of 22.8 and 113 billion parameters
  small    26 tables of 100,000 rows, lazy beside the same in memory
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.children import ROOT
from benchmarks.large import LAZY, LargeOptions, bytes_of_samples, flags_of, parts_of, write_data
from benchmarks.options import Options, run
from benchmarks.report import Report
from benchmarks.scratch import scratch
from utils.config.option import option

PARTS = ("t3", "t0", "small")
_SETTLE_S = 0.3  # a run that goes on reads its caches anew
_DRAWS = 5000


@dataclass(frozen=True)
class TurnOptions(Options):
    """Large tables by turns benchmark."""

    QUICK: ClassVar[dict[str, Any]] = {
        "parts": "small",
        "turns": 3,
        "turn_seconds": 0.5,
        "steps": 3000,
        "from_step": 10,
        "batch_size": 64,
        "cardinality": 500,
        "embedding_dim": 8,
    }

    parts: str = option("t3,t0", f"parts to run, separated by commas: {', '.join(PARTS)}")
    turns: int = option(40, "turns of each run; fewer where a run ends before", unit="turns")
    turn_seconds: float = option(4.0, "length of a turn", unit="seconds")
    steps: int = option(1000, "training steps that there is data for", unit="steps")
    from_step: int = option(250, "the first step that counts, of both runs", unit="steps")
    batch_size: int = option(8192, "batch size", unit="samples")
    table_memory_gb: float = option(6.0, "memory for the rows of lazy tables", unit="10^9 bytes")
    cardinality: int = option(100_000, "rows of each table of the part small", unit="rows")
    embedding_dim: int = option(128, "columns of each table of the part small", unit="columns")
    folder: str | None = option(None, "folder for data; the default is the system's temporary folder")


class Training:
    """A run of dlrm.py that trains only while it may; it begins stopped, after its first steps.

    Args:
        command: the command.
        log: the log that it writes.
    """

    def __init__(self, command: list[object], log: Path):
        self._log, self._errors = log, log.with_suffix(".err")
        with self._errors.open("w") as errors:
            words = list(map(str, [sys.executable, *command, "--log_path", log]))
            self._process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True)
        try:
            while not self._steps():
                if self.ended:
                    raise RuntimeError(f"{' '.join(words)} ended before its first steps:\n{self._errors.read_text()[-2000:]}")
                time.sleep(0.1)
            self._send(signal.SIGSTOP)
        except BaseException:
            self.end()
            raise

    @property
    def ended(self) -> bool:
        """True where the run has ended by itself."""
        return self._process.poll() is not None

    @property
    def step(self) -> int:
        """The last step that the log has."""
        return self._steps()[-1][1]

    def turn(self, seconds: float) -> float | None:
        """Train for so many seconds; return the steps a second, or None where the log has fewer than two lines of them."""
        self._send(signal.SIGCONT)
        time.sleep(_SETTLE_S)
        before = len(self._steps())
        time.sleep(seconds)
        self._send(signal.SIGSTOP)
        lines = self._steps()[before:]
        return (lines[-1][1] - lines[0][1]) / (lines[-1][0] - lines[0][0]) if len(lines) > 1 else None

    def end(self) -> None:
        """End the run."""
        for number in (signal.SIGKILL, signal.SIGCONT):
            self._send(number)
        self._process.wait()

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _steps(self) -> list[tuple[float, int]]:
        """Return the lines of training steps: the time in seconds, and the step."""
        try:
            lines = self._log.read_text().splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):  # the last line may be half written
                told = json.loads(line.partition(" ")[2])
                step = told.get("step")
                if isinstance(step, list) and step and "samples_per_s" in told["data"]:
                    found.append((float(told["timestamp"]), step[-1]))
        return found


def main(chosen: TurnOptions, report: Report) -> None:
    """Measure and print."""
    parts = parts_of(chosen.parts, PARTS)
    shared = {name: getattr(chosen, name) for name in ("steps", "batch_size", "cardinality", "embedding_dim", "table_memory_gb")}
    large, rows = replace(LargeOptions(), **shared), []
    found = report.figures["parts"] = {}
    with scratch(chosen.folder, 2 * bytes_of_samples(large, "t3"), "data") as work:
        for part in parts:
            found[part] = pairs = _pairs(chosen, large, part, work)
            ratios = np.array([lazy / memory for lazy, memory in pairs])
            low, high = _interval(ratios)
            speeds = [float(np.median(rates)) * chosen.batch_size for rates in np.array(pairs).T]
            rows.append((part, len(pairs), float(np.median(ratios)), low, high, *speeds))
    columns = ["", "pairs of turns", "lazy over in memory", "from", "to", "lazy, samples/s", "in memory, samples/s"]
    report.table(f"--amp, batch {chosen.batch_size}, from step {chosen.from_step} on; medians, and the 95% interval of the first", columns, rows)


def _pairs(chosen: TurnOptions, large: LargeOptions, part: str, work: Path) -> list[tuple[float, float]]:
    """Train by turns; return the steps a second of each turn with lazy tables and of the turn in memory beside it."""
    lazy = (*LAZY, "--table_memory_gb", chosen.table_memory_gb, *(("--table_storage_above", 1) if part == "small" else ()))
    runs, pairs = [], []
    try:
        for name, of, flags in (("lazy", part, lazy), ("memory", "small" if part == "small" else "t15", ())):
            folder = work / of
            data = folder / "data" if folder.exists() else write_data(large, folder, of)
            common = ("--max_steps", chosen.steps, "--print_freq", 2, "--evals_per_epoch", 0)
            runs.append(Training(["dlrm.py", *flags_of(large, of, data, flags), *common], work / f"{part}-{name}.log"))
        while len(pairs) < chosen.turns:
            order = runs if len(pairs) % 2 else runs[::-1]
            rates = {id(one): one.turn(chosen.turn_seconds) for one in order}
            if any(one.ended for one in runs):
                break
            both = tuple(rates[id(one)] for one in runs)
            if None not in both and min(one.step for one in runs) >= chosen.from_step:
                pairs.append(both)
    finally:
        for one in runs:
            one.end()
    if not pairs:
        raise RuntimeError(f"{part}: a run ended before both had reached step {chosen.from_step}; give more --steps, or a smaller --from_step")
    return pairs


def _interval(ratios: np.ndarray) -> tuple[float, float]:
    """Return the 95% interval of the median, by the bootstrap."""
    draw = np.random.default_rng(0)
    medians = np.median(ratios[draw.integers(0, len(ratios), (_DRAWS, len(ratios)))], axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(low), float(high)


if __name__ == "__main__":
    sys.exit(run(TurnOptions, main, __doc__))
