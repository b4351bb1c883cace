#!/usr/bin/env bash
# Whole models on the GPU, through the command line: recorded cases, a run whose losses follow the CPU's and
# which resumes bit-equal, generation, and a step under compute-sanitizer where that is installed. Part of
# gpu.sh; TREB_GOLDEN names a folder of further recorded cases (../shared/golden), TREB_GPU_STEPS the number
# of steps of the run.
passed=0 failed=0 skipped=0
treb=${TREB:-build/cuda/treb} gpu=${TREB_GPU_BACKEND:-cuda} steps=${TREB_GPU_STEPS:-100}
cases=${TREB_GOLDEN:-../shared/golden}
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT

check() {                                # check WHAT command...: counts, and prints what failed
    local what=$1; shift
    if "$@" >"$tmp/out" 2>&1; then passed=$((passed + 1)); return 0; fi
    failed=$((failed + 1)); echo "  FAIL $what"; tail -n 14 "$tmp/out" | sed 's/^/    /'
    return 1
}
skip() { skipped=$((skipped + 1)); echo "  skip $1: $2"; }
finish() { echo "lab: $passed passed, $failed failed, $skipped skipped"; [ "$failed" -eq 0 ]; exit; }

# Exit code 5 means that the device failed; the words mean that the build has no such backend.
said=$("$treb" parity tests/gold/dense-tied-left --backend "$gpu" --steps 0 --tolerance loss=1 2>&1); rc=$?
if [ $rc -eq 5 ] || grep -q "not in this build" <<<"$said"; then
    skip "all of gpu_model.sh" "$(tail -n 1 <<<"$said")"
    finish
fi

# --- every op of ops.def was called by one of the programs before this script
never_called() {
    awk '$1 == "have" { have[$2] = 1 } $1 == "ran" { ran[$2] = 1 }
         END { for (op in have) { n++; if (!(op in ran)) { bad = 1; print op " was never called" } }
               exit bad || !n }' "$TREB_GPU_OPS"
}
if [ -s "${TREB_GPU_OPS:-}" ]; then check "every op of ops.def is exercised" never_called
else skip "every op is exercised" "the programs of GPU_TESTS did not run before"; fi

# --- recorded cases: f32 within the rounding of another order of summation, the loss of bf16 within 1 %
close="loss=1e-5,aux loss=1e-5,vision output=1e-4,deepstack=1e-4,router logits=1e-4,decoder layers=1e-4"
close="$close,logits=1e-4,gradients=1e-4,AdamW losses=2e-4,AdamW grad norms=1e-3"
ours() { grep -qE '"model_type": "(qwen3_vl_moe|qwen3_vl|qwen3_moe|qwen3)"' "$1/config.json" 2>/dev/null; }
for c in tests/gold/* tests/gold/*/hub tests/gold_lora/* "$cases"/* "$cases"/*/hub; do
    [ -d "$c/adapter" ] || { [ -f "$c/model.safetensors" ] && ours "$c"; } || continue
    check "$c in f32" "$treb" parity "$c" --backend "$gpu" --tolerance "$close"
    check "$c in bf16" "$treb" parity "$c" --backend "$gpu" --dtype bf16 --tolerance "loss=1e-2"
done
mix=tests/gold/vl-moe-mix
check "$mix with recompute" \
    "$treb" parity $mix --backend "$gpu" --recompute moe_act,layernorm --tolerance "$close"
same_twice() {
    "$treb" parity $mix --backend "$gpu" --steps 0 --tolerance "$close" --out "$tmp/one.safetensors" &&
    "$treb" parity $mix --backend "$gpu" --steps 0 --tolerance "$close" --out "$tmp/two.safetensors" &&
    cmp "$tmp/one.safetensors" "$tmp/two.safetensors"
}
check "two runs of $mix give the same bits" same_twice

# --- a short run of a small vision-language MoE on drawn questions
mkdir "$tmp/model"
cp tests/gold_text/tokenizer.json "$tmp/model"
cat > "$tmp/model/config.json" <<'END'
{"model_type": "qwen3_vl_moe", "image_token_id": 586, "video_token_id": 587, "vision_start_token_id": 583,
 "vision_end_token_id": 584, "torch_dtype": "float32", "tie_word_embeddings": true,
 "text_config": {"vocab_size": 600, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 128, "moe_intermediate_size": 32,
  "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": true, "rope_theta": 10000.0,
  "tie_word_embeddings": true,
  "rope_scaling": {"rope_type": "default", "mrope_interleaved": true, "mrope_section": [6, 5, 5]}},
 "vision_config": {"depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "patch_size": 16,
  "num_position_embeddings": 64, "out_hidden_size": 64, "deepstack_visual_indexes": [0]}}
END
check "questions are drawn" "$treb" data synth --out "$tmp/set" --train 400 --eval 40

train() {                                # train BACKEND FOLDER STEPS override...
    local backend=$1 folder=$2 n=$3; shift 3
    "$treb" train /dev/null model.preset="$tmp/model" "data.train=[$tmp/set/train.jsonl]" \
        data.max_length=400 train.max_steps="$n" train.seed=11 train.deterministic=true \
        train.micro_tokens=512 train.micro_patches=4096 train.global_tokens=1024 \
        optim.learning_rate=2e-3 optim.warmup_steps=5 optim.lr_scheduler_type=constant \
        device.backend="$backend" checkpoint.output_dir="$tmp/$folder" checkpoint.save_steps=0 \
        checkpoint.hf=none "$@"
}

# follows CPU GPU FIRST LAST STEPS: up to step 20 each loss is within FIRST of the CPU's, the mean of the last
# ten within LAST.
losses() { sed -nE 's/^\{"step": ([0-9]+).*"train\/loss": ([0-9.eE+-]+).*/\1 \2/p' "$tmp/$1/metrics.jsonl"; }
follows() {
    awk -v first="$3" -v last="$4" -v steps="$5" '
        function abs(x) { return x < 0 ? -x : x }
        NR == FNR { cpu[$1] = $2; next }
        { n++; d = abs($2 - cpu[$1]) / cpu[$1]
          if ($1 <= 20 && !(d <= first)) { bad = 1; print "step " $1 ": " $2 ", on the CPU " cpu[$1] }
          if ($1 > steps - 10) { a += $2; b += cpu[$1] } }
        END { print n " steps, the last ten " a / 10 ", on the CPU " b / 10
              exit !(!bad && n == steps && abs(a - b) <= last * b) }' <(losses "$1") <(losses "$2")
}
check "a run of $steps steps on the CPU" train cpu on-cpu "$steps"
if check "a run of $steps steps on the GPU" train "$gpu" on-gpu "$steps" checkpoint.hf=final; then
    check "its losses follow the CPU's" follows on-cpu on-gpu 1e-3 0.1 "$steps"
fi
if check "the same run in bf16" \
    train "$gpu" on-gpu-bf16 "$steps" model.dtype=bfloat16 checkpoint.hf=final; then
    check "its losses stay near the CPU's" follows on-cpu on-gpu-bf16 2e-2 0.25 "$steps"
fi

# --- the demo's recipe, for enough steps to learn
demo() {                                 # demo BACKEND FOLDER DTYPE
    "$treb" train recipes/demo.yaml "data.train=[$tmp/demo/train.jsonl]" data.eval=[] train.max_steps=200 \
        model.dtype="$3" device.backend="$1" log.logging_steps=1 \
        checkpoint.output_dir="$tmp/$2" checkpoint.hf=none
}
check "the demo's images" "$treb" data synth --out "$tmp/demo" --train 6000 --eval 18
if check "200 steps of the demo on the CPU" demo cpu demo-cpu float32 &&
   check "200 steps of the demo on the GPU" demo "$gpu" demo-gpu float32; then
    check "the losses follow the CPU's" follows demo-cpu demo-gpu 1e-3 0.05 200
fi
if check "200 steps of the demo in bf16" demo "$gpu" demo-bf16 bfloat16; then
    check "the losses stay near the CPU's" follows demo-cpu demo-bf16 2e-2 0.1 200
fi

# --- a run that stops at step 7 and resumes has the weights, moments and losses of an unbroken run, bit-equal
state() { grep -A2 '"state/' "$tmp/$1/last/MANIFEST.json"; losses "$1"; }
for dtype in float32 bfloat16 adapters; do
    how="checkpoint.save_steps=7 model.dtype=$dtype"
    if [ $dtype = adapters ]; then
        how="checkpoint.save_steps=7 model.dtype=bfloat16 lora.rank=8 lora.dropout=0.1 lora.init=gaussian"
    fi
    # shellcheck disable=SC2086
    if check "14 steps, $dtype" train "$gpu" "whole-$dtype" 14 $how &&
       check "7 steps, $dtype" train "$gpu" "parts-$dtype" 7 $how &&
       check "7 more, resumed" \
           train "$gpu" "parts-$dtype" 14 $how checkpoint.resume_from_checkpoint=auto; then
        whole=$(state "whole-$dtype") parts=$(state "parts-$dtype")
        check "the resumed run is bit-equal, $dtype" [ -n "$whole" -a "$whole" = "$parts" ]
    fi
done

# --- evaluation and generation with the trained model
evaluates() {
    "$treb" eval --model "$1" --data "$tmp/set/eval.jsonl" --max-samples 16 --max-new 8 --json \
        device.backend="$gpu" > "$tmp/eval.json" &&
    grep -q '"loss": [0-9]' "$tmp/eval.json"
}
answers() {
    "$treb" generate --model "$1" --prompt "<image>What colour is it?" \
        --image "$tmp"/set/images/eval/000000.* --max-new 8
}
for run in on-gpu on-gpu-bf16; do
    config=$(ls "$tmp/$run"/*/config.json "$tmp/$run"/*/*/config.json 2>/dev/null | head -n 1)
    model=$(dirname "$config" 2>/dev/null)
    if [ ! -f "$model/config.json" ]; then skip "answers of $run" "no model was saved"; continue; fi
    check "eval of $run" evaluates "$model"
    check "generate of $run" answers "$model"
done

# --- no out-of-bounds access and no race in one step of each dtype. cuDNN's kernels are left out: racecheck
# does not see how they synchronize.
step() {                                 # step TOOL DTYPE TOLERANCE CASE
    GOMP_SPINCOUNT=10000 timeout 300 compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 5 \
        --kernel-name-exclude kernel_substring=cudnn \
        "$treb" parity "$4" --backend "$gpu" --dtype "$2" --steps 1 --tolerance "$3"
}
if [ "$gpu" != cuda ]; then skip "compute-sanitizer" "the backend is $gpu"
elif ! command -v compute-sanitizer >/dev/null; then skip "compute-sanitizer" "not installed"
else
    for tool in memcheck racecheck; do
        check "$tool, f32" step $tool f32 "$close" $mix
        check "$tool, bf16" step $tool bf16 loss=1e-2 $mix
        check "$tool, adapters in bf16" step $tool bf16 loss=1e-2 tests/gold_lora/vl-moe-all
    done
fi
finish
