"""A command's end: what a user can cause is one clear line on standard error and a non-zero exit, no traceback."""

import sys
import traceback
from collections.abc import Callable
from typing import TypeVar

from utils import host_world, launch, streams
from utils.errors import AgreedError, UserError
from utils.signals import end_by_signal

T = TypeVar("T")


def run_command(main: Callable[[], int | None], name: str) -> int:
    """Run a command's `main` and return its exit code; what a user can cause ends in one line.

    With several workers the line names the worker, and the process ends so that the launcher ends the others.

    Args:
        main: the command; returns its exit code, None for 0.
        name: what the line starts with, "dlrm.py" for instance.
    """
    code, everywhere, kind = 1, False, "error: "
    streams.open_missing()
    streams.escape_what_cannot_be_said()
    try:
        _check_encoding()
        return as_the_signal_ends(main) or 0
    except UserError as error:
        message, everywhere, code = str(error), error.everywhere, error.code
    except BrokenPipeError:  # `| head` has read enough: nothing to say, but what was to be done is not done
        streams.silence(sys.stdout)
        launch.leave(141)
        return 141
    except OSError as error:  # no permission, disk full, a folder where a file should be
        lost = "" if error.filename else streams.write(sys.stdout, "")  # what it still holds cannot be written
        message = lost or f"{error.filename or ''}: {error.strerror or error}".removeprefix(": ")
    except MemoryError:
        message = "out of memory"
    except KeyboardInterrupt:
        message, code, everywhere, kind = "interrupted", 130, True, ""
    except Exception as error:
        message = _of_tensorflow(error)
        if message is None:
            traceback.print_exc()  # a defect of ours: all of it is wanted
            launch.leave(1)
            return 1
    if launch.rank() == 0 or not everywhere:
        worker = f"worker {launch.rank()}: " if launch.size() > 1 and not everywhere else ""
        streams.write(sys.stderr, f"{name}: {kind}{worker}{message}\n")  # one write: print makes two under `python -u`, and workers' lines would mix
    if everywhere:
        host_world.leave_together()
    launch.leave(code)
    return code


def _check_encoding() -> None:
    """Raise AgreedError where Python takes the names of files for something else than UTF-8, which they are: files of features bear their names."""
    if (encoding := sys.getfilesystemencoding()) != "utf-8":
        raise AgreedError(f"the environment (LC_ALL, LANG, PYTHONUTF8) makes Python take file names as {encoding}, not UTF-8; set PYTHONUTF8=1")


def as_the_signal_ends(main: Callable[[], T]) -> T:
    """What `main` returns; the end that a signal asked for where it raises another error after that one, inside `EndedBySignals`."""
    try:
        return main()
    except Exception:
        if end := end_by_signal():  # came back from Polars as another error, say
            raise end from None
        raise


def _of_tensorflow(error: Exception) -> str | None:
    """One line for what TensorFlow, Horovod or the system's loader say of the machine; None for anything else."""
    kind = type(error).__name__
    if isinstance(error, ImportError) and "failed to map segment" in str(error):  # of a library: `ulimit -v`, or a folder mounted noexec
        return f"out of memory, or its folder allows no programs: {error}"
    if kind == "ResourceExhaustedError":
        return f"out of memory: {str(error).splitlines()[0]}"
    if kind == "HorovodInternalError" or "Horovod has been shut down" in str(error):
        return "another worker ended, so this one does"
    return None
