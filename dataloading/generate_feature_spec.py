"""Write the feature specification of synthetic data.

    python -m dataloading.generate_feature_spec --variant criteo_t15_synthetic --dst feature_spec.yaml

    # several ids per sample, with the hotness of MLPerf's DLRM v2
    python -m dataloading.generate_feature_spec --variant criteo_t15_synthetic --hotness 3,2,1,2,6,1,1,1,1,7,3,8,1,6,9,5,1,1,1,12,100,27,10,3,1,1

    # the same with weights of the ids of three features, or of all
    python -m dataloading.generate_feature_spec --variant small_synthetic --hotness 4 --id_weights cat_0,cat_9,cat_20
    python -m dataloading.generate_feature_spec --variant small_synthetic --hotness 4 --id_weights all

The Criteo variants have the table sizes of the Criteo 1TB click logs after ids seen fewer than 15, 3 or 0 times are
merged. `python -m dataloading.transcribe --src_dataset_type synthetic` draws the data.
"""

import os
import sys
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from dataloading.feature_spec import DEFAULT_FILE_NAME, FeatureSpec, FeatureSpecError, generator_spec
from utils.commands import run_command
from utils.config.flags import Parser
from utils.config.per_feature import MAX_HOTNESS
from utils.errors import UserError
from utils.naming import naming

NUM_NUMERICAL = 13
ALL = "all"  # value of --id_weights
ALPHA = 1.45  # exponent of the ids' power law, as in NVIDIA's generator for Criteo

_T15 = """7912889 33823 17139 7339 20046 4 7105 1382 63 5554114 582469 245828 11 2209 10667 104 4 968 15
    8165896 2675940 7156453 302516 12022 97 35"""
_T3 = """45833188 36747 1572176 345139 11 2209 11268 128 4 975 15 48937457 17246 11316796 40094537 452104 12607 105
    36 7414 20244 4 7115 1442 63 29275261"""
_T0 = """227605432 39061 3067956 405283 11 2209 11939 155 4 977 15 292775614 17296 40790948 187188510 590152 12974 109
    37 7425 20266 4 7123 1544 64 130229467"""
_SMALL_TABLE = 10_000  # rows of the largest small_synthetic table: all tables together hold 149,336 rows, 76 MB at width 128

VARIANTS: dict[str, tuple[int, ...]] = {
    "criteo_t15_synthetic": tuple(map(int, _T15.split())),
    "criteo_t3_synthetic": tuple(map(int, _T3.split())),
    "criteo_t0_synthetic": tuple(map(int, _T0.split())),
    "small_synthetic": tuple(min(int(rows), _SMALL_TABLE) for rows in _T15.split()),
}


def variant_spec(variant: str, hotness: Sequence[int] = (1,), id_weights: Collection[str] = ()) -> FeatureSpec:
    """Return the generator specification of a variant.

    Args:
        variant: one of VARIANTS.
        hotness: ids per sample, one number for each feature or one for all.
        id_weights: names of the features whose ids have weights; `all` for all features.

    Raises:
        FeatureSpecError: the hotness does not fit the features.
        UserError: there is no feature of a name in `id_weights`.
    """
    spec = generator_spec(VARIANTS[variant], NUM_NUMERICAL, ALPHA, hotness=hotness)
    names = [feature.name for feature in spec.categorical]
    for name in id_weights:
        if name not in names and tuple(id_weights) != (ALL,):
            raise UserError(f"--id_weights: there is no feature {name[:80]!r}; expected {ALL}, or names from {names[0]} to {names[-1]}")
    weighted = {*(names if tuple(id_weights) == (ALL,) else id_weights)}
    return replace(spec, categorical=tuple(replace(feature, weights=feature.name in weighted) for feature in spec.categorical))


def hotness_of(text: str) -> tuple[int, ...]:
    """Parse the value of --hotness, numbers separated by commas. Raises UserError."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and 1 <= int(word[:9]) <= MAX_HOTNESS for word in words):
        raise UserError(f"--hotness {text[:80]}: expected one number from 1 to {MAX_HOTNESS}, or one for each feature, separated by commas")
    return tuple(map(int, words))


def write_spec(spec: FeatureSpec, path: Path) -> None:
    """Write a specification atomically: `path` holds the old or the new file, never a partial one.

    Raises:
        UserError: the path is a folder, or its parent folder cannot be created.
    """
    if path.is_dir():
        raise UserError(f"--dst {path} is a folder; expected a file name, {path / DEFAULT_FILE_NAME} for instance")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--dst {path}: folder {path.parent} cannot be created: {error.strerror}") from None
    descriptor, partial = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with naming(path), os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(spec.to_yaml())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(partial, 0o666 & ~mask)  # mkstemp's 0600 would hide the file from other users of the data
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the flags, write the specification, and print a summary."""
    parser = Parser(prog="dataloading.generate_feature_spec", description="Write the feature specification of synthetic data.")
    variant, place = "criteo_t15_synthetic", Path(DEFAULT_FILE_NAME)
    parser.add_argument("--variant", choices=sorted(VARIANTS), default=variant, help=f"table sizes to write (default: {variant})")
    about = "file to write; a missing folder is created, an existing file is replaced"
    parser.add_argument("--dst", type=Path, default=place, help=f"{about} (default: {place})")
    about = "ids per sample: one number for all features, or one for each, separated by commas"
    parser.add_argument("--hotness", metavar="N,N,…", default="1", help=f"{about} (default: 1)")
    about = f"features whose ids have weights: names separated by commas, cat_0,cat_5 for instance, or {ALL}"
    parser.add_argument("--id_weights", metavar="A,B,…", help=f"{about} (default: none)")
    args = parser.parse_strictly(sys.argv[1:] if argv is None else argv)
    try:
        weighted = () if args.id_weights is None else [name.strip() for name in args.id_weights.split(",")]
        spec = variant_spec(args.variant, hotness_of(args.hotness), weighted)
    except FeatureSpecError as error:
        raise UserError(f"--hotness {args.hotness[:80]}: {error}") from None
    write_spec(spec, args.dst)
    print(f"wrote {args.dst}: {args.variant}, {len(spec.categorical)} tables, {sum(spec.cardinalities):,} rows, {NUM_NUMERICAL} numerical features")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, "dataloading.generate_feature_spec"))
