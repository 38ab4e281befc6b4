"""The figures of a benchmark's JSON file: the values of each round, by their names in the file.

`benchmarks.report.Report` writes such files. A figure is a list of numbers, one for each round, below a key that says its unit: `seconds`,
`step_seconds`, `calls` (the seconds of each call, a list for each round), `samples_per_s`, `peak_bytes`, `auc`, … All other lists are no figures.
"""

import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from utils.errors import UserError

HEADER = ("command", "time", "machine", "options", "commit", "software", "operations", "medians", "settings")
EXPECTED = "expected a file that a benchmark wrote: python -m benchmarks.NAME --num_rounds 6 --json FILE"
_GENERIC = {"seconds", "rounds", "results", "peak_bytes", "peak_mib", "auc", "log_loss", "calls"}  # keys that say no more than the unit does
_IDENTIFYING = ("precision", "ids", "kind", "name")  # keys that distinguish the objects of a list
_LEAST, _MOST = 1e-100, 1e100  # beyond them, ratios overflow


@dataclass(frozen=True)
class Unit:
    """The unit of a figure, and the words for its changes.

    Attributes:
        title: the title of a table in this unit.
        lower_is_better: false for throughputs and AUCs.
        better: the word for a change to the better.
        worse: the word for a change to the worse.
        may_be_zero: whether zero is a possible value, as of memory, so that such a figure is left out and is no error.
    """

    title: str
    lower_is_better: bool = True
    better: str = "faster"
    worse: str = "slower"
    may_be_zero: bool = False

    def verdict(self, low: float, high: float) -> str | None:
        """Return the word for a change of the ratio new / old that lies between `low` and `high`; None where that range holds 1."""
        if low <= 1 <= high:
            return None
        return self.better if (high < 1) == self.lower_is_better else self.worse


# The first pattern that a key matches says the unit of the lists below it.
UNITS = (
    (re.compile(r"(.*_)?(seconds|s)|second_step|calls"), Unit("seconds")),
    (re.compile(r"(.*_)?ms"), Unit("milliseconds")),
    (re.compile(r"(.*_)?throughput"), Unit("throughput", lower_is_better=False)),
    (re.compile(r"(.*_)?(bytes|kib|mib|gib|kb|mb|gb)", re.I), Unit("memory", True, "smaller", "larger", may_be_zero=True)),
    (re.compile(r"(.*_)?auc"), Unit("AUC", False, "better", "worse")),
    (re.compile(r"(.*_)?(log_)?loss"), Unit("loss", True, "better", "worse")),
)
_RATE = re.compile(r"(.*)_per_s(econd)?")
_MEMORY = re.compile(r"bytes|kib|mib|gib|kb|mb|gb", re.I)


@dataclass(frozen=True)
class Figure:
    """The values of a figure.

    Attributes:
        path: the keys that lead to it in the file.
        unit: its unit.
        rounds: a value of each round.
    """

    path: tuple[str, ...]
    unit: Unit
    rounds: tuple[float, ...]

    @property
    def name(self) -> str:
        """The keys that distinguish it from others of its unit."""
        return ", ".join(key for key in self.path if key not in _GENERIC) or self.path[-1]

    def relative_to(self, other: "Figure") -> "Figure":
        """Return its ratio to another figure of the same rounds."""
        return replace(self, rounds=tuple(mine / theirs for mine, theirs in zip(self.rounds, other.rounds, strict=True)))


@dataclass(frozen=True)
class BenchmarkFile:
    """The content of a file.

    Attributes:
        path: the file.
        header: the entries that are no figures: the command, the machine, the options, the commit.
        figures: the figures by their path in the file.
        left_out: a reason for each figure that has no values to compare, by its name.
    """

    path: Path
    header: Mapping[str, Any]
    figures: Mapping[tuple[str, ...], Figure]
    left_out: Mapping[str, str]

    @property
    def benchmark(self) -> str | None:
        """The module of the benchmark, `benchmarks.train_step` for instance; None where the file does not say it."""
        found = re.search(r"benchmarks[./]([\w./]+?)(\.py)?(\s|$)", str(self.header.get("command", "")))
        return f"benchmarks.{found[1].replace('/', '.')}" if found else None

    def mapping(self, name: str) -> Mapping[str, Any]:
        """Return an entry of the header that is an object; empty where there is none."""
        found = self.header.get(name)
        return found if isinstance(found, dict) else {}


def read(path: Path) -> BenchmarkFile:
    """Read a file. Raises UserError where it is missing, is no benchmark's, or holds a value that no measurement gives."""
    try:
        text = path.read_text()
        content = json.loads(text)
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise UserError(f"{path}: {reason}; {EXPECTED}") from None
    except RecursionError:
        raise UserError(f"{path}: its JSON is nested too deeply; {EXPECTED}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not a text; {EXPECTED}") from None
    except ValueError as error:
        if text.startswith("DLLL "):
            raise UserError(f"{path}: the log of a run, not figures of a benchmark; type python -m report {path}, or {EXPECTED}") from None
        raise UserError(f"{path}: not JSON ({error}); {EXPECTED}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: its JSON is {'a list' if isinstance(content, list) else repr(content)[:40]}, not an object; {EXPECTED}")
    figures, left_out = {}, {}
    for keys, unit, values in _lists({key: value for key, value in content.items() if key not in HEADER}, (), None):
        figure = Figure(keys, unit, _rounds(path, ", ".join(keys), values))
        zeros = sum(value == 0 for value in figure.rounds)
        if not figure.rounds or zeros == len(figure.rounds) or (zeros and unit.may_be_zero):
            left_out[figure.name] = "it has no rounds" if not figure.rounds else f"it is 0 in {zeros} of {len(figure.rounds)} rounds"
            continue
        for number, value in enumerate(figure.rounds, start=1):
            _check(path, figure.name, number, value, unit)
        figures[keys] = figure
    if not figures:
        reasons = [f"{name}: {reason}" for name, reason in left_out.items()]
        raise UserError(f"{path}: no figure with a value for each round{f' ({reasons[0]})' if reasons else ''}; {EXPECTED}")
    return BenchmarkFile(path, {key: content[key] for key in HEADER if key in content}, figures, left_out)


def _check(path: Path, name: str, number: int, value: float, unit: Unit) -> None:
    if not _LEAST < value < _MOST:
        raise UserError(f"{path}: {name}: round {number} is {value:g} ({unit.title}); expected a positive number in every round; measure again")


def _lists(value: Any, path: tuple[str, ...], unit: Unit | None) -> Iterator[tuple[tuple[str, ...], Unit, list]]:
    """Yield the path, the unit and the values of each list below a key that says a unit."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _lists(below, (*path, _printable(key)), _unit(key) or unit)
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        if "rounds" in path:  # an object for each round
            for key in dict.fromkeys(key for item in value for key in item):
                if found := _unit(key) or unit:
                    yield (*path, _printable(key)), found, [item.get(key) for item in value]
        else:
            for name, item in zip(_names(value), value, strict=True):
                yield from _lists(item, (*path, name), unit)
    elif isinstance(value, list) and unit:
        yield path, unit, value


def _unit(key: str) -> Unit | None:
    if rate := _RATE.fullmatch(key):
        return Unit(f"{_printable(rate[1])} a second", lower_is_better=False)
    found = next((unit for pattern, unit in UNITS if pattern.fullmatch(key)), None)
    if found and found.title == "memory":
        return replace(found, title=f"memory, {_MEMORY.findall(key)[-1]}")
    return found


def _names(items: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a name of each object of a list: its identifying texts, where these differ, else its place."""
    named = [", ".join(_printable(item[key]) for key in _IDENTIFYING if isinstance(item.get(key), str)) for item in items]
    return named if all(named) and len(set(named)) == len(named) else [str(number) for number in range(1, len(items) + 1)]


def _rounds(path: Path, name: str, values: list) -> tuple[float, ...]:
    return tuple(_value(path, name, number, value) for number, value in enumerate(values, start=1))


def _value(path: Path, name: str, number: int, value: Any) -> float:
    """Return the value of a round: a number, or the median of the numbers of its calls."""
    if isinstance(value, list) and value and not any(isinstance(item, list) for item in value):
        return statistics.median(_value(path, name, number, item) for item in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{path}: {name}: round {number} is {json.dumps(value)[:40]}; {EXPECTED}")
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
