"""Generated click logs in Criteo's format, to try preprocessing and training without real logs.

    python -m preproc.sample_log --dst LOGS --rows 60000 20000

writes LOGS/day_0.tsv and LOGS/day_1.tsv, 40 fields a line. All days follow the same planted relation (docs/data.md), so a model trained on the first
predicts the clicks of the second. Each field but the label is missing in 3 of 100 lines.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from dataloading.feature_spec import generator_spec
from dataloading.synthetic.split import SyntheticSplit
from preproc.criteo.clicklog import CATEGORICAL, FIELDS, LABEL, NUMERICAL
from utils.commands import run_command
from utils.config.flags import Parser
from utils.errors import UserError
from utils.naming import naming
from utils.signals import EndedBySignals

NAME = "preproc.sample_log"
CARDINALITIES = (20000, 500, 300, 1000, 3000, 4, 1200, 90, 60, 9000, 2500, 1800, 11, 400, 900, 80, 4, 150, 15, 9000, 5000, 8000, 1400, 700, 95, 35)
MISSING = 0.03  # share of missing values in each field but the label
_ALPHA, _ROWS_AT_ONCE = 1.2, 1 << 16
_ODD = 2654435761  # multiplication by an odd number, modulo 2^32, maps distinct ids to distinct values


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the flags, write the logs and print their sizes. Raises UserError where a flag is invalid or a file exists."""
    parser = Parser(prog=f"python -m {NAME}", description=__doc__)
    parser.add_argument("--dst", type=Path, required=True, metavar="FOLDER", help="folder for day_0.tsv, day_1.tsv, …; created if missing")
    parser.add_argument("--rows", type=int, nargs="+", default=[60000, 20000], metavar="N", help="number of rows of each day (default: 60000 20000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random numbers (default: 0)")
    flags = parser.parse_strictly(sys.argv[1:] if argv is None else argv)
    if min(flags.rows) < 1:
        raise UserError(f"--rows {min(flags.rows)}: expected at least 1 row a day")
    if flags.seed < 0:
        raise UserError(f"--seed {flags.seed}: expected 0 or more")
    flags.dst.mkdir(parents=True, exist_ok=True)
    for day, rows in enumerate(flags.rows):
        path = flags.dst / f"day_{day}.tsv"
        if path.exists():
            raise UserError(f"{path}: already exists; choose another --dst")
        partial = path.with_name(f".{path.name}.writing")
        try:
            with naming(path), partial.open("wb") as file:
                clicks = sum(_write(file, day, start, min(start + _ROWS_AT_ONCE, rows), flags.seed) for start in range(0, rows, _ROWS_AT_ONCE))
            partial.rename(path)
        finally:
            partial.unlink(missing_ok=True)
        print(f"{path}: {rows:,} rows, click rate {clicks / rows:.4f}")
    return 0


def _write(file, day: int, start: int, stop: int, seed: int) -> int:
    """Append rows to a log; return the number of clicks among them."""
    split = SyntheticSplit(generator_spec(CARDINALITIES, len(NUMERICAL), _ALPHA), f"day_{day}", stop, seed)
    numerical, ids, labels, _ = split.read_rows(start, stop)
    missing = np.random.default_rng((seed, day, start)).random((len(FIELDS), stop - start)) < MISSING
    counts = np.rint(3 * np.exp(4 * numerical.astype(np.float64)) - 3).astype(np.int64)  # preprocessing takes log(x + 3), which is uniform again
    columns = {LABEL: labels}
    columns |= dict(zip(NUMERICAL, counts.T, strict=True))
    columns |= {name: (column.astype(np.uint64) * _ODD + place) % 2**32 for place, (name, column) in enumerate(zip(CATEGORICAL, ids, strict=True))}
    frame = pl.DataFrame(columns).with_columns(pl.col(name).map_elements("{:08x}".format, pl.String) for name in CATEGORICAL)
    hidden = pl.DataFrame(dict(zip(FIELDS, missing, strict=True)))
    frame = frame.with_columns(pl.when(hidden[name]).then(None).otherwise(pl.col(name)).alias(name) for name in (*NUMERICAL, *CATEGORICAL))
    file.write(frame.write_csv(separator="\t", include_header=False).encode())
    return int(labels.sum())


if __name__ == "__main__":
    with EndedBySignals(NAME):
        sys.exit(run_command(main, NAME))
