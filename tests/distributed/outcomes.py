"""Results that `trainings.py` wrote, assembled from the workers' parts."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass
class Outcome:
    """The results of one configuration on N workers."""

    losses: np.ndarray
    before: dict[str, np.ndarray]  # weights by checkpoint name, assembled from the workers' parts
    after: dict[str, np.ndarray]
    scores: tuple[np.ndarray, np.ndarray] | None  # logits and labels of the test split
    calls: list[list]  # by worker: (operation, name, bytes sent) of one step
    plan: dict
    files: list[list[str]]  # by worker: the files of the split that it held open
    diverged: list[str]  # by worker: its error message after the last worker's weights were changed


class Outcomes:
    """Outcomes of all configurations on N workers, by name; `threads[r]` is the number of threads of worker r."""

    def __init__(self, folder: Path, workers: int):
        self._files = [np.load(folder / f"{rank}.npz") for rank in range(workers)]
        self.names = sorted({key.split("/")[0] for key in self._files[0].files if "/" in key} - {"updates", "dense updates"})
        self.threads = [int(file["threads"]) for file in self._files]

    def __getitem__(self, name: str) -> Outcome:
        every = {key: [file[f"{name}/{key}"] for file in self._files] for key in ("losses", "calls", "files", "diverged")}
        for losses in every["losses"]:
            np.testing.assert_array_equal(losses, every["losses"][0], err_msg="the workers saw different losses")
        first = self._files[0]
        return Outcome(
            every["losses"][0],
            self._weights(f"{name}/before/"),
            self._weights(f"{name}/after/"),
            (first[f"{name}/logits"], first[f"{name}/labels"]) if f"{name}/logits" in first.files else None,
            [json.loads(str(calls)) for calls in every["calls"]],
            json.loads(str(first[f"{name}/plan"])),
            [files.tolist() for files in every["files"]],
            [str(text) for text in every["diverged"]],
        )

    def tables(self, prefix: str) -> dict[str, np.ndarray]:
        """Return the arrays whose names start with the prefix, by the rest of their names, assembled from the workers' parts."""
        return self._weights(prefix)

    def everywhere(self, name: str) -> list[np.ndarray]:
        """Return each worker's copy of an array."""
        return [file[name] for file in self._files]

    def _weights(self, prefix: str) -> dict[str, np.ndarray]:
        columns: dict[str, dict[int, np.ndarray]] = {}
        for file in self._files:
            for key in file.files:
                if key.startswith(prefix) and "@" in key:
                    array, first = key.removeprefix(prefix).split("@")
                    assert int(first) not in columns.setdefault(array, {}), f"{key} is held twice"
                    columns[array][int(first)] = file[key]
        return {array: np.concatenate([found[first] for first in sorted(found)], axis=-1) for array, found in columns.items()}
