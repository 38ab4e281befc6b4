"""Put a tf_raw dataset to a folder of an object store; it looks like a dataset there when it is whole.

    python -m dataloading.put DATASET s3://bucket/DATASET

`dataloading.fetch` brings it back. What a URL may be is fsspec's to say (s3://, gs://, abfs://, hdfs://, …).
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from dataloading.store.dataset import check_store, checked_spec, local_files, put_dataset
from dataloading.store.object_store import StoreFolder
from utils.commands import run_command
from utils.config.flags import Parser
from utils.errors import UserError
from utils.signals import EndedBySignals
from utils.urls import is_url

NAME = "dataloading.put"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code.

    Raises:
        UserError: the dataset is missing or damaged, the store already holds one, or the store refuses. Uploaded files are then removed, unless
            --resume is given.
    """
    parser = Parser(prog=f"python -m {NAME}", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DATASET", help="folder of the dataset")
    parser.add_argument("url", metavar="URL", help="folder in a store, made where it is not there")
    parser.add_argument("--overwrite", action="store_true", help="replace a dataset that is already there (default: refuse)")
    parser.add_argument("--resume", action="store_true", help="go on where such a run ended early, and keep what was put should this one do so, too")
    args = parser.parse_strictly(sys.argv[1:] if argv is None else argv)
    if not is_url(args.url):
        raise UserError(f"{args.url}: expected the URL of a folder in a store, as in s3://bucket/DATASET")
    started = time.monotonic()
    checked_spec(args.folder, "DATASET")
    store = StoreFolder(args.url)
    check_store(store, args.overwrite, local_files(args.folder) if args.resume else ())
    size = put_dataset(args.folder, store, args.overwrite, args.resume)
    print(f"{store}: {size / 1e6:,.1f} MB put in {time.monotonic() - started:.1f} s")
    return 0


if __name__ == "__main__":
    with EndedBySignals(NAME):
        sys.exit(run_command(main, NAME))
