import sys
from pathlib import Path

if sys.argv[:1] == ["-m"]:  # `python -m benchmarks.…` puts the working directory first on the path; this project's modules must precede those there
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
