#!/usr/bin/env bash
# Check that all Criteo logs exist:  preproc/verify_criteo_downloaded.sh FOLDER
#
#   LAST_DAY   number of the last file, day_LAST_DAY (default: 23, the terabyte); each may end in .gz, .zst or .tsv
set -euo pipefail
folder=${1:-${download_dir:-/data/dlrm/criteo}}
last=${LAST_DAY:-23}

[ -d "$folder" ] || { echo "verify_criteo_downloaded.sh: error: $folder: no such folder; expected the Criteo logs, day_0 to day_$last" >&2; exit 1; }
for day in $(seq 0 "$last"); do
    for end in '' .gz .zst .tsv; do [ -s "$folder/day_$day$end" ] && continue 2; done
    echo "verify_criteo_downloaded.sh: error: $folder/day_$day: no such file, or empty (also with .gz, .zst or .tsv); fetch it, or set LAST_DAY" >&2
    exit 1
done
echo "$folder: day_0 to day_$last exist"
