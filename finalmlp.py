"""Train FinalMLP (Mao et al., arXiv:2304.00902) on click logs: dlrm.py with two MLPs of all features' vectors, each of which a gate may weigh, and a
bilinear layer of their outputs; and defaults of its own.

On a laptop, without a dataset (synthetic data, small tables):
  python finalmlp.py --dataset_type synthetic --cpu --batch_size 2048 --valid_batch_size 8192 --synthetic_dataset_train_batches 200 \\
      --synthetic_dataset_valid_batches 4 --embedding_dim 16 --stream1_dims 64,64 --stream2_dims 64

Everything else is as in dlrm.py: modes, datasets, checkpoints, any number of workers.
"""

import sys

import dlrm
from utils.commands import run_command
from utils.dialects.programs import PROGRAMS

NAME = "finalmlp.py"


def main() -> None:
    """Execute the command line."""
    dlrm.do(sys.argv[1:], NAME, __doc__, *PROGRAMS[NAME])


if __name__ == "__main__":
    sys.exit(run_command(main, NAME))
