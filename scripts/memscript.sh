#!/usr/bin/env bash
# Watches the memory of this machine until it is ended: the largest drop of MemAvailable since it began, in kB, is in mem_consumption.txt.
#
#   MEM_CONSUMPTION   another file (mem_consumption.txt in the working directory)
#   WATCHED           a process: where it is gone, this ends as well (goes on until it is ended)
#   MEMINFO, SLEEP    what is read (/proc/meminfo), and how often, in seconds (1)
set -euo pipefail
file=${MEM_CONSUMPTION:-mem_consumption.txt}
trap 'kill $(jobs -p) 2>/dev/null || true; exit 0' TERM
available() { awk '/^MemAvailable:/ { print $2 }' "${MEMINFO:-/proc/meminfo}"; }
watched() { [ -z "${WATCHED:-}" ] || grep -q '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$WATCHED/status" 2>/dev/null; } # a zombie is gone

first=$(available)
[ -n "$first" ] || { echo "memscript.sh: error: ${MEMINFO:-/proc/meminfo} has no MemAvailable" >&2; exit 1; }
largest=0
echo 0 >"$file"
while watched; do
    now=$(available)
    if [ $((first - ${now:-$first})) -gt "$largest" ]; then
        largest=$((first - now))
        echo "$largest" >"$file.new"
        mv "$file.new" "$file" # whoever reads it finds a number
    fi
    sleep "${SLEEP:-1}" &
    wait $! || true # a signal ends this wait, not a sleep
done
