"""Several command lines of dlrm.py, run in turn in one process on any number of workers, since a process's start takes longer than most of them.

mpirun -np N … python tests/distributed/commands.py FILE

FILE holds a JSON list of lists of words. The first command that fails ends the process with its exit code.
"""

import json
import sys
from pathlib import Path

import dlrm
from run.command import do
from utils.commands import run_command


def main(commands: list[list[str]]) -> int:
    """Run the command lines; return the exit code of the first that fails, or 0."""
    for words in commands:

        def one(words=words) -> None:
            do(words, dlrm.NAME, "")

        if code := run_command(one, dlrm.NAME):
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))
