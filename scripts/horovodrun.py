"""Horovod's launcher without TensorFlow's log: the launcher imports TensorFlow in a child process to check its build, and this logs to stderr."""

import os
import sys

from horovod.common import util
from horovod.runner.launch import run_commandline

looked = util._check_extension_lambda


def quietly(*arguments):
    """Check for extensions with the child's standard error redirected to os.devnull; Horovod itself redirects Python's sys.stderr only."""
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
