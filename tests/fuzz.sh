#!/usr/bin/env bash
# The short form of `make soak`: every fuzz target for a second from a fresh seed, which is printed.
passed=0 failed=0
for f in ${FUZZ:-}; do
    seed=$RANDOM$RANDOM
    if out=$("$f" -seconds "${TREB_FUZZ_SECONDS:-1}" -seed $seed 2>&1); then
        passed=$((passed + 1)); continue
    fi
    failed=$((failed + 1)); echo "  FAIL $f -seed $seed"; tail -n 12 <<<"$out" | sed 's/^/    /'
done
echo "lab: $passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
