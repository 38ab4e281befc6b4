"""NVIDIA's commands for serving, by their names: thin translations to this project's export and client."""

import sys
from pathlib import Path

if sys.argv[:1] == ["-m"]:  # `python -m deployment.…` in any folder: this project's modules take precedence over modules in that folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
