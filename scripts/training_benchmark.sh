#!/usr/bin/env bash
# Measure the training of Wide & Deep:  scripts/training_benchmark.sh -g WORKERS [-a] [-x] [-- FLAGS]; options as in training_full.sh.
set -euo pipefail
options=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1"); shift; done
[ "${1:-}" != -- ] || shift
exec "$(dirname "${BASH_SOURCE[0]}")/training_full.sh" "${options[@]}" -- --benchmark "$@"
