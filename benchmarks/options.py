"""Command lines of the benchmarks: flags from dataclasses as in `utils.config`, with `--quick` and `--json` for all."""

import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.report import Report
from utils.commands import run_command
from utils.config.flags import Parser, add_flags
from utils.config.option import build, option
from utils.errors import UserError


@dataclass(frozen=True)
class Options:
    """The options of every benchmark. With `--quick`, `QUICK` replaces the defaults; flags on the command line override both."""

    QUICK: ClassVar[dict[str, Any]] = {"num_rounds": 1}

    num_rounds: int = option(5, "number of rounds; each measures all contenders in turn, and medians over rounds are shown", unit="rounds")
    json: str | None = option(None, "file for all figures, as JSON")
    quick: bool = option(False, "run in seconds with tiny sizes, as a test; the figures are meaningless")

    @classmethod
    def check_given(cls, given: Mapping[str, Any]) -> None:
        """Raise UserError where given flags, by name, cannot be combined."""

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
                raise ValueError(f"--{field.name} {value}: expected a positive number")


def parse(kind: type[Options], description: str, arguments: list[str]) -> Any:
    """Parse a command line into options. Raises UserError where it is invalid."""
    parser = Parser(prog=_name(), description=description)
    add_flags(parser, [kind])
    given = vars(parser.parse_strictly(arguments))
    kind.check_given(given)
    quick = {**Options.QUICK, **kind.QUICK} if given.get("quick") else {}
    options = build(kind, quick | given)
    if options.json and not Path(options.json).absolute().parent.is_dir():
        raise UserError(f"--json {options.json}: its folder does not exist")
    return options


def run(kind: type[Options], main: Callable[[Any, Report], None], description: str) -> int:
    """Parse the command line, run a benchmark, write its figures, and return the exit code."""

    # raises SystemExit, so that child processes and temporary files are cleaned up
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))

    def command() -> None:
        options = parse(kind, description, sys.argv[1:])
        report = Report(options)
        main(options, report)
        report.write(options.json)

    return run_command(command, _name())


def _name() -> str:
    path = Path(sys.argv[0])
    return f"python -m benchmarks.{path.parent.name if path.stem == '__main__' else path.stem}"
