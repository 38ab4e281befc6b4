"""A trained model in the forms that servers take, and what talks to such a server."""

import sys
from pathlib import Path

if sys.argv[:1] == ["-m"]:  # `python -m serving.…`: whatever folder it starts in, this project's modules come before those that lie there
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
