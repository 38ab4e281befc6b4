#!/usr/bin/env bash
# preproc/run_spark.sh CPU by the name of NVIDIA's script:  preproc/run_spark_cpu.sh [INPUT_PATH [OUTPUT_PATH [FREQUENCY_LIMIT]]]
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/run_spark.sh" CPU "$@"
