#!/usr/bin/env bash
# Faults that no library reports end a run: a rank is killed, stopped (SIGSTOP), its main thread alone is
# frozen while its other threads run on (tests/freeze.c), or the network between all ranks is cut. Every rank
# exits with 6 within comm.timeout + 10 s, the message names the rank and the call that the others wait in,
# each rank leaves its last calls, and the run resumes bit-equal to an undisturbed one. A run that is merely
# slow goes on.
#
# TREB_KILLS, TREB_STOPS, TREB_FREEZES, TREB_CUTS: faults of each kind (0, 0, 1, 0); the first hits the last
# rank, the second rank 0, others any rank at a random moment of a random layout. COMM=nccl DEVICE=cuda: the
# same on ranks that share a GPU, over loopback. TREB_RESUME: all, first or no resumed runs (first).
# TREB_SLOW=0: without the slow run. TREB_RANKS (3), TREB_TIMEOUT (2): ranks and comm.timeout. TREB_AT_ONCE
# (1): runs at a time, each in a folder of its own. TREB_SHOW=1: shows what the ranks say.
. tests/ranklab.sh
kills=${TREB_KILLS:-0} stops=${TREB_STOPS:-0} freezes=${TREB_FREEZES:-1} cuts=${TREB_CUTS:-0}
resume=${TREB_RESUME:-first} limit=${TREB_TIMEOUT:-2}
comm=${COMM:-mpi} device=${DEVICE:-cpu} ranks=${TREB_RANKS:-3} steps=48 slowest=0 lab=$tmp
at_once=$((ranks * ${TREB_AT_ONCE:-1}))
seed=${TREB_KILL_SEED:-$RANDOM}; RANDOM=$seed
tools=$(dirname "$treb")/tests
has_mpi || skip "no mpirun, or a build without MPI"
small_moe
if [ "$comm" = nccl ]; then
    export NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1
fi
can_freeze() { "$tools/freeze" $$ 0 2>&1 | grep -q usage && [ "$(id -u)" -eq 0 ]; }
# Ranks that will be cut off run in a network namespace of their own.
can_cut()    { "$tools/loopback" true 2>"$tmp/out"; }
[ "$cuts" = 0 ] || can_cut || { cuts=0; echo "  skip cutting the network: $(tail -n 1 "$tmp/out")"; }
can_freeze || { freezes=0; echo "  skip freezing a thread: it needs root and $tools/freeze"; }

run() {                                  # run FOLDER overrides...: starts it
    local folder=$1; shift
    ranks_start "$ranks" -- "$treb" train /dev/null "${recipe[@]}" train.max_steps=$steps \
        train.global_tokens=768 comm.kind="$comm" comm.timeout="$limit" device.backend="$device" \
        checkpoint.save_steps=2 checkpoint.save_total_limit=2 checkpoint.resume_from_checkpoint=auto \
        checkpoint.output_dir="$folder" "$@"
}
numbers() { seq 0 $((ranks - 1)); }
codes()  { for r in $(numbers); do cat "$tmp/code.$r" 2>/dev/null || echo none; done | tr '\n' ' '; }
all_of() { yes "$1" | head -n "$2" | tr '\n' ' '; }                     # all_of CODE N
whole()  { run "$@"; wait $job; [ "$(codes)" = "$(all_of 0 "$ranks")" ]; }
ended()  { [ "$(count code)" -ge "$1" ]; }
saved()  { [ -e "$1/checkpoint-$2/MANIFEST.json" ] || ended 1; }        # saved FOLDER STEP
show_end() { echo "  $1"; grep -ah "^treb:" "$tmp"/out.* | cut -c -220 | sed 's/^/    /'; }
said()   { grep -aqE "$1" "$tmp"/out.*; }
records() { find "$1/hang" -name 'rank-*.json' -size +500c 2>/dev/null | wc -l; }

declare -A acts=([kill]="kill -9" [stop]="kill -STOP" [freeze]="frozen" [cut]="cut_off")
frozen() { "$tools/freeze" "$1" 60 >"$tmp/frozen" & freezer=$!; until_of 5000 grep -q frozen "$tmp/frozen"; }

cut_off() { "$tools/loopback" "$1" 60 >"$tmp/cut" & cutter=$!; until_of 5000 grep -q cut "$tmp/cut"; }

# strike KIND VICTIM: sets `ms` to the time until all ranks have exited, a stopped one apart.
strike() {
    local start left=$ranks
    [ "$1" != stop ] || left=$((ranks - 1))
    ${acts[$1]} "$(cat "$tmp/pid.$2")" 2>>"$tmp/out"
    start=$(now_ms)
    until_of $((1000 * limit + 15000)) ended "$left"
    ms=$(($(now_ms) - start)) slowest=$((ms > slowest ? ms : slowest))
    ends=$(codes)
    for r in $(numbers); do [ -e "$tmp/code.$r" ] || kill -9 "$(cat "$tmp/pid.$r")"; done
    [ -z "${cutter:-}" ] || kill $cutter                     # mpirun needs the network, too
    { wait $job ${freezer:-} ${cutter:-}; } 2>/dev/null
    freezer= cutter=
}

# The codes that a fault of the kind leaves, with the victim's own.
expected() {
    local r out=""
    for r in $(numbers); do
        [ "$r" != "$2" ] || case $1 in kill) out+="137 "; continue ;; stop) out+="none "; continue ;; esac
        out+="6 "
    done
    echo "$out"
}
# What the ranks say: rank 0 for all, or each for itself once rank 0 is gone.
explained() {                            # explained KIND VICTIM
    local any='rank [0-9]+ \(host [^,]*, process [0-9]+\)'
    if [ "$1" = cut ]; then said "exits: $any sent no heartbeat for [0-9]+ s"; return; fi
    local who="rank $2 \(host [^,]*, process $(cat "$tmp/pid.$2")\)" what="has made no progress for [0-9]+ s"
    [ "$1" = kill ] && what="died: "
    [ "$1" = stop ] && what="sent no heartbeat for [0-9]+ s"
    said "exits: $who $what" || return
    if [ "$2" = 0 ] && [ "$1" != freeze ]; then
        said "exits: .*; this rank (waits|computes|is stopped)"; return
    fi
    said "all ranks exit: $who $what" && said "$who (computes for|is stopped for|does not answer)" || return
    if [ "$1" = kill ]; then said "rank [0-9]+ \(.*\) (computes for|waits) .* [a-z_]+ [0-9]+ of "; return; fi
    said "rank [0-9]+ waits in [a-z_]+ [0-9]+( (from|to) rank [0-9]+)? of [a-z_]+ \(.*\): .*arrived"
}

layouts=("parallel.zero=3" "parallel.tp=$ranks" "parallel.pp=$ranks")
[ "$ranks" = 3 ] && layouts=("parallel.zero=3" "parallel.pp=3 parallel.layout=Et|tt|tL" "parallel.zero=1")
calm_of()  { echo "$lab/calm-${1//[^a-z0-9]/}"; }             # calm_of LAYOUT
calm_run() { check "undisturbed: $*" whole "$(calm_of "$*")" "$@"; }

# apart NAME RANKS command...: in a folder of its own, which keeps the counts.
apart() {
    tmp=$lab/$1 passed=0 failed=0
    mkdir "$tmp"
    "${@:3}"
    echo "$passed $failed $slowest" >"$tmp/counts"
}
add_counts() {
    local file p f s
    for file in "$lab"/*/counts; do
        read -r p f s <"$file"
        passed=$((passed + p)) failed=$((failed + f)) slowest=$((s > slowest ? s : slowest))
    done
}

# A run whose network is cut goes on through shared memory until comm.timeout: it may be complete by then.
records_gone() { [ ! -e "$1/hang" ] || grep -aq "the run is complete" "$tmp"/out*; }

# fault KIND VICTIM STEP MS RESUME LAYOUT...: MS after the checkpoint of a step is there.
fault() {
    local kind=$1 victim=$2 at=$3 ms=$4 resumes=$5 folder="$tmp/run"; shift 5
    local what="$*: $kind of rank $victim (TREB_KILL_SEED=$seed)"
    [ "$kind" = cut ] && from=("$tools/loopback")
    run "$folder" "$@"
    from=()
    until_of 60000 saved "$folder" "$at"
    pause "$ms"
    if ended 1; then
        { wait $job; } 2>/dev/null
        check "$what: no rank had failed before, $(codes)" [ "$(codes)" = "$(all_of 0 "$ranks")" ]
        echo "  skip $what: the run was over"
        return
    fi
    strike "$kind" "$victim"
    [ -z "${TREB_SHOW:-}" ] || show_end "$what: $ms ms, codes $ends"
    local expect; expect=$(expected "$kind" "$victim")
    check "$what: exit codes ${expect}and not $ends" [ "$ends" = "$expect" ]
    check "$what: within comm.timeout + 10 s, not $ms ms" [ $ms -lt $((1000 * limit + 10000)) ]
    check "$what: the message names rank and call" explained "$kind" "$victim"
    check "$what: records of the last calls" [ "$(records "$folder")" -ge $((ranks - 1)) ]
    [ "$resumes" = no ] && return
    check "$what: it resumes" whole "$folder" "$@"
    check "$what: bit-equal to the undisturbed run" same_bits "$(calm_of "$*")" "$folder"
    check "$what: the first step of the resumed run has removed the records" records_gone "$folder"
}
runs=() calm=()
faults() {                               # faults KIND N: lists them
    local i victim layout resumes
    for i in $(seq 1 "$2"); do
        victim=$((RANDOM % ranks)) layout=${layouts[$((RANDOM % ${#layouts[@]}))]} resumes=$resume
        [ "$i" = 1 ] && victim=$((ranks - 1)) layout=${layouts[0]}
        [ "$i" = 2 ] && victim=0 layout=${layouts[0]}
        runs+=("$1-$i $ranks fault $1 $victim $((2 + 2 * (RANDOM % 2))) $((RANDOM % 150)) $resumes $layout")
        [ "$resumes" = no ] || calm+=("$layout")
        [ "$resume" = all ] || resume=no
    done
}
faults freeze "$freezes"
faults stop "$stops"
faults kill "$kills"
faults cut "$cuts"

slow=$tools/slow_disk.so                 # an address sanitizer does not let a library be preloaded
can_slow() { [ "${TREB_SLOW:-1}" = 1 ] && [ -e "$slow" ] && [ "${tools%asan/tests}" = "$tools" ]; }

# A save that is under way when the main thread freezes and that needs little more than comm.timeout: it is
# finished before the ranks exit, and they do, although the records of the hang cannot be written.
frozen_in_save() {
    local folder="$tmp/run"
    SLOW_HANG_MS=60000 SLOW_WRITE_MS=50 SLOW_WRITES=$((20 * limit + 15)) RANK_PRELOAD=$slow \
        run "$folder" ${layouts[0]}
    until_of 60000 test -d "$folder/checkpoint-2.tmp"
    strike freeze 0
    check "frozen in a save: exit codes $ends" [ "$ends" = "$(expected freeze 0)" ]
    check "frozen in a save: within comm.timeout + 10 s, not $ms ms" [ $ms -lt $((1000 * limit + 10000)) ]
    check "frozen in a save: the message names rank and call" explained freeze 0
    check "frozen in a save: it is finished" [ -s "$folder/last/MANIFEST.json" ]
    check "frozen in a save: the folder of the records hangs" [ ! -e "$folder/hang" ]
}

# A disk on which the first save takes longer than comm.timeout, in many short writes and in one long fsync,
# and a rank that stands still for less than comm.timeout.
slow_run() {
    SLOW_WRITE_MS=50 SLOW_WRITES=10 SLOW_SYNC_MS=$((1000 * limit + 500)) RANK_PRELOAD=$slow \
        run "$tmp/slow" train.max_steps=4
    until_of 60000 saved "$tmp/slow" 2
    kill -STOP "$(cat "$tmp/pid.1")"; pause $((600 * limit)); kill -CONT "$(cat "$tmp/pid.1")"
    wait $job
    check "a slow disk and a short stop end no run: $(codes)" [ "$(codes)" = "$(all_of 0 "$ranks")" ]
    check "though one save takes longer than comm.timeout" \
        awk -v least="$limit" '/ saved .* in / && $(NF - 1) > least { slow = 1 } END { exit !slow }' \
        "$tmp/out.0"
}
skipped=0
if can_slow; then
    [ "$freezes" -gt 0 ] && runs+=("save $ranks frozen_in_save")
    runs+=("slow $ranks slow_run")
else
    skipped=1; echo "  skip the slow disk"
fi
mapfile -t calm < <(printf '%s\n' "${calm[@]}" | sort -u |
    awk -v ranks="$ranks" 'NF { print "calm-" NR, ranks, "calm_run", $0 }')
run_all apart "${calm[@]}"
run_all apart "${runs[@]}"
add_counts
echo "  the slowest exit took $slowest ms, comm.timeout is $limit s"
report $skipped
