"""A check of the folder of `--profiler_start_step` before training, so that an error does not come at the step where the profile ends."""

import tempfile
from pathlib import Path

from utils.config.options import TRAIN
from utils.config.run import RunConfig
from utils.errors import UserError

FOLDER = Path("profile")
_WRITTEN = FOLDER / "plugins" / "profile"  # folder names that TensorFlow adds


def check_profile(config: RunConfig, rank: int, workers: int) -> None:
    """Check that the profiled worker exists and, on that worker, that its profile can be written.

    Raises:
        UserError: there is no such worker, or the folder cannot be written to.
    """
    if config.mode != TRAIN or config.profiler_start_step is None:
        return
    if config.profiled_rank >= workers:
        known = "there is one worker, 0" if workers == 1 else f"there are {workers} workers, 0 to {workers - 1}"
        raise UserError(f"--profiled_rank {config.profiled_rank}: {known}")
    if rank == config.profiled_rank:
        _try_to_write()


def _try_to_write() -> None:
    existing = next(folder for folder in (_WRITTEN, *_WRITTEN.parents) if folder.exists() or folder.is_symlink())
    try:
        with tempfile.TemporaryDirectory(prefix=".try-", dir=existing) as folder:
            (Path(folder) / "file").write_bytes(b"x")
    except OSError as error:
        raise UserError(f"--profiler_start_step: the profile cannot be written to {existing.absolute()}: {error.strerror}") from None
