#!/usr/bin/env bash
# `make demo` with a few steps: every part runs, prints what it should and writes its files. The accuracy of
# the model is not tested here; the demo itself checks it.
. tests/demolab.sh
rows() { [ "$(sed -n "/^== $1/,/^\$/p" "$tmp/out" | grep -cE "$2")" -eq "$3" ]; }
demo() { DEMO_SEED=$1 tools/demo.sh >"$tmp/out" 2>&1; }

check "it runs"                          demo 5
check "the set is drawn"                 has '270 questions to train on, 90 held out'
check "the first step is timed"          has '^first step done [0-9.]+ s after the start'
check "the steps are logged"             has '^step 3/3  loss '
check "accuracy before training"         has 'right before training +[0-9.]+ %'
check "accuracy after training"          has 'right after +[0-9.]+ %'
check "the control, beside chance"       has \
    'control with mismatched images +[0-9.]+ % +\(chance 1[0-9]\.[0-9] %\)'
check "nine channels, before and after"  rows 4 '^  [^ ]+ +[0-9.]+ % +[0-9.]+ %' 9
check "a dozen questions"                rows 5 '(right|wrong)' 12
check "with the files of their images"   rows 5 'images/eval/[0-9]+[ab]?\.(png|jpg)' 11
check "the report"                       grep -q '<html' "$tmp/demo/run/report.html"
check "the model in Hugging Face format" test -f "$tmp/demo/run/last/model.safetensors"
scores() {
    "${TREB:-build/treb}" eval "$tmp/demo/run" --max-new 0 --max-samples 4 >"$tmp/scores" &&
        grep -q '^model: .*demo/run/last (after step 3)' "$tmp/scores"
}
check "the run's checkpoint is scored"   scores
check "again, with another seed"         demo 6
check "a new set"                        has 'seed 6'
report
