"""A command of preprocessing for spark-submit, which needs a file and not a module.

    spark-submit --master yarn --conf spark.executor.memory=4g preproc/spark_submit.py preproc.criteo --train day_0 --test day_1 ...

`--engine spark` is added. Where only this file reaches the cluster (--deploy-mode cluster), bring the code with --py-files (docs/preprocessing.md).
"""

import runpy
import sys
from pathlib import Path

COMMANDS = ("preproc.criteo", "preproc.outbrain", "preproc.table")


def main() -> None:
    """Run the module that the first argument names, with the other arguments."""
    name, *flags = sys.argv[1:] or [""]
    if name not in COMMANDS:
        sys.exit(f"spark_submit.py: error: {name or 'no command'}: expected one of {', '.join(COMMANDS)} and its flags")
    root = Path(__file__).resolve().parents[1]
    # Remove the folder of this file, which Python puts first on the path: `preproc.spark` would be importable as `spark`.
    sys.path[:] = [str(root)] * (root / "preproc" / "criteo").is_dir() + [path for path in sys.path if Path(path).resolve() != root / "preproc"]
    sys.argv = [name, "--engine", "spark", *flags]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
