#!/usr/bin/env bash
# make demo-lora: the demo's model learns a colour it has never seen, by adapters on its experts alone, and is asked
# whether it has forgotten anything over that.
#
#   TREB=build/treb DEMO_DIR=build/demo-lora DEMO_SEED=1 DEMO_COLOUR=purple DEMO_STEPS= DEMO_LORA_STEPS=
#   DEMO_TRAIN=27000 DEMO_EVAL=1800 tools/demo_lora.sh
#
# The model is trained as by `make demo`, but no picture shows the colour and no answer names it: its word is a token
# that never came up, and its embedding and its row of the head stay as they then are, like everything but the
# experts. Then pairs on the experts are trained on pictures that show it, mixed with six times as many that do not,
# and, for comparison, on those that show it alone. DEMO_STEPS, DEMO_LORA_STEPS: fewer steps than the recipes', for a
# quick look.
#
# Ends with status 1 unless
#   - before, no question to be answered with the colour was answered right (at most one in a hundred);
#   - after, at least 95 in 100 were;
#   - of the held-out questions without the colour no more were lost than chance explains: those right before and
#     wrong after exceed those the other way round by at most two standard errors, 2 sqrt(lost + gained);
#   - with the pairs merged into the weights the loss differs by less than 0.001 and at most one answer in 200 does.
set -eu -o pipefail
cd "$(dirname "$0")/.."
treb=${TREB:-build/treb} dir=${DEMO_DIR:-build/demo-lora} seed=${DEMO_SEED:-1} colour=${DEMO_COLOUR:-purple}
train=${DEMO_TRAIN:-27000} eval=${DEMO_EVAL:-1800}
rest=$dir/rest new=$dir/new base=$dir/demo began=$SECONDS
. tools/demo_common.sh

# pretrain: the recipe of make demo on the set without the colour; a model that was made so before is kept
pretrain() {
    local made="without $colour, seed $seed, $train questions, ${DEMO_STEPS:-all} steps"
    if [ "$(cat "$base/made.txt" 2>/dev/null)" = "$made" ]; then echo "  $base is there: $made"; return; fi
    rm -rf "$dir/pretrain" "$base"
    "$treb" train recipes/demo.yaml "data.train=[{path: $rest/train.jsonl}]" "train.seed=$seed" \
        "data.eval=[{path: $rest/eval.jsonl, max_samples: 180}]" "checkpoint.output_dir=$dir/pretrain" \
        ${DEMO_STEPS:+"train.max_steps=$DEMO_STEPS"}
    "$treb" convert "$dir/pretrain/last" "$base"
    echo "$made" >"$base/made.txt"
}

# teach RUN SOURCES: adapters on the experts
teach() {
    rm -rf "$1"
    "$treb" train "$recipe" "model.path=$base" "${keys[@]}" "data.train=[$2]" "checkpoint.output_dir=$1"
}

# about NAME, beside NAME: answers right where the colour is the answer; where something else of its picture is.
# kept NAME [CHANNEL], loss NAME: of the questions without it
about()  { share "$1_new" colour size pair; }
beside() { share "$1_new" $(channels "$1_new" | grep -vE '^(colour|size|pair)$'); }
kept()   { local n=$1; shift; share "${n}_rest" "$@"; }
loss()   { awk '$1 == "all" { print $4 }' "$dir/$1_rest.txt"; }
verdicts() { grep -oE '"correct": ?(true|false)' "$dir/$1.jsonl" | grep -oE 'true|false'; }
answers()  { grep -ohE '"answer": ?"[^"]*"' "$dir/$1_rest.jsonl" "$dir/$1_new.jsonl"; }

# moved NAME: of the questions without the colour, those that were right and are wrong, and the other way round
moved() {
    paste <(verdicts before_rest) <(verdicts "$1_rest") | awk '
        $1 == "true" && $2 == "false" { lost++ }
        $1 == "false" && $2 == "true" { gained++ }
        END { print lost + 0, gained + 0 }'
}

# ask_both NAME option...: the two held-out sets
ask_both() {
    local name=$1; shift
    ask "${name}_rest" "$rest/eval.jsonl" "$@"
    ask "${name}_new" "$new/eval.jsonl" "$@"
}

row() { printf '  %-44s %9s %9s %9s %14s\n' "$@"; }

# each FUNCTION [word...]: of the four models, in the order of the columns
each() {
    local what=$1 n; shift
    for n in before after merged alone; do echo "$("$what" $n "$@")"; done
}

# expect WHAT awk-condition: a line of the verdict
expect() {
    if awk "BEGIN { exit !($2) }"; then echo "  yes  $1"; else echo "  NO   $1"; failed=1; fi
}

mkdir -p "$dir"
recipe=recipes/demo-lora.yaml
keys=("train.seed=$seed"
      "data.eval=[{path: $new/eval.jsonl, max_samples: 120}, {path: $rest/eval.jsonl, max_samples: 180}]")
shown="{path: $new/train.jsonl}" known="{path: $rest/train.jsonl, max_samples: $((train / 3))}"
[ -z "${DEMO_LORA_STEPS:-}" ] || keys+=("train.max_steps=$DEMO_LORA_STEPS")
echo "A small vision-language model that has never seen anything $colour is taught it by low-rank pairs on its experts;"
echo "all else stays as it is. About five minutes on two cores."
say "1. pictures and questions without $colour, and about $colour"
draw "$rest" --train "$train" --eval "$eval" --seed "$seed" --without "$colour"
draw "$new" --train $((train / 18)) --eval $((eval / 2)) --seed $((seed + 1)) --about "$colour"

say "2. the model, from random weights, without $colour"
pretrain
ask_both before --model "$base"
echo "  right without $colour $(share before_rest) %, to be answered with it $(about before) %"

say "3. adapters on its experts: $colour, mixed with what it knows"
teach "$dir/run" "$shown, $known"
ask_both after --model "$base" --lora "$dir/run/last"
rm -rf "$dir/merged"
"$treb" convert "$dir/run/last" "$dir/merged" --merge
ask_both merged --model "$dir/merged"

say "4. for comparison: $colour alone"
teach "$dir/alone" "$shown"
ask_both alone --model "$base" --lora "$dir/alone/last"

say "5. right answers to held-out questions, in percent"
row "" before mixed merged "$colour alone"
row "to be answered with $colour" $(each about)
row "others over its pictures" $(each beside)
for c in $(channels before_rest); do
    row "without $colour: $c" $(each kept "$c")
done
row "all without $colour" $(each kept)
row "  loss of these" $(each loss)
row "  lost and gained of $(verdicts before_rest | wc -l)" - $(each moved | tail -n 3 | tr ' ' /)

say "6. the verdict, after $((SECONDS - began)) s"
failed=0
read -r lost gained <<<"$(moved after)"
same=$(paste -d'|' <(answers after) <(answers merged) | awk -F'|' '$1 == $2' | wc -l) asked=$(answers after | wc -l)
expect "$colour was not known: $(about before) % right" "$(about before) <= 1"
expect "$colour is learned: $(about after) % right" "$(about after) >= 95"
expect "nothing measurable is forgotten: $lost lost, $gained gained" "$lost - $gained <= 2 * sqrt($lost + $gained)"
expect "merged into the weights it is the same: $same of $asked answers, loss $(loss after) and $(loss merged)" \
    "$asked - $same <= $asked / 200 && ($(loss after) - $(loss merged)) ^ 2 < 1e-6"
exit $failed
