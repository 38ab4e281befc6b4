"""Train Wide & Deep (Cheng et al., arXiv:1606.07792) on click logs: a linear part and an MLP over the same features, each with its optimizer.

On a laptop, without a dataset (synthetic data, small tables):
  python wide_and_deep.py --dataset_type synthetic --cpu --global_batch_size 2048 --eval_batch_size 8192 --synthetic_dataset_train_batches 200 \\
      --synthetic_dataset_valid_batches 4 --num_epochs 2 --deep_warmup_epochs 0.1 --deep_learning_rate 0.001 --deep_hidden_units 64 64 \\
      --embedding_dim 16 --model_dir checkpoints --results_dir results

Train on a dataset of preproc.outbrain, then evaluate:
  python wide_and_deep.py --dataset_path DATASET --model_dir CHECKPOINTS --results_dir RESULTS
  python wide_and_deep.py --dataset_path DATASET --model_dir CHECKPOINTS --results_dir RESULTS --evaluate --use_checkpoint

NVIDIA's command, on TFRecords in /outbrain/tfrecords (main.py is this program):
  mpiexec --allow-run-as-root --bind-to socket -np 8 python main.py --amp --xla

The flags are NVIDIA's, listed below, and those of dlrm.py; modes, datasets, checkpoints and workers are as in dlrm.py.

"""

import sys

import dlrm
from utils.commands import run_command
from utils.dialects.programs import PROGRAMS
from utils.dialects.wide_and_deep import flags_help

NAME = "wide_and_deep.py"


def main(name: str = NAME) -> None:
    """Execute the command line; `name` is the program's name in messages."""
    dlrm.do(sys.argv[1:], name, __doc__ + flags_help(), *PROGRAMS[name])


if __name__ == "__main__":
    sys.exit(run_command(main, NAME))
