"""Check a tf_raw dataset: its specification, its files and every value in them.

    python -m dataloading.validate --dataset_path /data/criteo

If the dataset is sound, the exit code is 0 and a summary is printed; otherwise the exit code is 1 and each fault is printed on a line.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from dataloading.contract import bytes_per_sample, file_faults, spec_faults, split_files
from dataloading.feature_spec import DEFAULT_FILE_NAME, SPLITS, FeatureSpec, smallest_dtype
from dataloading.features import weights_file
from dataloading.keys import keys_faults
from dataloading.scan import Figures, Progress, scan_group, scan_id_weights, scan_ids, scan_labels, scan_numerical, scan_weights
from utils.commands import run_command
from utils.config.flags import Parser
from utils.errors import UserError

NAME = "dataloading.validate"
_TABLE = "{:<6} {:<20} {:>13} {:>13} {:>13} {:>10} {:>9}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def table_row(split: str, figures: Figures) -> str:
    """Return a feature's line of the table."""
    share = "-" if figures.zero_share is None else f"{100 * figures.zero_share:.2f} %"
    cells = (figures.low, figures.high, figures.distinct, figures.mean)
    return _TABLE.format(split, figures.feature, *map(_number, cells), share)


def whole_samples(path: Path, width: int) -> int | None:
    """Return the number of samples of a file; None if it cannot be read or ends within a sample (`file_faults` reports the fault)."""
    try:
        if not path.is_file():
            return None
        size = path.stat().st_size
        with path.open("rb") as file:
            file.read(1)
    except OSError:
        return None
    return None if size % width else size // width


def scan_split(spec: FeatureSpec, split: str, progress: Progress) -> list[Figures]:
    """Scan every readable file of the split, regardless of faults in the other files."""
    files, widths = split_files(spec, split), bytes_per_sample(spec)
    figures = []
    samples = whole_samples(files.label, widths[spec.label]) if files.label else None
    if samples is not None:
        figures.append(scan_labels(files.label, spec.label, samples, progress))
    if spec.numerical:
        samples = whole_samples(files.numerical, widths[spec.numerical[0]])
        if samples is not None:
            figures += scan_numerical(files.numerical, spec.numerical, spec.numerical_dtype, samples, progress)
    counts = [whole_samples(path, widths[feature.name]) for feature, path in zip(spec.categorical, files.categorical, strict=True)]
    for feature, path, samples in zip(spec.categorical, files.categorical, counts, strict=True):
        if samples is not None:
            figures.append(scan_ids(path, feature, samples, progress))
    for feature, path, count in zip(spec.categorical, files.categorical, counts, strict=True):
        samples = whole_samples(files.id_weights[feature.name], widths[weights_file(feature.name)]) if feature.weights else None
        if samples is not None:
            ids = path if samples == count else None
            figures.append(scan_id_weights(files.id_weights[feature.name], feature, samples, progress, ids))
    if spec.group is not None:
        samples = whole_samples(files.group, widths[spec.group])
        if samples is not None:
            figures.append(scan_group(files.group, spec.group, spec.group_dtype, samples, progress))
    if files.weight is not None:
        samples = whole_samples(files.weight, widths[spec.weight])
        if samples is not None:
            figures.append(scan_weights(files.weight, spec.weight, spec.weight_dtype, samples, progress))
    return figures


def lists_row(split: str, figures: Figures, hotness: int) -> str:
    """Return a line about a feature's lists of ids."""
    length, empty = f"{figures.mean_length:.6g} of {hotness} ids", f"{100 * figures.empty_share:.2f} %"
    return f"{split:<6} {figures.feature}: lists of {length} on average, {empty} of them empty"


def notes(spec: FeatureSpec, splits: Sequence[str]) -> list[str]:
    """Return notes about properties of the dataset that are allowed but worth a line."""
    found = [f"there is no {split} split" for split in ("train", "test") if split not in splits]
    found += [f"split {split} has no labels: it is for prediction only" for split in splits if not spec.labelled(split)]
    for feature in spec.categorical:
        if feature.dtype != smallest_dtype(feature.cardinality):
            found.append(f"feature {feature.name} is {feature.dtype}, {smallest_dtype(feature.cardinality)} would hold its ids")
    return found


def _total_bytes(spec: FeatureSpec, splits: Sequence[str]) -> int:
    paths = (path for split in splits for path in split_files(spec, split).all())
    return sum(path.stat().st_size for path in paths if path.is_file())


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the flags, check the specification, the files and then the rows, and print the findings."""
    parser = Parser(prog=NAME, description="Check a tf_raw dataset: its specification, its files and every value in them.")
    parser.add_argument("--dataset_path", type=Path, required=True, help="folder of the dataset")
    parser.add_argument("--feature_spec", default=DEFAULT_FILE_NAME, help=f"file name of its specification (default: {DEFAULT_FILE_NAME})")
    parser.add_argument("--quick", action="store_true", help="check the specification and the file sizes, read no rows")
    args = parser.parse_strictly(sys.argv[1:] if argv is None else argv)
    started = time.perf_counter()

    if not args.dataset_path.is_dir():
        raise UserError(f"--dataset_path {args.dataset_path} is not a folder; expected one that holds {args.feature_spec}")
    spec = FeatureSpec.from_yaml(args.dataset_path / args.feature_spec)
    # One split is enough for a dataset that is only trained on, or only scored. Without train, test or an unlabelled split, train is missing.
    stored = spec.sources or {}
    splits = (*(split for split in SPLITS if split in stored), *(split for split in stored if split not in SPLITS))
    splits = splits if any(split in ("train", "test") or not spec.labelled(split) for split in splits) else ("train", *splits)
    faults = [f"{spec.path}: {fault}" for fault in spec_faults(spec, splits)]
    samples: dict[str, int] = {}
    if not faults:
        for split in splits:
            found, samples[split] = file_faults(spec, split)
            faults += found or keys_faults(spec, split, samples[split])
        if not args.quick:
            faults += _scan(spec, splits)
        for note in notes(spec, splits):
            print(f"note: {note}")
    for fault in faults:
        print(f"fault: {fault}", file=sys.stderr)
    if faults:
        print(f"{NAME}: {args.dataset_path}: {len(faults)} fault{'s' if len(faults) > 1 else ''}", file=sys.stderr)
        return 1
    counts = ", ".join(f"{split} {count:,} samples" for split, count in samples.items())
    tables = {feature.table_name for feature in spec.categorical}
    extent = "specification and files" if args.quick else "specification, files and all values"
    print(f"sound: {args.dataset_path}: {extent}; {counts}, {len(tables)} tables, {time.perf_counter() - started:.1f} s")
    return 0


def _scan(spec: FeatureSpec, splits: Sequence[str]) -> list[str]:
    faults, lines, lists = [], [], []
    hotness = {feature.name: feature.hotness for feature in spec.categorical}
    terminal = sys.stderr.isatty()
    with tqdm(total=_total_bytes(spec, splits), unit="B", unit_scale=True, desc="scan", disable=not terminal, leave=False) as bar:
        for split in splits:
            for figures in scan_split(spec, split, bar.update):
                lines.append(table_row(split, figures))
                if figures.mean_length is not None:
                    lists.append(lists_row(split, figures, hotness[figures.feature]))
                faults += figures.faults
    print(_TABLE.format("split", "feature", "min", "max", "distinct", "mean", "zero"))
    for line in (*lines, *lists):
        print(line)
    return faults


if __name__ == "__main__":
    sys.exit(run_command(main, NAME))
