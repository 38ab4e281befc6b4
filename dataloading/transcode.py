"""Turn CSV files into a tf_raw dataset, with the flags of NVIDIA's command of this name.

    python -m dataloading.transcode --input /data/small_csv --output /data/small_raw

It is `python -m dataloading.transcribe --src_dataset_type csv`, which says more about its files. A `cardinality: auto` is one more than the greatest
id. The names of the features are kept (NVIDIA's command renames them), and a dataset in --output is refused (NVIDIA's command appends to its files).
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from dataloading import transcribe
from dataloading.contract import CSV
from dataloading.feature_spec import DEFAULT_FILE_NAME
from utils.commands import run_command
from utils.config.flags import Parser
from utils.errors import UserError
from utils.flag_names import spoken
from utils.signals import EndedBySignals

NAME = "dataloading.transcode"
_NAMES = {  # transcribe's flags -> NVIDIA's
    "src_dataset_path": "input",
    "src_feature_spec": "feature_spec_in",
    "dst_dataset_path": "output",
    "dst_feature_spec": "feature_spec_out",
    "src_batch_size": "chunk_size",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the flags and transcribe. Raises UserError as `transcribe.main` does, in the flags of this command."""
    parser = Parser(prog=NAME, description=__doc__)
    add = parser.add_argument
    add(
        "--input",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="folder of the CSV files and of their specification (default: .)",
    )
    add("--feature_spec_in", default=DEFAULT_FILE_NAME, metavar="FILE", help="name of the specification in --input (default: %(default)s)")
    add("--output", type=Path, default=Path("/data"), metavar="FOLDER", help="folder to write, created if missing (default: %(default)s)")
    add("--feature_spec_out", default=DEFAULT_FILE_NAME, metavar="FILE", help="name of the written specification (default: %(default)s)")
    add("--chunk_size", type=int, default=transcribe.DEFAULT_BATCH_SIZE, metavar="N", help="rows read at a time (default: %(default)s)")
    add("--overwrite", action="store_true", help="replace a dataset in --output (default: refuse)")
    args = parser.parse_strictly(sys.argv[1:] if argv is None else argv)
    words = ["--src_dataset_type", CSV]
    for name, own in _NAMES.items():
        words.append(f"--{name}={getattr(args, own)}")
    try:
        return transcribe.main([*words, *(["--overwrite"] if args.overwrite else [])])
    except UserError as error:
        error.args = (spoken(str(error).replace(f" with --src_dataset_type {CSV}", ""), _NAMES),)
        raise


if __name__ == "__main__":
    with EndedBySignals(NAME):
        sys.exit(run_command(main, NAME))
