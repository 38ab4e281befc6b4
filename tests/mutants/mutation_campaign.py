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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import BytesIO
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
GROUPS = ("model", "training", "utils/encoding", "utils/checkpoint", "dataloading/batches.py", "run/inherit.py", "serving", OPS)
KILLED, SURVIVED = "killed", "survived"


class Attempt(NamedTuple):
    """A mutant to be tested."""

    group: str
    key: str
    path: str
    line: int
    kind: str
    before: str
    after: str
    run: Callable[[int], tuple[int, Outcome]]  # called with the number of the process that runs it


class Campaign:
    """The campaign over the mutants of the checked-out commit.

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
        if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True).stdout:
            say("uncommitted changes are not included")
        self.commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    def attempts(self) -> list[Attempt]:
        """Return the mutants of the requested parts, in turn."""
        groups = [list(self._of_ops()) if group == OPS else None for group in self._given.parts]
        if any(some is None for some in groups):
            trees = [self._tree(f"tree-{i}") for i in range(self._given.processes)]
            part = PythonPart(trees, self._folder, self._given.seed, self._given.budget_s)
            part.measure(say)
            groups = [some if some is not None else list(self._of_python(part, group)) for group, some in zip(self._given.parts, groups, strict=True)]
        return [some[i] for i in range(self._given.each) for some in groups if i < len(some)]

    def _tree(self, name: str) -> Path:
        """Extract the commit's files anew: a killed run has left a mutant in its own tree."""
        tree = self._folder / name
        shutil.rmtree(tree, ignore_errors=True)
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            unpack(files, tree)
        (tree / ".venv").symlink_to(ROOT / ".venv")
        return tree

    def _of_python(self, part: PythonPart, group: str) -> Iterator[Attempt]:
        for one in part.drawn(group, self._given.each):
            yield Attempt(group, part.key(one), one.path, one.first, one.kind, part.text(one), one.text, partial(part.attempt, one))

    def _of_ops(self) -> Iterator[Attempt]:
        part = OpsPart(self._tree("ops-tree"), self._folder / "ops", self._given.seed, self._given.each)
        part.measure()
        for number, site in enumerate(part.sites, 1):
            before = part.line_of(site)
            key = hashlib.sha256(f"{before} {site}".encode()).hexdigest()[:16]
            yield Attempt(OPS, key, f"ops/{site.path}", site.line, site.kind, before, site.shown(before), partial(part.attempt, number))

    def _known(self) -> dict[str, dict]:
        """Return the results of earlier runs, by the mutants' keys."""
        known = {}
        for line in self._results.read_text().splitlines() if self._results.exists() else ():
            with contextlib.suppress(ValueError):  # a line that a killed run left incomplete
                known |= {(one := json.loads(line))["key"]: one}
        return known

    def results(self) -> list[dict]:
        """Return the result of each mutant; those that earlier runs have tested are not tested again."""
        attempts, found = self.attempts(), self._known()
        to_try = [one for one in attempts if one.key not in found or (self._given.again and found[one.key]["status"] == SURVIVED)]
        answers = at_once(len(to_try), lambda process, i: to_try[i].run(process), self._given.processes)
        for number, (i, (tests, outcome)) in enumerate(answers, 1):
            one = to_try[i]
            found[one.key] = result = self._kept(one, tests, outcome)
            say(f"{number}/{len(to_try)} {one.path}:{one.line} {one.kind}: {result['status']} in {result['seconds']} s, {result['by']}")
        return [found[one.key] for one in attempts]

    def _kept(self, one: Attempt, tests: int, outcome: Outcome) -> dict:
        result = {"commit": self.commit} | one._asdict() | {"tests": tests, "by": outcome.failed, "seconds": round(outcome.seconds, 1)}
        result |= {"status": SURVIVED if outcome.code == 0 else KILLED}
        del result["run"]
        with self._results.open("a") as file:
            file.write("\n" + json.dumps(result) + "\n")  # a newline first, because the line before may be incomplete
        return result


def table(results: Sequence[dict]) -> str:
    """Return the results by part as a table in Markdown."""
    lines = ["| part | mutants | killed | survived |", "|---|---|---|---|"]
    for group in (*GROUPS, None):
        some = [one for one in results if group in (None, one["group"])]
        count = Counter(one["status"] for one in some)
        if some:
            lines.append(
                f"| {f'`{group}`' if group else 'all'} | {len(some)} | {count[KILLED]} ({100 * count[KILLED] / len(some):.1f}%) | {count[SURVIVED]} |"
            )
    return "\n".join(lines)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="seed of the random choice of mutants")
    parser.add_argument("--each", type=int, default=28, help="number of mutants of each part")
    parser.add_argument("--parts", nargs="*", choices=GROUPS, default=GROUPS)
    parser.add_argument("--folder", type=Path, default=ROOT / ".mutants", help="folder for the results, from which a later run continues")
    parser.add_argument("--budget_s", type=float, default=120, help="maximum seconds of tests for a mutant")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="number of processes that test mutants in parallel")
    parser.add_argument("--again", action="store_true", help="test surviving mutants again")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exit by an exception, so that the child is ended, too
    campaign = Campaign(parser.parse_args())
    results = campaign.results()
    print(table(results))
    for one in results:
        if one["status"] == SURVIVED:
            print(f"\n{one['path']}:{one['line']} ({one['kind']}; {one['tests']} tests)\n    {one['before']}\n    {one['after']}")


if __name__ == "__main__":
    main()
