#!/usr/bin/env bash
# Weights and tokens in 8 bits on the GPU: adapters on a base in codes, ZeRO that gathers codes, tokens that
# travel in codes. Ranks share the GPU. Part of gpu.sh; TREB_GPU_BACKEND=cpu tests the test.
. tests/ranklab.sh
gpu=${TREB_GPU_BACKEND:-cuda} steps=6
small_moe
sed -i -e 's/"hidden_size": 48/"hidden_size": 256/; s/"head_dim": 16/"head_dim": 64/' \
    -e 's/"moe_intermediate_size": 32/"moe_intermediate_size": 128/' "$tmp/model/config.json"
train() {                                # train RANKS FOLDER overrides...
    local ranks=$1 folder=$2 start=(); shift 2
    [ "$ranks" -eq 1 ] || start=(mpirun --allow-run-as-root --oversubscribe -n "$ranks")
    timeout 60 "${start[@]}" "$treb" train /dev/null "${recipe[@]}" \
        train.max_steps=$steps train.micro_tokens=256 train.global_tokens=1024 model.dtype=bfloat16 \
        train.precision=fp8_block train.deterministic=true train.seed=3 device.backend="$gpu" \
        comm.kind="$([ "$ranks" -eq 1 ] && echo self || echo mpi)" checkpoint.save_steps=0 \
        checkpoint.output_dir="$tmp/$folder" "$@" >"$tmp/out" 2>&1
}
near() {                                 # near A B: each loss within 1 %
    paste <(losses "$tmp/$1") <(losses "$tmp/$2") | awk -v n=$steps '
        { d = $1 - $2; if (d < 0) d = -d }
        NF != 2 || d > 0.01 * $1 { print "  step " NR ": " $1 " " $2; bad = 1 }
        END { exit bad || NR != n }'
}
same_losses() { [ -n "$(losses "$tmp/$1")" ] && [ "$(losses "$tmp/$1")" = "$(losses "$tmp/$2")" ]; }
same_first()  { [ "$(losses "$tmp/$1" | head -n 1)" = "$(losses "$tmp/$2" | head -n 1)" ]; }

"$treb" parity tests/gold_fp8/moe-rawtopk --backend "$gpu" >"$tmp/out" 2>&1; rc=$?
if [ $rc -eq 5 ] || grep -q "not in this build" "$tmp/out"; then skip "$(tail -n 1 "$tmp/out")"; fi
lora=(lora.rank=4 'lora.target_modules=[all-linear]')
check "adapters on a base in codes" train 1 base "${lora[@]}"
check "adapters on a bf16 base"     train 1 wide "${lora[@]}" memory.fp8_weight_cache=false
check "they give the same losses"   same_losses base wide
check "one rank"                    train 1 one
has_mpi || { report 1; }
for zero in 1 3; do
    check "zero $zero"                        train 2 zero$zero parallel.zero=$zero
    check "zero $zero is near one rank"       near zero$zero one
    check "zero $zero, weights gathered wide" \
        train 2 wide$zero parallel.zero=$zero memory.fp8_weight_cache=false
    check "their first losses are the same"   same_first zero$zero wide$zero
done
check "adapters over zero 3"                  train 2 base3 parallel.zero=3 "${lora[@]}"
check "which are near one rank"               near base3 base
for by in alltoall peer; do
    keys=(parallel.ep=2 moe.dispatcher=$by)
    check "$by"                               train 2 $by "${keys[@]}"
    check "$by in codes"                      train 2 ${by}8 "${keys[@]}" moe.fp8_dispatch=true
    check "$by: their first losses are the same" same_first $by ${by}8
    check "$by: the others are near"          near $by ${by}8
done
report
