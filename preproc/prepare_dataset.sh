#!/usr/bin/env bash
# Make the training dataset from the Criteo logs:  preproc/prepare_dataset.sh CPU|GPU|DGX2 FREQUENCY_LIMIT
#
# The name, arguments and folders are those of NVIDIA's script. Complete outputs are not made again.
#
#   download_dir                  the logs, day_0 to day_23 (/data/dlrm/criteo)
#   spark_output_path             output of Spark (/data/dlrm/spark/output)
#   conversion_intermediate_dir   rows until their ids are assigned; empty afterwards (/data/dlrm/intermediate_binary)
#   final_output_dir              the dataset: --dataset_path of dlrm.py (/data/dlrm/binary_dataset)
#
# preproc/run_spark.sh lists the others (LAST_DAY, SPARK_MASTER, TOTAL_CORES, TOTAL_MEMORY, …).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
die() { echo "prepare_dataset.sh: error: $*" >&2; exit 1; }
[ $# = 2 ] || die "expected CPU, GPU or DGX2 and a frequency limit: prepare_dataset.sh CPU 15"

download_dir=${download_dir:-/data/dlrm/criteo}
spark_output_path=${spark_output_path:-/data/dlrm/spark/output}
conversion_intermediate_dir=${conversion_intermediate_dir:-/data/dlrm/intermediate_binary}
final_output_dir=${final_output_dir:-/data/dlrm/binary_dataset}

"$here/preproc/verify_criteo_downloaded.sh" "$download_dir"
STAGING=${STAGING:-$conversion_intermediate_dir} "$here/preproc/run_spark.sh" "$1" "$download_dir" "$spark_output_path" "$2"

if [ -e "$final_output_dir/_SUCCESS" ]; then
    cmp -s "$spark_output_path/_SUCCESS" "$final_output_dir/_SUCCESS" ||
        die "$final_output_dir holds another dataset ($(cat "$final_output_dir/_SUCCESS")); choose another final_output_dir"
    echo "prepare_dataset.sh: $final_output_dir is complete"
    exit 0
fi
[ ! -e "$final_output_dir/feature_spec.yaml" ] || die "$final_output_dir holds a dataset that this script did not make; choose another final_output_dir"
# Hard links instead of copies, where the file system supports them.
mkdir -p "$final_output_dir"
for name in train valid test vocabulary feature_spec.yaml; do
    rm -rf "${final_output_dir:?}/$name"
    cp -rl "$spark_output_path/$name" "$final_output_dir/" 2>/dev/null ||
        { rm -rf "${final_output_dir:?}/$name"; cp -r "$spark_output_path/$name" "$final_output_dir/"; }
done
cp "$spark_output_path/_SUCCESS" "$final_output_dir/"
echo "prepare_dataset.sh: $final_output_dir is complete: train with  python dlrm.py --dataset_path $final_output_dir"
