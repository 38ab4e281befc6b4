"""Compare two runs of a benchmark: medians, spreads, and the ratio new / old of each figure with its interval.

    python -m report --compare old.json new.json
    python -m report --compare old.json new.json --relative_to Keras --json differences.json

The files are those of a benchmark's --json: python -m benchmarks.train_step --num_rounds 10 --json old.json. A figure is called faster or slower
(smaller or larger, better or worse) where the 95% interval of its ratio does not hold 1. Below six rounds in either file, the verdict is always
"cannot tell". The interval covers how rounds of one run differ, not how a shared machine differs from one day to the next: --relative_to divides
every figure by that of a contender whose code did not change, within each round.
"""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from report.benchmark_file import BenchmarkFile, Figure, read
from utils.config.flags import Parser
from utils.errors import UserError

NAME = "report"
CANNOT_TELL = "cannot tell"
MIN_ROUNDS = 6
DRAWS, SEED, LEVEL = 10_000, 0, 0.95
_VALUES_AT_ONCE = 1 << 22
_MOST_VALUES = 10**8  # values of all draws; files of more than 10,000 rounds have fewer draws, of which their medians need fewer
_BY_CHANCE = 10  # from so many figures on, a line says that some verdicts are due to chance
_UNIMPORTANT = ("json", "folder")  # options that change no figure
_SOURCE = ("commit", "operations")  # entries of the header that are texts


@dataclass(frozen=True)
class Difference:
    """The change of a figure from the old file to the new one.

    Attributes:
        old: the figure in the old file.
        new: the figure in the new file.
        low: the lower end of the interval of `ratio`.
        high: the upper end.
    """

    old: Figure
    new: Figure
    low: float
    high: float

    @property
    def ratio(self) -> float:
        """The new median divided by the old one."""
        return float(np.median(self.new.rounds) / np.median(self.old.rounds))

    @property
    def enough(self) -> bool:
        """True if both files have enough rounds for a verdict."""
        return min(len(self.old.rounds), len(self.new.rounds)) >= MIN_ROUNDS

    @property
    def verdict(self) -> str:
        """The word for the change."""
        return (self.enough and self.new.unit.verdict(self.low, self.high)) or CANNOT_TELL

    def facts(self) -> dict[str, Any]:
        """Return all that is known of the change, as JSON holds it."""
        unit = self.new.unit
        return {
            "name": self.new.name,
            "unit": unit.title,
            "better": "lower" if unit.lower_is_better else "higher",
            "old": _summary(self.old),
            "new": _summary(self.new),
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
            "verdict": self.verdict,
        }


def _summary(figure: Figure) -> dict[str, float]:
    middle = float(np.median(figure.rounds))
    return {"median": middle, "spread": (max(figure.rounds) - min(figure.rounds)) / middle, "rounds": len(figure.rounds)}


def interval(old: Sequence[float], new: Sequence[float]) -> tuple[float, float]:
    """Return the 95% interval of the ratio of medians, new / old, by the percentile bootstrap.

    The rounds of each file are drawn with replacement, independently, 10,000 times, from a fixed seed; the ends are the 2.5th and 97.5th percentiles
    of the ratios. Percentiles and not BCa: the jackknife that BCa takes its acceleration from does not work for medians.
    """
    draw, draws = np.random.default_rng(SEED), max(DRAWS // 10, min(DRAWS, _MOST_VALUES // max(len(old), len(new))))
    ratios = _medians(np.asarray(new, np.float64), draws, draw) / _medians(np.asarray(old, np.float64), draws, draw)
    low, high = np.quantile(ratios, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _medians(values: np.ndarray, draws: int, draw: np.random.Generator) -> np.ndarray:
    """Return the medians of resamples of the values."""
    at_once = max(1, _VALUES_AT_ONCE // len(values))
    sizes = [min(at_once, draws - start) for start in range(0, draws, at_once)]
    return np.concatenate([np.median(values[draw.integers(0, len(values), (size, len(values)))], axis=1) for size in sizes])


@dataclass(frozen=True)
class Comparison:
    """The figures that two files have in common, and those that only one has.

    Attributes:
        old: the old file.
        new: the new file.
        differences: the changes of the figures in both.
        relative_to: the contender by which every figure is divided; None for none.
    """

    old: BenchmarkFile
    new: BenchmarkFile
    differences: tuple[Difference, ...]
    relative_to: str | None = None

    def only(self, one: BenchmarkFile) -> list[str]:
        """Return the names of the figures that only this file has."""
        other = self.new if one is self.old else self.old
        return [figure.name for path, figure in one.figures.items() if path not in other.figures and figure.name not in other.left_out]

    def left_out(self) -> Iterator[str]:
        """Yield a line for each figure that is in both files and is not compared."""
        for one in (self.old, self.new):
            yield from (f"{one.path}: {name}: {reason}" for name, reason in one.left_out.items())
        compared = {difference.new.path for difference in self.differences}
        for path, figure in self.new.figures.items():
            if path in self.old.figures and path not in compared and self.relative_to not in path:
                yield f"{figure.name}: it has no {self.relative_to} beside it"


def compare(old: BenchmarkFile, new: BenchmarkFile, relative_to: str | None = None) -> Comparison:
    """Return the changes of all figures that both files have.

    Args:
        old: the old file.
        new: the new file.
        relative_to: the name of a contender; every figure is divided by its figure of the same round.

    Raises:
        UserError: the files have no figure in common, or no figures of that contender.
    """
    both = [path for path in new.figures if path in old.figures]
    if not both:
        names = " and ".join(f"{one.path} has {one.benchmark or next(iter(one.figures.values())).name}" for one in (old, new))
        raise UserError(f"no figure is in both files: {names}; expected two files of one benchmark with the same contenders")
    pairs = [(old.figures[path], new.figures[path]) for path in both if old.figures[path].unit == new.figures[path].unit]
    if relative_to is not None:
        pairs = [
            (mine.relative_to(reference), other.relative_to(references))
            for mine, other in pairs
            if relative_to not in mine.path and (reference := _beside(old, mine, relative_to)) and (references := _beside(new, other, relative_to))
        ]
        if not pairs:
            names = sorted({key for path in both for key in path if any(_beside(new, figure, key) for figure in new.figures.values())})
            raise UserError(f"--relative_to {relative_to}: no such contender in both files; expected one of {', '.join(names) or 'none here'}")
    return Comparison(old, new, tuple(Difference(mine, other, *interval(mine.rounds, other.rounds)) for mine, other in pairs), relative_to)


def _beside(file: BenchmarkFile, figure: Figure, contender: str) -> Figure | None:
    """Return a contender's figure that a figure is to be divided by: the one whose path differs in the contender's name only."""
    paths = [(*figure.path[:place], contender, *figure.path[place + 1 :]) for place in range(len(figure.path)) if figure.path[place] != contender]
    found = next((file.figures[path] for path in paths if path in file.figures), None)
    if found and len(found.rounds) != len(figure.rounds):
        counts = f"{len(found.rounds)} and {len(figure.rounds)} rounds"
        raise UserError(f"--relative_to {contender}: {file.path}: {found.name} and {figure.name} have {counts}; expected as many of both")
    return found


def differing(old: BenchmarkFile, new: BenchmarkFile) -> list[str]:
    """Return the differences of machine, options and code: one text for each."""
    found = []
    if old.benchmark != new.benchmark:
        found.append(f"benchmark {old.benchmark or 'unknown'} / {new.benchmark or 'unknown'}")
    for name in ("processor", "processors"):
        found += _differs(name, old.mapping("machine").get(name), new.mapping("machine").get(name))
    mine, other = old.mapping("options"), new.mapping("options")
    for name in dict.fromkeys((*mine, *other)):
        found += _differs(f"--{name}", mine.get(name), other.get(name)) if name not in _UNIMPORTANT else []
    mine, other = old.mapping("software"), new.mapping("software")
    for name in dict.fromkeys((*mine, *other)) if mine and other else ():
        found += _differs(name, mine.get(name), other.get(name))
    for name in _SOURCE:
        found += _differs(name, old.header.get(name), new.header.get(name))
    return found


def _differs(name: str, old: Any, new: Any) -> list[str]:
    return [] if old == new else [f"{name} {_text(old)} / {_text(new)}"]


def _text(value: Any) -> str:
    text = "unknown" if value is None else ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return re.sub(r"[^ -~\u00a0-\U0010ffff]", "?", text if len(text) <= 80 else f"{text[:77]}...")


def lines(found: Comparison) -> Iterator[str]:
    """Yield the lines of a comparison, as they are printed."""
    for word, one in (("old", found.old), ("new", found.new)):
        commit = f", commit {_text(one.header['commit'])}".replace("+", " with changes") if one.header.get("commit") else ""
        when = f", {_text(one.header['time'])}" if one.header.get("time") else ""
        yield f"{word}: {one.path}: {one.benchmark or 'unknown benchmark'}{when}{commit}"
    same = "same machine and options" + ("" if found.old.header.get("commit") else "; the commits are not in the files")
    differences = differing(found.old, found.new)
    yield f"differs, old / new: {'; '.join(differences)}" if differences else same
    for word, one in (("old", found.old), ("new", found.new)):
        if one.mapping("options").get("quick"):
            yield f"{word}: measured with --quick: tiny sizes, the figures are meaningless"
    units = dict.fromkeys(difference.new.unit for difference in found.differences)
    for unit in units:
        some = [difference for difference in found.differences if difference.new.unit == unit]
        of = f", relative to {found.relative_to} in each round" if found.relative_to else ""
        yield f"\n{unit.title}{of} ({'lower' if unit.lower_is_better else 'higher'} is better)"
        yield from _table(some)
    yield ""
    few = sum(not difference.enough for difference in found.differences)
    if few:
        of = f"{few} of {len(found.differences)} figures have fewer than {MIN_ROUNDS} rounds"
        yield f"{CANNOT_TELL}: {of}; measure with --num_rounds {MIN_ROUNDS} or more"
    judged = len(found.differences) - few
    if judged >= _BY_CHANCE:
        yield f"of {judged} figures about {judged / 20:.1f} would get a verdict by chance, had nothing changed"
    for word, one in (("old", found.old), ("new", found.new)):
        if names := found.only(one):
            yield f"only in {word}: {'; '.join(names)}"
    for line in found.left_out():
        yield f"not compared: {line}"


def _table(some: Sequence[Difference]) -> Iterator[str]:
    cells = [["", "old", "spread", "new", "spread", "new / old", f"{100 * LEVEL:.0f}% interval", "rounds", "verdict"]]
    for one in some:
        facts = one.facts()
        medians = [text for side in ("old", "new") for text in (_shown(facts[side]["median"]), f"{facts[side]['spread']:.2f}")]
        rounds = f"{len(one.old.rounds)}, {len(one.new.rounds)}"
        cells.append([one.new.name, *medians, f"{one.ratio:.3f}", f"{one.low:.3f} to {one.high:.3f}", rounds, one.verdict])
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    for row in cells:
        padded = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join([row[0].ljust(widths[0]), *padded[1:-1], row[-1]])


def _shown(value: float) -> str:
    return f"{value:,.0f}" if 10_000 <= value < 1e15 else f"{value:.4g}"


def as_json(found: Comparison) -> Mapping[str, Any]:
    """Return a comparison as JSON holds it."""
    return {
        "old": str(found.old.path),
        "new": str(found.new.path),
        "relative_to": found.relative_to,
        "differs": differing(found.old, found.new),
        "figures": [difference.facts() for difference in found.differences],
        "only_old": found.only(found.old),
        "only_new": found.only(found.new),
        "not_compared": list(found.left_out()),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the flags, compare and print. Raises UserError where a flag or a file is invalid."""
    parser = Parser(prog=f"python -m {NAME} --compare", description=__doc__)
    parser.add_argument("--compare", nargs="*", type=Path, required=True, metavar="FILE", help="the old and the new file of a benchmark's --json")
    parser.add_argument("--relative_to", metavar="NAME", help="divide every figure by that of this contender in the same round, Keras for instance")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for all figures, as JSON")
    given = parser.parse_strictly(sys.argv[1:] if argv is None else argv)
    if len(given.compare) != 2:
        raise UserError(f"--compare: found {len(given.compare)} of two files; expected python -m report --compare old.json new.json")
    if given.json and not given.json.absolute().parent.is_dir():
        raise UserError(f"--json {given.json}: its folder does not exist")
    if given.json and any(given.json.exists() and given.json.samefile(path) for path in given.compare if path.exists()):
        raise UserError(f"--json {given.json}: is one of the files to compare, and would be overwritten; give another name")
    found = compare(*map(read, given.compare), given.relative_to)
    for line in lines(found):
        print(line)
    if given.json:
        _write(given.json, json.dumps(as_json(found), indent=1, allow_nan=False) + "\n")
    return 0


def _write(path: Path, text: str) -> None:
    """Write a file that appears only when it is complete."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
