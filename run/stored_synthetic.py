"""`--synthetic_dataset_dir`: the synthetic dataset of a run is stored once, and read from there."""

from dataclasses import replace
from pathlib import Path

from dataloading.feature_spec import DEFAULT_FILE_NAME
from dataloading.sources import read_spec
from utils.config.config import Config
from utils.config.options import PLAN, TRAIN
from utils.console import Console
from utils.distributed import World


def store_synthetic(config: Config, world: World, console: Console) -> None:
    """Write the synthetic dataset on the first worker, unless the folder holds the same one; the other workers wait.

    Raises:
        UserError: on every worker, where the folder holds another dataset or cannot be written.
    """
    folder = stored_in(config)
    if folder is None:
        return
    made = world.together(lambda: world.first and _written(config, folder), "stored")  # the first worker's error is raised on all
    if world.first:
        console.say(f"{folder}: {'the synthetic dataset is written' if made else 'holds the synthetic dataset already'}")


def stored_in(config: Config) -> Path | None:
    """Return the folder of the stored dataset; None where nothing is stored."""
    path = config.data.synthetic_dataset_dir
    return Path(path) if path and config.data.dataset_type == "synthetic" and config.run.mode != PLAN else None


def reading_stored(config: Config) -> Config:
    """Return the configuration of a run that reads the stored dataset, instead of drawing rows on the fly."""
    folder = stored_in(config)
    if folder is None:
        return config
    return replace(config, data=replace(config.data, dataset_type="tf_raw", dataset_path=str(folder), feature_spec=DEFAULT_FILE_NAME))


def _written(config: Config, folder: Path) -> bool:
    from dataloading.synthetic.dataset import SyntheticDataset, write_dataset  # progress bars and writers: only for this

    data = config.data
    if config.run.mode != TRAIN and (folder / DEFAULT_FILE_NAME).exists():
        return False  # its number of training rows is not this mode's
    rows = {"train": data.synthetic_dataset_train_batches * data.batch_size, "test": data.synthetic_dataset_valid_batches * data.valid_batch_size}
    return write_dataset(folder, SyntheticDataset(read_spec(data), rows, config.run.seed), keep=True)
