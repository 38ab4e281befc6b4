import sys
from pathlib import Path

if sys.argv[:1] == ["-m"]:  # `python -m benchmarks.…` puts the working directory first on the path; this project's modules must come before it
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
