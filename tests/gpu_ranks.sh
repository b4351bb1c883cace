#!/usr/bin/env bash
# Ranks on the GPU: two and four ranks that share it, with messages staged through the host over MPI, have the
# losses of one rank. NCCL, which needs a GPU for each rank, opens and runs with one. Part of gpu.sh;
# TREB_GPU_BACKEND=cpu tests the test.
. tests/ranklab.sh
gpu=${TREB_GPU_BACKEND:-cuda} steps=${TREB_RANK_STEPS:-8}
small_moe
lora=(lora.rank=8 lora.target_modules=[all-linear] optim.learning_rate=0.01)
train() {                                # train FOLDER overrides...: one rank, or the ranks that `by` starts
    local folder=$1; shift
    timeout 120 "${by[@]}" "$treb" train /dev/null "${recipe[@]}" \
        train.global_tokens=512 train.max_steps="$steps" \
        device.backend="$gpu" model.dtype=float32 device.dtype=float32 \
        checkpoint.output_dir="$folder" "$@" >"$tmp/out" 2>&1
}
layout() {                               # layout NAME RANKS overrides...: compared with the run `like`
    local name=$1 n=$2; shift 2
    by=(mpirun --oversubscribe --allow-run-as-root --bind-to none -np "$n")
    check "$name runs on one GPU" train "$tmp/$name" "$@"
    check "$name has the losses of one rank" agree "$tmp/$like" "$tmp/$name" "$steps"
}
by=() like=one
train "$tmp/one" comm.kind=self; rc=$?
if [ $rc -eq 5 ] || grep -q "not in this build" "$tmp/out"; then skip "$(tail -n 1 "$tmp/out")"; fi
check "one rank" [ $rc -eq 0 ]

nccl_ranks() {                           # nccl_ranks N command...: ranks that share the GPU, over loopback
    local n=$1; shift
    timeout 120 mpirun --oversubscribe --allow-run-as-root --bind-to none -np "$n" bash -c \
        'NCCL_HOSTID=h$OMPI_COMM_WORLD_RANK NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_P2P_DISABLE=1 \
         NCCL_SHM_DISABLE=1 exec "$0" "$@"' "$@" >"$tmp/out" 2>&1
}

unmet=0
if [ "$gpu" = cuda ]; then
    check "NCCL runs with one rank" train "$tmp/nccl" comm.kind=nccl parallel.zero=3
    check "NCCL has the losses of a run without communication" agree "$tmp/one" "$tmp/nccl" "$steps"
else unmet=$((unmet + 2)); fi
if [ "$gpu" = cuda ] && has_mpi; then
    check "exposed communication on the GPU's clock" nccl_ranks 2 "$(dirname "$treb")/tests/gpu_exposed"
else unmet=$((unmet + 1)); fi
if has_mpi; then
    layout dp2 2
    layout tp2-ep2 2 parallel.tp=2 parallel.ep=2
    layout fsdp2 2 parallel.zero=3
    layout pp2-cp2-ep2 4 parallel.pp=2 parallel.cp=2 parallel.ep=2 moe.dispatcher=deepep

    by=() like=adapters
    check "adapters on one rank" train "$tmp/adapters" comm.kind=self "${lora[@]}"
    layout adapters-tp2-ep2 2 parallel.tp=2 parallel.ep=2 "${lora[@]}"
    layout adapters-fsdp2 2 parallel.zero=3 "${lora[@]}"
    layout adapters-pp2-ep2 4 parallel.pp=2 parallel.ep=2 "${lora[@]}"
else unmet=$((unmet + 15)); fi
report $unmet
