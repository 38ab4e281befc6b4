"""Reports on runs and benchmarks.

python -m report --compare old.json new.json
"""

import sys

from report import compare
from utils.commands import run_command

if __name__ == "__main__":
    sys.exit(run_command(compare.main, compare.NAME))
