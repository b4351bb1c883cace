#!/usr/bin/env bash
# kill -9 of one rank of several at a random moment of a run that saves often: the others end, `last` is whole, and after
# the last resume weights and moments are those of a run nobody disturbed. Then the checkpoint goes on in other layouts.
# TREB_KILLS sets how many (the short form has 3).
passed=0 failed=0
treb=${TREB:-build/treb} kills=${TREB_KILLS:-3} steps=${TREB_KILL_STEPS:-60}
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
seed=${TREB_KILL_SEED:-$RANDOM}; RANDOM=$seed
export OMP_NUM_THREADS=1

report() { echo "lab: $passed passed, $failed failed, ${1:-0} skipped"; [ $failed -eq 0 ]; exit; }
check() {                                # check WHAT command...: counts, and tells what failed
    local what=$1; shift
    if "$@"; then passed=$((passed + 1)); return; fi
    failed=$((failed + 1)); echo "  FAIL $what (TREB_KILL_SEED=$seed)"; tail -n 15 "$tmp/out" | sed 's/^/    /'
}
if ! command -v mpirun >/dev/null || ! mpirun --allow-run-as-root --oversubscribe -np 2 "$treb" doctor 2>&1 | grep -q mpi; then
    echo "  skip kill_ranks: no mpirun, or a build without MPI"; report 1
fi

mkdir "$tmp/model"
cp tests/gold_text/tokenizer.json "$tmp/model"
cat > "$tmp/model/config.json" <<'EOF'
{"model_type": "qwen3_moe", "vocab_size": 600, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "moe_intermediate_size": 32, "num_experts": 4,
 "num_experts_per_tok": 2, "norm_topk_prob": true, "rope_theta": 10000, "torch_dtype": "bfloat16"}
EOF
for i in $(seq 1 100); do
    echo "{\"text\": \"line $i of a text that goes on for $((i * 7919 % 31)) words $(printf 'word %.0s' $(seq 1 $((i * 7919 % 31))))\"}"
done > "$tmp/data.jsonl"

train() {                                # train RANKS FOLDER STEPS KEY=VALUE...
    local ranks=$1 dir=$2 last=$3; shift 3
    timeout 300 mpirun --allow-run-as-root --oversubscribe -np "$ranks" "$treb" train /dev/null model.preset="$tmp/model" \
        "data.train=[$tmp/data.jsonl]" data.max_length=128 data.bad_sample=skip train.max_steps="$last" train.micro_tokens=128 \
        train.global_tokens=512 optim.lr_scheduler_type=constant checkpoint.output_dir="$dir" checkpoint.save_steps=2 \
        checkpoint.save_total_limit=2 checkpoint.hf=none checkpoint.resume_from_checkpoint=auto "$@" >>"$tmp/out" 2>&1
}
four() { train 4 "$1" "$steps" parallel.tp=2 parallel.ep=4; }
hash_of() { cat "$1"/last/state/rank-*/MANIFEST.json; }
ranks_of() {                             # processes of the run in $1
    for p in /proc/[0-9]*; do
        { tr '\0' ' ' < "$p/cmdline"; } 2>/dev/null | grep -q "^$treb train.*output_dir=$1 " && echo "${p#/proc/}"
    done
}
whole_or_none() { [ ! -L "$tmp/run/last" ] || [ -s "$tmp/run/last/MANIFEST.json" ]; }

start=$(date +%s%N)
check "the run nobody disturbs" four "$tmp/calm"
ms=$(( ($(date +%s%N) - start) / 1000000 ))
for try in $(seq "$kills"); do
    four "$tmp/run" & job=$!
    at=$((ms / 4 + RANDOM * ms / 98304))
    sleep "$(printf '%d.%03d' $((at / 1000)) $((at % 1000)))"
    victim=$(ranks_of "$tmp/run" | shuf -n 1)
    [ -n "$victim" ] && kill -9 "$victim" 2>/dev/null
    start=$(date +%s%N)
    wait $job
    check "all end within 10 s of try $try" [ $((($(date +%s%N) - start) / 1000000)) -lt 10000 -o -z "$victim" ]
    check "last is whole after try $try" whole_or_none
done
check "the last resume" four "$tmp/run"
check "weights and moments equal to the bit" [ "$(hash_of "$tmp/calm")" = "$(hash_of "$tmp/run")" ]
check "on one rank"                 train 1 "$tmp/run" $((steps + 2))
check "on two, sharded weights"     train 2 "$tmp/run" $((steps + 4)) parallel.zero=3
check "on four, stages and slices"  train 4 "$tmp/run" $((steps + 6)) parallel.pp=2 parallel.tp=2 parallel.etp=2
convert() { "$treb" convert "$@" >>"$tmp/out" 2>&1; }
check "in HF form"                  convert "$tmp/run/last" "$tmp/hf" --config "$tmp/model"
check "as one rank would have it"   convert --native "$tmp/run/last" "$tmp/one"
check "and in HF form from there"   convert "$tmp/one" "$tmp/hf1"
check "the same model"              cmp -s "$tmp/hf/model.safetensors" "$tmp/hf1/model.safetensors"
check "all of them were saved"      [ "$(readlink "$tmp/run/last")" = "checkpoint-$((steps + 6))" ]
report
