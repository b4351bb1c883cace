#!/usr/bin/env bash
# kill -9 of one rank of eight at a random moment of a run that saves often, with random layouts: the other
# seven exit within 10 s with code 6 and name the rank that died, and the resumed run is bit-equal to an
# undisturbed one. Some layouts train adapters, and so does a run of two ranks that follows. Then one rank of
# four is stopped (SIGSTOP). TREB_KILLS sets the number of kills (2), TREB_KILL_STEPS the number of steps. A
# kill counts if it hit a running process.
. tests/ranklab.sh
kills=${TREB_KILLS:-2} steps=${TREB_KILL_STEPS:-12} hits=0 tries=0 slowest=0
seed=${TREB_KILL_SEED:-$RANDOM}; RANDOM=$seed
has_mpi || skip "no mpirun, or a build without MPI"
small_moe
expert_lora="lora.rank=4 lora.target_modules=[experts] lora.expert_a=shared"
layouts=("parallel.zero=3"
         "parallel.tp=2 parallel.ep=4"
         "parallel.pp=2 parallel.ep=4 parallel.zero=1"
         "parallel.tp=2 parallel.cp=2 parallel.ep=8 moe.dispatcher=deepep"
         "parallel.zero=3 parallel.replicas=2 parallel.ep=2"
         "parallel.pp=2 parallel.tp=2 parallel.ep=2 parallel.etp=2 moe.dispatcher=hybridep"
         "parallel.zero=3 parallel.ep=4 lora.rank=4 lora.dropout=0.1 checkpoint.hf=every"
         "parallel.pp=2 parallel.tp=2 parallel.ep=2 $expert_lora")

run() {                                  # run FOLDER RANKS overrides...: starts it
    local folder=$1 n=$2; shift 2
    ranks_start "$n" -- "$treb" train /dev/null "${recipe[@]}" train.max_steps="$steps" \
        checkpoint.save_steps=2 checkpoint.save_total_limit=2 \
        checkpoint.resume_from_checkpoint=auto checkpoint.output_dir="$folder" "$@"
}
whole()    { run "$@"; wait $job; [ "$(codes)" = "$(all_of 0 "$2")" ]; }
codes()    { cat "$tmp"/code.* 2>/dev/null | tr '\n' ' '; }
# Before rank 0 prints, MPI itself kills the ranks, with other exit codes.
opened()   { [ -s "$tmp/out.0" ] || [ "$(count code)" -gt 0 ]; }
ended()    { [ "$(count code)" -ge "$1" ]; }
all_of()   { yes "$1" | head -n "$2" | tr '\n' ' '; }                   # all_of CODE N
over() {                                 # the kill came after the last step
    [ "$others" = "$(all_of 0 $((ranks - 1)))" ] && grep -aq "done: $steps steps" "$tmp"/out.0
}
sound()    { [ ! -L "$1/last" ] || [ -s "$1/last/MANIFEST.json" ]; }
named()    { grep -al "exits: rank $1 (host .*, process $(cat "$tmp/pid.$1")) $2" "$tmp"/out.* | wc -l; }

# strike SIGNAL VICTIM RANKS MS: sends SIGNAL to rank VICTIM MS after the first output of rank 0. Sets
# `others` to the exit codes of the other ranks and `ms` to the time until all have exited.
strike() {
    until_of 60000 opened
    pause "$4"
    kill "-$1" "$(cat "$tmp/pid.$2")" 2>/dev/null
    local start; start=$(now_ms)
    until_of 30000 ended $(($3 - ($1 == 19)))
    ms=$(($(now_ms) - start)) others=""
    for r in $(seq 0 $(($3 - 1))); do
        [ "$r" = "$2" ] || others+="$(cat "$tmp/code.$r" 2>/dev/null || echo none) "
    done
    for r in $(seq 0 $(($3 - 1))); do [ -e "$tmp/code.$r" ] || kill -9 "$(cat "$tmp/pid.$r")"; done
    { wait $job; } 2>/dev/null
}

# round RANKS LAYOUT CALM TOOK: kills one run twice, then lets it finish and compares it with CALM; no second
# kill if the run finished before the first.
round() {
    local ranks=$1 layout=$2 calm=$3 took=$4 run="$tmp/run" victim what
    rm -rf "$run"
    for _ in 1 2; do
        victim=$((RANDOM % ranks)) tries=$((tries + 1)) what="$layout, rank $victim (TREB_KILL_SEED=$seed)"
        run "$run" "$ranks" $layout
        strike 9 $victim "$ranks" $((RANDOM * took / 50000))
        [ "$(cat "$tmp/code.$victim")" = 137 ] && ! over || break
        hits=$((hits + 1)) slowest=$((ms > slowest ? ms : slowest))
        check "$what: the others exit with 6, not $others" [ "$others" = "$(all_of 6 $((ranks - 1)))" ]
        check "$what: within 10 s, not $ms ms" [ $ms -lt 10000 ]
        check "$what: each names the dead rank" [ "$(named $victim "died: ")" -eq $((ranks - 1)) ]
        check "$what: last is complete" sound "$run"
    done
    check "$what: it resumes" whole "$run" "$ranks" $layout
    check "$what: bit-equal to the undisturbed run" same_bits "$calm" "$run"
}

declare -A took
rounds() {                               # rounds KILLS RANKS layouts...: until KILLS kills hit a run
    local kills=$1 ranks=$2 layouts=("${@:3}") start calm at
    hits=0 tries=0
    while [ $hits -lt "$kills" ] && [ $tries -lt $((4 * kills + 8)) ]; do
        at=$((RANDOM % ${#layouts[@]})) start=$(now_ms) calm="$tmp/calm$ranks-$at"
        if [ ! -d "$calm" ]; then
            check "undisturbed: ${layouts[$at]}" whole "$calm" "$ranks" ${layouts[$at]}
            took[$ranks-$at]=$(($(now_ms) - start))
        fi
        round "$ranks" "${layouts[$at]}" "$calm" "${took[$ranks-$at]}"
    done
    check "$hits kills of $kills hit a running process, in $tries tries" [ $hits -ge "$kills" ]
    echo "  $hits kills, the slowest exit took $slowest ms"
}
rounds "$kills" 8 "${layouts[@]}"
rounds 1 2 "parallel.pp=2 lora.rank=4 lora.dropout=0.1"

# A stopped rank first exceeds the time of a step, then comm.timeout. Nothing is saved meanwhile, since the
# heartbeat does not ask ranks that write files.
run "$tmp/stopped" 4 train.max_steps=100000 comm.timeout=6 checkpoint.save_steps=0
strike 19 2 4 1500
check "rank 2 of 4 is stopped: the others exit with 6, not $others" [ "$others" = "6 6 6 " ]
check "soon after comm.timeout, not $ms ms" [ $ms -lt 12000 ]
check "each names the silent rank" [ "$(named 2 "sent no heartbeat for [0-9]* s")" -eq 3 ]
said() { grep -aq "warning: rank $1" "$tmp/out.0"; }
check "rank 0 warned before: rank 2 does not answer" \
    said "2 (host .*, process $(cat "$tmp/pid.2")) does not answer"
check "and named the call that the others wait in" \
    said "[013] .*waits [0-9.]* s in [a-z_]* [0-9]* of [a-z_]* ([0-9]* bytes"
check "at the end it names who arrived there and who did not" \
    grep -aq "rank [013] waits in [a-z_]* [0-9]* of .*: rank.* arrived, rank.*2.* did not" "$tmp/out.0"

# An undisturbed run of a model that is large enough for weights to be in transfer when the last step is done.
sed -i -e 's/"hidden_size": 48/"hidden_size": 256/' \
    -e 's/"moe_intermediate_size": 32/"moe_intermediate_size": 256/' "$tmp/model/config.json"
check "a run ends well with weights in transfer" whole "$tmp/large" 2 train.max_steps=1
report
