#!/usr/bin/env bash
# Train on several nodes under Slurm: one worker a GPU, started by horovodrun on the first node.
#
#   DATASET_PATH=/data/criteo CHECKPOINT_PATH=/data/checkpoint sbatch --nodes 2 --gpus-per-node 8 slurm_multinode.sh
#
# Submit it from the project's folder, which all nodes must see under the same path (with its .venv), as they must see the dataset.
# The nodes must reach each other by ssh without a password: horovodrun checks that. Environment:
#
#   DATASET_PATH       folder of the dataset (required)
#   CHECKPOINT_PATH    folder that training writes its checkpoint to, or that the other modes restore
#   MODE               train, eval, inference or predict (default: train)
#   BATCH_SIZE         global training batch (default: 65536)
#   LOG_PATH           log file (default: dlrm_tf_log_JOBID.json)
#   EXTRA_FLAGS        further flags of dlrm.py, separated by blanks (default: --amp --xla)
#   WORKERS_PER_NODE   workers a node (default: its number of GPUs); required on nodes without GPUs, with EXTRA_FLAGS=--cpu
#   DLRM_ROOT          the project's folder (default: the folder that the job was submitted from)
#
# With the variables of NVIDIA's script it runs that script's command under srun, and those above are for cmd to read:
#
#   cmd='numactl --interleave=all -- python -u dlrm.py --dataset_path /data/dlrm' srun_flags='--mpi=pmix' sbatch -n 32 -N 4 slurm_multinode.sh
#
#   cmd                shell command of each task; without a container it runs in the project's folder, with its .venv first on PATH
#   srun_flags         further flags of srun, separated by blanks; they come after --mpi=none, so --mpi=pmix takes its place
#   cont, mounts       image, and HOST:CONTAINER[,...], where srun has the plugin pyxis (--container-image); elsewhere there is no container
#
#SBATCH --job-name=dlrm
#SBATCH --output=dlrm-%j.out
#SBATCH --exclusive
#SBATCH --mem=0
set -euo pipefail

die() { printf 'slurm_multinode: %s\n' "$*" >&2; exit 1; }

[ -n "${SLURM_JOB_ID:-}" ] || die "SLURM_JOB_ID is not set; submit this script with sbatch"
[ -n "${SLURM_JOB_NODELIST:-}" ] || die "SLURM_JOB_NODELIST is not set; submit this script with sbatch"

# NVIDIA's variables
given='' box=()
for name in cmd cont mounts srun_flags; do [ -z "${!name:-}" ] || given+=${given:+, }$name; done
if [ -n "$given" ]; then
    [ -n "${cmd:-}" ] || die "cmd is not set, but $given; expected a command, as cmd='python -u dlrm.py ...', or DATASET_PATH without $given"
    command -v srun >/dev/null || die "srun was not found on $(hostname)"
    for name in DATASET_PATH CHECKPOINT_PATH MODE BATCH_SIZE LOG_PATH EXTRA_FLAGS WORKERS_PER_NODE; do
        [ -z "${!name:-}" ] || [[ $cmd == *$name* ]] || echo "slurm_multinode: $name has no effect with cmd, which does not read it" >&2
    done
    known=$(srun --help 2>/dev/null || true)
    if [[ $known == *--container-image* ]]; then
        [ -n "${cont:-}" ] || [ -z "${mounts:-}" ] || die "mounts is set without cont; expected an image in cont, too"
        [ -z "${cont:-}" ] || box=(--container-image="$cont")
        [ -z "${mounts:-}" ] || box+=(--container-mounts="$mounts")
    elif [ -n "${cont:-}${mounts:-}" ]; then
        echo "slurm_multinode: srun knows no --container-image (pyxis), so${cont:+ cont $cont}${mounts:+ mounts $mounts} cannot be used: cmd runs without" \
            "a container, with the project's .venv and the paths of the nodes" >&2
    fi
fi
in_tasks() { # srun passes on this environment and this folder
    read -ra words <<<"${srun_flags:-}"
    exec srun --mpi=none "${words[@]}" --ntasks-per-node=1 "${box[@]}" /bin/bash -c "$cmd"
}
[ ${#box[@]} -eq 0 ] || in_tasks

root=${DLRM_ROOT:-${SLURM_SUBMIT_DIR:-$PWD}} # Slurm runs a copy of this script, so the script's own folder is of no use
[ -f "$root/dlrm.py" ] || die "$root holds no dlrm.py; submit from the project's folder or set DLRM_ROOT"
[ -x "$root/.venv/bin/python" ] || die "$root/.venv is missing; run ./scripts/install there, on a node with a GPU or with DLRM_DEVICE=gpu"
cd "$root"
export PATH="$root/.venv/bin:$PATH"
. scripts/keepalive.sh
[ -z "${cmd:-}" ] || in_tasks

[ -n "${DATASET_PATH:-}" ] || die "DATASET_PATH is not set; expected the folder of a dataset, or a command in cmd"
[ -d "$DATASET_PATH" ] || die "DATASET_PATH $DATASET_PATH: no such folder on $(hostname)"
for program in scontrol horovodrun numactl; do
    command -v "$program" >/dev/null || die "$program was not found on $(hostname)"
done

workers=${WORKERS_PER_NODE:-${SLURM_GPUS_ON_NODE:-}}
if [ -z "$workers" ] && command -v nvidia-smi >/dev/null; then workers=$(nvidia-smi -L | grep -c '^GPU' || true); fi
[ "${workers:-0}" != 0 ] || die "no GPUs on $(hostname); request some with sbatch --gpus-per-node, or set WORKERS_PER_NODE"
[[ $workers =~ ^[1-9][0-9]*$ ]] || die "workers a node: '$workers', expected a number (WORKERS_PER_NODE or SLURM_GPUS_ON_NODE)"

nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST") || die "scontrol could not list the hosts of $SLURM_JOB_NODELIST"
hosts=''
count=0
for node in $nodes; do
    hosts+=${hosts:+,}$node:$workers
    count=$((count + 1))
done
[ "$count" -gt 0 ] || die "scontrol names no host for $SLURM_JOB_NODELIST"

mode=${MODE:-train}
flags=(--mode "$mode" --dataset_path "$DATASET_PATH" --log_path "${LOG_PATH:-dlrm_tf_log_$SLURM_JOB_ID.json}")
case $mode in
    train)
        flags+=(--batch_size "${BATCH_SIZE:-65536}")
        [ -z "${CHECKPOINT_PATH:-}" ] || flags+=(--save_checkpoint_path "$CHECKPOINT_PATH") ;;
    eval | inference | predict)
        [ -n "${CHECKPOINT_PATH:-}" ] || die "CHECKPOINT_PATH is not set; MODE=$mode needs a trained model"
        flags+=(--restore_checkpoint_path "$CHECKPOINT_PATH") ;;
    *) die "MODE is '$mode'; expected train, eval, inference or predict" ;;
esac
read -ra extra <<<"${EXTRA_FLAGS---amp --xla}"

# mpirun starts its daemons with srun, which since Slurm 20.11 gives a step no more processors than it asks for.
export SLURM_WHOLE=1 SLURM_CPU_BIND=none
total=$((count * workers))
echo "slurm_multinode: $mode with $total workers: $hosts"
exec horovodrun -np "$total" -H "$hosts" --mpi-args="--oversubscribe --bind-to none" \
    numactl --interleave=all -- python -u dlrm.py "${flags[@]}" "${extra[@]}"
