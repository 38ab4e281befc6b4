"""Horovod's launcher without TensorFlow's log: it imports TensorFlow in a child to see what it was built with, and that writes to standard error."""

import os
import sys

from horovod.common import util
from horovod.runner.launch import run_commandline

looked = util._check_extension_lambda


def quietly(*arguments):
    """Look with standard error closed to the child; Horovod itself closes Python's part of it only."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        return looked(*arguments)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


if __name__ == "__main__":
    util._check_extension_lambda, sys.argv[0] = quietly, "horovodrun"
    sys.exit(run_commandline())
