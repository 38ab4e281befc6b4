import sys
from pathlib import Path

if sys.argv[:1] == ["-m"]:  # `python -m preproc.…`: whatever folder it starts in, this project's modules come before those that lie there
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
