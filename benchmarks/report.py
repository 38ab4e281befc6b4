"""Reports of benchmarks: tables for people, JSON for programs, and a description of the machine."""

import dataclasses
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "numpy", "polars")


class Report:
    """A collection of figures that are printed as they are added.

    Args:
        options: the benchmark's options, which are stored with the figures.
    """

    def __init__(self, options: Any):
        self.figures: dict[str, Any] = {
            "command": " ".join(sys.orig_argv[1:]),
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "machine": {"processor": _processor(), "processors": len(os.sched_getaffinity(0)), "load_before": os.getloadavg()[0]},
            "software": {"python": platform.python_version(), **{name: version for name in _PACKAGES if (version := _version(name))}},
            "commit": _commit(),
            "options": dataclasses.asdict(options),
        }
        machine = self.figures["machine"]
        self.say(f"{machine['processor']}, {machine['processors']} processors, load {machine['load_before']:.1f} before")
        if getattr(options, "quick", False):
            self.say("--quick: tiny sizes, the figures are meaningless")

    def say(self, line: str) -> None:
        """Print a line."""
        print(line, flush=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Print a table; the first column is text, floats are shown with three or more digits."""
        cells = [list(columns), *([_shown(value) for value in row] for row in rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
        self.say(f"\n{title}")
        for row in cells:
            self.say("  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))))

    def write(self, path: str | None) -> None:
        """Report the operations that computed in this process, and write the figures as JSON if a path is given."""
        if native := sys.modules.get("model.native"):
            self.figures["operations"] = native.operations_description()
            self.say(f"\ncomputed by {self.figures['operations']}")
        if path:
            Path(path).write_text(json.dumps(self.figures, indent=1, allow_nan=False) + "\n")


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 10 else f"{value:.3f}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the first digits of the commit, with "+" if tracked files differ from it; None outside a Git repository."""
    root, answers = Path(__file__).resolve().parents[1], []
    for words in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "--untracked-files=no")):
        try:
            answers.append(subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True).stdout.strip())
        except (OSError, subprocess.CalledProcessError):
            return None
    return answers[0] + ("+" if answers[1] else "")
