#!/usr/bin/env bash
# make demo-lora: the model of the demo learns a colour it has never seen, with LoRA adapters on its experts
# only, and what it forgets is measured.
#
#   TREB=build/treb DEMO_DIR=build/demo-lora DEMO_SEED=1 DEMO_COLOUR=purple DEMO_STEPS= DEMO_LORA_STEPS=
#   DEMO_TRAIN=27000 DEMO_EVAL=1800 DEMO_BASE_QUANT=none DEMO_KEYS= tools/demo_lora.sh
#
# The model is trained as by `make demo`, but no picture shows the colour and no answer names it: the token of
# its name never occurs, and its embedding and its row of the output head stay frozen, like everything but the
# experts. Then adapters on the experts are trained on pictures that show the colour, mixed with six times as
# many that do not, and, for comparison, on pictures that show it alone. DEMO_STEPS, DEMO_LORA_STEPS: fewer
# steps than the recipes have, for a quick run. DEMO_BASE_QUANT: model.base_quant of the frozen weights, in
# training and in every answer but those of the merged model, which is merged from the files. DEMO_KEYS: more
# keys of the adapters' training, such as optim.state_dtype=int8.
#
# Ends with status 1 unless
#   - before, at most 1 % of the questions whose answer is the colour are answered right;
#   - after, at least 95 % are;
#   - of the held-out questions without the colour no more are lost than chance explains: the number right
#     before and wrong after exceeds the number wrong before and right after by at most two standard errors,
#     2 sqrt(lost + gained);
#   - with the adapters merged into the weights the loss differs by less than 0.001 and at most one answer in
#     200 differs; merged into weights that are not quantised, where they were trained on quantised ones, the
#     loss is higher by less than 0.001 and 95 % still name the colour.
set -eu -o pipefail
cd "$(dirname "$0")/.."
treb=${TREB:-build/treb} dir=${DEMO_DIR:-build/demo-lora} seed=${DEMO_SEED:-1} colour=${DEMO_COLOUR:-purple}
train=${DEMO_TRAIN:-27000} eval=${DEMO_EVAL:-1800}
rest=$dir/rest new=$dir/new base=$dir/demo began=$SECONDS
. tools/demo_common.sh

# pretrain: the recipe of make demo on the set without the colour; a model from an earlier run is reused
pretrain() {
    local made="without $colour, seed $seed, $train questions, ${DEMO_STEPS:-all} steps"
    if [ "$(cat "$base/made.txt" 2>/dev/null)" = "$made" ]; then echo "  reusing $base: $made"; return; fi
    rm -rf "$dir/pretrain" "$base"
    "$treb" train recipes/demo.yaml "data.train=[{path: $rest/train.jsonl}]" "train.seed=$seed" \
        "data.eval=[{path: $rest/eval.jsonl, max_samples: 180}]" "checkpoint.output_dir=$dir/pretrain" \
        ${DEMO_STEPS:+"train.max_steps=$DEMO_STEPS"}
    "$treb" convert "$dir/pretrain/last" "$base"
    echo "$made" >"$base/made.txt"
}

# train_adapters RUN SOURCES: LoRA on the experts
train_adapters() {
    rm -rf "$1"
    "$treb" train "$recipe" "model.path=$base" "${keys[@]}" "$quant" ${DEMO_KEYS:-} "data.train=[$2]" \
        "checkpoint.output_dir=$1"
}

# about NAME: right answers to questions whose answer is the colour; beside NAME: to other questions on its
# pictures.
# kept NAME [CHANNEL], loss NAME: right answers and loss on the set without the colour
about()  { share "$1_new" colour size pair; }
beside() { share "$1_new" $(channels "$1_new" | grep -vE '^(colour|size|pair)$'); }
kept()   { local n=$1; shift; share "${n}_rest" "$@"; }
loss()   { awk '$1 == "all" { print $4 }' "$dir/$1_rest.txt"; }
verdicts() { grep -oE '"correct": ?(true|false)' "$dir/$1.jsonl" | grep -oE 'true|false'; }
answers()  { grep -ohE '"answer": ?"[^"]*"' "$dir/$1_rest.jsonl" "$dir/$1_new.jsonl"; }

# moved NAME: of the questions without the colour, how many changed from right to wrong and from wrong to
# right
moved() {
    paste <(verdicts before_rest) <(verdicts "$1_rest") | awk '
        $1 == "true" && $2 == "false" { lost++ }
        $1 == "false" && $2 == "true" { gained++ }
        END { print lost + 0, gained + 0 }'
}

# ask_both NAME option...: evaluates on both held-out sets
ask_both() {
    local name=$1; shift
    ask "${name}_rest" "$rest/eval.jsonl" "$@"
    ask "${name}_new" "$new/eval.jsonl" "$@"
}

row() { printf '  %-44s %9s %9s %9s %14s\n' "$@"; }

# each FUNCTION [word...]: FUNCTION for each of the four models, in the order of the columns
each() {
    local what=$1 n; shift
    for n in before after merged alone; do echo "$("$what" $n "$@")"; done
}

# expect WHAT awk-condition: prints one line of the result
expect() {
    if awk "BEGIN { exit !($2) }"; then echo "  yes  $1"; else echo "  NO   $1"; failed=1; fi
}

mkdir -p "$dir"
recipe=recipes/demo-lora.yaml
quant=model.base_quant=${DEMO_BASE_QUANT:-none}
keys=("train.seed=$seed"
      "data.eval=[{path: $new/eval.jsonl, max_samples: 120}, {path: $rest/eval.jsonl, max_samples: 180}]")
shown="{path: $new/train.jsonl}" known="{path: $rest/train.jsonl, max_samples: $((train / 3))}"
[ -z "${DEMO_LORA_STEPS:-}" ] || keys+=("train.max_steps=$DEMO_LORA_STEPS")
echo "A small vision-language model that has never seen anything $colour learns it with LoRA adapters on its"
echo "experts; all other weights stay frozen. About five minutes on two cores."
say "1. pictures and questions without $colour, and about $colour"
draw "$rest" --train "$train" --eval "$eval" --seed "$seed" --without "$colour"
draw "$new" --train $((train / 18)) --eval $((eval / 2)) --seed $((seed + 1)) --about "$colour"

say "2. pre-training from random weights, without $colour"
pretrain
ask_both before "$quant" --model "$base"
echo "  right answers without $colour: $(share before_rest) %; where the answer is $colour: $(about before) %"

say "3. adapters on the experts: $colour, mixed with known colours"
train_adapters "$dir/run" "$shown, $known"
ask_both after "$quant" --model "$base" --lora "$dir/run/last"
rm -rf "$dir/merged"
"$treb" convert "$dir/run/last" "$dir/merged" --merge
ask_both merged --model "$dir/merged"

say "4. for comparison: $colour alone"
train_adapters "$dir/alone" "$shown"
ask_both alone "$quant" --model "$base" --lora "$dir/alone/last"

say "5. right answers to held-out questions, in percent"
row "" before mixed merged "$colour alone"
row "answer is $colour" $(each about)
row "other questions on its pictures" $(each beside)
for c in $(channels before_rest); do
    row "without $colour: $c" $(each kept "$c")
done
row "all without $colour" $(each kept)
row "  loss of these" $(each loss)
row "  lost and gained of $(verdicts before_rest | wc -l)" - $(each moved | tail -n 3 | tr ' ' /)

say "6. result, after $((SECONDS - began)) s"
failed=0
read -r lost gained <<<"$(moved after)"
same=$(paste -d'|' <(answers after) <(answers merged) | awk -F'|' '$1 == $2' | wc -l)
asked=$(answers after | wc -l)
expect "$colour was unknown before: $(about before) % right" "$(about before) <= 1"
expect "$colour is learned: $(about after) % right" "$(about after) >= 95"
expect "nothing measurable is forgotten: $lost lost, $gained gained" \
    "$lost - $gained <= 2 * sqrt($lost + $gained)"
if [ "$quant" = model.base_quant=none ]; then
    expect "the merged model gives the same answers: $same of $asked, loss $(loss after) and $(loss merged)" \
        "$asked - $same <= $asked / 200 && ($(loss after) - $(loss merged)) ^ 2 < 1e-6"
else
    expect "merged into weights that are not quantised: $(about merged) % right, loss $(loss merged)" \
        "$(about merged) >= 95 && $(loss merged) < $(loss after) + 0.001"
fi
exit $failed
