#!/usr/bin/env bash
# make demo: trains a small vision-language MoE from random weights on this CPU to answer questions about
# pictures. Draws the pictures, evaluates the untrained model, trains, and evaluates again: with the right
# pictures, and, as a control, with mismatched pictures.
#
#   TREB=build/treb DEMO_DIR=build/demo DEMO_SEED=1 DEMO_STEPS= DEMO_TRAIN=27000 DEMO_EVAL=900 tools/demo.sh
#
# The seed decides the pictures, the initial weights and the order of the data. DEMO_STEPS: fewer steps than
# the recipe has, for a quick run.
set -eu -o pipefail
cd "$(dirname "$0")/.."
treb=${TREB:-build/treb} dir=${DEMO_DIR:-build/demo} seed=${DEMO_SEED:-1} recipe=recipes/demo.yaml
train=${DEMO_TRAIN:-27000} eval=${DEMO_EVAL:-900}
set=$dir/set run=$dir/run began=$SECONDS
keys=("data.train=[{path: $set/train.jsonl}]" "data.eval=[{path: $set/eval.jsonl, max_samples: 180}]"
      "checkpoint.output_dir=$run" "train.seed=$seed")
[ -z "${DEMO_STEPS:-}" ] || keys+=("train.max_steps=$DEMO_STEPS")

. tools/demo_common.sh

# The mean of 1 / answers over the channels with pictures, or of one channel.
chance() {
    awk -v want="${1:-}" -F'[:,]' '
        /"channel"/ { gsub(/[ "]/, "", $2); name = $2 }
        /"pictures"/ { pictures = $2 + 0 }
        /"chance"/ && pictures && (want == "" || want == name) { sum += $2; n++ }
        END { if (n) printf "%.1f %%", 100 * sum / n; else printf "-" }' "$set/synth.json"
}

# field NAME: that string of the JSON object on each line
field() { sed -E "s/.*\"$1\": ?\"([^\"]*)\".*/\1/"; }

# One answer of each channel and a few more, one a row: question, answer, verdict, picture files.
show_answers() {
    local line verdict
    awk 'match($0, /"channel": ?"[a-z]*"/) {
            n = ++seen[substr($0, RSTART, RLENGTH)]
            if (n == 1 || (n == 2 && more++ < 3)) print
        }' "$dir/after.jsonl" | while read -r line; do
        verdict="wrong: $(field expected <<<"$line")"
        if [[ $line =~ '"correct":'\ ?true ]]; then verdict=right; fi
        printf '  %-42s %-13s %-20s %s\n' "$(field question <<<"$line")" "$(field answer <<<"$line")" \
            "$verdict" "$(grep -oE 'images/[^"]*' <<<"$line" | paste -sd' ')"
    done
}

mkdir -p "$dir"
echo "A vision-language mixture of experts of two million parameters learns to answer questions about"
echo "pictures: drawn now, trained from random weights on this CPU, evaluated before and after. About three"
echo "minutes."
say "1. pictures and questions: colours, shapes, counts, places, sizes, digits, words, pairs; and plain text"
draw "$set" --train "$train" --eval "$eval" --seed "$seed"
echo "  pictures: $set/images/train; questions: $set/train.jsonl"

say "2. the untrained model answers the $eval held-out questions"
ask before "$set/eval.jsonl"
echo "  $(share before) % right"

say "3. training on this CPU, from random weights: two to three minutes on two cores"
rm -rf "$run"
"$treb" train "$recipe" "${keys[@]}"

say "4. the same questions again, and a control with mismatched images:" \
    "the same questions over pictures of others"
ask after "$set/eval.jsonl" --model "$run/last"
ask mismatched "$set/eval_blind.jsonl" --model "$run/last"
printf '  %-10s %8s %8s %15s %8s\n' "" before after "mismatched" chance
for c in $(channels after); do
    if [ "$c" = text ]; then control=-; else control="$(share mismatched "$c") %"; fi
    printf '  %-10s %6s %% %6s %% %15s %8s\n' "$c" "$(share before "$c")" "$(share after "$c")" "$control" \
        "$(chance "$c")"
done

say "5. a dozen held-out questions (pictures under $set)"
show_answers

say "done in $((SECONDS - began)) s"
cat <<END
  held-out questions right before training   $(share before) %
  held-out questions right after             $(share after) %
  control with mismatched images             $(share mismatched $(channels mismatched)) %   (chance $(chance))
  report of the run, with pictures           $run/report.html
  ask the model a question:
    $treb generate --model $run/last --prompt 'Which shape is this?' \\
        --image $(echo "$set"/images/eval/000001.*)
END
