"""TensorFlow imported for a command: quickly, and without a word."""

import gc
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from utils.forks import TENSORFLOW, check_threads

_NEEDLESS = ("pandas", "scipy", "sklearn")


def prepare_tensorflow() -> None:
    """Set what TensorFlow reads while it is imported, and import it, for a command. Call before anything else imports it.

    Raises:
        UserError: the process was forked after TensorFlow had begun its threads.
    """
    check_threads(TENSORFLOW)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    warnings.filterwarnings("ignore", module="keras|tensorflow|horovod")
    if "tensorflow" in sys.modules:
        return
    # Standard error: about oneDNN and its log, before any log level is read; shown if the import fails.
    with _without_needless(), _without_collection(), _held_back_stderr():
        import tensorflow  # noqa: F401


@contextmanager
def _without_needless() -> Iterator[None]:
    """Hide what Keras imports where it is installed, which takes a second or two, and no model here uses; afterwards it can be imported."""
    hidden = [name for name in _NEEDLESS if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


@contextmanager
def _without_collection() -> Iterator[None]:
    """Look for no garbage meanwhile, and never among what is there by the end of it.

    An import makes half a million objects that stay: going through them again and again takes an eighth of the time of a small run.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


@contextmanager
def _held_back_stderr() -> Iterator[None]:
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(kept, held.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
