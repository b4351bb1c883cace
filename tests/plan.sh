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
report
