"""Temporary files of a benchmark: a folder that is removed at its end, and a dataset in it."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dataloading.feature_spec import generator_spec
from dataloading.generate_feature_spec import NUM_NUMERICAL
from dataloading.synthetic.split import SyntheticSplit
from dataloading.tf_raw import TfRawWriter
from utils.errors import UserError
from utils.memory import check_fits

SPLIT = "train"
_ROWS_AT_ONCE = 1 << 16


@contextmanager
def scratch(folder: str | None, needed_bytes: int, what: str) -> Iterator[Path]:
    """Make a new folder in `folder`, by default the system's folder for temporary files, and remove it at the end of the `with` block.

    Raises:
        UserError: `folder` does not exist or has fewer than `needed_bytes` free.
    """
    parent = Path(folder or tempfile.gettempdir())
    if not parent.is_dir():
        raise UserError(f"--folder {parent}: no such folder")
    check_fits(needed_bytes, f"--folder {parent}: {what}", shutil.disk_usage(parent).free)
    work = Path(tempfile.mkdtemp(prefix="dlrm-benchmark-", dir=parent))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def write_dataset(folder: Path, rows: Sequence[int], num_samples: int, exponent: float) -> None:
    """Write the train split of a tf_raw dataset.

    Args:
        folder: the dataset's folder.
        rows: the number of rows V of each table.
        num_samples: the number of samples.
        exponent: the exponent of the ids' power law.
    """
    spec = generator_spec(rows, NUM_NUMERICAL, exponent)
    split = SyntheticSplit(spec, SPLIT, num_samples, seed=0)
    with TfRawWriter(folder, spec, (SPLIT,)) as writer:
        for start in range(0, num_samples, _ROWS_AT_ONCE):
            some = start, min(start + _ROWS_AT_ONCE, num_samples)
            ids = [split.read_ids(feature, *some) for feature in range(len(rows))]
            writer.append(SPLIT, split.read_numerical(*some), ids, ids[0] % 2)  # any labels will do: only speed is measured
        writer.publish({})
