#!/usr/bin/env bash
# Runs with CUDA graphs (train.cuda_graph=full) have the bits of runs without: one rank with several
# micro-batches, adapters, evaluations between steps, results read late (train.late_results=true), and two
# ranks that share the experts (moe.dispatcher=peer). Part of gpu.sh; TREB_GPU_BACKEND=cpu tests that the
# CPU refuses.
. tests/ranklab.sh
gpu=${TREB_GPU_BACKEND:-cuda} steps=${TREB_RANK_STEPS:-10} only=${GRAPH_LAYOUTS:-*}
small_moe
train() {                                # train FOLDER overrides...: the ranks that `by` starts
    local folder=$1; shift
    timeout "${GRAPH_LIMIT:-120}" "${by[@]}" "$treb" train /dev/null "${recipe[@]}" \
        train.max_steps="$steps" train.micro_tokens=256 train.deterministic=true device.backend="$gpu" \
        checkpoint.output_dir="$folder" "$@" >"$tmp/out" 2>&1
}
graphs_were_used() {                     # graphs_were_used FOLDER: in half of the steps nothing ran eagerly
    local n; n=$(grep -c '"perf/eager_phases": 0[,}]' "$1/metrics.jsonl")
    [ "$n" -ge $((steps / 2)) ] || { grep -o '"perf/eager_phases": [0-9]*' "$1/metrics.jsonl"; return 1; }
}
same_run() {                             # same_run A B: weights, moments and every loss
    cmp -s <(hashes "$1") <(hashes "$2") && [ -n "$(hashes "$1")" ] && cmp -s <(losses "$1") <(losses "$2")
}
hashes() { (cd "$1/last/state" && find . -name '*.safetensors' -print0 | sort -z | xargs -0 sha256sum); }
both() {                                 # both NAME overrides...: eagerly and as graphs
    local name=$1 how; shift
    # shellcheck disable=SC2053
    [[ $name == $only ]] || return 0
    for how in none full; do
        check "$name with cuda_graph=$how" train "$tmp/$name-$how" train.cuda_graph=$how "$@"
    done
    check "$name has the same bits as graphs" same_run "$tmp/$name-none" "$tmp/$name-full"
}
by=()
if [ "$gpu" = cpu ]; then
    train "$tmp/cpu" train.cuda_graph=full; rc=$?
    check "the CPU refuses" [ $rc -eq 2 ]
    check "it says what to set" grep -q "device.backend=cuda" "$tmp/out"
    report
fi
train "$tmp/first" train.max_steps=1; rc=$?
if [ $rc -eq 5 ] || grep -q "not in this build" "$tmp/out"; then skip "$(tail -n 1 "$tmp/out")"; fi
both text train.global_tokens=256 eval.split=0.1 eval.eval_steps=4 log.logging_steps=1
[ ! -d "$tmp/text-full" ] || check "steps of text are graphs alone" graphs_were_used "$tmp/text-full"
both bf16 train.global_tokens=1024 model.dtype=bfloat16 train.late_results=false
both late train.global_tokens=1024 model.dtype=bfloat16 train.late_results=true
[ ! -d "$tmp/bf16-none" ] || [ ! -d "$tmp/late-none" ] ||
    check "late results have the bits of steps that end at once" same_run "$tmp/bf16-none" "$tmp/late-none"
both adapters train.global_tokens=512 lora.rank=8 lora.dropout=0.1 'lora.target_modules=[all-linear]'
if has_mpi; then
    [ "${GRAPH_MPS:-0}" != 1 ] || start_mps
    by=(mpirun --oversubscribe --allow-run-as-root --bind-to none -np 2)
    both ep2 train.global_tokens=2048 parallel.ep=2 moe.dispatcher=peer
    train "$tmp/alltoall" parallel.ep=2 moe.dispatcher=alltoall train.cuda_graph=full; rc=$?
    check "alltoall is refused" [ $rc -eq 2 ]
    check "it is refused by name" grep -q "moe.dispatcher=peer" "$tmp/out"
fi
report
