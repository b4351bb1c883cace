#!/usr/bin/env bash
# The same run on one rank and on several under mpirun: losses agree at every step; the checkpoint of one layout goes on
# in others, and out of any of them comes the same model in HF form. Eight random layouts of tests/test_layouts.c over
# processes, too, where TREB_LAYOUT_RUNS asks for them. TREB_RANK_STEPS sets how long.
. tests/ranklab.sh
steps=${TREB_RANK_STEPS:-8} half=$((${TREB_RANK_STEPS:-8} / 2))
has_mpi || skip "no mpirun, or a build without MPI"
small_moe

ranks() { local n=$1; shift; timeout 120 mpirun --oversubscribe --allow-run-as-root --bind-to none -np "$n" "$@"; }
train() {                                # train FOLDER RANKS overrides...
    local folder=$1 n=$2; shift 2
    ranks "$n" "$treb" train /dev/null "${recipe[@]}" train.global_tokens=512 train.max_steps="$steps" \
        checkpoint.output_dir="$folder" "$@" >"$tmp/out" 2>&1
}
layout() {                               # layout NAME RANKS overrides...
    local name=$1 n=$2; shift 2
    check "$name runs" train "$tmp/$name" "$n" "$@"
    check "$name loses as one rank does" agree "$tmp/one" "$tmp/$name" "$steps"
}
check "one rank" train "$tmp/one" 1
layout dp2 2
layout tp2-ep2 2 parallel.tp=2 parallel.ep=2
layout fsdp4 4 parallel.zero=3
layout pp2-cp2-ep2 4 parallel.pp=2 parallel.cp=2 parallel.ep=2 moe.dispatcher=deepep
layout slices4 4 parallel.ep=4 moe.rank_capacity=1 moe.overlap=true
check "and tells that layers were cut" grep -qE '"moe/sliced_layers": [1-9]' "$tmp/slices4/metrics.jsonl"

# Half a run on one layout, the rest on others.
level=(optim.lr_scheduler_type=constant optim.warmup_ratio=0)
goes_on() { local n=$1 last=$2; shift 2; train "$tmp/move" "$n" "${level[@]}" train.max_steps="$last" checkpoint.resume_from_checkpoint=auto "$@"; }
check "whole, for comparison"       train "$tmp/stay" 1 "${level[@]}"
check "the first half on tp2"       train "$tmp/move" 2 "${level[@]}" parallel.tp=2 train.max_steps=$half
check "the second half on ep4"      goes_on 4 "$steps" parallel.ep=4
check "the curve is one"            agree "$tmp/stay" "$tmp/move" "$steps"
check "on two, sharded weights"     goes_on 2 $((steps + 1)) parallel.zero=3
check "on four, stages and slices"  goes_on 4 $((steps + 2)) parallel.pp=2 parallel.tp=2 parallel.etp=2
convert() { "$treb" convert "$@" >>"$tmp/out" 2>&1; }
check "in HF form"                  convert "$tmp/move/last" "$tmp/hf" --config "$tmp/model"
check "as one rank would have it"   convert --native "$tmp/move/last" "$tmp/alone"
check "and in HF form from there"   convert "$tmp/alone" "$tmp/hf1"
check "the same model"              cmp -s "$tmp/hf/model.safetensors" "$tmp/hf1/model.safetensors"

drawn() { TREB_LAYOUTS=1 ranks 8 "$TEST_LAYOUTS" >"$tmp/out" 2>&1; }
for i in $(seq "${TREB_LAYOUT_RUNS:-1}"); do
    [ -x "${TEST_LAYOUTS:-}" ] && check "random layout $i over eight processes" drawn
done
report
