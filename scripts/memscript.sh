#!/usr/bin/env bash
# Watch the memory of this machine until stopped; keep the largest drop of MemAvailable since the start, in kB, in mem_consumption.txt.
#
#   MEM_CONSUMPTION   output file (default: mem_consumption.txt in the working directory)
#   WATCHED           id of a process with which the watch ends (default: none, run until stopped)
#   MEMINFO, SLEEP    file to read (default: /proc/meminfo), and seconds between two reads (default: 1)
set -euo pipefail
file=${MEM_CONSUMPTION:-mem_consumption.txt}
trap 'kill $(jobs -p) 2>/dev/null || true; exit 0' TERM
available() { awk '/^MemAvailable:/ { print $2 }' "${MEMINFO:-/proc/meminfo}"; }
watched() { [ -z "${WATCHED:-}" ] || grep -q '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$WATCHED/status" 2>/dev/null; } # a zombie has ended

first=$(available)
[ -n "$first" ] || { echo "memscript.sh: error: ${MEMINFO:-/proc/meminfo} has no MemAvailable" >&2; exit 1; }
largest=0
echo 0 >"$file"
while watched; do
    now=$(available)
    if [ $((first - ${now:-$first})) -gt "$largest" ]; then
        largest=$((first - now))
        echo "$largest" >"$file.new"
        mv "$file.new" "$file" # atomic, so that a reader always finds a number
    fi
    sleep "${SLEEP:-1}" &
    wait $! || true # a signal ends `wait` at once, but not a sleep in the foreground
done
