"""A command of preproc that is killed (SIGKILL) as it is about to open, rename, link or make its N-th file in the destination.

python tests/preproc/killed_at.py N MODULE DESTINATION FLAGS…
"""

import importlib
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

EVENTS = ("open", "os.rename", "os.link", "os.mkdir", "os.remove")


def main() -> int:
    """Run the command with the flags."""
    left, destination = int(sys.argv[1]), sys.argv[3]
    command = importlib.import_module(sys.argv[2])

    def watch(event: str, arguments: tuple) -> None:
        nonlocal left
        if event not in EVENTS or not str(arguments[0]).startswith(f"{destination}{os.sep}"):
            return
        if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
            return
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    return command.main(["--dst", destination, *sys.argv[4:]])


if __name__ == "__main__":
    sys.exit(main())
