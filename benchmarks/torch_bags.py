"""torchrec's embedding on a CPU as a peer: `benchmarks.torch_child` in a process of another Python, which executes commands."""

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.children import ANSWER, ROOT
from benchmarks.workload import Workload
from utils.errors import UserError

FLOAT16 = "float16"


def vector_dtype(dtype: str) -> str:
    """Return the dtype of fbgemm's vectors in place of `dtype`: on a CPU fbgemm has no bfloat16, and float16 is as wide."""
    return FLOAT16 if dtype == "bfloat16" else dtype


class TorchBags:
    """The child process, with the same methods as `bags.Functions`.

    Args:
        python: a Python interpreter with torch and fbgemm.
        work: the workload.
        optimizer: sgd or rowwise_adagrad.
        dtype: the dtype of the vectors.
        folder: the folder for the ids and for the child's standard error.

    Raises:
        UserError: that Python cannot be started, or its process ends.
    """

    def __init__(self, python: str, work: Workload, optimizer: str, dtype: str, folder: Path):
        task = {"rows": work.rows, "dim": work.dim, "hotness": work.spec().hotness, "optimizer": optimizer, "dtype": vector_dtype(dtype)}
        task["threads"] = len(os.sched_getaffinity(0))
        self.rule = optimizer if optimizer == "sgd" else f"{optimizer} from 0"  # fbgemm's accumulators start at 0, unlike the project's
        self._python, self._folder, self._said = python, folder, folder / "torch_child.stderr"
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [python, "-m", "benchmarks.torch_child", json.dumps(task)]
        try:
            with self._said.open("w") as said:
                pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": said}
                self._process = subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes)
        except OSError as error:
            raise UserError(f"--torch_python {python}: {error.strerror}; expected a Python with torch and fbgemm-gpu-cpu") from None
        self._answer()

    def load(self, batches: Sequence[np.ndarray], weights: Sequence[np.ndarray | None]) -> None:
        """Set the batches of ids, `[K, B]` int32 each, and their weights, `[K, B]` float32, or None."""
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            for number, (ids, of_ids) in enumerate(zip(batches, weights, strict=True)):
                np.save(Path(folder) / f"{number:03}.npy", ids)
                if of_ids is not None:
                    np.save(Path(folder) / f"{number:03}_weights.npy", of_ids)
            self._ask(load=folder)

    def probes(self) -> list[float]:
        """See `bags.Functions.probes`."""
        return self._ask(probes=True)

    def turn(self, seconds: float) -> dict[str, float]:
        """See `bags.Functions.turn`."""
        return self._ask(turn=seconds)

    def close(self) -> None:
        """End the child."""
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _ask(self, **command: Any) -> Any:
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the child has ended; `_answer` raises the error with its last words
        return self._answer()

    def _answer(self) -> Any:
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                return json.loads(line.removeprefix(ANSWER))
        last = (self._said.read_text().strip().splitlines() or ["no output"])[-1]
        raise UserError(f"--torch_python {self._python}: the process that measures fbgemm ended with code {self._process.wait()}: {last}")
