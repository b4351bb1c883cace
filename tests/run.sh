#!/usr/bin/env bash
# Runs the given test programs, adds up their "lab:" lines and prints the total. A program that dies without
# this line counts as one failure, and the tail of its output is printed.
set -u
passed=0 failed=0 skipped=0
counts='s/^lab: ([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \2 \3/'
log=$(mktemp); trap 'rm -f "$log"' EXIT
for t in "$@"; do
    start=$(date +%s%N)
    timeout "${TREB_TEST_TIMEOUT:-900}" "$t" >"$log" 2>&1; rc=$?
    ms=$(( ($(date +%s%N) - start) / 1000000 ))
    line=$(grep '^lab: ' "$log" | tail -n 1)
    read -r p f s <<<"$(sed -E "$counts" <<<"$line")"
    if [ -z "$line" ] || { [ "$rc" -ne 0 ] && [ "${f:-0}" -eq 0 ]; }; then
        echo "$(basename "$t"): died with status $rc after ${ms} ms"; tail -n 25 "$log" | sed 's/^/    /'
        failed=$((failed + 1)); passed=$((passed + ${p:-0})); skipped=$((skipped + ${s:-0}))
        continue
    fi
    printf '%-24s %4d passed %3d failed %3d skipped  %6d ms\n' "$(basename "$t")" "$p" "$f" "$s" "$ms"
    if [ "$f" -ne 0 ]; then grep -v '^lab: ' "$log" | sed 's/^/    /'
    else grep '^  skip' "$log" | sed 's/^/  /'; fi
    passed=$((passed + p)); failed=$((failed + f)); skipped=$((skipped + s))
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
