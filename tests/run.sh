#!/usr/bin/env bash
# Runs the given test programs, adds up their "lab:" lines and prints the total. A program that dies without
# this line counts as one failure, and the tail of its output is printed.
#
# Two workers share the tests: one begins with compiled programs, the other with the scripts that start ranks,
# which wait a lot and of which two at a time would need too many cores. Programs that measure time run before
# them, alone. The report has the order of the arguments. TREB_TEST_WORKERS=1: one test after the other.
#
# Threads of OpenMP that wait do not spin: two tests share the cores, and most of the processor time of tests
# with small tensors was spent in spinning.
set -u
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-1000}
passed=0 failed=0 skipped=0
counts='s/^lab: ([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \2 \3/'
dir=$(mktemp -d) workers=() tests=("$@")
trap 'kill "${workers[@]}" 2>/dev/null; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

kind_of() {                              # kind_of TEST
    case ${1##*/} in
    test_hidden | test_search) echo timed ;;
    *.sh) if grep -q mpirun "$1"; then echo ranks; else echo scripts; fi ;;
    *) echo programs ;;
    esac
}
run_test() {                             # run_test I: writes I.log, then I.end
    local start rc
    start=$(date +%s%N)
    timeout "${TREB_TEST_TIMEOUT:-900}" "${tests[$1]}" >"$dir/$1.log" 2>&1 &
    { wait $!; rc=$?; } 2>/dev/null
    echo "$rc $((($(date +%s%N) - start) / 1000000))" >"$dir/$1.new"
    mv "$dir/$1.new" "$dir/$1.end"
}
work() {                                 # work kinds...: runs what no other worker has taken
    local kind i
    trap - EXIT
    trap '[ -z "$(jobs -p)" ] || kill $(jobs -p); exit' TERM
    for kind in "$@"; do
        for i in "${!tests[@]}"; do
            [ "${kinds[$i]}" = "$kind" ] && mkdir "$dir/$i.taken" 2>/dev/null && run_test "$i"
        done
    done
}
work_all() {
    work timed
    [ "${TREB_TEST_WORKERS:-2}" = 1 ] || work ranks scripts programs &
    work programs scripts
    wait
    work ranks
}
print_test() {                           # print_test NAME LOG RC MS
    local t=$1 log=$2 rc=$3 ms=$4 line p f s
    line=$(grep '^lab: ' "$log" | tail -n 1)
    read -r p f s <<<"$(sed -E "$counts" <<<"$line")"
    passed=$((passed + ${p:-0})); failed=$((failed + ${f:-0})); skipped=$((skipped + ${s:-0}))
    if [ -z "$line" ] || { [ "$rc" -ne 0 ] && [ "${f:-0}" -eq 0 ]; }; then
        echo "$t: died with status $rc after ${ms} ms"; tail -n 25 "$log" | sed 's/^/    /'
        failed=$((failed + 1))
        return
    fi
    printf '%-24s %4d passed %3d failed %3d skipped  %6d ms\n' "$t" "$p" "$f" "$s" "$ms"
    if [ "$f" -ne 0 ]; then grep -v '^lab: ' "$log" | sed 's/^/    /'
    else grep '^  skip' "$log" | sed 's/^/  /'; fi
}

kinds=()
for t in "${tests[@]}"; do kinds+=("$(kind_of "$t")"); done
work_all & workers=($!)
for i in "${!tests[@]}"; do
    until [ -e "$dir/$i.end" ] || [ -z "$(jobs -rp)" ]; do sleep 0.1; done
    rc=0 ms=0; [ ! -e "$dir/$i.end" ] || read -r rc ms <"$dir/$i.end"
    print_test "$(basename "${tests[$i]}")" "$dir/$i.log" "$rc" "$ms"
done
wait "${workers[@]}"                     # a worker that still looks for tests would find them untaken in a
workers=()                               # folder that is being removed, and run them again
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
