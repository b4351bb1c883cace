#!/usr/bin/env bash
# The same run on one rank and on several under mpirun: losses agree at every step; the checkpoint of one layout goes on
# in others, and out of any of them comes the same model in HF form; with adapters too. Eight random layouts of tests/test_layouts.c over
# processes, too, where TREB_LAYOUT_RUNS asks for them. TREB_RANK_STEPS sets how long.
. tests/ranklab.sh
steps=${TREB_RANK_STEPS:-8} half=$((${TREB_RANK_STEPS:-8} / 2))
has_mpi || skip "no mpirun, or a build without MPI"
small_moe

ranks() { local n=$1; shift; timeout 240 mpirun --oversubscribe --allow-run-as-root --bind-to none -np "$n" "$@"; }
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

# Adapters on the model that has come out: the same on every layout, half a run on one and the rest on others; the file
# of any is the same, and merged it is a model.
lora=('model.preset=""' model.path="$tmp/lora-base" lora.rank=4 "lora.target_modules=[all-linear]" "${level[@]}")
adapt() { local folder=$1 n=$2; shift 2; train "$folder" "$n" "${lora[@]}" "$@"; }
adapts_on() { local n=$1 last=$2; shift 2; adapt "$tmp/lora-move" "$n" train.max_steps="$last" checkpoint.resume_from_checkpoint=auto "$@"; }
cp -r "$tmp/hf" "$tmp/lora-base" && cp "$tmp/model/tokenizer.json" "$tmp/lora-base"
check "adapters on one rank"        adapt "$tmp/lora" 1
check "half of it on ep2"           adapt "$tmp/lora-move" 2 parallel.ep=2 train.max_steps=$half
check "the rest on tp2, sharded"    adapts_on 4 "$steps" parallel.tp=2 parallel.zero=3
check "the curve is one"            agree "$tmp/lora" "$tmp/lora-move" "$steps"
check "on two stages, slices"       adapts_on 4 $((steps + 1)) parallel.pp=2 parallel.etp=2
check "the base is in no checkpoint" [ "$(du -sk "$tmp/lora-move/last/" | cut -f1)" -lt "$(($(du -sk "$tmp/lora-base" | cut -f1) * 3 / 2))" ]
check "an adapter"                  convert "$tmp/lora-move/last" "$tmp/peft"
check "as one rank would have it"   convert --native "$tmp/lora-move/last" "$tmp/lora-alone"
check "the same adapter"            convert "$tmp/lora-alone" "$tmp/peft1"
check "to the bit"                  cmp -s "$tmp/peft/adapter_model.safetensors" "$tmp/peft1/adapter_model.safetensors"
check "merged"                      convert --merge "$tmp/peft" "$tmp/merged"
check "and from the checkpoint"     convert --merge "$tmp/lora-move/last" "$tmp/merged1"
check "the same model"              cmp -s "$tmp/merged/model.safetensors" "$tmp/merged1/model.safetensors"
loss() { "$treb" eval --json --max-new 0 --data "$tmp/data.jsonl" --max-samples 20 "$@" 2>>"$tmp/out" | grep -m1 -o '"loss": [0-9.]*' | cut -c -14; }
check "which answers alike"         [ "$(loss --model "$tmp/merged")" = "$(loss --model "$tmp/lora-move/last")" ]
check "and not as the base does"    [ "$(loss --model "$tmp/merged")" != "$(loss --model "$tmp/lora-base")" ]

drawn() { TREB_LAYOUTS=1 ranks 8 "$TEST_LAYOUTS" >"$tmp/out" 2>&1; }
for i in $(seq "${TREB_LAYOUT_RUNS:-1}"); do
    [ -x "${TEST_LAYOUTS:-}" ] && check "random layout $i over eight processes" drawn
done
report
