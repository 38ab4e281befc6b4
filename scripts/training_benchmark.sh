#!/usr/bin/env bash
# Measure the training of Wide & Deep:  scripts/training_benchmark.sh -g|--gpu N [-a|--amp] [-x|--xla] [-- FLAGS]; as training_full.sh.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/wide_and_deep_options.sh"
parse "$@"
launch --benchmark
