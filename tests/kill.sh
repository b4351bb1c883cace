#!/usr/bin/env bash
# kill -9 at random moments of a run that saves often: every resume works, `last` is always complete, and the
# result is bit-equal to the result of an undisturbed run. Full training is tested first, then FP8 products,
# then adapters on a base in FP8, whose checkpoints also have PEFT files. TREB_KILLS sets the number of kills
# of full training (default 6) and TREB_KILL_STEPS its length; the others have fewer. A kill counts if it hit
# a running process; if the run ended before the kill, the results are compared and a new run begins.
passed=0 failed=0
treb=${TREB:-build/treb} kills=${TREB_KILLS:-6} steps=${TREB_KILL_STEPS:-60}
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
seed=${TREB_KILL_SEED:-$RANDOM}; RANDOM=$seed
export OMP_NUM_THREADS=1

check() {                                # check WHAT command...: counts, and prints what failed
    local what=$1; shift
    if "$@"; then passed=$((passed + 1)); return; fi
    failed=$((failed + 1)); echo "  FAIL $what (TREB_KILL_SEED=$seed)"
}

mkdir "$tmp/model"
cp tests/gold_text/tokenizer.json "$tmp/model"
cat > "$tmp/model/config.json" <<'EOF'
{"model_type": "qwen3_moe", "vocab_size": 600, "hidden_size": 48, "num_hidden_layers": 2,
 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96,
 "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": true,
 "rope_theta": 10000, "torch_dtype": "bfloat16"}
EOF
for i in $(seq 1 200); do
    n=$((i * 7919 % 31))
    echo "{\"text\": \"line $i of a text that goes on for $n words $(printf 'word %.0s' $(seq 1 $n))\"}"
done > "$tmp/data.jsonl"

more=()                                  # keys of full training or of adapters
train() { train_printing "$1" >>"$tmp/out" 2>&1; }      # train FOLDER
train_printing() {
    exec "$treb" train /dev/null model.preset="$tmp/model" "data.train=[$tmp/data.jsonl]" \
        data.max_length=128 data.bad_sample=skip train.max_steps="$steps" \
        train.micro_tokens=128 train.global_tokens=256 optim.learning_rate=1e-3 \
        checkpoint.output_dir="$1" checkpoint.save_steps=3 checkpoint.save_total_limit=2 checkpoint.hf=none \
        checkpoint.resume_from_checkpoint=auto "${more[@]}"
}
hash_of() {
    grep -A2 -e '"state/' -e '"adapter_' "$1/last/MANIFEST.json"
    grep -v '"recipe"' "$1/last/trainer_state.json"
}
loss_of() { grep "\"step\": $steps," "$1/metrics.jsonl" | grep -o '"train/loss": [0-9.e+-]*'; }
steps_of() { grep -o '^{"step": [0-9]*' "$1/metrics.jsonl" | grep -o '[0-9]*$' | tr '\n' ' '; }
complete_or_none() {
    [ ! -e "$tmp/run/last" ] && [ ! -L "$tmp/run/last" ] || [ -s "$tmp/run/last/MANIFEST.json" ]
}

run() { (train "$1"); }
compare() {                              # the killed and resumed run against the undisturbed one
    local loss; loss=$(loss_of "$tmp/calm")
    check "weights, moments and data position are bit-equal" \
        [ "$(hash_of "$tmp/calm")" = "$(hash_of "$tmp/run")" ]
    check "the final loss, $loss" [ -n "$loss" -a "$loss" = "$(loss_of "$tmp/run")" ]
    check "metrics.jsonl has each step once" [ "$(steps_of "$tmp/calm")" = "$(steps_of "$tmp/run")" ]
    check "no half-written folder is left" [ -z "$(ls -d "$tmp"/run/*.tmp 2>/dev/null)" ]
}

kill_runs() {                            # kill_runs NAME KILLS STEPS keys...
    local name=$1 kills=$2 steps=$3 hits=0 tries=0 start at ms pid rc
    more=("${@:4}") start=$(date +%s%N)
    rm -rf "$tmp/calm" "$tmp/run"
    check "$name: the undisturbed run" run "$tmp/calm"
    ms=$(( ($(date +%s%N) - start) / 1000000 ))
    while [ $hits -lt "$kills" ] && [ $tries -lt $((20 * kills)) ]; do
        train "$tmp/run" & pid=$! tries=$((tries + 1))
        at=$((RANDOM * ms / 32768))
        sleep "$(printf '%d.%03d' $((at / 1000)) $((at % 1000)))"
        kill -9 $pid 2>/dev/null
        { wait $pid; } 2>/dev/null; rc=$?
        check "$name: last is complete after try $tries" complete_or_none
        if [ $rc -eq 137 ]; then hits=$((hits + 1)); continue; fi
        check "$name: try $tries exits with 0" [ $rc -eq 0 ]
        compare
        rm -rf "$tmp/run"
    done
    check "$name: $hits kills of $kills hit a running process, in $tries tries" [ $hits -eq "$kills" ]
    check "$name: the last resume" run "$tmp/run"
    compare
}
kill_runs full "$kills" "$steps"
kill_runs fp8_block $(((kills + 5) / 6)) $((steps / 3)) train.precision=fp8_block
kill_runs adapters $(((kills + 2) / 3)) $((steps / 3)) lora.rank=4 lora.target_modules=[all-linear] \
    lora.dropout=0.1 lora.modules_to_save=[model.norm] checkpoint.hf=every train.precision=fp8_block
has_adapter() {
    [ -s "$tmp/run/last/adapter_model.safetensors" ] &&
        grep -q '"adapter_model.safetensors"' "$tmp/run/last/MANIFEST.json"
}
check "the checkpoint has an adapter" has_adapter

# Ends that are no kills: a closed terminal, closed standard files, a run that takes none of its steps.
end_at_hangup() {                        # exit code of a run that gets SIGHUP at its third step
    local pid n=0
    steps=100000 more=(); train "$tmp/hangup" & pid=$!
    until grep -q '"step": 3,' "$tmp/hangup/metrics.jsonl" 2>/dev/null || [ $((n++)) -gt 300 ]; do
        sleep 0.1
    done
    kill -HUP $pid; wait $pid
}
lines_are_json() { [ -s "$1" ] && ! grep -qv '^{.*}$' "$1"; }
nothing_learnt() {                       # every step is skipped: exit code 7
    local rc; more=(data.loss=assistant); steps=2
    echo '{"messages": [{"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "loss": false}]}' | tr -d '\n' >"$tmp/data.jsonl"
    run "$tmp/empty"; rc=$?
    [ $rc -eq 7 ] && grep -q 'error: none of the 2 steps was taken' "$tmp/empty/train.log"
}
check "SIGHUP saves" end_at_hangup
check "a checkpoint is there after SIGHUP" [ -s "$tmp/hangup/last/MANIFEST.json" ]
steps=3 more=(); (train_printing "$tmp/closed" <&- >&- 2>&-)
check "metrics.jsonl has nothing but metrics while stdin, stdout and stderr are closed" \
    lines_are_json "$tmp/closed/metrics.jsonl"
check "a run that takes no step fails and says why" nothing_learnt
[ $failed -eq 0 ] || tail -n 15 "$tmp/out"
echo "lab: $passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
