"""The entry point of commands: an error that a user can cause is one clear line on standard error and a non-zero exit code, without a traceback."""

import sys
import traceback
from collections.abc import Callable
from typing import TypeVar

from utils import host_world, launch, streams
from utils.errors import AgreedError, UserError
from utils.signals import end_by_signal

T = TypeVar("T")


def run_command(main: Callable[[], int | None], name: str) -> int:
    """Run a command's `main` and return its exit code; print an error that a user can cause in one line.

    With several workers the line names the worker, and the process exits in such a way that the launcher ends the others.

    Args:
        main: the command; returns its exit code, None for 0.
        name: the prefix of the line, "dlrm.py" for instance.
    """
    code, everywhere, kind = 1, False, "error: "
    streams.open_missing()
    streams.escape_unencodable()
    try:
        _check_encoding()
        return as_the_signal_ends(main) or 0
    except UserError as error:
        message, everywhere, code = str(error), error.everywhere, error.code
    except BrokenPipeError:  # `| head` has read enough: no message, but an exit code, because the command is not finished
        streams.silence(sys.stdout)
        launch.leave(141)
        return 141
    except OSError as error:  # no permission, disk full, a folder where a file should be
        lost = "" if error.filename else streams.write(sys.stdout, "")  # flushing shows whether standard output is the cause
        message = lost or f"{error.filename or ''}: {error.strerror or error}".removeprefix(": ")
    except MemoryError:
        message = "out of memory"
    except KeyboardInterrupt:
        message, code, everywhere, kind = "interrupted", 130, True, ""
    except Exception as error:
        message = _of_tensorflow(error)
        if message is None:
            traceback.print_exc()  # a defect of this program: the whole traceback is wanted
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
    """Raise AgreedError where Python does not decode file names as UTF-8; files are named after features, in UTF-8."""
    if (encoding := sys.getfilesystemencoding()) != "utf-8":
        raise AgreedError(f"the environment (LC_ALL, LANG, PYTHONUTF8) makes Python decode file names as {encoding}, not UTF-8; set PYTHONUTF8=1")


def as_the_signal_ends(main: Callable[[], T]) -> T:
    """Return the result of `main`; where it raises an error after a signal inside `EndedBySignals`, raise the signal's exception in its place."""
    try:
        return main()
    except BaseException:
        if end := end_by_signal():  # Polars, for instance, may have converted it to another error, or changed the exit code of SystemExit
            raise end from None
        raise


def _of_tensorflow(error: Exception) -> str | None:
    """Return one line for errors of TensorFlow, Horovod or the dynamic loader that are not defects of this program; None for any other."""
    kind = type(error).__name__
    if isinstance(error, ImportError) and "failed to map segment" in str(error):  # loading a library failed: `ulimit -v`, or a folder mounted noexec
        return f"out of memory, or the folder of a library is mounted noexec: {error}"
    if kind == "ResourceExhaustedError":
        return f"out of memory: {str(error).splitlines()[0]}"
    if kind == "HorovodInternalError" or "Horovod has been shut down" in str(error):
        return "another worker ended, so this one does"
    return None
