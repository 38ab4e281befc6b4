"""Fetch a tf_raw dataset from a folder of an object store: training maps local files.

    python -m dataloading.fetch s3://bucket/DATASET FOLDER

The specification is written last, so the folder holds a complete dataset or none. A fetch that fails or is stopped leaves no files. `dataloading.put`
uploads a dataset.
"""

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tqdm import tqdm

from dataloading.contract import check_quick
from dataloading.feature_spec import DEFAULT_FILE_NAME, FeatureSpec
from dataloading.features import DatasetError
from dataloading.store.dataset import names_of_dataset
from dataloading.store.object_store import StoreFolder
from dataloading.tf_raw import move_in_place, refuse_dataset
from utils.commands import run_command
from utils.config.flags import Parser
from utils.errors import UserError
from utils.naming import naming
from utils.scratch import Scratch, exclusively
from utils.signals import EndedBySignals, uninterrupted
from utils.urls import is_url

NAME = "dataloading.fetch"
_BLOCK_BYTES = 8 << 20


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code.

    Raises:
        UserError: there is no dataset, it is incomplete, it does not fit on the disk, or the folder already holds one. No partial files are left.
    """
    parser = Parser(prog=f"python -m {NAME}", description=__doc__)
    parser.add_argument("url", metavar="URL", help="folder of the dataset in a store")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="local folder of the dataset")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing dataset in the folder (default: refuse)")
    args = parser.parse_strictly(sys.argv[1:] if argv is None else argv)
    if not is_url(args.url):
        raise UserError(f"{args.url}: expected the URL of a dataset in a store, as in s3://bucket/DATASET")
    started = time.monotonic()
    refuse_dataset(args.folder, DEFAULT_FILE_NAME, args.overwrite)
    store = StoreFolder(args.url)
    sizes = store.sizes()
    if DEFAULT_FILE_NAME not in sizes:
        raise DatasetError(f"{store}: {'holds' if sizes else 'is empty or missing: found'} no {DEFAULT_FILE_NAME}; expected a complete dataset")
    scratch = Scratch(args.folder, "writing")
    try:
        wanted = _fetched(store, sizes, scratch.folder)
        with uninterrupted(), exclusively(args.folder):
            refuse_dataset(args.folder, DEFAULT_FILE_NAME, args.overwrite)
            move_in_place(scratch.entries(), scratch.folder / DEFAULT_FILE_NAME, args.folder / DEFAULT_FILE_NAME)
    finally:
        scratch.remove()
    total, seconds = sum(wanted.values()), time.monotonic() - started
    print(f"{args.folder}: {len(wanted):,} files, {total / 1e6:,.1f} MB fetched in {seconds:.1f} s, {total / 1e6 / seconds:,.0f} MB/s")
    return 0


def _fetched(store: StoreFolder, sizes: Mapping[str, int], folder: Path) -> dict[str, int]:
    """Fetch the dataset into a folder and check it; return its files and their sizes in bytes."""
    _copy(store, DEFAULT_FILE_NAME, sizes[DEFAULT_FILE_NAME], folder, tqdm(disable=True))
    spec = FeatureSpec.from_yaml(folder / DEFAULT_FILE_NAME)
    if spec.sources is None:
        raise DatasetError(f"{store}/{DEFAULT_FILE_NAME}: source_spec is empty: it is a generator specification; expected a dataset")
    wanted = {name: sizes[name] for name in names_of_dataset(spec, sizes)}
    if odd := [name for name in wanted if ".." in name.split("/") or "\0" in name]:
        raise DatasetError(f"{store}/{odd[0]}: not a valid name of a local file; expected a path below the dataset's folder")
    room = shutil.disk_usage(folder).free
    if sum(wanted.values()) > room:
        raise DatasetError(f"{folder.parent}: {room / 1e9:,.1f} GB are free, {store} has {sum(wanted.values()) / 1e9:,.1f} GB; choose another folder")
    with tqdm(total=sum(wanted.values()), desc="fetching", unit="B", unit_scale=True, unit_divisor=1024, disable=None) as bar:
        for name, size in wanted.items():
            if name != DEFAULT_FILE_NAME:
                _copy(store, name, size, folder, bar)
    try:
        check_quick(spec, tuple(spec.sources))
    except DatasetError as error:
        raise DatasetError(f"{store}: not a complete dataset: {str(error).replace(f'{folder}/', '').partition('; python -m')[0]}") from None
    return wanted


def _copy(store: StoreFolder, name: str, size: int, folder: Path, bar: tqdm) -> None:
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with store.open(name, size) as source, naming(target), target.open("wb") as file:
        while content := source.read(_BLOCK_BYTES):
            file.write(content)
            bar.update(len(content))
    if (found := target.stat().st_size) != size:
        raise DatasetError(f"{store}/{name}: {found:,} bytes read, expected {size:,}; the file may have been replaced meanwhile: run again")


if __name__ == "__main__":
    with EndedBySignals(NAME):
        sys.exit(run_command(main, NAME))
