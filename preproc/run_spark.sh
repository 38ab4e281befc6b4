#!/usr/bin/env bash
# Make a dataset from the Criteo logs by Spark:  preproc/run_spark.sh CPU|GPU|DGX2 [INPUT_PATH [OUTPUT_PATH [FREQUENCY_LIMIT]]]
#
# Days 0 to LAST_DAY - 1 are the training rows, the first half of the last day is test, the second valid, as in NVIDIA's scripts.
# A complete output is not made again.
#
#   INPUT_PATH, OUTPUT_PATH, FREQUENCY_LIMIT   for missing arguments (/data/dlrm/criteo, /data/dlrm/spark/output, 15)
#   LAST_DAY            the last day's number (23)
#   OUTPUT_ORDERING     of the training rows: total_random (default), day_random, input
#   DICTIONARY_DAYS     all (default, as NVIDIA's: values of test rows get ids) or train
#   SPARK_MASTER        URL of the cluster (default: this machine, local[TOTAL_CORES])
#   TOTAL_CORES         (default: all of this machine)
#   TOTAL_MEMORY        GiB, of which half is Java's (default: three quarters of this machine's)
#   NUM_EXECUTORS       of a cluster (8)
#   DRIVER_MEMORY       GiB, of the driver of a cluster (1)
#   SPARK_LOCAL_DIRS    where Spark spills (default: the staging folder)
#   STAGING             folder for rows until their ids are assigned (default: OUTPUT_PATH); executors must share it
#   SPARK_RAPIDS_JAR    with GPU and DGX2: the RAPIDS Accelerator's jar; settings in scripts/spark_gpu.conf (not tried)
#   PYTHON              (default: .venv/bin/python beside this folder)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
die() { echo "run_spark.sh: error: $*" >&2; exit 1; }
natural() { [[ $2 =~ ^[1-9][0-9]*$ ]] || die "$1 is '$2'; expected a whole number of at least 1"; }

kind=${1:-}
[[ $kind =~ ^(CPU|GPU|DGX2)$ ]] || die "expected CPU, GPU or DGX2 as first argument, found '$kind'"
input=${2:-${INPUT_PATH:-/data/dlrm/criteo}} output=${3:-${OUTPUT_PATH:-/data/dlrm/spark/output}} limit=${4:-${FREQUENCY_LIMIT:-15}}
last=${LAST_DAY:-23} ordering=${OUTPUT_ORDERING:-total_random} days=${DICTIONARY_DAYS:-all}
cores=${TOTAL_CORES:-$(nproc)} memory=${TOTAL_MEMORY:-$(awk '/MemTotal/ {print int($2 * 3 / 4 / 1048576) + 1}' /proc/meminfo)}
executors=${NUM_EXECUTORS:-8}
natural LAST_DAY "$last"; natural TOTAL_CORES "$cores"; natural TOTAL_MEMORY "$memory"; natural NUM_EXECUTORS "$executors"
python=${PYTHON:-$here/.venv/bin/python}
[ -x "$(command -v "$python")" ] || die "$python: no such Python; run scripts/install --spark, or set PYTHON"

made="days 0 to $last, frequency limit $limit, ordering $ordering, dictionaries of $days days"
if [ -e "$output/_SUCCESS" ]; then
    [ "$(cat "$output/_SUCCESS")" = "$made" ] || die "$output holds another dataset ($(cat "$output/_SUCCESS")), requested: $made; choose another folder"
    echo "run_spark.sh: $output is complete ($made)"
    exit 0
fi

"$here/preproc/verify_criteo_downloaded.sh" "$input" >/dev/null
logs=()
for day in $(seq 0 "$last"); do
    for end in '' .gz .zst .tsv; do
        if [ -s "$input/day_$day$end" ]; then logs+=("$input/day_$day$end"); break; fi
    done
done

conf=()
half=$(((memory + 1) / 2))
if [ -n "${SPARK_MASTER:-}" ]; then
    each=$((cores / executors > 0 ? cores / executors : 1))
    conf+=(spark.cores.max="$cores" spark.executor.instances="$executors" spark.executor.cores="$each" spark.driver.memory="${DRIVER_MEMORY:-1}g")
    conf+=(spark.executor.memory="$(((half + executors - 1) / executors))g" spark.executor.memoryOverhead="$(((half + executors - 1) / executors))g")
else
    conf+=(spark.driver.memory="${half}g")
fi
if [ "$kind" != CPU ]; then
    [ -e "${SPARK_RAPIDS_JAR:-}" ] || die "SPARK_RAPIDS_JAR: expected the path of rapids-4-spark_2.13-VERSION.jar, found '${SPARK_RAPIDS_JAR:-}'"
    conf+=(spark.jars="$SPARK_RAPIDS_JAR")
    while read -r key value; do conf+=("$key=$value"); done < <(grep -E '^spark\.' "$here/scripts/spark_gpu.conf")
fi

flags=(--engine spark --spark_master "${SPARK_MASTER:-local[$cores]}")
for setting in "${conf[@]}"; do flags+=(--spark_conf "$setting"); done
if [ -n "${STAGING:-}" ]; then mkdir -p "$STAGING"; flags+=(--staging "$STAGING"); fi
flags+=(--frequency_threshold "$limit" --output_ordering "$ordering" --dictionary_days "$days" --halve_test --bad_lines skip --dst "$output")
cd "$here"
"$python" -m preproc.criteo "${flags[@]}" --train "${logs[@]::last}" --test "${logs[last]}"
echo "$made" >"$output/_SUCCESS.part"
mv "$output/_SUCCESS.part" "$output/_SUCCESS"
