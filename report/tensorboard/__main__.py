"""Write TensorBoard's files from the logs of runs that were trained without them.

    python -m report.tensorboard dlrm_tf_log.json -o board
    tensorboard --logdir board

`--tensorboard_path` writes the same files while a run goes on.
"""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from report.log.lines import Line, parsed, raw_lines
from report.log.locate import find
from report.log.runs import RunSpan, Stretch
from report.tensorboard.events import event_files
from report.tensorboard.writer import TensorBoard, folder_of
from utils.commands import run_command
from utils.config.flags import Parser
from utils.errors import UserError
from utils.scratch import Scratch
from utils.signals import EndedBySignals

NAME = "report.tensorboard"


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code.

    Raises:
        UserError: a log cannot be read, or the folder cannot be written.
    """
    parser = Parser(prog=f"python -m {NAME}", description="Write TensorBoard's files from the logs of runs.")
    parser.add_argument("logs", nargs="+", metavar="RUN", help="log of one or several runs, or a folder of checkpoints whose manifest names its log")
    parser.add_argument("-o", "--output", required=True, metavar="FOLDER", help="folder for TensorBoard; a second run gets a sub-folder")
    args = parser.parse_strictly(sys.argv[1:] if words is None else words)
    spans = {(span.path.resolve(), span.number): span for log in args.logs for span in find(log)}
    folder = Path(args.output)
    try:
        for span in spans.values():
            print(f"{span.path}: run {span.number} is in {converted(span, folder)}")
    except FileExistsError:
        raise UserError(f"{folder}: exists and is no folder; expected a folder, or a path where none exists yet") from None
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {error.strerror}") from None
    return 0


def converted(span: RunSpan, given: Path) -> Path:
    """Write the event file of a run, and return its folder: the given one, or a sub-folder where it holds another run.

    Raises:
        UserError: the folder holds this run already.
        OSError: the folder cannot be written.
    """
    run = span.identity or _identity(span)
    folder = folder_of(given, run, span.stretches[0].began)
    if any(path.name.endswith(f".{run}") for path in event_files(folder)):
        raise UserError(f"{folder}: holds run {run} already; remove it, or give another folder to -o")
    scratch = Scratch(given, "writing")
    try:
        board = TensorBoard(scratch.folder, run, None, span.stretches[0].began)
        with contextlib.closing(board):
            for stretch in span.stretches:
                board.start(stretch.resumed_step or 0, stretch.began, stretch.form(), stretch.until)
                for line in _lines(span, stretch):
                    board.line(line.name or list(line.numbers), line.data, line.seconds)
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # a run without figures leaves no file
            os.replace(board.path, folder / board.path.name)
    finally:
        scratch.remove()
    return folder


def _lines(span: RunSpan, stretch: Stretch) -> Iterator[Line]:
    for raw in raw_lines(span.path, stretch.start, stretch.end):
        if line := parsed(raw.text):
            yield line


def _identity(span: RunSpan) -> str:
    """Return an id for a run of an older log, which names none: equal when the log is read again."""
    first = span.stretches[0]
    return hashlib.sha256(json.dumps([span.number, first.began, dict(first.parameters)], sort_keys=True).encode()).hexdigest()[:16]


if __name__ == "__main__":
    with EndedBySignals(NAME):
        sys.exit(run_command(main, NAME))
