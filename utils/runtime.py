"""Import of TensorFlow for a command: fast and without messages."""

import gc
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from utils.forks import TENSORFLOW, check_threads

_NEEDLESS = ("IPython", "matplotlib", "pandas", "scipy", "sklearn")


def prepare_tensorflow() -> None:
    """Set the environment variables that TensorFlow reads during its import, and import it. Call this before anything else imports TensorFlow.

    Raises:
        UserError: the process was forked after TensorFlow had started its threads.
    """
    check_threads(TENSORFLOW)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    warnings.filterwarnings("ignore", module="keras|tensorflow|horovod")
    if "tensorflow" in sys.modules:
        return
    # TensorFlow writes messages about oneDNN and its log to standard error before it reads any log level; they are shown only if the import fails.
    with _without_needless(), _without_collection(), _held_back_stderr():
        import tensorflow  # noqa: F401


@contextmanager
def _without_needless() -> Iterator[None]:
    """Hide packages that Keras imports where they are installed: that takes a second or two, and no model here uses them.

    They can be imported after the block.
    """
    hidden = [name for name in _NEEDLESS if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


@contextmanager
def _without_collection() -> Iterator[None]:
    """Turn garbage collection off during the import, and exclude all objects that exist at its end from later collections.

    An import makes half a million permanent objects: scanning them again and again takes an eighth of the time of a small run.
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
