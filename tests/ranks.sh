#!/usr/bin/env bash
# The same run on one rank and on several under mpirun: losses agree at every step, the last checkpoint of one layout
# goes on in another, and a rank that dies takes the run with it. TREB_RANK_STEPS sets how long.
passed=0 failed=0
treb=${TREB:-build/treb} steps=${TREB_RANK_STEPS:-8}
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
export OMP_NUM_THREADS=1

check() {                                # check WHAT command...: counts, and tells what failed
    local what=$1; shift
    if "$@"; then passed=$((passed + 1)); return; fi
    failed=$((failed + 1)); echo "  FAIL $what"; tail -5 "$tmp/out"
}
report() { echo "lab: $passed passed, $failed failed, ${1:-0} skipped"; [ "$failed" -eq 0 ]; exit; }

if ! command -v mpirun >/dev/null || ! "$treb" doctor | grep -q mpi; then
    echo "  skip ranks.sh: no mpirun, or a build without it"; report 1
fi

mkdir "$tmp/model"
cp tests/gold_text/tokenizer.json "$tmp/model"
cat > "$tmp/model/config.json" <<'JSON'
{"model_type": "qwen3_moe", "vocab_size": 600, "hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
 "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "moe_intermediate_size": 32, "num_experts": 8,
 "num_experts_per_tok": 2, "norm_topk_prob": true, "rope_theta": 10000, "torch_dtype": "float32"}
JSON
for i in $(seq 1 200); do
    echo "{\"text\": \"line $i of a text that goes on for $((i * 7919 % 31)) words $(printf 'word %.0s' $(seq 1 $((i * 7919 % 31))))\"}"
done > "$tmp/data.jsonl"

# train FOLDER RANKS overrides...
train() {
    local folder=$1 n=$2 start=()
    shift 2
    [ "$n" -gt 1 ] && start=(mpirun --oversubscribe --allow-run-as-root --bind-to none -np "$n")
    timeout 120 "${start[@]}" "$treb" train /dev/null model.preset="$tmp/model" "data.train=[$tmp/data.jsonl]" \
        data.max_length=128 data.bad_sample=skip train.max_steps="$steps" train.micro_tokens=128 \
        train.global_tokens=512 optim.learning_rate=1e-3 optim.adam_epsilon=1e-5 checkpoint.hf=none \
        moe.aux_loss_type=micro_batch checkpoint.output_dir="$folder" "$@" >"$tmp/out" 2>&1
}
losses() { grep -o '"train/loss": [0-9.e+-]*' "$1/metrics.jsonl" | cut -d' ' -f2; }
agree() {                                # agree A B: as many losses, each within 1e-5
    paste <(losses "$1") <(losses "$2") | awk -v n="$3" '
        { d = $1 - $2; if (d < 0) d = -d; if (NF != 2 || d > 1e-5 * $1) { print "  step " NR ": " $1 " " $2; bad = 1 } }
        END { exit bad || NR != n }'
}

check "one rank" train "$tmp/one" 1
layout() {                               # layout NAME RANKS overrides...
    local name=$1 n=$2; shift 2
    check "$name runs" train "$tmp/$name" "$n" "$@"
    check "$name loses as one rank does" agree "$tmp/one" "$tmp/$name" "$steps"
}
layout dp2 2
layout tp2-ep2 2 parallel.tp=2 parallel.ep=2
layout fsdp4 4 parallel.zero=3
layout pp2-cp2-ep2 4 parallel.pp=2 parallel.cp=2 parallel.ep=2 moe.dispatcher=deepep

# Half a run on one layout, the rest on others.
half=$((steps / 2))
check "the first half on tp2" train "$tmp/move" 2 parallel.tp=2 train.max_steps=$half optim.lr_scheduler_type=constant optim.warmup_ratio=0
check "whole, for comparison" train "$tmp/stay" 1 optim.lr_scheduler_type=constant optim.warmup_ratio=0
check "the second half on ep4" train "$tmp/move" 4 parallel.ep=4 optim.lr_scheduler_type=constant optim.warmup_ratio=0 \
    checkpoint.resume_from_checkpoint=auto
check "the curve is one" agree "$tmp/stay" "$tmp/move" "$steps"
report
