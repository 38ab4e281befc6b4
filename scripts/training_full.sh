#!/usr/bin/env bash
# Train Wide & Deep:  scripts/training_full.sh -g WORKERS [-a] [-x] [-- FLAGS]
#
# The name and options are those of NVIDIA's script. -a: mixed precision; -x: XLA; FLAGS are main.py's, --dataset_path DATASET for instance.
# PYTHON: Python with this project's packages (default: the repository's .venv/bin/python if it exists, else python).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
die() { echo "${0##*/}: error: $*" >&2; exit 1; }

workers=1 flags=()
while getopts ":g:ax" option; do
    case "$option" in
        g) workers=$OPTARG ;;
        a) flags+=(--amp) ;;
        x) flags+=(--xla) ;;
        *) die "-$OPTARG: expected -g WORKERS, -a or -x, and flags of main.py after --" ;;
    esac
done
shift $((OPTIND - 1))
[[ $workers =~ ^[1-9][0-9]{0,3}$ ]] || die "-g $workers: expected a number of workers, 1 to 9999"
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || command -v "$python" >/dev/null || python=python
launch=()
[ "$workers" = 1 ] || launch=(mpiexec --allow-run-as-root --bind-to socket -np "$workers")
exec "${launch[@]}" "$python" main.py "${flags[@]}" "$@"
