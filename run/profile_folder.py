"""The folders of `--profiler_start_step` and `--tensorboard_path`, tried before training, so that no error comes at the step where a profile ends."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from utils.config.options import EVAL, TRAIN
from utils.config.run import RunConfig
from utils.errors import UserError
from utils.logging import Observer


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
        _try_to_write(Path(config.profile_path))


def tensorboard(config: RunConfig, run: str, resumed_step: int | None, say: Callable[[str], None]) -> list[Observer]:
    """Return the log's observer that writes TensorBoard's files; an empty list where none are asked for. Only the first worker calls this.

    Args:
        config: options of the run.
        run: the run's id.
        resumed_step: step of the checkpoint that a run resumes; None for a new run.
        say: called with a line where the folder holds another run, so that a sub-folder is used.

    Raises:
        UserError: the folder cannot be written to, or tensorboardX is not installed.
    """
    given = config.tensorboard_path
    if not given or config.mode not in (TRAIN, EVAL):
        return []
    try:
        from report.tensorboard.writer import opened
    except ImportError as error:
        raise UserError(f"--tensorboard_path {given}: {error}; ./scripts/install installs what requirements.txt names") from None
    board = opened(given, run, resumed_step)
    if board.folder != Path(given):
        say(f"--tensorboard_path {given} holds another run: this one writes to {board.folder}")
    return [board]


def _try_to_write(profile: Path) -> None:
    written = profile / "plugins" / "profile"  # folder names that TensorFlow adds
    existing = next(folder for folder in (written, *written.parents) if folder.exists() or folder.is_symlink())
    try:
        with tempfile.TemporaryDirectory(prefix=".try-", dir=existing) as folder:
            (Path(folder) / "file").write_bytes(b"x")
    except OSError as error:
        raise UserError(f"--profiler_start_step: the profile cannot be written to {existing.absolute()}: {error.strerror}") from None
