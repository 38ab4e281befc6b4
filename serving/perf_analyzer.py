"""NVIDIA's perf_analyzer as a load generator, where it is installed."""

import base64
import csv
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from subprocess import PIPE

import numpy as np

from serving.generators import Measured
from utils.cluster import processes
from utils.errors import UserError

_US = 1e-6


class PerfAnalyzer:
    """A runner of perf_analyzer.

    Args:
        program: path of the program, or its name on the PATH.
        url: address of the server, `grpc://HOST:PORT`.
        model: name of the model.

    Raises:
        UserError: the program is missing.
    """

    def __init__(self, program: str, url: str, model: str):
        found = shutil.which(program)
        if found is None:
            raise UserError(f"--perf_analyzer {program}: no such program; install it (see docs/serving.md), or use --tool own")
        self._program, self._place, self._model = found, url.rpartition("://")[2], model

    def measured(self, inputs: Mapping[str, np.ndarray], concurrency: int, seconds: float) -> Measured:
        """Measure a closed loop. perf_analyzer reports quantiles only: return as many interpolated latencies as there were requests."""
        size = len(next(iter(inputs.values())))
        with tempfile.TemporaryDirectory() as folder:
            data, table = Path(folder, "data.json"), Path(folder, "table.csv")
            entries = [
                {name: {"b64": base64.b64encode(np.ascontiguousarray(values[row]).tobytes()).decode()} for name, values in inputs.items()}
                for row in range(size)
            ]
            data.write_text(json.dumps({"data": entries}))
            words = f"-m {self._model} -u {self._place} -i grpc -b {size} --concurrency-range {concurrency} --async --max-threads {concurrency}"
            # Its stability check fails on noisy machines: -s is the permitted difference of windows in percent.
            words += f" -s 999 --max-trials 4 -p {max(int(1000 * seconds), 500)} --percentile 95 --input-data {data} -f {table}"
            result = processes.run([self._program, *words.split()], stdout=PIPE, stderr=PIPE)
            if result.returncode or not table.is_file():
                raise UserError(f"{self._program}: {(result.stderr or result.stdout).strip().splitlines()[-1][:300]}")
            with table.open() as file:
                row = next(csv.DictReader(file))
        rate = float(row["Inferences/Second"]) / size
        count = max(int(rate * seconds), 1)
        known = [(50, float(row["p50 latency"])), (90, float(row["p90 latency"])), (95, float(row["p95 latency"])), (99, float(row["p99 latency"]))]
        places, values = zip(*known, strict=True)
        return Measured(_US * np.interp(np.linspace(0, 100, count), places, values), 0, count / max(rate, 1e-9))
