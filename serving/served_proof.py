"""The scores of a version by the code and in the environment that will serve it: those of `serving.backend`, in a process of the stub's environment.

ENVIRONMENT/bin/python3 -m serving.served_proof VERSION SAMPLES DESCRIPTION RESULT
"""

import functools
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np

from serving import children, stand_in
from serving.backend import Backend
from serving.kept_rows import KeptRows, read_rows
from serving.proof import Scored
from serving.self_check import scores_of
from serving.stub_environment import numpy_version
from serving.triton_config import Tensor
from utils.errors import UserError, run_command

NAME = "serving.served_proof"
_PROJECT = Path(__file__).resolve().parents[1]
_JOINED = ((0, 1), (0, 2), (0, 1, 3, 300), (0, 200))  # bounds of the requests of an execution


def served(environment: Path, version: Path, inputs: Sequence[Tensor], raw: str, gpu: bool) -> Callable[[KeptRows, Path], Scored]:
    """What scores rows by a version that is written but for the rows it keeps.

    Args:
        environment: of the stub.
        version: its folder.
        inputs: of the model.
        raw: the option `inputs`, of the model's configuration.
        gpu: whether the model is to be served on one.

    Returns:
        A function of rows and a folder for what passes between the processes. Raises UserError where the version cannot be loaded, or refuses a row.
    """
    config = {"input": [{"name": one.name, "data_type": f"TYPE_{one.kind}"} for one in inputs], "parameters": {"INPUTS": {"string_value": raw}}}
    description = {"config": config, "args": {"model_instance_kind": "GPU" if gpu else "CPU"}}

    def score(rows: KeptRows, scratch: Path) -> Scored:
        scratch.mkdir(parents=True)
        try:
            return _scored(rows, scratch)
        finally:
            shutil.rmtree(scratch)

    def _scored(rows: KeptRows, scratch: Path) -> Scored:
        samples, described, result = (scratch / name for name in ("samples.npz", "description.json", "result.npz"))
        rows.write(samples)
        described.write_text(json.dumps(description))
        words = [environment / "bin/python3", "-m", NAME, *(path.absolute() for path in (version, samples, described, result))]
        process = children.run([str(word) for word in words], stdout=PIPE, stderr=PIPE, cwd=_PROJECT)
        if process.returncode:
            raise UserError(f"{environment}: the version cannot be scored in the environment that is to serve it: {_cause(process.stderr)}")
        with np.load(result) as found:
            return Scored(found["scores"], float(found["seconds"]), found["again"], found["places"])

    return score


def _cause(errors: str) -> str:
    lines = [line for line in errors.splitlines() if line.strip()]
    return next((line.partition("error: ")[2] for line in reversed(lines) if line.startswith(f"{NAME}: error: ")), lines[-1] if lines else "it ended")


def main() -> None:
    """Score, in the environment."""
    version, samples, described, result = map(Path, sys.argv[1:])
    if np.__version__ != numpy_version():
        raise UserError(f"{np.__file__}: is NumPy {np.__version__}, and {numpy_version()} was to come first; does PYTHONPATH name another?")
    description: dict[str, Any] = json.loads(described.read_text())
    backend = Backend(stand_in, version, description["config"], description["args"], proving=True)
    rows = read_rows(samples).inputs
    count = len(next(iter(rows.values())))
    scores = functools.partial(scores_of, backend.execute, stand_in, rows)
    scores((0, count))
    start = time.perf_counter()
    whole = scores((0, count))
    seconds = time.perf_counter() - start
    joined = [scores(bounds) for bounds in _JOINED]
    places = [np.arange(len(some)) for some in joined]
    np.savez(result, scores=whole, seconds=seconds, again=np.concatenate(joined), places=np.concatenate(places))


if __name__ == "__main__":
    sys.exit(run_command(main, NAME))
