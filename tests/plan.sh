#!/usr/bin/env bash
# Every recipe for many ranks passes `treb plan` on the ranks in its name: rules, then the trainer's own engine for a rank
# of each stage, on nothing. "recipes/qwen3-vl-30b-a3b-16-h100-3d.yaml" is Qwen3-VL-30B-A3B on 16.
. tests/ranklab.sh
planned() {                              # planned RECIPE
    local name ranks preset node=8
    name=$(basename "$1" .yaml)
    ranks=$(grep -oE -- '-a[0-9]+b-[0-9]+-' <<<"$name" | grep -oE '[0-9]+-$' | tr -d -)
    case $name in qwen3-vl-*) preset=Qwen3-VL-;; *) preset=Qwen3-;; esac
    preset+=$(sed -E 's/^qwen3-(vl-)?([0-9]+b)-(a[0-9]+b)-.*/\2-\3/' <<<"$name" | tr a-z A-Z)
    case $name in *gb200*|*gb300*) node=64;; esac
    "$treb" plan "$1" --ranks "$ranks" --per-node $node model.preset="$preset" >"$tmp/out" 2>&1 && grep -q '^  stage 0 ' "$tmp/out"
}
for recipe in recipes/qwen3-*.yaml; do check "$recipe" planned "$recipe"; done
validated() {                            # both columns are there, and a row of each table
    "$treb" plan --validate >"$tmp/out" 2>&1 && grep -q '^| M1 ' "$tmp/out" && grep -q '^| T1 ' "$tmp/out" && grep -q '^| R1 ' "$tmp/out"
}
check "plan --validate" validated
found() {                                # found N MODEL CARD [options]: a layout, its recipe, and that planned again
    local n=$1 model=$2 card=$3; shift 3
    "$treb" plan --gpus "$n" --model "$model" --hardware "$card" --out "$tmp/found.yaml" "$@" >"$tmp/out" 2>&1 || return
    grep -q '^  1  ' "$tmp/out" && grep -q ' candidates in .* a second' "$tmp/out" || return
    "$treb" plan "$tmp/found.yaml" --ranks "$n" --hardware "$card" >"$tmp/out" 2>&1
}
check "plan --gpus 8 of 30B" found 8 qwen3-30b-a3b h200 --gbs 512
check "plan --gpus 64 of 235B" found 64 qwen3-vl-235b-a22b gb200 --gbs 1024 --images 4096 --picture 1024
lacking() { ! "$treb" plan --gpus 1 --model qwen3-30b-a3b --hardware h100 >"$tmp/out" 2>&1 && grep -q 'nothing fits' "$tmp/out"; }
check "plan --gpus 1 of 30B" lacking
# The recipe of one card runs, on another model and little data.
small_moe
runs() {
    found 1 qwen3-vl-2b h200 --gbs 32 --fix recompute=none || return
    "$treb" train "$tmp/found.yaml" "${recipe[@]}" model.dtype=float32 train.micro_tokens=256 train.global_tokens=512 \
        train.max_steps=2 device.backend=cpu checkpoint.output_dir="$tmp/run" >"$tmp/out" 2>&1
}
check "train of a found recipe" runs
report
