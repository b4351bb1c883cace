#!/usr/bin/env bash
# train.precision = fp8_block on the GPU: recorded cases, a run whose losses follow those of the CPU's
# emulation, and the bits of that run with CUDA graphs, recompute, offloaded activations, weights quantised
# for each product, and after a resume; adapters on weights in 8 bits. Part of gpu.sh; FP8_PARTS=adapters runs
# that part alone, TREB_GPU_BACKEND=cpu tests the test.
. tests/ranklab.sh
gpu=${TREB_GPU_BACKEND:-cuda} steps=${FP8_STEPS:-10} parts=${FP8_PARTS:-run adapters}
small_moe
# Widths that the fast kernels take.
sed -i -e 's/"hidden_size": 48/"hidden_size": 256/; s/"head_dim": 16/"head_dim": 64/' \
    -e 's/"moe_intermediate_size": 32/"moe_intermediate_size": 128/' "$tmp/model/config.json"
train() {                                # train BACKEND FOLDER overrides...
    local backend=$1 folder=$2; shift 2
    OMP_NUM_THREADS=8 timeout "${FP8_LIMIT:-120}" "$treb" train /dev/null "${recipe[@]}" \
        train.max_steps="$steps" train.micro_tokens=256 train.global_tokens=1024 model.dtype=bfloat16 \
        train.precision=fp8_block 'train.fp8_products=[experts, experts_dw, attention, mlp, head]' \
        train.deterministic=true train.seed=3 optim.lr_scheduler_type=constant \
        checkpoint.save_steps=5 device.backend="$backend" \
        checkpoint.output_dir="$tmp/$folder" "$@" >"$tmp/out" 2>&1
}
follows() {                              # follows A B: each loss within 2 %
    paste <(losses "$tmp/$1") <(losses "$tmp/$2") | awk -v n="$steps" '
        { d = $1 - $2; if (d < 0) d = -d }
        NF != 2 || d > 0.02 * $1 { print "  step " NR ": " $1 " " $2; bad = 1 }
        END { exit bad || NR != n }'
}
same() {                                 # same NAME overrides...: bits of the first run
    local name=$1; shift
    check "a run with $name" train "$gpu" "$name" "$@"
    check "$name has the same bits" same_run "$tmp/whole" "$tmp/$name"
}
"$treb" parity tests/gold_fp8/moe-rawtopk --backend "$gpu" >"$tmp/out" 2>&1; rc=$?
if [ $rc -eq 5 ] || grep -q "not in this build" "$tmp/out"; then skip "$(tail -n 1 "$tmp/out")"; fi
check "moe-rawtopk" [ $rc -eq 0 ]
parity() { "$treb" parity "$@" --backend "$gpu" >"$tmp/out" 2>&1; }
check "vl-dense-bias" parity tests/gold_fp8/vl-dense-bias
whole_run() {
    check "a run on the CPU" train cpu emulated
    check "a run on the GPU" train "$gpu" whole
    check "its losses follow those of the emulation" follows emulated whole
    [ "$gpu" = cpu ] || same graphs train.cuda_graph=full
    same recompute 'memory.recompute=[moe, layernorm, mlp]'
    same offload memory.activation_offload=core_attn
    same uncached memory.fp8_weight_cache=false
    check "the first half of a run" train "$gpu" parts train.max_steps=5
    check "its second half" train "$gpu" parts checkpoint.resume_from_checkpoint=auto
    check "a resumed run has the same bits" same_run "$tmp/whole" "$tmp/parts"
}
adapters() {
    local lora=(lora.rank=8 'lora.target_modules=[all-linear]' optim.learning_rate=3e-3)
    check "adapters on the CPU" train cpu lora-cpu "${lora[@]}"
    check "adapters on the GPU" train "$gpu" lora "${lora[@]}"
    check "their losses follow those of the emulation" follows lora-cpu lora
}
[[ $parts != *run* ]] || whole_run
[[ $parts != *adapters* ]] || adapters
report
