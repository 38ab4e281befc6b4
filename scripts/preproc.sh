#!/usr/bin/env bash
# Convert Outbrain's raw files to the TFRecords of Wide & Deep:  scripts/preproc.sh spark|nvtabular|polars [FILES]
#
# The name, arguments and folders are those of NVIDIA's script. FILES: number of TFRecord files a split (default: 40). Polars replaces NVTabular.
#
#   OUTBRAIN_DIR   parent of the default folders (default: /outbrain)
#   RAW            folder of the raw files (default: $OUTBRAIN_DIR/orig)
#   TFRECORDS      output folder (default: $OUTBRAIN_DIR/tfrecords); OVERWRITE=1 replaces its files
#   FORMAT         tfrecord, tf_raw or both (default: tfrecord)
#   PYTHON         Python with this project's packages (default: the repository's .venv/bin/python if it exists, else python)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
die() { echo "preproc.sh: error: $*" >&2; exit 1; }
[ $# = 1 ] || [ $# = 2 ] || die "expected spark, nvtabular or polars, and a number of files: scripts/preproc.sh polars 40"

files=${2:-40}
[[ $files =~ ^[1-9][0-9]{0,5}$ ]] || die "$files files of TFRecords; expected a whole number from 1 to 999999"
outbrain=${OUTBRAIN_DIR:-/outbrain}
raw=${RAW:-$outbrain/orig}
records=${TFRECORDS:-$outbrain/tfrecords}
format=${FORMAT:-tfrecord}
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || command -v "$python" >/dev/null || python=python

flags=(--src "$raw" --dst "$records" --format "$format")
[ "$format" = tf_raw ] || flags+=(--num_files "$files")
[ "${OVERWRITE:-}" != 1 ] || flags+=(--overwrite)
case "$1" in
    polars) ;;
    nvtabular) echo "preproc.sh: nvtabular: using Polars instead, which makes the same features without a GPU" >&2 ;;
    spark) flags+=(--engine spark) ;;
    *) die "$1: expected spark, nvtabular or polars" ;;
esac
[ -d "$raw" ] || die "$raw: no such folder; expected Outbrain's raw files there (RAW or OUTBRAIN_DIR sets another folder; dataloading.generate_outbrain writes random ones)"
time "$python" -m preproc.outbrain "${flags[@]}"
