"""Change the program in one small place, hundreds of times, and check whether a test that executes the place fails.

python tests/mutants/mutation_campaign.py        # what scripts/mutants runs; prints a table, and the changes that no test noticed
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from io import BytesIO
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from utils.runtime import prepare_tensorflow  # noqa: E402

prepare_tensorflow()  # once here, for every forked child

from at_once import at_once  # noqa: E402
from forked import Outcome  # noqa: E402
from ops_part import OpsPart  # noqa: E402
from python_part import PythonPart  # noqa: E402

from tests.archives import unpack  # noqa: E402

OPS = "ops"
# The number of mutants of each part.
GROUPS = {
    "model": 28,
    "training": 28,
    "utils/encoding": 28,
    "utils/checkpoint": 28,
    "dataloading/batches.py": 28,
    "run/inherit.py": 28,
    "serving": 28,
    OPS: 28,
    "exchange": 14,
    "preproc/table": 14,
    "preproc/criteo": 14,
    "preproc/spark": 14,
    "dataloading": 14,
    "report": 14,
    "run": 14,
}
KILLED, SURVIVED = "killed", "survived"


class Attempt(NamedTuple):
    """A mutant to be tested."""

    group: str
    mutant: str  # a digest of the file and the change
    key: str  # of its result: also of the tests
    path: str
    line: int
    kind: str
    before: str
    after: str
    run: Callable[[int], tuple[int, Outcome]]  # called with the number of the process that runs it


class Campaign:
    """The campaign over the mutants of a commit.

    Args:
        given: the options of the command line.
    """

    def __init__(self, given: argparse.Namespace):
        self._given, self._folder = given, given.folder.resolve()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._results = self._folder / "results.jsonl"
        self._lock = (self._folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sys.exit(f"mutants: another run works in {self._folder}; wait for it, or choose another --folder")
        found = subprocess.run(["git", "rev-parse", "--verify", f"{given.commit}^{{commit}}"], cwd=ROOT, capture_output=True, text=True, check=False)
        if found.returncode:
            sys.exit(f"mutants: --commit {given.commit}: {found.stderr.strip()}")
        self.commit = found.stdout.strip()
        if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True).stdout:
            say("uncommitted changes are not included, except those of the campaign's own code")

    def attempts(self) -> list[Attempt]:
        """Return the mutants of the requested parts, in turn."""
        groups = [list(self._of_ops()) if group == OPS else None for group in self._given.parts]
        if any(some is None for some in groups):
            trees = [self._tree(f"tree-{i}") for i in range(self._given.processes)]
            part = PythonPart(trees, self._folder, self._given.seed, self._given.budget_s)
            part.measure(say)
            groups = [some if some is not None else list(self._of_python(part, group)) for group, some in zip(self._given.parts, groups, strict=True)]
        return [one for turn in zip_longest(*groups) for one in turn if one is not None]

    def _tree(self, name: str) -> Path:
        """Extract the commit's files anew: a killed run has left a mutant in its own tree."""
        tree = self._folder / name
        shutil.rmtree(tree, ignore_errors=True)
        archive = subprocess.run(["git", "archive", self.commit], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            unpack(files, tree)
        (tree / ".venv").symlink_to(ROOT / ".venv")
        return tree

    def _number(self, group: str) -> int:
        return self._given.each or GROUPS[group]

    def _of_python(self, part: PythonPart, group: str) -> Iterator[Attempt]:
        for one in part.drawn(group, self._number(group)):
            yield Attempt(group, part.place(one), part.key(one), one.path, one.first, one.kind, part.text(one), one.text, partial(part.attempt, one))

    def _of_ops(self) -> Iterator[Attempt]:
        part = OpsPart(self._tree("ops-tree"), self._folder / "ops", self._given.seed, self._number(OPS))
        part.measure()
        digest = part.digest()
        for number, site in enumerate(part.sites, 1):
            before = part.line_of(site)
            place, key = (hashlib.sha256(text.encode()).hexdigest()[:16] for text in (f"{before} {site}", f"{before} {site} {digest}"))
            yield Attempt(OPS, place, key, f"ops/{site.path}", site.line, site.kind, before, site.shown(before), partial(part.attempt, number))

    def results(self) -> list[dict]:
        """Return the result of each mutant; those that earlier runs have tested are not tested again."""
        attempts, found = self.attempts(), {one["key"]: one for one in results_in(self._results)}
        new = {one.key: one for one in attempts if one.key not in found or (self._given.again and found[one.key]["status"] == SURVIVED)}
        to_try = list(new.values())  # once each: two parts may draw the same mutant
        answers = at_once(len(to_try), lambda process, i: to_try[i].run(process), self._given.processes)
        for number, (i, (tests, outcome)) in enumerate(answers, 1):
            one = to_try[i]
            found[one.key] = result = self._kept(one, tests, outcome)
            say(f"{number}/{len(to_try)} {one.path}:{one.line} {one.kind}: {result['status']} in {result['seconds']} s, {result['by']}")
        return [found[one.key] | {"group": one.group} for one in attempts]

    def _kept(self, one: Attempt, tests: int, outcome: Outcome) -> dict:
        result = {"commit": self.commit} | one._asdict() | {"tests": tests, "by": outcome.failed, "seconds": round(outcome.seconds, 1)}
        result |= {"status": SURVIVED if outcome.code == 0 else KILLED}
        del result["run"]
        with self._results.open("a") as file:
            file.write("\n" + json.dumps(result) + "\n")  # a newline first, because the line before may be incomplete
        return result


def results_in(path: Path) -> Iterator[dict]:
    """Yield the results in a file; there may be several of a mutant, the last of which counts."""
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):  # a line that a killed run left incomplete
            yield json.loads(line)


def compared(results: Sequence[dict], others: Iterable[dict]) -> str:
    """Return, in Markdown, the shares killed here and in another folder of the mutants that both have tested, and those killed only there."""
    there = {one.get("mutant", one["key"]): one for one in others}  # without the field, the key is of the mutant alone
    pairs = [(one, there[one["mutant"]]) for one in results if one["mutant"] in there]
    lines = ["| part | mutants in both | killed there | killed here |", "|---|---|---|---|"]
    for group in (*GROUPS, None):
        some = [pair for pair in pairs if group in (None, pair[0]["group"])]
        if some:
            here, other = (_share([pair[side] for pair in some]) for side in (0, 1))
            lines.append(f"| {f'`{group}`' if group else 'all'} | {len(some)} | {other} | {here} |")
    lost = [(one, other) for one, other in pairs if one["status"] == SURVIVED and other["status"] == KILLED]
    lines += [f"\nkilled there by {other['by']}, survives here: {shown(one)}" for one, other in lost]
    return "\n".join(lines)


def _share(results: Sequence[dict]) -> str:
    killed = sum(one["status"] == KILLED for one in results)
    return f"{killed} ({100 * killed / len(results):.1f}%)"


def shown(one: dict) -> str:
    """Return a mutant as lines of text."""
    return f"{one['path']}:{one['line']} ({one['kind']}; {one['tests']} tests)\n    {one['before']}\n    {one['after']}"


def table(results: Sequence[dict]) -> str:
    """Return the results by part as a table in Markdown."""
    lines = ["| part | mutants | killed | survived |", "|---|---|---|---|"]
    for group in (*GROUPS, None):
        some = [one for one in results if group in (None, one["group"])]
        if some:
            survived = sum(one["status"] == SURVIVED for one in some)
            lines.append(f"| {f'`{group}`' if group else 'all'} | {len(some)} | {_share(some)} | {survived} |")
    return "\n".join(lines)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="seed of the random choice of mutants")
    parser.add_argument("--each", type=int, help="number of mutants of each part; by default that of GROUPS")
    parser.add_argument("--parts", nargs="*", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--commit", default="HEAD", help="commit whose program and tests are taken; the campaign's own code is that of this tree")
    parser.add_argument("--folder", type=Path, default=ROOT / ".mutants", help="folder for the results, from which a later run continues")
    parser.add_argument("--budget_s", type=float, default=120, help="maximum seconds of tests for a mutant")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="number of processes that test mutants in parallel")
    parser.add_argument("--again", action="store_true", help="test surviving mutants again")
    parser.add_argument("--compare", type=Path, metavar="RESULTS.jsonl", help="results in another folder, compared with this run's")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exit by an exception, so that the child is ended, too
    given = parser.parse_args()
    if given.compare is not None and not given.compare.is_file():
        parser.error(f"--compare {given.compare}: no such file")
    campaign = Campaign(given)
    results = campaign.results()
    print(f"commit {campaign.commit}\n\n{table(results)}")
    for one in results:
        if one["status"] == SURVIVED:
            print(f"\n{shown(one)}")
    if given.compare is not None:
        print(f"\n{compared(results, results_in(given.compare))}")


if __name__ == "__main__":
    main()
