"""Export of a trained model to the formats of servers, and tools that work with such a server."""

import sys
from pathlib import Path

if sys.argv[:1] == ["-m"]:  # `python -m serving.…` in any folder: this project's modules take precedence over modules in that folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
