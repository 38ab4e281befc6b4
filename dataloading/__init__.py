import sys
from pathlib import Path

if sys.argv[:1] == ["-m"]:  # `python -m dataloading.…`: this project's modules come before modules of the same names in the working directory
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
