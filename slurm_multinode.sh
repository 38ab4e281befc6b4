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
#SBATCH --job-name=dlrm
#SBATCH --output=dlrm-%j.out
#SBATCH --exclusive
#SBATCH --mem=0
set -euo pipefail

die() { printf 'slurm_multinode: %s\n' "$*" >&2; exit 1; }

[ -n "${SLURM_JOB_ID:-}" ] || die "SLURM_JOB_ID is not set; submit this script with sbatch"
[ -n "${SLURM_JOB_NODELIST:-}" ] || die "SLURM_JOB_NODELIST is not set; submit this script with sbatch"
[ -n "${DATASET_PATH:-}" ] || die "DATASET_PATH is not set; expected the folder of a dataset"
[ -d "$DATASET_PATH" ] || die "DATASET_PATH $DATASET_PATH: no such folder on $(hostname)"

root=${DLRM_ROOT:-${SLURM_SUBMIT_DIR:-$PWD}} # Slurm runs a copy of this script, so the script's own folder is of no use
[ -f "$root/dlrm.py" ] || die "$root holds no dlrm.py; submit from the project's folder or set DLRM_ROOT"
[ -x "$root/.venv/bin/python" ] || die "$root/.venv is missing; run ./scripts/install there, on a node with a GPU or with DLRM_DEVICE=gpu"
cd "$root"
export PATH="$root/.venv/bin:$PATH"
. scripts/keepalive.sh
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
