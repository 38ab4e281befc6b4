"""The entry point of `python -m preproc.table`."""

import sys

from preproc.table.command import main
from preproc.table.flags import NAME
from utils.commands import run_command
from utils.signals import EndedBySignals

if __name__ == "__main__":
    with EndedBySignals(NAME):
        sys.exit(run_command(main, NAME))
