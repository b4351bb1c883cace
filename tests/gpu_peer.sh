#!/usr/bin/env bash
# Token dispatch through mapped memory (moe.dispatcher=peer, and deepep_peer on two nodes of two ranks) over
# processes: layouts of two and four ranks have the losses of one rank and the bits of alltoall, and steps
# that overflow are run again. On a GPU the
# ranks share it, by time slices or, with PEER_MPS=1, under MPS. Part of gpu.sh; TREB_GPU_BACKEND=cpu runs it
# on the CPU. PEER_LAYOUTS: a pattern of the layouts to run.
. tests/ranklab.sh
gpu=${TREB_GPU_BACKEND:-cuda} steps=${TREB_RANK_STEPS:-8} only=${PEER_LAYOUTS:-*}
small_moe
train() {                                # train FOLDER overrides...: the ranks that `by` starts
    local folder=$1; shift
    timeout "${PEER_LIMIT:-120}" "${by[@]}" "$treb" train /dev/null "${recipe[@]}" \
        train.global_tokens=512 train.max_steps="$steps" \
        device.backend="$gpu" model.dtype=float32 device.dtype=float32 \
        checkpoint.output_dir="$folder" "$@" >"$tmp/out" 2>&1
}
on() { by=(mpirun --oversubscribe --allow-run-as-root --bind-to none -np "$1"); }
layout() {                               # layout NAME RANKS overrides...
    local name=$1 n=$2; shift 2
    # shellcheck disable=SC2053
    [[ $name == $only ]] || return 0
    on "$n"
    check "$name runs" train "$tmp/$name" moe.dispatcher=peer "$@"
    check "$name has the losses of one rank" agree "$tmp/$like" "$tmp/$name" "$steps"
}
wide=(train.micro_tokens=256 train.global_tokens=1024)       # rows enough for the same kernels
bits() {                                 # bits NAME RANKS DISPATCHER overrides...: the bits of alltoall
    local name=$1 n=$2 other=$3 d; shift 3
    # shellcheck disable=SC2053
    [[ $name == $only ]] || return 0
    on "$n"
    for d in alltoall "$other"; do
        check "$name runs with $d" train "$tmp/$name-$d" "$@" "${wide[@]}" moe.dispatcher=$d
    done
    check "$name has the bits of alltoall" same_bits "$tmp/$name-alltoall" "$tmp/$name-$other"
}

has_mpi || skip "no mpirun, or a build without MPI"
[ "$gpu" != cuda ] || [ "${PEER_MPS:-0}" != 1 ] || start_mps
by=() like=one
train "$tmp/one" comm.kind=self; rc=$?
if [ $rc -eq 5 ] || grep -q "not in this build" "$tmp/out"; then skip "$(tail -n 1 "$tmp/out")"; fi
check "one rank" [ $rc -eq 0 ]
layout ep2 2 parallel.ep=2
layout ep4 4 parallel.ep=4
bits ep2-bits 2 peer parallel.ep=2
bits ep4-bits 4 peer parallel.ep=4
nodes=(comm.ranks_per_node=2)            # a token has two experts: in f32 two hops add in the same order
bits hops-bits 4 deepep_peer parallel.ep=4 "${nodes[@]}"
layout hops-overflow 4 parallel.ep=4 "${nodes[@]}" moe.dispatcher=deepep_peer moe.rank_capacity=1
layout ep2-dp2 4 parallel.ep=2
layout ep2-tp2 2 parallel.ep=2 parallel.tp=2
layout ep2-etp2 4 parallel.ep=2 parallel.etp=2
layout ep2-pp2 4 parallel.ep=2 parallel.pp=2
layout ep4-zero3 4 parallel.ep=4 parallel.zero=3
layout ep2-full 2 parallel.ep=2 'memory.recompute=[full]'
layout ep2-moe-act 2 parallel.ep=2 'memory.recompute=[moe_act,layernorm]'
layout ep2-overlap 2 parallel.ep=2 moe.overlap=true
layout ep4-offload 4 parallel.ep=4 'memory.activation_offload=[moe]'
layout ep4-overflow 4 parallel.ep=4 moe.rank_capacity=1
for name in ep4-overflow hops-overflow; do
    # shellcheck disable=SC2053
    [[ $name == $only ]] || continue
    check "steps of $name are run again in chunks" \
        grep -qE '"moe/sliced_layers": [1-9]' "$tmp/$name/metrics.jsonl"
done
if "$treb" data synth --out "$tmp/set" --train 300 --eval 18 >"$tmp/out" 2>&1; then
    recipe=(model.preset=demo/config.json "data.train=[$tmp/set/train.jsonl]" data.max_length=256
            image.min_pixels=1024 image.max_pixels=9216 train.micro_tokens=256 train.micro_patches=768
            moe.aux_loss_type=micro_batch checkpoint.hf=none optim.adam_epsilon=1e-5)
    by=() like=images
    check "images on one rank" train "$tmp/images" comm.kind=self
    layout images-ep2 2 parallel.ep=2
    layout images-tp2-ep2 2 parallel.tp=2 parallel.ep=2
    small_moe
fi
lora=(lora.rank=8 'lora.target_modules=[all-linear]' optim.learning_rate=0.01)
by=() like=adapters
check "adapters on one rank" train "$tmp/adapters" comm.kind=self "${lora[@]}"
layout adapters-ep2 2 parallel.ep=2 "${lora[@]}"
report
