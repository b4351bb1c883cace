#!/usr/bin/env bash
# `make demo-lora` with a few steps: every part runs and writes its files, and a model that was hardly trained
# fails the checks of the demo. `make soak` runs the whole demo.
. tests/demolab.sh
lacks() { ! grep -qrE "$1" "$2"; }
demo() {
    local status=0
    DEMO_SEED=5 DEMO_COLOUR=green DEMO_LORA_STEPS=3 tools/demo_lora.sh >"$tmp/out" 2>&1 || status=$?
    [ $status -eq "$1" ]
}

check "it runs, and its checks fail"       demo 1
check "a set without the colour"           lacks green "$tmp/demo/rest/train.jsonl"
check "nor in the held-out set"            lacks green "$tmp/demo/rest/eval.jsonl"
check "a set about it"                     has 'every picture shows green'
check "the trained modules are logged"     has 'experts'
check "the steps, of both runs"            [ "$(grep -c '^step 3/3  loss ' "$tmp/out")" -eq 3 ]
check "the adapter in PEFT format"         test -f "$tmp/demo/run/last/adapter_model.safetensors"
check "the merged model in HF format"      test -f "$tmp/demo/merged/model.safetensors"
channels() { [ "$(grep -cE '^  without green: [a-z]+( +[0-9.]+){4}$' "$tmp/out")" -eq 9 ]; }
check "nine channels, four models each"    channels
check "the colour was unknown before"      has '^  yes  green was unknown before'
check "nothing is learned in three steps"  has '^  NO   green is learned: [0-9.]+ % right'
check "the merged model answers the same"  has '^  yes  the merged model gives the same answers'
check "again, from the model that is there" demo 1
check "which is reused"                    has 'reusing .*: without green'
report
