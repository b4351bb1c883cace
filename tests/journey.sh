#!/usr/bin/env bash
# What new users do, as they type it: a first run with a wrong path, a run that is stopped, checkpoints as
# models, keys of other trainers, wrong folders, ranks, plans, a recipe from `treb init`, a conversation from
# `treb chat`. Each check is a place where a user once stumbled.
passed=0 failed=0
treb=$(realpath "${TREB:-build/treb}")
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
export OMP_NUM_THREADS=1 TREB_CACHE_DIR="$tmp/cache" HF_HOME="$tmp/hf"
root=$PWD

# says CODE TEXT command...: the exit code, and a text in the output
says() {
    local code=$1 text=$2 rc; shift 2
    "$@" >"$tmp/out" 2>&1; rc=$?
    if [ $rc -eq "$code" ] && grep -qF -- "$text" "$tmp/out"; then passed=$((passed + 1)); return; fi
    failed=$((failed + 1))
    echo "  FAIL $*: exit $rc (want $code), wanted \"$text\" in:"
    tail -n 5 "$tmp/out" | cut -c -300 | sed 's/^/    /'
}
check() {                                # check WHAT command...
    local what=$1; shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "  FAIL $what"; fi
}
has() { grep -qF -- "$1" "$tmp/out"; }

# ---- a model with weights, its tokenizer and its pictures ----
"$treb" data synth --out "$tmp/set" --train 60 --eval 18 >"$tmp/out" 2>&1 || { cat "$tmp/out"; exit 1; }
common=(train.micro_tokens=1024 train.micro_patches=2560 train.max_steps=2)
"$treb" train recipes/demo.yaml "data.train=[$tmp/set/train.jsonl]" "data.eval=[]" eval.eval_steps=0 \
    "${common[@]}" checkpoint.output_dir="$tmp/base" >"$tmp/out" 2>&1 || { cat "$tmp/out"; exit 1; }
cd "$tmp" && cp -rL base/last model
mine=(train model.path=model "data.train=[set/train.jsonl]" "${common[@]}" train.max_steps=4
      checkpoint.save_steps=2)
run()   { "$treb" "${mine[@]}" checkpoint.output_dir="$@"; }     # run FOLDER keys...
ranks() { "$treb" launch -n 2 "${mine[@]}" checkpoint.output_dir="$@"; }

# ---- journey 2: fine-tune, evaluate, resume ----
says 4 "no such file" run ft "data.train=[set/trian.jsonl]"
check "the log has the error" grep -q "set/trian.jsonl: no such file" ft/train.log
says 0 "done: 4 steps" run ft "data.eval=[set/eval.jsonl]" eval.eval_steps=2
check "the size of a checkpoint is printed" has "each, 31.3 MiB the last; the disk has"
says 2 "not empty" run ft
says 0 "gradients    of attention, MLP and experts in bfloat16" run grads model.dtype=bfloat16 \
    optim.grad_dtype=bfloat16 train.max_steps=1
says 0 "optim.grad_dtype=bfloat16 changes nothing" run none model.dtype=bfloat16 lora.rank=4 \
    optim.grad_dtype=bfloat16 train.max_steps=1
says 0 "" "$treb" generate --model ft/checkpoint-2 --prompt "Which shape?" --max-new 2
says 0 "" "$treb" generate --model ft/best --prompt "Which shape?" --max-new 2
says 0 "written to conv" "$treb" convert ft/checkpoint-2 conv
check "with its tokenizer" [ -s conv/tokenizer.json -a -s conv/preprocessor_config.json ]
says 0 "model        ft/checkpoint-2" "$treb" eval --model ft/checkpoint-2 --data set/eval.jsonl --max-new 0
tail -n 1 out > of_state
says 0 "model        conv" "$treb" eval --model conv --data set/eval.jsonl --max-new 0
check "checkpoint and converted model are one" [ "$(cat of_state)" = "$(tail -n 1 out)" ]
says 0 "is the one that it has trained" "$treb" eval ft/recipe.yaml --max-new 0
says 0 "lr 0.0001 (the default with adapters" run lora lora.rank=4
says 0 "" "$treb" generate --model lora/checkpoint-2 --prompt "Which shape?" --max-new 2
says 0 "learning_rate: 0.0001" "$treb" config ft/recipe.yaml lora.rank=8 optim.learning_rate=null
says 0 "from conv" run again model.path=conv checkpoint.save_only_model=true
check "models alone" [ -s again/checkpoint-2/model.safetensors -a ! -e again/checkpoint-2/state ]
says 2 "save_only_model" run again train.max_steps=5 checkpoint.resume_from_checkpoint=auto
sed 's/"role": *"assistant"/"loss": false, "role": "assistant"/g' set/train.jsonl > set/masked.jsonl
says 4 "nothing to learn" run masked "data.train=[set/masked.jsonl]"
"$treb" "${mine[@]}" checkpoint.output_dir=stopped train.max_steps=100000 checkpoint.save_steps=0 \
    >out 2>&1 & job=$!
for i in $(seq 400); do grep -q "^step 2/" out && break; sleep 0.05; done
kill -TERM $job; wait $job           # the shell lets jobs ignore SIGINT
check "a signal says how to go on" has "checkpoint.resume_from_checkpoint=auto"
says 0 "" "$treb" generate --model stopped/last --prompt "Which shape?" --max-new 2
says 0 "" "$treb" report stopped ft

# ---- journey 3: keys of other trainers ----
printf '%s\n' 'model_name_or_path: model' 'dataset: a' 'stage: sft' 'lora_rank: 8' > lf.yaml
says 2 "lf.yaml:4: lora_rank" "$treb" train lf.yaml
check "all of them at once" has "lf.yaml:1: model_name_or_path"
says 0 "done: 1 steps" "$treb" train --model model --dataset set/train.jsonl --output-dir cli --max_steps 1 \
    --micro_tokens 1024 --micro_patches 2560
for key in sft_type rlhf_type quant_bits system shuffle save_only_model no_save_optim metric_for_best_model \
    early_stopping_patience neftune_noise_alpha label_smoothing_factor channel_loss master_port plot_loss \
    beta ref_model tp_comm_overlap fake_init_process_group manual_gc cuda_graph_impl enable_cuda_graph; do
    "$treb" config /dev/null $key=1 >out 2>&1
    check "$key is answered: $(cat out)" grep -q "not a key here\. [A-Z\`]" out
done
says 2 "Did you mean image.max_pixels" "$treb" config /dev/null MAX_PIXELS=1
says 2 "treb help train" "$treb" config /dev/null train.bathc=1
says 0 "recompute: [full]" "$treb" config /dev/null memory.recompute=true
says 0 "resume_from_checkpoint: auto" "$treb" config /dev/null checkpoint.resume_from_checkpoint=true
says 0 "dtype: bfloat16" "$treb" config /dev/null model.dtype=bf16

# ---- journey 4: wrong folders ----
says 2 "hf download Qwen/Qwen3-VL-30B-A3B-Instruct" run hub model.path=Qwen/Qwen3-VL-30B-A3B-Instruct
says 2 "set the folder that it is in" run hub model.path=model/config.json
mkdir part && cp model/config.json part
says 4 "has no tokenizer.json; a model folder has" run hub model.path=part
check "no folder is made" [ ! -e hub ]
limited() { (ulimit -v 400000; run "$@"); }
[ -n "${ASAN_OPTIONS:-}" ] || says 2 "ulimit -v unlimited" limited small
low_stack() { (ulimit -S -s 256; run "$@"); }
says 0 "done: 1 steps" low_stack stack train.max_steps=1
least_stack() { (ulimit -s 256; "$treb" help) >out 2>&1 || { [ $? -eq 2 ] && has "ulimit -s 8192"; }; }
check "a stack limit that cannot be raised is refused" least_stack

# ---- journey 5: ranks of one machine ----
if command -v mpirun >/dev/null && "$treb" doctor | grep -q "treb launch -n"; then
    says 0 "done: 4 steps" ranks two parallel.ep=2
    says 0 "" "$treb" generate --model two/checkpoint-2 --prompt "Which shape?" --max-new 2
    says 4 "no such file" ranks three "data.train=[nowhere.jsonl]"
    check "an error is printed once" [ "$(grep -c 'nowhere.jsonl: no such file' out)" -eq 1 ]
fi

# ---- journey 6: plans ----
says 0 "candidates in" "$treb" plan --gpus 8 --hardware h100 --model model --seq 512
says 2 "h100" "$treb" plan ft/recipe.yaml --hardware list

# ---- journey 7: a recipe, a conversation, answers to a file ----
says 0 "wrote mine.yaml: all weights" "$treb" init model set/train.jsonl --out mine.yaml --output-dir init \
    optim.learning_rate=1e-4
says 2 "exists" "$treb" init model set/train.jsonl --out mine.yaml
says 0 "max_length: 512" "$treb" config mine.yaml
says 0 "done: 2 steps" "$treb" train mine.yaml train.max_steps=2
says 0 "adapters on a model" "$treb" init model set/train.jsonl --out lora.yaml --lora 8 \
    --gpus 8 --hardware h100
says 0 "ranks: 8" "$treb" config lora.yaml
says 4 "nothing to learn" "$treb" init model set/masked.jsonl --out no.yaml
says 4 "no such file" "$treb" init model set/nowhere.jsonl --out no.yaml
picture=$(echo set/images/eval/000001.*)
printf 'Which shape is in %s?\n/clear\n/help\nAnd now?\n' "$picture" > talk
says 0 "/clear" "$treb" chat init/last --max-new 3 < talk
printf '%s\n' "{\"id\": 1, \"prompt\": \"Which?\", \"image\": \"${picture#set/}\"}" \
    '{"messages": [{"role": "user", "content": "Say"}, {"role": "assistant", "content": "so"}]}' \
    > set/ask.jsonl
says 0 '"id":1,"prompt":"Which?"' "$treb" chat init/last --prompts set/ask.jsonl --max-new 3
says 0 "2 prompts, 2 answered" "$treb" chat init/last --prompts set/ask.jsonl --out answers.jsonl --max-new 3
check "each line with its answer" [ "$(grep -c '"answer":"' answers.jsonl)" -eq 2 ]
one=$("$treb" generate --model init/last --prompt "Which?" --image "$picture" --max-new 3)
check "as treb generate answers" grep -qF "\"answer\":\"$one\"" answers.jsonl
printf '{"prompt": "x", "images": ["none.png"]}\noops\n' > bad.jsonl
says 4 "2 lines of bad.jsonl" "$treb" chat init/last --prompts bad.jsonl
check "a bad line says why" has "bad.jsonl:2: not a JSON object"

echo "lab: $passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
