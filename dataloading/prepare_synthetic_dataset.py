"""Write a synthetic tf_raw dataset, with the flags of NVIDIA's commands of this name.

    python -m dataloading.prepare_synthetic_dataset --synthetic_dataset_dir /tmp/dlrm_synthetic_data --synthetic_dataset_num_entries 1048576 \\
        --synthetic_dataset_table_sizes 1000,1000,100 --num_numerical_features 13

    # the features of a specification
    python -m dataloading.prepare_synthetic_dataset --feature_spec feature_spec.yaml --synthetic_dataset_num_entries 1048576

The splits train and test have --synthetic_dataset_num_entries // --synthetic_dataset_batch_size whole batches each. With --batch_size or
--test_batch_size, flags of NVIDIA's DLRM for PyTorch of 2020, the number of batches is rounded up. Ids are uniform, or follow the `alpha` of a
feature in the specification; labels follow a planted relation to the features. The dataset appears complete or not at all.
"""

import argparse
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dataloading.feature_spec import FeatureSpec, FeatureSpecError, generator_spec
from dataloading.synthetic.dataset import SyntheticDataset, write_dataset
from utils.commands import run_command
from utils.config.flags import Parser
from utils.errors import UserError
from utils.signals import EndedBySignals

NAME = "dataloading.prepare_synthetic_dataset"
NUM_ENTRIES, BATCH_SIZE, TABLE_SIZES, NUM_NUMERICAL, SEED = 33554432, 32768, (100_000,) * 26, 13, 12345
_MAX_ROWS = 2**40
# Flags of the training program of 2020, all of which its prepare_synthetic_dataset takes as well.
_OF_TRAINING = (
    *("mode", "lr", "epochs", "max_steps", "warmup_factor", "warmup_steps", "decay_steps", "decay_start_step", "decay_power", "decay_end_lr"),
    *("embedding_type", "embedding_dim", "top_mlp_sizes", "bottom_mlp_sizes", "interaction_op", "dataset", "dataset_type", "dataset_subset"),
    *("shuffle_batch_order", "shuffle", "max_table_size", "hash_indices", "load_checkpoint_path", "save_checkpoint_path", "output_dir", "log_path"),
    *("test_freq", "test_after", "print_freq", "benchmark_warmup_steps", "base_device", "amp", "fp16", "loss_scale", "self_interaction"),
    *("inference_benchmark_batch_sizes", "inference_benchmark_steps", "auc_threshold", "optimized_mlp", "backend", "bottom_features_ordered"),
)


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line, in the form of argparse or absl (`-flag`, `--noflag`); flags that were not given are None. Raises UserError."""
    parser = Parser(prog=NAME, description=__doc__)
    add = parser.add_argument
    add("--synthetic_dataset_num_entries", type=int, metavar="N", help=f"rows of each split (default: {NUM_ENTRIES})")
    add("--synthetic_dataset_batch_size", type=int, metavar="N", help=f"rows of a batch; further rows are left out (default: {BATCH_SIZE})")
    add("--batch_size", type=int, metavar="N", help=f"rows of a training batch, filled up (default: {BATCH_SIZE})")
    add("--test_batch_size", type=int, metavar="N", help=f"rows of a test batch, filled up (default: {BATCH_SIZE})")
    add("--num_numerical_features", type=int, metavar="N", help=f"numerical features (default: {NUM_NUMERICAL})")
    add("--synthetic_dataset_table_sizes", metavar="N,N,…", help="rows of each table (default: 26 tables of 100000 rows)")
    add("--feature_spec", type=Path, metavar="FILE", help="specification of the features, in place of the two flags before")
    place = Path("/tmp/dlrm_synthetic_data")
    add("--synthetic_dataset_dir", type=Path, default=place, metavar="FOLDER", help="folder to write, created if missing (default: %(default)s)")
    add("--seed", type=int, default=SEED, help="seed of all random numbers (default: %(default)s)")
    add("--overwrite", action="store_true", help="replace a dataset in the folder (default: refuse)")
    others = parser.add_argument_group("Accepted for NVIDIA's commands, without effect: flags of training", ", ".join(_OF_TRAINING))
    for name in _OF_TRAINING:
        others.add_argument(f"--{name}", nargs="?", const="true", metavar="VALUE", help=argparse.SUPPRESS)
        others.add_argument(f"--no{name}", dest=name, action="store_const", const="false", help=argparse.SUPPRESS)
    return parser.parse_strictly([f"-{word}" if re.match("-[a-zA-Z]{2}", word) else word for word in argv])


def _table_sizes(text: str | None) -> tuple[int, ...]:
    if text is None:
        return TABLE_SIZES
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and 1 <= int(word[:12]) < 2**31 - 1 for word in words):
        raise UserError(f"--synthetic_dataset_table_sizes {text[:80]}: expected numbers from 1 to {2**31 - 2}, separated by commas")
    return tuple(map(int, words))


def _spec(args: argparse.Namespace) -> FeatureSpec:
    """Return the features. Raises UserError."""
    if args.feature_spec is not None:
        return replace(FeatureSpec.from_yaml(args.feature_spec, "--feature_spec"), sources=None)
    count = NUM_NUMERICAL if args.num_numerical_features is None else args.num_numerical_features
    if not 0 <= count <= 100_000:
        raise UserError(f"--num_numerical_features {count}: expected 0 to 100000")
    return generator_spec(_table_sizes(args.synthetic_dataset_table_sizes), count, alpha=0.0)


def _rows(args: argparse.Namespace, fill_up: bool) -> dict[str, int]:
    """Return the rows of each split. Raises UserError."""
    entries = NUM_ENTRIES if args.synthetic_dataset_num_entries is None else args.synthetic_dataset_num_entries
    of_training = next((name for name in ("batch_size", "test_batch_size") if getattr(args, name) is not None), None)
    if of_training and args.synthetic_dataset_batch_size is not None:
        raise UserError(f"--{of_training} and --synthetic_dataset_batch_size both set the rows of a batch; drop one of them")
    rows, fill_up = {}, fill_up or of_training is not None
    for split, name in (("train", "batch_size"), ("test", "test_batch_size")):
        flag = name if getattr(args, name) is not None else "synthetic_dataset_batch_size"
        size = BATCH_SIZE if getattr(args, flag) is None else getattr(args, flag)
        if not 1 <= size <= _MAX_ROWS:
            raise UserError(f"--{flag} {size}: expected 1 to {_MAX_ROWS} rows")
        if not 1 <= entries <= _MAX_ROWS:
            raise UserError(f"--synthetic_dataset_num_entries {entries}: expected 1 to {_MAX_ROWS} rows")
        rows[split] = (-(-entries // size) if fill_up else entries // size) * size
    if not rows["train"]:
        raise UserError(f"--synthetic_dataset_num_entries {entries}: expected at least one batch, --synthetic_dataset_batch_size {size} rows")
    return rows


def _warn(args: argparse.Namespace) -> None:
    """Print a warning for flags without effect."""
    given = [f"--{name}" for name in _OF_TRAINING if getattr(args, name) is not None]
    if given:
        print(f"{NAME}: warning: {', '.join(given)}: no effect on the data; flags of training", file=sys.stderr)
    for name in ("num_numerical_features", "synthetic_dataset_table_sizes") if args.feature_spec else ():
        if getattr(args, name) is not None:
            print(f"{NAME}: warning: --{name} has no effect with --feature_spec", file=sys.stderr)


def main(argv: Sequence[str] | None = None, fill_up: bool = False) -> int:
    """Parse the flags, write the dataset, and print a summary.

    Args:
        argv: the words of the command line.
        fill_up: round the number of batches up, as NVIDIA's DLRM for PyTorch does without --batch_size, too.

    Raises:
        UserError: a flag or the specification is invalid, or the folder is in use.
    """
    args = parse_arguments(sys.argv[1:] if argv is None else argv)
    if args.seed < 0:
        raise UserError(f"--seed {args.seed}: expected 0 or more")
    _warn(args)
    dataset = SyntheticDataset(_spec(args), _rows(args, fill_up), args.seed)
    started = time.perf_counter()
    try:
        write_dataset(args.synthetic_dataset_dir, dataset, args.overwrite)
    except FeatureSpecError as error:
        raise FeatureSpecError(f"{args.feature_spec or '--synthetic_dataset_table_sizes'}: {error}") from None
    seconds, shares = time.perf_counter() - started, ", ".join(f"{split} {count:,} rows" for split, count in dataset.rows.items())
    size = f"{dataset.bytes / 1e6:,.1f} MB in {seconds:.1f} s"
    print(f"wrote {args.synthetic_dataset_dir}: {shares}, {len(dataset.spec.categorical)} tables, {size}; train with --dataset_type tf_raw")
    return 0


if __name__ == "__main__":
    with EndedBySignals(NAME):
        sys.exit(run_command(main, NAME))
