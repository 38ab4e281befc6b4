#!/usr/bin/env bash
# Measure the forward pass of Wide & Deep:  scripts/evaluating_benchmark.sh -g WORKERS [-b BATCH] [-a] [-x] [-- FLAGS]
#
# BATCH: global batch (default: 131072). The other options are those of training_full.sh.
set -euo pipefail
options=() batch=131072
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    if [ "$1" = -b ]; then batch=${2:?-b: expected a batch}; shift 2; else options+=("$1"); shift; fi
done
[ "${1:-}" != -- ] || shift
exec "$(dirname "${BASH_SOURCE[0]}")/training_full.sh" "${options[@]}" -- --evaluate --benchmark --eval_batch_size "$batch" "$@"
