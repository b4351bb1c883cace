#!/usr/bin/env bash
# The same run on one rank and on several under mpirun, in full and with adapters: losses agree at every step,
# the checkpoint of one layout resumes on others, and each of them exports the same model in Hugging Face
# format. TREB_LAYOUT_RUNS random layouts of tests/test_layouts.c run over eight processes (1);
# TREB_RANK_STEPS sets the number of steps.
. tests/ranklab.sh
steps=${TREB_RANK_STEPS:-8} half=$((${TREB_RANK_STEPS:-8} / 2))
has_mpi || skip "no mpirun, or a build without MPI"
small_moe

ranks() {                                # ranks N command...
    local n=$1; shift
    timeout 240 mpirun --oversubscribe --allow-run-as-root --bind-to none -np "$n" "$@"
}
train() {                                # train FOLDER RANKS overrides...
    local folder=$1 n=$2; shift 2
    ranks "$n" "$treb" train /dev/null "${recipe[@]}" train.global_tokens=512 train.max_steps="$steps" \
        checkpoint.output_dir="$folder" "$@" >"$tmp/out" 2>&1
}
layout() {                               # layout NAME RANKS overrides...
    local name=$1 n=$2; shift 2
    check "$name runs" train "$tmp/$name" "$n" "$@"
    check "$name has the losses of one rank" agree "$tmp/one" "$tmp/$name" "$steps"
}
first_norm() { grep -m1 -o '"train/grad_norm": [0-9.e+-]*' "$1/metrics.jsonl" | cut -d' ' -f2; }
same_norm() {                            # same_norm A B: gradient norms of the first step, within 2e-7
    awk -v a="$(first_norm "$1")" -v b="$(first_norm "$2")" '
        BEGIN { d = a - b; if (d < 0) d = -d; if (!(a > 0) || d > 2e-7 * a) { print "  " a " " b; exit 1 } }'
}
check "one rank" train "$tmp/one" 1
check "one rank has a balance loss" grep -q 'auxiliary loss (micro_batch), coefficient 0.001' "$tmp/out"
layout dp2 2
check "two data-parallel ranks have the gradients of one" same_norm "$tmp/one" "$tmp/dp2"
layout tp2-ep2 2 parallel.tp=2 parallel.ep=2 parallel.tp_chunks=2
check "exposed communication by group" grep -q '"perf/exposed_comm/tp": 0\.[0-9]' "$tmp/tp2-ep2/metrics.jsonl"
layout fsdp4 4 parallel.zero=3
check "four have the gradients of one" same_norm "$tmp/one" "$tmp/fsdp4"
layout pp2-cp2-ep2 4 parallel.pp=2 parallel.cp=2 parallel.ep=2 moe.dispatcher=deepep
profiled() {                             # two ranks: the file, the trace and the page
    local to=$tmp/prof-profile
    ranks 2 "$treb" profile /dev/null "${recipe[@]}" train.global_tokens=256 parallel.ep=2 --steps 1 \
        --warmup 0 checkpoint.output_dir="$tmp/prof" >"$tmp/out" 2>&1 && grep -q 'slowest' "$tmp/out" &&
    [ ! -e "$tmp/prof" ] && [ ! -e "$to/run" ] && [ -s "$to/profile.html" ] &&
    grep -q '"etp_ep": {' "$to/profile.json" &&
    tail -n 1 "$to/trace.json" | grep -q '^\]}' &&
    grep -q '"name":"rank 1"' "$to/trace.json"
}
check "two ranks are profiled" profiled
layout chunks4 4 parallel.ep=4 parallel.zero=3 moe.rank_capacity=1 moe.overlap=true
check "chunked expert layers are counted" grep -qE '"moe/sliced_layers": [1-9]' "$tmp/chunks4/metrics.jsonl"
layout peer4 4 parallel.ep=4 moe.rank_capacity=1 moe.dispatcher=peer
check "steps that overflow are run again" grep -qE '"moe/sliced_layers": [1-9]' "$tmp/peer4/metrics.jsonl"

hops=(moe.dispatcher=deepep_peer comm.ranks_per_node=2)
layout hops4 4 parallel.ep=4 parallel.zero=3 moe.rank_capacity=1 moe.overlap=true "${hops[@]}"

# Half a run on one layout, the rest on others.
level=(optim.lr_scheduler_type=constant optim.warmup_ratio=0)
goes_on() {                              # goes_on RANKS LAST overrides...: up to step LAST
    local n=$1 last=$2; shift 2
    train "$tmp/move" "$n" "${level[@]}" train.max_steps="$last" checkpoint.resume_from_checkpoint=auto "$@"
}
check "a whole run to compare with" train "$tmp/stay" 1 "${level[@]}"
check "the first half on tp2"       train "$tmp/move" 2 "${level[@]}" parallel.tp=2 train.max_steps=$half
check "the second half on ep4"      goes_on 4 "$steps" parallel.ep=4
check "the losses of a whole run"   agree "$tmp/stay" "$tmp/move" "$steps"
check "on two, sharded weights"     goes_on 2 $((steps + 1)) parallel.zero=3
check "on four, pp2 tp2 etp2"        goes_on 4 $((steps + 2)) parallel.pp=2 parallel.tp=2 parallel.etp=2
convert() { "$treb" convert "$@" >>"$tmp/out" 2>&1; }
check "in Hugging Face format"       convert "$tmp/move/last" "$tmp/hf" --config "$tmp/model"
check "as a one-rank checkpoint"    convert --native "$tmp/move/last" "$tmp/alone"
check "exported from that one"       convert "$tmp/alone" "$tmp/hf1"
check "the same model"              cmp -s "$tmp/hf/model.safetensors" "$tmp/hf1/model.safetensors"

# Adapters on the exported model: the losses are the same on every layout, half a run resumes on other
# layouts, the adapter file of any layout is the same, and it can be merged into the model.
lora=('model.preset=""' model.path="$tmp/lora-base"
      lora.rank=4 "lora.target_modules=[all-linear]" "${level[@]}")
adapt() { local folder=$1 n=$2; shift 2; train "$folder" "$n" "${lora[@]}" "$@"; }
adapts_on() {                            # adapts_on RANKS LAST overrides...: up to step LAST
    local n=$1 last=$2; shift 2
    adapt "$tmp/lora-move" "$n" train.max_steps="$last" checkpoint.resume_from_checkpoint=auto "$@"
}
cp -r "$tmp/hf" "$tmp/lora-base" && cp "$tmp/model/tokenizer.json" "$tmp/lora-base"
check "adapters on one rank"        adapt "$tmp/lora" 1
check "half of it on ep2"           adapt "$tmp/lora-move" 2 parallel.ep=2 train.max_steps=$half
check "the rest on tp2, sharded"    adapts_on 4 "$steps" parallel.tp=2 parallel.zero=3
check "the losses of a whole run"   agree "$tmp/lora" "$tmp/lora-move" "$steps"
check "on two stages, pp2 etp2"      adapts_on 4 $((steps + 1)) parallel.pp=2 parallel.etp=2
size_of() { du -sk "$1" | cut -f1; }
check "checkpoints do not contain the base model" \
    [ "$(size_of "$tmp/lora-move/last/")" -lt $(($(size_of "$tmp/lora-base") * 3 / 2)) ]
check "an adapter"                  convert "$tmp/lora-move/last" "$tmp/peft"
check "as a one-rank checkpoint"    convert --native "$tmp/lora-move/last" "$tmp/lora-alone"
check "the same adapter"            convert "$tmp/lora-alone" "$tmp/peft1"
adapter=adapter_model.safetensors
check "bit-equal"                   cmp -s "$tmp/peft/$adapter" "$tmp/peft1/$adapter"
check "merged"                      convert --merge "$tmp/peft" "$tmp/merged"
check "and from the checkpoint"     convert --merge "$tmp/lora-move/last" "$tmp/merged1"
check "the same model"              cmp -s "$tmp/merged/model.safetensors" "$tmp/merged1/model.safetensors"
loss() {                                 # loss --model FOLDER
    "$treb" eval --json --max-new 0 --data "$tmp/data.jsonl" --max-samples 20 "$@" 2>>"$tmp/out" |
        grep -m1 -o '"loss": [0-9.]*' | cut -c -14
}
check "the merged model has the adapter's loss" \
    [ "$(loss --model "$tmp/merged")" = "$(loss --model "$tmp/lora-move/last")" ]
check "and not the loss of the base" [ "$(loss --model "$tmp/merged")" != "$(loss --model "$tmp/lora-base")" ]

# Links between ranks: measured by two, written by the first, read by a plan.
export TREB_CACHE_DIR=$tmp/cache
link() { sed -n "s/^ *\"$1\": \([0-9.e+-]*\),*\$/\1/p" "$tmp/cache/hardware.json"; }
between() { awk -v x="$1" -v lo="$2" -v hi="$3" 'BEGIN { exit !(x >= lo && x <= hi) }'; }
calibrate() { ranks 2 "$treb" bench calibrate --backend cpu --links --repeat 1 "$@" >"$tmp/out" 2>&1; }
check "two ranks measure their links"   calibrate
check "one table, by the first rank"    [ "$(grep -c 'intra-node, 2 ranks over mpi' "$tmp/out")" = 1 ]
check "bandwidth is plausible, $(link intra_bw)"  between "$(link intra_bw)" 1e6 1e12
check "latency is plausible, $(link intra_delay)" between "$(link intra_delay)" 1e-8 0.5
check "links between nodes are measured" calibrate --ranks-per-node 1
check "bandwidth is plausible, $(link inter_bw)"   between "$(link inter_bw)" 1e6 1e12
check "the links inside a node stay"    [ "$(link intra_ranks)" = 2 ]
shows() { "$treb" plan /dev/null "${recipe[@]}" --hardware this >"$tmp/out" 2>&1 && grep -q "$1" "$tmp/out"; }
check "a plan says that they are measured" \
    shows 'links: intra-node .*(measured, 2 ranks over mpi); inter-node .*(measured, 2 nodes over mpi)'

drawn() { TREB_LAYOUTS=1 TREB_UNEVEN=${TREB_UNEVEN:-24} ranks 8 "$TEST_LAYOUTS" >"$tmp/out" 2>&1; }
for i in $(seq "${TREB_LAYOUT_RUNS:-1}"); do
    [ -x "${TEST_LAYOUTS:-}" ] && check "random layout $i over eight processes" drawn
done
report
