#!/usr/bin/env bash
# Measure the forward pass of Wide & Deep:  scripts/evaluating_benchmark.sh -g|--gpu N [-b|--bs BATCH] [-a|--amp] [-x|--xla] [-- FLAGS]
#
# BATCH: global batch (default: 131072). The other options are those of training_full.sh.
set -euo pipefail
batch=131072
. "$(dirname "${BASH_SOURCE[0]}")/wide_and_deep_options.sh"
parse "$@"
launch --evaluate --benchmark --eval_batch_size "$batch"
