"""Make a report of one or several runs: an HTML file that opens in any browser and requests nothing.

python -m report dlrm_tf_log.json -o report.html
python -m report CHECKPOINTS -o report.html --predictions predictions.parquet --dataset_path DATASET --by FEATURE
python -m report first.json second.json -o report.html
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from report.log.locate import find
from report.log.record import Record, read_record
from report.log.runs import RunSpan
from report.log.thinning import POINTS
from report.page.row_sections import Rows
from report.page.several import report_several
from report.page.single import report_one
from utils.config.flags import Parser
from utils.errors import UserError

NAME = "report"
MOST_RUNS = 20
_ONE_RUN, _EACH_RUN = 1_400_000, 390_000  # bytes of a page about one run, and for each of several
_FEWEST = 60  # points of a curve


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the flags, read the logs, write the page."""
    parser = Parser(prog="python -m report", description=__doc__)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="a log (dlrm_tf_log.json), or a folder of checkpoints, whose run's log is taken")
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"), help="the HTML file to write (default: report.html)")
    parser.add_argument(
        "--predictions", action="append", default=[], metavar="FILE", help="what --mode predict wrote; with several runs once for each"
    )
    parser.add_argument("--dataset_path", default="", metavar="DIR", help="the tf_raw dataset, for the section about the data")
    parser.add_argument("--by", action="append", default=[], metavar="FEATURE", help="a feature to show metrics by; may be given again")
    other = parser.add_argument_group("comparison of two JSON files of benchmarks; see python -m report --compare --help")
    other.add_argument("--compare", nargs=2, metavar=("OLD", "NEW"), help="the files")
    other.add_argument("--relative_to", metavar="CONTENDER", help="divide every figure by this contender's")
    other.add_argument("--json", metavar="FILE", help="also write the differences to a JSON file")
    args = parser.parse_strictly(sys.argv[1:] if argv is None else argv)
    for flag in ("relative_to", "json"):
        if getattr(args, flag) is not None:
            raise UserError(f"--{flag} belongs to --compare OLD NEW, a comparison of benchmarks; a report of runs has no such flag")
    if not args.runs:
        raise UserError(
            "no run is given; expected a log (dlrm_tf_log.json) or a folder of checkpoints: python -m report dlrm_tf_log.json -o report.html"
        )
    _check_output(args.output, args.runs)
    spans = _distinct(args.runs)
    rows = Rows(args.predictions, args.dataset_path, args.by)
    records = joined_records([read_record(span, name) for span, name in zip(spans, _names(spans), strict=True)])
    _check_rows(rows, len(records))
    text = _fitting(records, rows)
    _write(args.output, text)
    what = "a run" if len(records) == 1 else f"{len(records)} runs"
    print(f"report of {what}: {args.output} ({len(text.encode()) / 1e6:.2f} MB); open it in a browser")
    return 0


def _fitting(records: list[Record], rows: Rows) -> str:
    """Return the page, with fewer points where it would be too large."""
    limit, most = (_ONE_RUN if len(records) == 1 else _EACH_RUN * len(records)), POINTS
    while True:
        text = report_one(records[0], rows, most) if len(records) == 1 else report_several(records, rows, most)
        if len(text.encode()) <= limit or most <= _FEWEST:
            return text
        most //= 2


def _distinct(arguments: Sequence[str]) -> list[RunSpan]:
    """Return the runs that the arguments name, each once, by time inside a file; of very many the last ones."""
    found: dict[tuple, RunSpan] = {}
    for argument in arguments:
        for span in find(argument):
            found.setdefault((span.path.resolve(), span.number), span)
    spans = list(found.values())
    if len(spans) > MOST_RUNS:
        print(f"{NAME}: warning: {len(spans)} runs were found, the last {MOST_RUNS} are shown", file=sys.stderr)
    return spans[-MOST_RUNS:]


def _names(spans: Sequence[RunSpan]) -> list[str]:
    """Return a short name for each run, all different: the end of its file's path, and its number where the file has several."""
    parts = [span.path.resolve().parts for span in spans]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]).replace("//", "/") for part in parts]
        if depth > 1 and len(set(names)) == len({span.path.resolve() for span in spans}):
            break
    several = {name for name in names if names.count(name) > 1}
    return [f"{name} #{span.number}" if name in several else name for name, span in zip(names, spans, strict=True)]


def joined_records(records: Sequence[Record]) -> list[Record]:
    """Join the logs of evaluations and importances of a run to the run's own record, where it is among the runs."""
    trained = {record.span.identity: record for record in records if record.mode == "train" and record.span.identity}
    kept = []
    for record in records:
        owner = trained.get(str(record.about.get("restored_run") or record.span.identity))
        if owner is None or record is owner or record.mode not in ("eval", "explain"):
            kept.append(record)
            continue
        owner.importance = record.importance or owner.importance
        for split, summary in record.summaries.items():
            owner.summaries.setdefault(split, summary)
    return kept


def _check_rows(rows: Rows, runs: int) -> None:
    if rows.predictions and len(rows.predictions) != runs:
        raise UserError(f"--predictions is given {len(rows.predictions)} times for {runs} runs; expected one file for each run, in their order")
    if rows.by and not (rows.predictions and rows.dataset):
        raise UserError(f"--by {rows.by[0]} needs --predictions and --dataset_path: the scores of rows, and their features")


def _check_output(path: Path, arguments: Sequence[str]) -> None:
    if path.is_dir():
        raise UserError(f"--output {path} is a folder; expected an HTML file")
    if not path.absolute().parent.is_dir():
        raise UserError(f"--output {path}: the folder {path.absolute().parent} does not exist; make it first")
    for argument in arguments:
        if Path(argument).exists() and path.exists() and os.path.samefile(argument, path):
            raise UserError(f"--output {path} is one of the runs' logs, and would be replaced; name another file")


def _write(path: Path, text: str) -> None:
    """Write the page; a reader never sees half of it."""
    target = path.resolve()
    try:
        if path.exists() and not path.is_file():  # a pipe, or /dev/stdout
            path.write_text(text, encoding="utf-8")
            return
        with tempfile.NamedTemporaryFile(
            "w", dir=target.parent, prefix=f".{target.name}.", suffix=".writing", delete=False, encoding="utf-8"
        ) as file:
            try:
                file.write(text)
                file.close()
                os.chmod(file.name, 0o666 & ~_umask())
                os.replace(file.name, target)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise UserError(f"--output {path}: {error.strerror}") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
