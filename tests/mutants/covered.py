"""Coverage of tests: the lines that each executes, in its own process and in the processes it starts."""

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import coverage
from forked import run_tests

SOURCES = ("model", "training", "utils", "dataloading", "preproc", "report", "run", "served", "serving")
_CONFIG = """[run]
data_file = {data}
parallel = true
include = {include}
context = ${{PYTEST_CURRENT_TEST-}}
disable_warnings = no-data-collected, module-not-measured, module-not-imported, no-ctracer, no-sysmon, already-imported
"""
_LIMIT_S = 1800


class Switching:
    """A pytest plugin that measures a test file, with the coverage of each test under its own name."""

    def __init__(self, config: Path):
        self._coverage = coverage.Coverage(config_file=str(config), context="")
        self._coverage.start()

    def pytest_runtest_logstart(self, nodeid):
        self._coverage.switch_context(nodeid)

    def pytest_unconfigure(self):
        self._coverage.stop()
        self._coverage.save()


def covered(tree: Path, file: str, folder: Path, sources: str) -> dict:
    """Return what the tests of a file execute: `seconds` by test, and `lines` by source file and test; the name "" stands for the import.

    The result is kept, and measured again only for other sources, helpers or another file of tests.

    Args:
        tree: the repository.
        file: the file of tests.
        folder: folder for the measurements.
        sources: the digest of the program's sources and of the tests' helpers.
    """
    kept = folder / f"{file.replace('/', '.')}.json"
    digest = hashlib.sha256(sources.encode() + (tree / file).read_bytes()).hexdigest()
    if kept.exists() and (known := json.loads(kept.read_text()))["digest"] == digest:
        return known
    work = folder / tree.name  # one folder for each process, because each works in a tree of its own
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    config = work / "coveragerc"
    config.write_text(_CONFIG.format(data=work / ".data", include=",".join(str(tree / name / "*") for name in SOURCES)))
    environment = {"COVERAGE_PROCESS_START": str(config)}
    outcome = run_tests(tree, [file], None, _LIMIT_S, folder / f"{kept.stem}.log", environment, lambda: [Switching(config)])
    found = {"digest": digest, "failed": outcome.failed, "seconds": outcome.durations, "lines": _lines(tree, work, config, set(outcome.durations))}
    whole = work / "whole.json"
    whole.write_text(json.dumps(found))
    whole.replace(kept)
    shutil.rmtree(work)
    return found


def _lines(tree: Path, folder: Path, config: Path, passed: Iterable[str]) -> Mapping[str, Mapping[str, list[int]]]:
    whole = coverage.Coverage(config_file=str(config), data_file=str(folder / ".data-all"))
    whole.combine([str(path) for path in folder.glob(".data.*")], strict=False)
    data, lines = whole.get_data(), {}
    for path in data.measured_files():
        by_test: dict[str, set[int]] = {}
        for line, contexts in data.contexts_by_lineno(path).items():
            for context in contexts:
                name = re.sub(r" \((setup|call|teardown)\)$", "", context)
                if name in passed or not name:
                    by_test.setdefault(name, set()).add(line)
        lines[str(Path(path).relative_to(tree))] = {name: sorted(some) for name, some in by_test.items()}
    return lines
