# Options of training_full.sh, training_benchmark.sh and evaluating_benchmark.sh, which source this file; the names are those of NVIDIA's scripts.
#
#   parse "$@"         sets workers, flags (of main.py), batch and further (the flags of main.py after --)
#   launch FLAGS...    replaces the script by main.py, with mpiexec where there are several workers
#
# With `batch` set before `parse`, -b is an option, too. PYTHON: Python with this project's packages (default: the repository's .venv/bin/python if it
# exists, else python).
name=${0##*/}
usage="usage: $name -g|--gpu N ${batch:+[-b|--bs BATCH] }[-a|--amp] [-x|--xla] [-- FLAGS of main.py]; N is the number of GPUs, each with a worker"
die() { echo "$name: error: $*; $usage" >&2; exit 1; }
workers='' flags=() further=()

parse() {
    while [ $# -gt 0 ]; do
        case "$1" in
            -h | --help) echo "$usage"; exit 0 ;;
            -g | --gpu) [ $# -ge 2 ] || die "$1: expected a number of GPUs"; workers=$2; shift 2 ;;
            -b | --bs)
                [ -n "${batch:-}" ] || die "$1: unknown option, expected -g, -a or -x"
                [ $# -ge 2 ] || die "$1: expected a batch size"
                batch=$2; shift 2 ;;
            -a | --amp) flags+=(--amp); shift ;;
            -x | --xla) flags+=(--xla); shift ;;
            --) shift; further=("$@"); break ;;
            -g?*) set -- -g "${1:2}" "${@:2}" ;;             # -g8
            -[ax][agx]*) set -- "${1:0:2}" "-${1:2}" "${@:2}" ;; # -ax
            *) die "$1: expected an option; flags of main.py go after --" ;;
        esac
    done
    [ -n "$workers" ] || die "-g is missing; expected a number of GPUs"
    [[ $workers =~ ^[1-9][0-9]{0,3}$ ]] || die "-g $workers: expected a number of GPUs, 1 to 9999"
    [[ ${batch:-1} =~ ^[1-9][0-9]{0,9}$ ]] || die "-b $batch: expected a batch size, a whole number of at least 1"
}

launch() {
    cd "$(dirname "${BASH_SOURCE[0]}")/.."
    local python=${PYTHON:-.venv/bin/python} start=() gpus=0 bind=(--bind-to socket)
    [ -x "$python" ] || command -v "$python" >/dev/null || python=python
    ! command -v nvidia-smi >/dev/null || gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
    if [ "$gpus" = 0 ]; then # mpiexec counts processors as slots, and -g may ask for more workers
        echo "$name: no GPU was found: $workers worker$([ "$workers" = 1 ] || echo s) on the CPU (--cpu)" >&2
        flags=(--cpu "${flags[@]}") bind=(--bind-to none --oversubscribe)
    fi
    [ "$gpus" = 0 ] || [ "$workers" -le "$gpus" ] || die "-g $workers: expected at most $gpus, the GPUs of this machine"
    if [ "$workers" != 1 ]; then
        command -v mpiexec >/dev/null || die "mpiexec was not found, which starts $workers workers; run scripts/install"
        start=(mpiexec --allow-run-as-root "${bind[@]}" -np "$workers")
    fi
    set -x
    exec "${start[@]}" "$python" main.py "${flags[@]}" "$@" "${further[@]}"
}
