"""Scoring of an export's samples as they will be served: `served.proof` in a process of the stub's environment."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import PIPE

import numpy as np

from serving.kept_rows import KeptRows
from serving.proof import ExportScores
from serving.triton_config import Tensor
from utils.cluster import processes
from utils.errors import UserError

NAME = "served.proof"  # the module that runs there
_PROJECT = Path(__file__).resolve().parents[1]


def served(environment: Path, version: Path, inputs: Sequence[Tensor], raw: str, gpu: bool) -> Callable[[KeptRows, Path], ExportScores]:
    """Return a function that scores rows with a version, which is complete except for its kept rows.

    Args:
        environment: environment of the stub.
        version: folder of the version.
        inputs: inputs of the model.
        raw: the option `inputs` in the model's configuration.
        gpu: whether the model is to be served on a GPU.

    Returns:
        A function of rows and a folder for exchanged files. It raises UserError where the version cannot be loaded or refuses a row.
    """
    described = [{"name": one.name, "data_type": f"TYPE_{one.kind}", "optional": one.optional} for one in inputs]
    config = {"input": described, "parameters": {"INPUTS": {"string_value": raw}}}
    description = {"config": config, "args": {"model_instance_kind": "GPU" if gpu else "CPU"}}

    def score(rows: KeptRows, scratch: Path) -> ExportScores:
        scratch.mkdir(parents=True)
        try:
            return _scored(rows, scratch)
        finally:
            shutil.rmtree(scratch)

    def _scored(rows: KeptRows, scratch: Path) -> ExportScores:
        samples, described, result = (scratch / name for name in ("samples.npz", "description.json", "result.npz"))
        rows.write(samples)
        described.write_text(json.dumps(description))
        words = [environment / "bin/python3", "-m", NAME, *(path.absolute() for path in (version, samples, described, result))]
        process = processes.run([str(word) for word in words], stdout=PIPE, stderr=PIPE, cwd=_PROJECT)
        if process.returncode:
            raise UserError(f"{environment}: the version cannot be scored in the environment that is to serve it: {_cause(process.stderr)}")
        with np.load(result) as found:
            return ExportScores(found["scores"], float(found["seconds"]), found["again"], found["places"])

    return score


def _cause(errors: str) -> str:
    lines = [line for line in errors.splitlines() if line.strip()]
    return next((line.partition("error: ")[2] for line in reversed(lines) if line.startswith(f"{NAME}: error: ")), lines[-1] if lines else "it ended")
