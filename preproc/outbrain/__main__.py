"""`python -m preproc.outbrain`."""

import sys

from preproc.outbrain.command import main
from preproc.outbrain.options import NAME
from utils.commands import run_command
from utils.signals import EndedBySignals

if __name__ == "__main__":
    with EndedBySignals(NAME):
        sys.exit(run_command(main, NAME))
