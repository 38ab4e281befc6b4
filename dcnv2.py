"""Train DCN V2 (Wang et al., arXiv:2008.13535) on click logs: dlrm.py with cross layers as its interaction, and their defaults.

On a laptop, without a dataset (synthetic data, small tables):
  python dcnv2.py --dataset_type synthetic --cpu --batch_size 2048 --valid_batch_size 8192 --synthetic_dataset_train_batches 200 \\
      --synthetic_dataset_valid_batches 4 --learning_rate 0.001 --embedding_dim 16 --bottom_mlp_dims 64,16 --cross_layer_projection_dim 64

Everything else is as in dlrm.py: modes, datasets, checkpoints, any number of workers.
"""

import sys

import dlrm
from utils.commands import run_command
from utils.dialects.programs import PROGRAMS

NAME = "dcnv2.py"


def main() -> None:
    """Execute the command line."""
    dlrm.do(sys.argv[1:], NAME, __doc__, *PROGRAMS[NAME])


if __name__ == "__main__":
    sys.exit(run_command(main, NAME))
