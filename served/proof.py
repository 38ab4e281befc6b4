"""Scores of a version by the code and in the environment that will serve it: `served.backend` in a process of the stub's environment.

ENVIRONMENT/bin/python3 -m served.proof VERSION SAMPLES DESCRIPTION RESULT
"""

import functools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from served import stand_in
from served.backend import Backend
from served.self_check import scores_of
from serving.kept_rows import read_rows
from serving.served_proof import NAME
from serving.stub_environment import numpy_version
from utils.commands import run_command
from utils.errors import UserError

_JOINED = ((0, 1), (0, 2), (0, 1, 3, 300), (0, 200))  # boundaries of the requests in each execution


def main() -> None:
    """Score the samples in the stub's environment and write the result."""
    version, samples, described, result = map(Path, sys.argv[1:])
    if np.__version__ != numpy_version():
        raise UserError(f"{np.__file__}: is NumPy {np.__version__}, expected {numpy_version()}; check whether PYTHONPATH names another NumPy")
    description: dict[str, Any] = json.loads(described.read_text())
    backend = Backend(stand_in, version, description["config"], description["args"], proving=True)
    rows = read_rows(samples).inputs
    count = len(next(iter(rows.values())))
    scores = functools.partial(scores_of, backend.execute, stand_in, rows)
    # The first run warms up; the second one is timed.
    scores((0, count))
    start = time.perf_counter()
    whole = scores((0, count))
    seconds = time.perf_counter() - start
    joined = [scores(bounds) for bounds in _JOINED]
    places = [np.arange(len(some)) for some in joined]
    np.savez(result, scores=whole, seconds=seconds, again=np.concatenate(joined), places=np.concatenate(places))


if __name__ == "__main__":
    sys.exit(run_command(main, NAME))
