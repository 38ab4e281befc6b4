"""Write the CSV files that a feature specification names, with drawn values: an example of such files, or input for a trial of `transcode`.

    python -m dataloading.gen_csv --feature_spec_in feature_spec.yaml --output /data/small_csv --size 1000

Every chunk of `source_spec` must be of type csv. The files have no header; their columns are in the order of their chunk. Ids are uniform, and labels
are 0 or 1, drawn from a planted relation to the features, so that a model can learn something (NVIDIA's command of this name writes labels of 0
only). No file appears before all are written.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from tqdm import tqdm

from dataloading.blocks import RowBlock, drawn_blocks
from dataloading.contract import CSV
from dataloading.csv_files.columns import list_cells
from dataloading.csv_files.source import csv_chunks
from dataloading.csv_files.spec import AUTO, unwritten_csv_spec
from dataloading.feature_spec import DEFAULT_FILE_NAME, FeatureSpec
from dataloading.features import DatasetError
from dataloading.id_weights import ids_and_weights
from dataloading.synthetic.split import SyntheticSplit
from utils.commands import run_command
from utils.config.flags import Parser
from utils.errors import UserError
from utils.naming import naming
from utils.scratch import Scratch, exclusively
from utils.signals import EndedBySignals, uninterrupted

NAME = "dataloading.gen_csv"
AUTO_ROWS = 100  # ids of a feature whose cardinality the files shall tell
_BLOCK_ROWS = 1 << 16
_MAX_ROWS = 1_000_000_000


class _File(NamedTuple):
    """A file: its path in --output, its columns, and its rows of the split, start to stop."""

    path: str
    features: tuple[str, ...]
    start: int
    stop: int


def _files(spec: FeatureSpec, split: str, size: int) -> list[_File]:
    """Return the files of a split; the files of a chunk share its rows evenly, in order. Raises DatasetError."""
    where = f"{spec.path}: source_spec.{split}"
    for i, chunk in enumerate(spec.sources[split]):
        if chunk.type != CSV:
            raise DatasetError(
                f"{where}[{i}]: type is {chunk.type}, expected {CSV}; python -m dataloading.prepare_synthetic_dataset --feature_spec {spec.path} "
                "draws binary files"
            )
    found = []
    for chunk in csv_chunks(spec, split):
        bounds = [size * i // len(chunk.files) for i in range(len(chunk.files) + 1)]
        if min(np.diff(bounds)) < 1:
            raise DatasetError(f"{where}: --size {size} rows are fewer than the {len(chunk.files)} files of the chunk of {chunk.features[0]}")
        found += [_File(path, chunk.features, *rows) for path, *rows in zip(chunk.files, bounds, bounds[1:], strict=False)]
    return found


def _columns(spec: FeatureSpec, block: RowBlock) -> dict[str, Any]:
    """Return the columns of a block by feature, as they are written."""
    columns: dict[str, Any] = {name: block.numerical[:, i].astype(np.float32) for i, name in enumerate(spec.numerical)}
    for feature, ids in zip(spec.categorical, block.ids, strict=True):
        columns[feature.name] = list_cells(*ids_and_weights(ids)) if feature.weights else list_cells(ids) if feature.is_list else ids
    beside = {spec.group: block.groups, spec.weight: block.weights}
    return columns | {spec.label: block.labels} | {name: beside[name] for name in spec.beside()}


def _write(folder: Path, spec: FeatureSpec, split: str, files: Sequence[_File], rows: tuple[int, int]) -> None:
    """Draw the rows of a split and write its files; `rows` is their number and the seed."""
    size, seed = rows
    with ExitStack() as opened, tqdm(total=size, unit=" rows", unit_scale=True, desc=split, disable=not sys.stderr.isatty()) as bar:
        targets = []
        for file in files:
            path = folder / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            targets.append(opened.enter_context(path.open("wb")))
        start = 0
        for block in drawn_blocks(SyntheticSplit(spec, split, size, seed), _BLOCK_ROWS):
            columns, count = _columns(spec, block), len(block.numerical)
            for file, target in zip(files, targets, strict=True):
                first, last = max(file.start - start, 0), min(file.stop - start, count)
                if first < last:
                    frame = pl.DataFrame({name: columns[name][first:last] for name in file.features})
                    with naming(folder / file.path):
                        target.write(frame.write_csv(include_header=False).encode())
            start += count
            bar.update(count)
        for file, target in zip(files, targets, strict=True):
            with naming(folder / file.path):
                target.close()


def _refuse(destination: Path, paths: Sequence[str], overwrite: bool) -> None:
    for path in paths:
        if (destination / path).is_dir():
            raise UserError(f"{destination / path} is a folder; expected to write a file there")
        if (destination / path).exists() and not overwrite:
            raise UserError(f"{destination / path} exists already; choose another --output, or pass --overwrite")


def _checked(args: argparse.Namespace) -> tuple[FeatureSpec, dict[str, list[_File]]]:
    """Return the specification and the files of each split. Raises UserError."""
    if not 1 <= args.size <= _MAX_ROWS:
        raise UserError(f"--size {args.size}: expected 1 to {_MAX_ROWS:,} rows")
    if args.seed < 0:
        raise UserError(f"--seed {args.seed}: expected 0 or more")
    spec, unknown = unwritten_csv_spec(args.feature_spec_in, "--feature_spec_in", AUTO_ROWS)
    if not spec.sources:
        raise DatasetError(f"{spec.path}: source_spec is empty; expected chunks of type {CSV}, which name the files to write")
    if unknown:
        print(f"{NAME}: cardinality {AUTO}: ids of {', '.join(unknown)} are drawn below {AUTO_ROWS}", file=sys.stderr)
    files = {split: _files(spec, split, args.size) for split in spec.sources}
    paths = [os.path.normpath(file.path) for listed in files.values() for file in listed]
    if twice := next((path for i, path in enumerate(paths) if path in paths[:i]), None):
        raise DatasetError(f"{spec.path}: source_spec names the file {twice} twice; expected a file for each chunk of each split")
    _refuse(args.output, paths, args.overwrite)
    return spec, files


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the flags, draw the files, and print a summary. Raises UserError; no partial files are left."""
    parser = Parser(prog=NAME, description=__doc__)
    add = parser.add_argument
    add("--feature_spec_in", type=Path, default=Path(DEFAULT_FILE_NAME), metavar="FILE", help="the specification (default: %(default)s)")
    add("--output", type=Path, default=Path("/data"), metavar="FOLDER", help="folder of the files, created if missing (default: %(default)s)")
    add("--size", type=int, default=1000, metavar="N", help="rows of each split (default: %(default)s)")
    add("--seed", type=int, default=0, help="seed of all random numbers (default: %(default)s)")
    add("--overwrite", action="store_true", help="replace files in --output (default: refuse)")
    args = parser.parse_strictly(sys.argv[1:] if argv is None else argv)
    spec, files = _checked(args)
    paths = [file.path for listed in files.values() for file in listed]
    scratch = Scratch(args.output, "writing")
    try:
        for split, listed in files.items():
            _write(scratch.folder, spec, split, listed, (args.size, args.seed))
        with uninterrupted(), exclusively(args.output):
            _refuse(args.output, paths, args.overwrite)  # again: another run may have written there meanwhile
            for path in paths:
                (args.output / path).parent.mkdir(parents=True, exist_ok=True)
                (scratch.folder / path).replace(args.output / path)
    finally:
        scratch.remove()
    print(f"wrote {args.output}: {len(paths)} CSV files, {', '.join(f'{split} {args.size:,} rows' for split in files)}")
    beside = args.output / args.feature_spec_in.name
    with contextlib.suppress(OSError):
        if not beside.exists():
            print(f"copy {args.feature_spec_in} to {beside}, where python -m dataloading.transcode --input {args.output} expects it")
    return 0


if __name__ == "__main__":
    with EndedBySignals(NAME):
        sys.exit(run_command(main, NAME))
