"""Reports on runs: TensorBoard's files, HTML pages, comparisons; from logs and manifests."""

import sys
from pathlib import Path

if sys.argv[:1] == ["-m"]:  # `python -m report` in any folder: this project's modules take precedence over modules in that folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
