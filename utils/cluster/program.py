"""Digests of the program's own files, which identify its code.

This file needs only Python and no other file of the project: `scripts/elastic` sends its text to other hosts, whose own copy may be older.
"""

import hashlib
import json
import os
import sys
from collections.abc import Mapping

ENTRY = ("dcnv2.py", "deepfm.py", "dlrm.py", "finalmlp.py", "fm.py", "main.py", "wide_and_deep.py")
ROOMS = ("dataloading", "deployment", "model", "ops", "preproc", "report", "run", "served", "serving", "training", "utils")
_SOURCES = (".py", ".json", ".cc", ".h")  # without compiled files, which may differ by host
_BUILD = os.path.join("ops", "build")


def digests(root: str) -> dict[str, str]:
    """Return a digest of each of the program's files in a folder, by relative path; the folder may be anywhere and of any version."""
    found = {name: _digest(os.path.join(root, name)) for name in (*ENTRY, _BUILD) if os.path.isfile(os.path.join(root, name))}
    for room in ROOMS:
        for folder, inner, names in os.walk(os.path.join(root, room)):
            inner[:] = [name for name in inner if name != "__pycache__" and not name.startswith(".")]
            for name in names:
                path = os.path.join(folder, name)
                if name.endswith(_SOURCES) and not name.startswith(".") and os.path.isfile(path):
                    found[os.path.relpath(path, root)] = _digest(path)
    return dict(sorted(found.items()))


def summary(values: Mapping[str, str]) -> str:
    """Combine digests into one."""
    return hashlib.sha256(json.dumps(sorted(values.items())).encode()).hexdigest()[:16]


def differing(mine: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Return the names of the values that differ or that one side lacks."""
    return sorted(name for name in mine.keys() | other.keys() if mine.get(name) != other.get(name))


def shown(names: list[str]) -> str:
    """Format the first of several names and the number of the others, for messages."""
    more = len(names) - 1
    return f"{names[0]} differs" if not more else f"{names[0]} and {more} other{'s' * (more > 1)} differ"


def _digest(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()[:16]
    except OSError:
        return "unreadable"


if __name__ == "__main__":  # run as `python - PROGRAM`: the program's path, which may be a link into the project
    print(json.dumps(digests(os.path.dirname(os.path.realpath(sys.argv[1])))))
