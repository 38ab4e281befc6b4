"""Train DeepFM (Guo et al., arXiv:1703.04247) on click logs: fm.py with an MLP of all vectors beside the products.

On a laptop, without a dataset (synthetic data, small tables):
  python deepfm.py --dataset_type synthetic --cpu --batch_size 2048 --valid_batch_size 8192 --synthetic_dataset_train_batches 200 \\
      --synthetic_dataset_valid_batches 4 --embedding_dim 16 --top_mlp_dims 64,64,1

Everything else is as in dlrm.py: modes, datasets, checkpoints, any number of workers.
"""

import sys

import dlrm
from utils.commands import run_command
from utils.dialects.programs import PROGRAMS

NAME = "deepfm.py"


def main() -> None:
    """Execute the command line."""
    dlrm.do(sys.argv[1:], NAME, __doc__, *PROGRAMS[NAME])


if __name__ == "__main__":
    sys.exit(run_command(main, NAME))
