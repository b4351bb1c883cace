#!/usr/bin/env bash
# Ranks as processes: the cases of test_comm over MPI, then the ways in which one rank can fail. After each
# failure every other rank exits with code 6 and names the rank that failed. The output of mpirun may contain
# NUL bytes (Open MPI 5), hence grep -a.
passed=0 failed=0 skipped=0
prog=${TEST_COMM:-build/tests/test_comm}
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
export OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0 TMPDIR=$tmp
run="mpirun --oversubscribe --allow-run-as-root"

check() {                                # check WHAT command...: counts the result and prints a failure
    local what=$1; shift
    if "$@"; then passed=$((passed + 1)); return; fi
    failed=$((failed + 1)); echo "  FAIL $what"
    output | grep -av 'is process' | head -n 20 | sed 's/^/    /'
}
output() { cat "$tmp/out" "$tmp"/rank.* 2>/dev/null; }
report() { echo "lab: $passed passed, $failed failed, $skipped skipped"; [ $failed -eq 0 ]; exit; }

if ! command -v mpirun >/dev/null || ! "$prog" kinds | grep -q ', mpi'; then
    skipped=1; echo "  skip mpi: no mpirun, or a build without MPI"; report
fi

cases() {                                # cases RANKS WORD: adds the counts that test_comm prints
    timeout 600 $run -np "$1" "$prog" $2 >"$tmp/out" 2>&1
    local p f s counts='s/^lab: ([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \2 \3/p'
    read -r p f s <<<"$(sed -nE "$counts" "$tmp/out")"
    passed=$((passed + ${p:-0}))
    check "the cases of test_comm over $1 ranks $2" [ "${p:-0}" -gt 0 -a "${f:-1}" -eq 0 ]
}

# ends MODE TIMEOUT SIGNAL VICTIM: a run of endless collectives; SIGNAL, if given, is sent to rank VICTIM.
# Each rank writes its output and its exit code to files and runs in its own session: mpirun would otherwise
# kill the other ranks before they exit by themselves, or end before it has passed on what they say.
ends() {
    local start job want=4
    [ "$3" = STOP ] && want=3
    rm -f "$tmp"/code.* "$tmp"/rank.*
    $run -np 4 setsid -w bash -c 'exec >"$TMPDIR/rank.$OMPI_COMM_WORLD_RANK" 2>&1
                                  "$0" "$@"; echo $? > "$TMPDIR/code.$OMPI_COMM_WORLD_RANK"' \
        "$prog" "$1" "$2" >"$tmp/out" 2>&1 &
    job=$!
    disown $job                          # or bash prints how it ended: Open MPI may crash when a rank is lost
    for _ in $(seq 600); do [ "$(lines 'is process')" -eq 4 ] && break; sleep 0.1; done
    sleep 0.5
    [ -n "$3" ] && kill "-$3" "$(process $4)"
    start=$(date +%s%N)
    for _ in $(seq 600); do [ "$(cat "$tmp"/code.* 2>/dev/null | wc -l)" -ge $want ] && break; sleep 0.1; done
    ms=$(( ($(date +%s%N) - start) / 1000000 ))
    for rank in 0 1 2 3; do [ -e "$tmp/code.$rank" ] || kill -9 "$(process $rank)" 2>/dev/null; done
    for _ in $(seq 100); do kill -0 $job 2>/dev/null || break; sleep 0.1; done
    kill -9 $job 2>/dev/null             # an mpirun whose ranks are gone may wait for ever
}
process() { output | sed -n "s/^rank $1 is process //p"; }
codes() { cat $(for r in $*; do echo "$tmp/code.$r"; done) 2>/dev/null | tr '\n' ' '; }
lines() { output | grep -ac "$1"; }
says() { output | grep -aq "$1"; }

cases 4 ""
cases 3 staged                           # buffers that MPI cannot read are staged in host memory
# Sockets let a rank run further ahead than shared memory does. Open MPI leaves the loopback interface out
# unless it is named, and a machine may have no other.
OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo cases 3 ""

for victim in 2 0; do
    ends loop 30 KILL $victim
    others=$(seq 0 3 | grep -v $victim)
    check "rank $victim is killed: the others exit with 6, not $(codes $others)" \
        [ "$(codes $others)" = "6 6 6 " ]
    check "within 10 s, not $ms ms" [ $ms -lt 10000 ]
    check "each names the dead rank" \
        [ "$(lines "exits: rank $victim (host .*, process [0-9]*) died: ")" -eq 3 ]
done

ends loop 3 STOP 2
check "rank 2 is stopped: the others exit with 6, not $(codes 0 1 3)" [ "$(codes 0 1 3)" = "6 6 6 " ]
check "soon after comm.timeout, not $ms ms" [ $ms -lt 10000 ]
check "each names the silent rank" [ "$(lines 'exits: rank 2 (.*) sent no heartbeat for [0-9]* s')" -eq 3 ]

ends abort 30
check "rank 1 aborts: it exits with its own code, 4, the others with 6, not $(codes 0 1 2 3)" \
    [ "$(codes 0 1 2 3)" = "6 4 6 6 " ]
check "and they print its error" says 'rank 0 exits: rank 1 (.*) aborted: a file is not what it was'

ends leave 3
check "rank 1 leaves a run that goes on: the others exit with 6, not $(codes 0 2 3)" \
    [ "$(codes 0 2 3)" = "6 6 6 " ]
check "and they print why" says 'rank [0-9] exits: waits .* but rank 1 has left the run'

ends stall 30
check "a rank that stalls is named" says '^stuck: rank 1 (.*) computes for .* after all_reduce .* of world'
check "and so is the call that the others wait in" \
    says '^stuck: rank 2 (.*) waits .* in all_reduce [0-9]* of world (.* bytes, layer [0-4])'
check "then the run goes on to its end" [ "$(codes 0 1 2 3)" = "0 0 0 0 " ]
report
