#!/usr/bin/env bash
# Measure the time and memory of scripts/preproc.sh:  scripts/preproc_benchmark.sh -m spark|nvtabular|polars [-t FILES] [-i ITERATIONS]
#
#   -m | --mode        engine to run
#   -t | --tfrecords   number of TFRecord files a split (default: 40)
#   -i | --iteration   number of runs (default: 10)
#
# The name and arguments are those of NVIDIA's script, the folders those of scripts/preproc.sh. Each run replaces the files in TFRECORDS.
# scripts/memscript.sh writes the largest drop of MemAvailable to mem_consumption.txt in the working directory.
set -euo pipefail
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
die() { echo "preproc_benchmark.sh: error: $*" >&2; exit 1; }
mode= files=40 iterations=10
while [ $# -gt 0 ]; do
    case "$1" in
        -m | --mode | -t | --tfrecords | -i | --iteration) [ $# -ge 2 ] || die "$1: a value is missing" ;;
        *) die "$1: expected -m spark|nvtabular|polars [-t FILES] [-i ITERATIONS]" ;;
    esac
    case "$1" in
        -m | --mode) mode=$2 ;;
        -t | --tfrecords) files=$2 ;;
        -i | --iteration) iterations=$2 ;;
    esac
    shift 2
done
[ -n "$mode" ] || die "-m is missing; expected spark, nvtabular or polars"
[[ $mode =~ ^(spark|nvtabular|polars)$ ]] || die "-m $mode: expected spark, nvtabular or polars"
[[ $files =~ ^[1-9][0-9]{0,5}$ ]] || die "-t $files: expected a whole number from 1 to 999999"
[[ $iterations =~ ^[1-9][0-9]{0,5}$ ]] || die "-i $iterations: expected a whole number from 1 to 999999"

hms() { printf '%dh:%dm:%ds' $(($1 / 3600)) $(($1 % 3600 / 60)) $(($1 % 60)); }
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
largest=0
SECONDS=0
for i in $(seq 1 "$iterations"); do
    echo "[BENCHMARK] Running iteration $i"
    WATCHED=$$ MEM_CONSUMPTION=mem_consumption.txt "$scripts/memscript.sh" &
    watch=$!
    OVERWRITE=1 "$scripts/preproc.sh" "$mode" "$files"
    kill "$watch" 2>/dev/null || die "memscript.sh ended before preproc.sh"
    wait "$watch" 2>/dev/null || true
    used=$(cat mem_consumption.txt)
    echo "[BENCHMARK] Memory consumption during iteration $i (kB): $used"
    [ "$used" -le "$largest" ] || largest=$used
done
echo "$largest" >mem_consumption.txt
printf '\n[BENCHMARK] Benchmark finished:\n\n'
echo "[BENCHMARK] Memory consumption (kB): $largest"
echo "[BENCHMARK] Mode=$mode"
echo "[BENCHMARK] Iteration=$iterations"
echo "[BENCHMARK] Tfrecords=$files"
echo "[BENCHMARK] Total time elapsed: $(hms "$SECONDS")"
echo "[BENCHMARK] Average iteration time: $(hms $(((SECONDS + iterations / 2) / iterations)))"
