import sys
from pathlib import Path

if sys.argv[:1] == ["-m"]:  # `python -m preproc.…`: this project's modules take precedence over those in the working directory
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
