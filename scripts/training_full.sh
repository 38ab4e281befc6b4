#!/usr/bin/env bash
# Train Wide & Deep:  scripts/training_full.sh -g|--gpu N [-a|--amp] [-x|--xla] [-- FLAGS]
#
# The name and options are those of NVIDIA's script. N: GPUs, each with a worker; without GPUs, workers on the CPU. FLAGS are main.py's,
# --dataset_path DATASET for instance.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/wide_and_deep_options.sh"
parse "$@"
launch
