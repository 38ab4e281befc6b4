"""Train the Deep Learning Recommendation Model on click logs.

On a laptop, without a dataset (synthetic data, small tables):
  python dlrm.py --dataset_type synthetic --cpu --batch_size 2048 --valid_batch_size 8192 --synthetic_dataset_train_batches 200 \\
      --synthetic_dataset_valid_batches 4 --optimizer adam --learning_rate 0.001 --warmup_steps 0

Train on a tf_raw dataset, save, evaluate, measure inference, write predictions:
  horovodrun -np 1 -H localhost:1 --mpi-args=--oversubscribe numactl --interleave=all -- python -u dlrm.py \\
      --dataset_path DATASET --amp --xla --save_checkpoint_path CHECKPOINT
  python dlrm.py --dataset_path DATASET --restore_checkpoint_path CHECKPOINT --mode eval
  python dlrm.py --dataset_path DATASET --restore_checkpoint_path CHECKPOINT --mode inference --inference_benchmark_batch_sizes 1,4096,65536
  python dlrm.py --dataset_path DATASET --restore_checkpoint_path CHECKPOINT --mode predict --predictions_path predictions.parquet

Show the placement of a dataset's tables, without allocating them:
  python dlrm.py --mode plan --feature_spec feature_spec.yaml --plan_workers 8 --worker_memory_gb 80
"""

import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

# The modules beside this file have common names. A module of the user's with such a name may come first on the path; fail here with a clear error.
for _name in ("utils", "run", "model", "training", "preproc", "dataloading", "report", "serving"):
    _spec = importlib.util.find_spec(_name)
    if _spec is None or os.path.dirname(os.path.dirname(os.path.realpath(_spec.origin or ""))) != os.path.dirname(os.path.realpath(__file__)):
        raise ImportError(
            f"module {_name!r}: {_spec and _spec.origin} comes before dlrm's own on Python's path; rename it, or start Python in another folder"
        )

import utils.forks  # noqa: E402, F401 - after the check; from here on it tracks forks and the library threads that a forked process lacks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from run.train import Trained
    from run.trained import TrainedModel

NAME = "dlrm.py"


def do(arguments: "Sequence[str]", program: str, description: str, *translation: Any) -> object:
    """Execute a command line; see `run.command.do`."""
    from run.command import do as execute

    return execute(arguments, program, description, *translation)


def run_command(main: "Callable[[], int | None]", name: str) -> int:
    """Run a command's `main` and return its exit code; see `utils.commands`."""
    from utils.commands import run_command as run

    return run(main, name)


def load(
    path: "str | Path", *, mmap: bool = False, cpu: bool = False, batch_size: int | None = None, checkpoint_choice: str = "best"
) -> "TrainedModel":
    """Load a trained model from a checkpoint.

    Args:
        path: a folder of checkpoints, the folder of one step in it, or its file `best`.
        mmap: leave the tables in the checkpoint's files and read only the rows that are needed. Scoring starts at once, and the rows are held in
            the system's page cache. The checkpoint must stay in place; the checksums of its tables are not compared.
        cpu: do not use GPUs.
        batch_size: samples scored at once; the default is the batch size that the model was evaluated with. The last bits of a score depend on it.
        checkpoint_choice: the checkpoint to take from a folder of checkpoints: "best", the best one if one is kept (a line on standard error says
            so if it is not the newest), or "latest".

    Raises:
        UserError: there is no checkpoint, the checkpoint is damaged, or the tables do not fit into memory.
    """
    from run.trained import load as loaded

    return loaded(path, mmap, cpu, batch_size, checkpoint_choice)


def train(**flags: Any) -> "Trained":
    """Train in this process, as the command line does.

    Args:
        flags: the flags of `dlrm.py --mode train`, without dashes: `train(dataset_path="DATASET", batch_size=8192, optimizer="adam")`. Pass a
            list for a flag that takes words separated by commas, and True or False for a switch.

    Returns:
        `figures`, the values of the log's last line (`auc`, `throughput`, …), and `checkpoint`, the folder of `save_checkpoint_path`, for `load`.

    Raises:
        UserError: an error that the command reports in one line.
    """
    from run.python_call import train as trained

    return trained(flags)


def main() -> None:
    """Execute the command line."""
    do(sys.argv[1:], NAME, __doc__)


if __name__ == "__main__":
    sys.exit(run_command(main, NAME))
