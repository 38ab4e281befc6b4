"""NVIDIA's steps from Criteo logs to a dataset, for spark-submit; the flags are in preproc/criteo/two_steps.py.

spark-submit --master spark://HOST:7077 preproc/spark_data_utils.py --mode generate_models --days 0-23 --input_folder RAW --model_folder OUT/models
"""

import sys
from pathlib import Path


def main() -> int:
    """Run the command; return its exit code."""
    root = Path(__file__).resolve().parents[1]
    # Remove the folder of this file, which Python puts first on the path: `preproc.spark` would be importable as `spark`.
    sys.path[:] = [str(root)] * (root / "preproc" / "criteo").is_dir() + [path for path in sys.path if Path(path).resolve() != root / "preproc"]
    from preproc.criteo.two_steps import PROGRAM
    from preproc.criteo.two_steps import main as run
    from utils.commands import run_command
    from utils.signals import EndedBySignals

    with EndedBySignals(PROGRAM):
        return run_command(run, PROGRAM)


if __name__ == "__main__":
    sys.exit(main())
