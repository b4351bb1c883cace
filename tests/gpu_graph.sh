#!/usr/bin/env bash
# Runs with CUDA graphs (train.cuda_graph=full, or scopes) have the bits of runs without: one rank with
# several micro-batches, adapters, offloaded activations, evaluations between steps, results read late
# (train.late_results=true), and two ranks that share the experts, by a dispatcher that counts on the device
# (peer) and by one that counts on the host (alltoall, also over NCCL). Part of gpu.sh; TREB_GPU_BACKEND=cpu
# tests that the CPU refuses.
. tests/ranklab.sh
gpu=${TREB_GPU_BACKEND:-cuda} steps=${TREB_RANK_STEPS:-10} only=${GRAPH_LAYOUTS:-*}
partly='[attn, moe_router, moe_preprocess]'
over_nccl='export NCCL_HOSTID=h$OMPI_COMM_WORLD_RANK NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1
    export NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1; exec "$0" "$@"'              # ranks that share a GPU
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
launches() { grep -o '"perf/launches": [0-9]*' "$1/metrics.jsonl" | tail -n 1 | grep -o '[0-9]*$'; }
fewer_launches() { [ "$(launches "$1")" -lt "$(launches "$2")" ]; }
wanted() {                               # wanted NAME: GRAPH_LAYOUTS has it
    # shellcheck disable=SC2053
    [[ $1 == $only ]]
}
compare() {                              # compare NAME VALUE;... overrides...: eagerly, and with each value
    local name=$1 value folder; local -a values; IFS=';' read -ra values <<<"$2"; shift 2
    wanted "$name" || return 0
    check "$name without graphs" train "$tmp/$name-none" train.cuda_graph=none "$@"
    for value in "${values[@]}"; do
        folder=$tmp/$name-${value//[^a-z_]/}
        check "$name with cuda_graph=$value" train "$folder" train.cuda_graph="$value" "$@"
        check "$name has the same bits with cuda_graph=$value" same_run "$tmp/$name-none" "$folder"
        check "$name has fewer launches with cuda_graph=$value" fewer_launches "$folder" "$tmp/$name-none"
    done
}
refused() {                              # refused WHAT TEXT overrides...
    local what=$1 text=$2 rc; shift 2
    rm -rf "$tmp/refused"
    train "$tmp/refused" "$@"; rc=$?
    check "$what is refused" [ $rc -eq 2 ]
    check "$what is refused by name" grep -qF "$text" "$tmp/out"
}
refuse_counted_rows() {
    refused "alltoall with full" "moe.dispatcher=peer" \
        parallel.ep=2 moe.dispatcher=alltoall train.cuda_graph=full
    refused "alltoall with moe" "moe_router and moe_preprocess" \
        parallel.ep=2 moe.dispatcher=alltoall train.cuda_graph=moe
}
by=() two=(mpirun --oversubscribe --allow-run-as-root --bind-to none -np 2)
if [ "$gpu" = cpu ]; then
    refused "the CPU" "device.backend=cuda" train.cuda_graph=full
    refused "a foreign word" "write full" train.cuda_graph=full_iteration
    by=("${two[@]}")
    ! has_mpi || refuse_counted_rows
    report
fi
train "$tmp/first" train.max_steps=1; rc=$?
if [ $rc -eq 5 ] || grep -q "not in this build" "$tmp/out"; then skip "$(tail -n 1 "$tmp/out")"; fi
compare text "full;$partly" train.global_tokens=256 eval.split=0.1 eval.eval_steps=4 log.logging_steps=1
! wanted text || check "steps of text are graphs alone" graphs_were_used "$tmp/text-full"
compare bf16 full train.global_tokens=1024 model.dtype=bfloat16 train.late_results=false
compare late full train.global_tokens=1024 model.dtype=bfloat16 train.late_results=true
! wanted bf16 || ! wanted late ||
    check "late results have the bits of steps that end at once" same_run "$tmp/bf16-none" "$tmp/late-none"
compare adapters "full;[attn, moe]" train.global_tokens=512 lora.rank=8 lora.dropout=0.1 \
    'lora.target_modules=[all-linear]'
compare offload "$partly" train.global_tokens=512 memory.activation_offload=core_attn
if has_mpi; then
    [ "${GRAPH_MPS:-0}" != 1 ] || start_mps
    by=("${two[@]}")
    compare ep2 "full;[attn, moe]" train.global_tokens=2048 parallel.ep=2 moe.dispatcher=peer
    compare alltoall "$partly" train.global_tokens=1024 parallel.ep=2 moe.dispatcher=alltoall
    ! wanted refusals || refuse_counted_rows
    by+=(bash -c "$over_nccl")
    compare nccl "$partly" train.global_tokens=1024 parallel.ep=2 moe.dispatcher=alltoall parallel.zero=3 \
        comm.kind=nccl
fi
report
