"""Train the Deep Learning Recommendation Model on click logs.

On a laptop, from nothing (synthetic data, small tables):
  python dlrm.py --dataset_type synthetic --cpu --batch_size 2048 --valid_batch_size 8192 --synthetic_dataset_train_batches 200 \\
      --synthetic_dataset_valid_batches 4 --optimizer adam --learning_rate 0.001 --warmup_steps 0

Train on a tf_raw dataset, save, evaluate, measure inference, write predictions:
  horovodrun -np 1 -H localhost:1 --mpi-args=--oversubscribe numactl --interleave=all -- python -u dlrm.py \\
      --dataset_path DATASET --amp --xla --save_checkpoint_path CHECKPOINT
  python dlrm.py --dataset_path DATASET --restore_checkpoint_path CHECKPOINT --mode eval
  python dlrm.py --dataset_path DATASET --restore_checkpoint_path CHECKPOINT --mode inference --inference_benchmark_batch_sizes 1,4096,65536
  python dlrm.py --dataset_path DATASET --restore_checkpoint_path CHECKPOINT --mode predict --predictions_path predictions.parquet

See where the tables of a dataset would go, without touching any:
  python dlrm.py --mode plan --feature_spec feature_spec.yaml --plan_workers 8 --worker_memory_gb 80
"""

import sys

from run.command import do, run_command

NAME = "dlrm.py"


def main() -> None:
    """Do what the command line says."""
    do(sys.argv[1:], NAME, __doc__)


if __name__ == "__main__":
    sys.exit(run_command(main, NAME))
