"""The mutants of the C++ operations: one build holds all of them."""

import os
import random
import re
import subprocess
import sys
import time
from collections import defaultdict
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

from digests import of_tests
from forked import Outcome, run_tests
from ops_sites import Site, sites_of, switched

# Tests of the operations, the most specific first; the kernels' tests in C++ run before them.
TESTS = (
    "tests/model/test_native*.py",
    "tests/training/optimizers/test_rules.py",
    "tests/training/test_native_evaluator.py",
    "tests/training/test_step.py",
    "tests/training/test_state.py",
    "tests/training/test_large_table.py",
    "tests/model/test_wide_and_deep.py",
)
_LIMIT_S = 1200
_TILES = "interaction_amx.cc"  # compiles to nothing where the processor has no AMX


class OpsPart:
    """Some mutants of `ops/`, compiled into one library.

    Args:
        tree: the repository, whose `ops/` is changed.
        folder: folder for the compiled files.
        seed: seed of the random choice.
        count: the number of mutants.
    """

    def __init__(self, tree: Path, folder: Path, seed: int, count: int):
        self._tree, self._folder = tree, folder
        folder.mkdir(parents=True, exist_ok=True)
        self._plain = {path.name: path.read_text() for path in sorted((tree / "ops").iterdir()) if path.suffix in (".cc", ".h")}
        self.sites = self._compiled(self._ordered(seed), count)
        self._durations: dict[str, float] = {}

    def _ordered(self, seed: int) -> list[Site]:
        """Return all changes in random order, each kind equally often."""
        tiles = "amx_tile" in Path("/proc/cpuinfo").read_text()
        kinds = defaultdict(list)
        for name, text in self._plain.items():
            for site in sites_of(name, text) if tiles or name != _TILES else ():
                kinds[site.kind].append(site)
        draw, found = random.Random(f"{seed} ops"), []
        while any(kinds.values()):
            some = kinds[draw.choice(sorted(kind for kind in kinds if kinds[kind]))]
            found.append(some.pop(draw.randrange(len(some))))
        return found

    def _compiled(self, ordered: list[Site], count: int) -> list[Site]:
        """Return the first `count` changes with which the sources compile."""
        while True:
            chosen = ordered[:count]
            for name, text in self._plain.items():
                (self._tree / "ops" / name).write_text(text)
            switched(self._tree / "ops", chosen)
            result = subprocess.run([sys.executable, "ops/build"], cwd=self._tree, capture_output=True, text=True, check=False)
            if result.returncode == 0:
                break
            shift = 1  # the inserted #include shifts all lines by one
            failed = {(Path(path).name, int(line) - shift) for path, line in re.findall(r"^(\S+?):(\d+):\d+: error", result.stderr, re.M)}
            dropped = [site for site in chosen if (site.path, site.line) in failed]
            if not dropped:
                raise RuntimeError(f"ops/build fails: {result.stderr[-3000:]}")
            ordered = [site for site in ordered if site not in dropped]
        self._compile_tests()
        return chosen

    def _compile_tests(self) -> None:
        loader = SourceFileLoader("ops_build", str(self._tree / "ops" / "build"))
        build = module_from_spec(spec_from_loader(loader.name, loader))
        loader.exec_module(build)
        compiler = build.Compiler(os.environ.get("CXX", "g++"), str(self._folder))
        kernels = [source for source in build.sources() if not source.name.startswith(build.GLUE)]
        compiler.link(compiler.objects([*kernels, *sorted(build.TESTS.glob("*.cc"))], [f"-I{build.SOURCES}", "-pthread", "-w"]), "tests", "-pthread")

    def line_of(self, site: Site) -> str:
        """Return the original line that a change is made in."""
        return self._plain[site.path].split("\n")[site.line - 1]

    def digest(self) -> str:
        """Return a digest of the tests that are run on each mutant; those in C++ count as helpers."""
        return of_tests(self._tree, [file for pattern in TESTS for file in self._files(pattern)])

    def _files(self, pattern: str) -> list[str]:
        return sorted(str(path.relative_to(self._tree)) for path in self._tree.glob(pattern))

    def measure(self) -> None:
        """Run the tests with no mutant chosen; all must pass, and their times set the limits."""
        assert self._in_cpp("0").code == 0, "the tests of the kernels fail without a mutant"
        for pattern in TESTS:
            for file in self._files(pattern):
                outcome = run_tests(self._tree, [file], None, _LIMIT_S, self._folder / "plain.log", {"DLRM_MUTANT": "0"})
                assert outcome.code == 0, f"{file}: {outcome.failed} fails without a mutant"
                self._durations |= outcome.durations

    def attempt(self, number: int, process: int) -> tuple[int, Outcome]:
        """Run the tests with a mutant; return the number of tests and their outcome."""
        outcome = self._in_cpp(str(number))
        if outcome.code == 0:
            tests = list(self._durations)
            files = list(dict.fromkeys(name.split("::")[0] for name in tests))
            limit_s, each_s = 120 + 4 * sum(self._durations.values()), 60 + 4 * max(self._durations.values())
            environment = {"DLRM_MUTANT": str(number)}
            outcome = run_tests(self._tree, files, tests, limit_s, self._folder / f"mutant-{process}.log", environment, each_s=each_s)
        return len(self._durations) + 1, outcome

    def _in_cpp(self, number: str) -> Outcome:
        began = time.monotonic()
        try:
            environment = os.environ | {"DLRM_MUTANT": number}
            result = subprocess.run(
                [str(self._folder / "tests")], env=environment, capture_output=True, text=True, timeout=_LIMIT_S, errors="replace"
            )
        except subprocess.TimeoutExpired:
            return Outcome(None, time.monotonic() - began, "tests/ops: ran longer than its limit", {})
        failed = "" if result.returncode == 0 else "tests/ops: " + (result.stderr or result.stdout).strip().split("\n")[0][:150]
        return Outcome(result.returncode, time.monotonic() - began, failed, {})
