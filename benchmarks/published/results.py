"""Finished runs, a line of JSON each, so that a benchmark that was ended goes on where it was."""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from utils.errors import UserError

NAME = "results.jsonl"
FIGURES = ("auc", "log_loss", "epochs")


@dataclass(frozen=True)
class Key:
    """A run: two runs of one key would find the same.

    Attributes:
        who: a contender.
        model: a model, or the contender's name where it has one model only.
        seed: the seed.
        left_out: the part of the recipe that was left out; empty for none.
        data, recipe: digests of the files and of the settings.
    """

    who: str
    model: str
    seed: int
    left_out: str
    data: str
    recipe: str


class Results:
    """The results of a folder.

    Args:
        folder: an existing folder.

    Raises:
        UserError: a line is not the result of a run.
    """

    def __init__(self, folder: Path):
        self._path = folder / NAME
        self._runs: dict[Key, dict[str, Any]] = {}
        text = self._path.read_text() if self._path.exists() else ""
        for number, line in enumerate(text.splitlines(), start=1):
            key, figures = self._parsed(line, number)
            self._runs[key] = figures

    def get(self, key: Key) -> dict[str, Any] | None:
        """Return the figures of a run; None where it has not been done."""
        return self._runs.get(key)

    def add(self, key: Key, figures: Mapping[str, Any]) -> None:
        """Append a finished run. The line is on the disk when this returns."""
        line = json.dumps(asdict(key) | dict(figures), allow_nan=False) + "\n"
        with self._path.open("a") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._runs[key] = dict(figures)

    def _parsed(self, line: str, number: int) -> tuple[Key, dict[str, Any]]:
        try:
            row = json.loads(line)
            key = Key(**{field.name: row.pop(field.name) for field in fields(Key)})
            seconds = [float(epoch["seconds"]) for epoch in row["epochs"]] + [float(epoch["auc"]) for epoch in row["epochs"]]
            if not row["epochs"] or not all(map(math.isfinite, [*seconds, float(row["auc"]), float(row["log_loss"])])):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError):
            message = f"{self._path}, line {number}: not the result of a run ({line[:80]!r}); remove the line, and its run is done again"
            raise UserError(message) from None
        return key, row


def digest(settings: Mapping[str, Any]) -> str:
    """Return a digest of settings, whatever their order."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
