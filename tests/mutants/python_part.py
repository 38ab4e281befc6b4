"""The mutants of the Python sources, written into a tree one at a time."""

import hashlib
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from at_once import at_once
from covered import SOURCES, covered
from digests import of_helpers, of_tests
from forked import Outcome, run_tests
from python_sites import Mutant, mutants_of

# Tests that may notice a mutant: those of the parts, and some that run the program; those that are fastest to measure come first.
TESTS = (
    "tests/run",
    "tests/utils",
    "tests/model",
    "tests/training",
    "tests/dataloading",
    "tests/report",
    "tests/preproc",
    "tests/serving",
    "tests/cli",
    "tests/distributed",
)
# Files left out, by words of their names: what they test (a cluster, starts and ends of processes, prepare_dataset.sh, the tests' own workers) is in
# no part, or takes minutes.
WITHOUT = (
    "test_spark_cluster",
    "test_prepare_dataset",
    "test_elastic",
    "test_discovery",
    "test_failures",
    "test_launcher",
    "test_processes",
    "test_two_hosts",
    "test_resident",
)
# The files of each part: folders, and patterns of files.
PATHS = {
    "model": ("model",),
    "training": ("training",),
    "utils/encoding": ("utils/encoding",),
    "utils/checkpoint": ("utils/checkpoint",),
    "dataloading/batches.py": ("dataloading/batches.py",),
    "run/inherit.py": ("run/inherit.py", "run/continuing.py"),
    "serving": ("served", "serving"),
    "exchange": (
        "model/embedding/blocks.py",
        "model/embedding/distributed.py",
        "model/embedding/exchange.py",
        "model/embedding/replicated.py",
        "model/embedding/row_squares.py",
        "model/embedding/subtrees.py",
        "model/embedding/update.py",
        "model/ordered_sums.py",
        "model/slices.py",
        "training/gradient_slices.py",
        "utils/distributed.py",
        "utils/host_world.py",
    ),
    "preproc/table": ("preproc/table",),
    "preproc/criteo": ("preproc/criteo",),
    "preproc/spark": ("preproc/spark", "preproc/*/on_spark.py", "preproc/*/spark_*.py", "preproc/spark_*.py"),
    "dataloading": ("dataloading",),
    "report": ("report",),
    "run": ("run",),
}
# Parts without the files of other parts; `exchange` shares its files with `model` and `training`, which draw as they did before it was there.
_APART = {"preproc/table": "preproc/spark", "preproc/criteo": "preproc/spark", "dataloading": "dataloading/batches.py", "run": "run/inherit.py"}
_SHARING = "tests/distributed/"  # tests of a file there check what one launch has trained, which the first of them starts
_FAST_S = 1.0


class PythonPart:
    """Mutants of the Python sources.

    Args:
        trees: copies of the repository in which they are tested, one for each process of the campaign.
        folder: folder for the coverage of the tests.
        seed: seed of the random choice.
        budget_s: seconds of tests for a mutant, as measured with the coverage.
    """

    def __init__(self, trees: Sequence[Path], folder: Path, seed: int, budget_s: float):
        self._trees, self._tree = trees, trees[0]
        self._folder, self._seed, self._budget_s = folder, seed, budget_s
        self._covering: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))  # by file and line: the tests that execute it
        self._seconds: dict[str, float] = {}
        self._begin_s: dict[str, float] = {}
        self._written = (
            int(time.time()) - 10_000_000
        )  # modification time in seconds; each write gets another one, so that Python notices the change and compiles anew

    def measure(self, say) -> None:
        """Measure the lines that each test executes."""
        digest = hashlib.sha256(of_helpers(self._tree).encode())
        for path in sorted(path for name in (*SOURCES, "ops") for path in (self._tree / name).rglob("*") if path.is_file()):
            if path.suffix != ".pyc":
                digest.update(path.read_bytes())
        files = list(dict.fromkeys(file for pattern in TESTS for file in self._files(pattern) if not any(word in file for word in WITHOUT)))
        measured = at_once(
            len(files),
            lambda process, i: covered(self._trees[process], files[i], self._folder / "covered", digest.hexdigest()),
            len(self._trees),
        )
        for done, (i, known) in enumerate(measured, 1):
            fails = f"; FAILS WITHOUT A MUTANT: {known['failed']}" if known["failed"] else ""
            say(f"{done}/{len(files)} {files[i]}: {len(known['seconds'])} tests pass, {sum(known['seconds'].values()):.0f} s{fails}")
            self._seconds |= known["seconds"]
            self._begin_s[files[i]] = max(
                known["seconds"].values(), default=0.0
            )  # the first test, whichever it is, also makes the file's shared fixtures
            for path, by_test in known["lines"].items():
                for test, lines in by_test.items():
                    for line in lines:
                        self._covering[path][line] |= {test} if test else set(known["seconds"])

    def _files(self, pattern: str) -> Iterator[str]:
        for path in sorted(self._tree.glob(pattern if pattern.endswith(".py") else f"{pattern}/**/test_*.py")):
            yield str(path.relative_to(self._tree))

    def drawn(self, group: str, count: int) -> list[Mutant]:
        """Choose random mutants of a part: the same ones for the same seed and sources."""
        kinds = defaultdict(list)
        for path in sorted(files_of(self._tree, group)):
            for one in mutants_of(str(path.relative_to(self._tree)), path.read_bytes()):
                kinds[one.kind].append(one)
        draw, found = random.Random(f"{self._seed} {group}"), []
        while len(found) < count and any(kinds.values()):  # each kind equally often: there are many constants and few loops
            some = kinds[draw.choice(sorted(kind for kind in kinds if kinds[kind]))]
            found.append(some.pop(draw.randrange(len(some))))
        return found

    def place(self, mutant: Mutant) -> str:
        """Return a digest of the unchanged file and the change."""
        return hashlib.sha256((self._tree / mutant.path).read_bytes() + repr(mutant).encode()).hexdigest()[:16]

    def key(self, mutant: Mutant) -> str:
        """Return the key of the mutant's result: a digest of the unchanged file, the change, and the tests that are run on it."""
        return hashlib.sha256(f"{self.place(mutant)} {of_tests(self._tree, self._tests_of(mutant))}".encode()).hexdigest()[:16]

    def _tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that execute its lines: first those of its own test file, then the fastest, as many as the budget allows."""
        lines, stem = self._covering[mutant.path], Path(mutant.path).stem
        names = {name for line in range(mutant.first, mutant.last + 1) for name in lines.get(line, ())}
        sharing = {_file(name) for name in names if name.startswith(_SHARING)}
        names |= {name for name, seconds in self._seconds.items() if _file(name) in sharing and seconds < _FAST_S}
        names = names or self._of_tasks(mutant.path)
        ordered = sorted(names, key=lambda name: (f"test_{stem}.py" not in name, self._begin_s[_file(name)], self._seconds[name], name))
        chosen, spent, files = [], 0.0, set()
        for name in ordered:
            spent += self._seconds[name] if _file(name) in files else self._begin_s[_file(name)]
            if chosen and spent > self._budget_s:
                break
            chosen.append(name)
            files.add(_file(name))
        return chosen

    def _of_tasks(self, path: str) -> set[str]:
        """Return the tests of Spark for lines of its files that no test executes by the measurement.

        Executors may: they are not measured, as they load the code from an archive and are killed.
        """
        if self._tree / path not in files_of(self._tree, "preproc/spark"):
            return set()
        names = {name for name in self._seconds if "spark" in _file(name)}
        return {name for name in names if name.startswith(f"tests/{Path(path).parent}/")} or names

    def attempt(self, mutant: Mutant, process: int) -> tuple[int, Outcome]:
        """Run the tests with a mutant in this process's tree; return the number of tests and their outcome."""
        tree, tests = self._trees[process], self._tests_of(mutant)
        path = tree / mutant.path
        if not tests:
            return 0, Outcome(0, 0.0, "no test executes it", {})
        before = path.read_bytes()
        try:
            self._write(path, mutant.applied(before))
            files = list(dict.fromkeys(map(_file, tests)))
            seconds = [self._seconds[name] for name in tests] + [self._begin_s[file] for file in files]
            limit_s, each_s = 120 + 4 * sum(seconds), 60 + 4 * max(seconds)
            outcome = run_tests(tree, files, tests, limit_s, self._folder / f"mutant-{process}.log", {}, each_s=each_s)
        finally:
            self._write(path, before)
        if outcome.code == 5:
            raise RuntimeError(f"pytest finds none of {tests}")
        return len(tests), outcome

    def text(self, mutant: Mutant) -> str:
        """Return the text that the mutant replaces."""
        return (self._tree / mutant.path).read_bytes()[mutant.start : mutant.stop].decode()

    def _write(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        self._written += 1
        os.utime(path, (self._written, self._written))


def files_of(tree: Path, group: str) -> set[Path]:
    """Return the Python files of a part."""
    found = {file for pattern in PATHS[group] for path in tree.glob(pattern) for file in (path.rglob("*.py") if path.is_dir() else [path])}
    return found - files_of(tree, _APART[group]) if group in _APART else found


def _file(test: str) -> str:
    return test.split("::")[0]
