"""Upload a tf_raw dataset to a folder of an object store. The specification is uploaded last, so the folder holds a complete dataset or none.

    python -m dataloading.put DATASET s3://bucket/DATASET

`dataloading.fetch` downloads it. Any URL that fsspec supports is accepted (s3://, gs://, abfs://, hdfs://, …).
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
    parser.add_argument("url", metavar="URL", help="folder in a store, created if missing")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing dataset (default: refuse)")
    parser.add_argument("--resume", action="store_true", help="skip files that an earlier --resume uploaded; keep uploaded files after a failure")
    args = parser.parse_strictly(sys.argv[1:] if argv is None else argv)
    if not is_url(args.url):
        raise UserError(f"{args.url}: expected the URL of a folder in a store, as in s3://bucket/DATASET")
    started = time.monotonic()
    checked_spec(args.folder, "DATASET")
    store = StoreFolder(args.url)
    check_store(store, args.overwrite, local_files(args.folder) if args.resume else ())
    size = put_dataset(args.folder, store, args.overwrite, args.resume)
    print(f"{store}: {size / 1e6:,.1f} MB uploaded in {time.monotonic() - started:.1f} s")
    return 0


if __name__ == "__main__":
    with EndedBySignals(NAME):
        sys.exit(run_command(main, NAME))
