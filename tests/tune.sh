#!/usr/bin/env bash
# treb tune: matched runs as child processes; what does not fit is a result, what is faster is kept; and treb
# tune --validate, which refuses a recipe whose loss is not the baseline's.
. tests/ranklab.sh
small_moe
{
    echo "model: {preset: $tmp/model}"
    echo "data: {train: [$tmp/data.jsonl], max_length: 128, bad_sample: skip}"
    echo "train: {micro_tokens: 128, global_tokens: 1024}"
    echo "optim: {learning_rate: 1.0e-3}"
    echo "memory: {recompute: [full]}"
    echo "device: {backend: cpu}"
    echo "checkpoint: {output_dir: $tmp/run, hf: none}"
} > "$tmp/bad.yaml"
ends() {                                 # ends CODE TEXT words...: treb tune ends with CODE and says TEXT
    local code=$1 text=$2 rc; shift 2
    timeout 120 "$treb" tune "$@" >"$tmp/out" 2>&1; rc=$?
    [ $rc -eq "$code" ] && grep -qe "$text" "$tmp/out"
}
has() { grep -qe "$2" "$1"; }            # has FILE TEXT
reads() { "$treb" config "$1" >"$tmp/out2" 2>&1; }

short=(--steps 3 --warmup 1)
check "values of a key" ends 0 'every value was measured' "$tmp/bad.yaml" --out "$tmp/t" "${short[@]}" \
    device.memory_limit=0.008 "--set=train.micro_tokens=512|1024"
check "a run that does not fit is a result" \
    has "$tmp/t/tune.jsonl" '"set": "train.micro_tokens=1024".*does not fit'
check "a change that ran has both gains" \
    has "$tmp/t/tune.jsonl" '"set": "train.micro_tokens=512".*"predicted_gain".*"measured_gain"'
check "the base has run before and after" has "$tmp/out" 'the base  *ran'
check "the winner says why" has "$tmp/t/best.yaml" '^# Tuned from .*bad.yaml on 1 rank of'
check "the winner is a recipe" reads "$tmp/t/best.yaml"
check "a page" has "$tmp/t/tune.html" 'train.micro_tokens=512'
check "the folder is in use" ends 2 'not empty' "$tmp/bad.yaml" --out "$tmp/t"
check "an unknown key" \
    ends 2 'not a key' "$tmp/bad.yaml" --out "$tmp/t2" "${short[@]}" "--set=train.mikro=1|2"
check "a budget that is no time" ends 2 'such as 90s' "$tmp/bad.yaml" --budget soon

sed 's/1.0e-3/1.0e-6/' "$tmp/bad.yaml" > "$tmp/slow.yaml"
check "a loss beside the baseline's is refused" \
    ends 7 'FAIL loss' --validate "$tmp/bad.yaml" --baseline "$tmp/slow.yaml" --out "$tmp/v"
check "the other checks pass" [ "$(grep -c '^  ok ' "$tmp/out")" -eq 7 ]
check "25 and 25 steps are 50" has "$tmp/out" 'ok   resume .*at most 0 %'
check "a package" [ "$(wc -l < "$tmp/v/steps.csv")" -eq 51 ]
check "a contract and a summary" [ -s "$tmp/v/contract.json" -a -s "$tmp/v/summary.json" ]
report
