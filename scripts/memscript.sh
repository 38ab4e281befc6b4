#!/usr/bin/env bash
# Watches the memory of this machine until it is ended: the largest drop of MemAvailable since it began, in kB, is in mem_consumption.txt.
#
#   MEM_CONSUMPTION   another file (mem_consumption.txt in the working directory)
#   MEMINFO, SLEEP    what is read (/proc/meminfo), and how often, in seconds (1)
set -euo pipefail
file=${MEM_CONSUMPTION:-mem_consumption.txt}
available() { awk '/^MemAvailable:/ { print $2 }' "${MEMINFO:-/proc/meminfo}"; }

first=$(available)
[ -n "$first" ] || { echo "memscript.sh: error: ${MEMINFO:-/proc/meminfo} has no MemAvailable" >&2; exit 1; }
largest=0
echo 0 >"$file"
while true; do
    now=$(available)
    if [ $((first - ${now:-$first})) -gt "$largest" ]; then
        largest=$((first - now))
        echo "$largest" >"$file.new"
        mv "$file.new" "$file" # whoever reads it finds a number
    fi
    sleep "${SLEEP:-1}"
done
