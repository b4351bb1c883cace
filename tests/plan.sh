#!/usr/bin/env bash
# `treb plan` finds that every recipe for many ranks fits the GPUs in its name: it checks the layout rules and
# dry-runs one rank of each stage. The model folders are absent, so each recipe is planned with the preset
# that its model folder names. "recipes/qwen3-vl-30b-a3b-16-h100-3d.yaml" is for 16 ranks (parallel.ranks),
# each an h100; "1-24gb" for any GPU of so many GiB.
# The search for a layout and the three output forms of a plan (text, JSON, HTML) follow.
. tests/ranklab.sh
planned() {                              # planned RECIPE
    local ranks gpu
    read -r ranks gpu < <(sed -E 's/[^0-9]*[^/]*-([0-9]+)-(g?[hb][123]00|[0-9]+gb).*/\1 \2/' <<<"$1")
    [[ $gpu = *gb ]] && gpu=h200         # of any make: device.memory_limit has its bytes
    "$treb" plan "$1" --hardware "$gpu" >"$tmp/out" 2>&1 &&
        grep -q " on $ranks rank" "$tmp/out" && grep -q '^  stage 0 ' "$tmp/out" &&
        grep -q '^preset .* for models/.*, which does not exist' "$tmp/out"
}
for recipe in $(ls recipes/*.yaml | grep -E -- '-[0-9]+-(g?[hb][123]00|[0-9]+gb)'); do
    check "$recipe" planned "$recipe"
done
validated() {                            # each table of the comparison has a row
    "${TEST_PUBLISHED:-build/tests/test_published}" --print >"$tmp/out" 2>&1 &&
        grep -q '^| M1 ' "$tmp/out" && grep -q '^| T1 ' "$tmp/out" && grep -q '^| R1 ' "$tmp/out"
}
check "published runs beside the plan" validated
found() {                                # found N MODEL GPU [options]: searches a layout, plans its recipe
    local n=$1 model=$2 gpu=$3; shift 3
    "$treb" plan --gpus "$n" --model "$model" --hardware "$gpu" --out "$tmp/found.yaml" "$@" \
        >"$tmp/out" 2>&1 || return
    grep -q '^  1  ' "$tmp/out" && grep -q ' candidates in .* a second' "$tmp/out" || return
    "$treb" plan "$tmp/found.yaml" --ranks "$n" --hardware "$gpu" >"$tmp/out" 2>&1
}
check "plan --gpus 8 of 30B" found 8 qwen3-30b-a3b h200 --gbs 512
check "plan --gpus 64 of 235B" found 64 qwen3-vl-235b-a22b gb200 --gbs 1024 --images 4096 --picture 1024
# With adapters: search, recipe, plan, refusals; and the command that a search suggests when nothing fits.
check "plan --gpus 8 of 30B with adapters" found 8 qwen3-vl-30b-a3b h100 --seq 8192 --images 8192 lora.rank=16
trained='adapters of rank 16 on 404 modules train: 651.231 M of 31721.985 M parameters, 2.053 %'
check "the recipe says what trains" grep -q "$trained" "$tmp/found.yaml"
check "plan --gpus with module names and globs" \
    found 4 qwen3-vl-8b h100 --lora 8 --targets 'v_proj,*layers.3?.mlp.*' model.freeze_aligner=true
listed() {
    grep -q '^  target_modules: \[v_proj, "\*layers.3?.mlp.\*"\]' "$tmp/found.yaml" &&
        grep -q '^  freeze_aligner: true' "$tmp/found.yaml"
}
check "the recipe has them" listed
searched() {                             # searched CODE WORDS N [options]: exit code and output of a search
    local code=$1 words=$2; shift 2
    "$treb" plan --gpus "$@" >"$tmp/out" 2>&1; [ $? = "$code" ] && grep -q -- "$words" "$tmp/out"
}
check "JSON has the number of trained parameters" \
    searched 0 '"adapters": 651230720' 1 --model qwen3-vl-30b-a3b --hardware h200 lora.rank=16 --json
check "a model that cannot be trained here" \
    searched 2 'minimax-m2 with adapters: no family here trains it' 8 --model minimax-m2 lora.rank=16
check "a target that matches no module" \
    searched 2 'nearest is q_proj' 8 --model qwen3-30b-a3b lora.rank=16 lora.target_modules=qproj
check "a layout that takes more GPUs than there are" \
    searched 2 'tp 16 x cp 1 x pp 1 = 16 (rule 1)' 8 --model qwen3-30b-a3b --hardware h100 --fix tp=16 --json
check "more chunks than layers" \
    searched 2 'at most 24 chunks a stage (rule 25)' 8 --model qwen3-30b-a3b --fix pp=2,vpp=100
mkdir -p "$tmp/other"
cat >"$tmp/other/config.json" <<'END'
{"model_type": "deepseek_v2", "num_hidden_layers": 27, "hidden_size": 2048, "vocab_size": 102400,
 "num_attention_heads": 16, "num_key_value_heads": 16, "kv_lora_rank": 512, "q_lora_rank": null,
 "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 10944,
 "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
 "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
END
same() {                                 # a config.json of a family that is not trained here, and its row
    "$treb" plan --gpus 8 --hardware h100 --model "$tmp/other" --json | grep -m1 '"step"' >"$tmp/a" &&
        "$treb" plan --gpus 8 --hardware h100 --model deepseek-v2-lite --json | grep -m1 '"step"' >"$tmp/b" &&
        cmp "$tmp/a" "$tmp/b"
}
check "a model by its config.json" same
hostile() {                              # WORDS PATTERN: a config.json that is refused (exit code 4)
    mkdir -p "$tmp/hostile"
    echo '{"vocab_size": 100, "hidden_size": 64, "num_attention_heads": 4, '"$1}" >"$tmp/hostile/config.json"
    "$treb" plan --gpus 8 --model "$tmp/hostile" >/dev/null 2>"$tmp/err"
    [ $? = 4 ] && grep -q -- "$2" "$tmp/err" && grep -q hostile/config.json "$tmp/err"
}
check "too many layers in config.json" hostile '"num_hidden_layers": 129' 'between 1 and 128'
check "a negative width in config.json" \
    hostile '"num_hidden_layers": 2, "intermediate_size": -1' 'intermediate_size = -1'
check "more experts of a token than experts" \
    hostile '"num_hidden_layers": 2, "num_experts": 4, "num_experts_per_tok": 5' 'between 1 and 4'
check "linear attention without a head dim" \
    hostile '"num_hidden_layers": 2, "linear_num_key_heads": 4' 'linear_key_head_dim = 0'
check "further tokens have no dry run" \
    searched 0 'with layers that predict further tokens: only' 8 --model qwen3-30b-a3b --hardware h200 --mtp 1
no_network() {
    "$treb" plan recipes/example.yaml --network 400 >"$tmp/out" 2>&1
    [ $? = 2 ] && grep -q -- '--network: needs --hardware' "$tmp/out"
}
check "a network of no hardware" no_network
check "degrees whose product is no int" \
    searched 2 'pp x vpp may be above 1048576' 8 --model qwen3-30b-a3b --fix pp=65536,vpp=65536
check "a step of another trainer" \
    searched 0 'published runs on Hopper' 16 --model qwen3-30b-a3b --engine megatron --graphs partial
check "an unknown trainer"             searched 2 'expected treb|megatron' 8 --model qwen3-30b-a3b --engine x
check "a format that the GPU lacks" \
    searched 2 'mxfp8: h100-sxm has no such matrix products; use fp8' 8 --model qwen3-30b-a3b \
        --hardware h100 --precision mxfp8
check "8-bit products are checked by a dry run" \
    searched 0 '"dry_run"' 8 --model qwen3-30b-a3b --hardware h200 --precision fp8 --json
check "microscaled products say where they run" \
    searched 0 'train.precision=nvfp4 runs on CPUs alone' 8 --model qwen3-30b-a3b --hardware b200 \
        --precision nvfp4 --no-dry-run
check "a layout is fixed by --fix" \
    searched 2 'parallel.tp=2: only lora' 8 --model qwen3-30b-a3b parallel.tp=2
lacking() {                              # the command that the last line names does fit
    searched 3 'nothing fits that trains the whole model; adapters do: treb plan --gpus 1 ' \
        1 --model qwen3-30b-a3b --hardware h100 &&
        "$treb" $(sed -n 's/.*adapters do: treb //p' "$tmp/out") >"$tmp/out" 2>&1 &&
        grep -q '^  1  dp1 ' "$tmp/out"
}
check "plan --gpus 1 of 30B" lacking
check "a model that does not fit with adapters either" \
    searched 3 'nor do adapters' 1 --model qwen3-235b-a22b --hardware h100
lora=recipes/qwen3-vl-30b-a3b-1-h200-lora.yaml
adapted() { "$treb" plan $lora --ranks 1 --hardware h200 >"$tmp/out" 2>&1 && grep -q "$1" "$tmp/out"; }
check "a plan says what trains" \
    adapted '48 *16 *352.322 M  model.language_model.layers.\*.mlp.experts.gate_up_proj'
check "and which linear modules do not" \
    adapted '^! NOT TRAINED, though linear (.*mlp.gate): 48 x model.language_model.layers.\*.mlp.gate'
# The recipe for one GPU runs, on another model and little data.
small_moe
small_run="model.dtype=float32 train.micro_tokens=256 train.global_tokens=512 train.max_steps=2"
runs() {
    found 1 qwen3-vl-2b h200 --gbs 32 --fix recompute=none || return
    "$treb" train "$tmp/found.yaml" "${recipe[@]}" $small_run device.backend=cpu \
        checkpoint.output_dir="$tmp/run" >"$tmp/out" 2>&1
}
check "training with a recipe that a search wrote" runs
adapts() {                               # a frozen vision encoder, adapters on the decoder
    found 1 qwen3-vl-2b h200 --gbs 32 --fix recompute=none lora.rank=4 lora.target_modules=all-attention \
        --frozen-vision || return
    "$treb" train "$tmp/found.yaml" "${recipe[@]}" $small_run device.backend=cpu \
        checkpoint.output_dir="$tmp/run2" >"$tmp/out" 2>&1
}
check "the same with adapters" adapts
# Times are of the documents of the data, where they can be read: a third of data.max_length here.
of_data() {                              # WORDS [override ...]
    "$treb" plan /dev/null "${recipe[@]}" $small_run --hardware h200 "${@:2}" >"$tmp/out" 2>&1 &&
        grep -q "^  data $1" "$tmp/out"
}
check "a plan of the data" of_data 'as sampled: micro-batches 9[0-9] % full; documents of [2-8][0-9] tokens, '
check "data that cannot be read" \
    of_data 'assumed by .* documents of 128 tokens, 100 %' "data.train=[$tmp/none.jsonl]" \
    train.micro_tokens=128 train.global_tokens=128
says_data() {
    "$treb" diagnose "$tmp/recipe.yaml" "${recipe[@]}" $small_run --hardware h200 --json >"$tmp/out" 2>&1 &&
        grep -q '"source": "sampled"' "$tmp/out"
}
: >"$tmp/recipe.yaml"
check "a diagnosis of a recipe is of its data" says_data

big=recipes/qwen3-235b-a22b-256-h100.yaml
says() { "$treb" plan "$big" "${@:2}" >"$tmp/out" 2>"$tmp/err"; grep -q -- "$1" "$tmp/out" "$tmp/err"; }
ends() { "$treb" plan "$big" "${@:2}" >/dev/null 2>&1; [ $? = "$1" ]; }
one_stage="parallel.pp=1 parallel.vpp=1 moe.overlap=false"
one_stage="$one_stage parallel.count_embedding=false parallel.count_loss=false"
check "without --ranks, the least number for the layout" \
    says '^256 ranks, the least number for this layout' moe.overlap=false parallel.ranks=0
check "a node has eight ranks, a rack more"              says '|t1 d3 p0 e7 ' --ranks 256
check "a rule is named"                                  says '(rule 5)' parallel.tp=3 --ranks 96
check "what does not fit is exit code 3"                 ends 3 --hardware a100 $one_stage
check "its bottleneck is memory"                        says 'bottleneck: memory' --hardware a100 $one_stage
check "and says what to change" \
    says 'GiB less, .* memory.recompute=\[' --hardware a100 $one_stage
check "other estimators beside the plan" \
    says 'Megatron Bridge' --ranks 256 --compare-estimators
check "256 ranks use 64 GPUs of each rack of 72" \
    says '^64 ranks per node of the 72 ' --ranks 256 --hardware gb200 moe.rank_capacity=1
check "offloaded optimizer state takes no GPU memory" \
    says '^  stage 0 .* fits' --ranks 256 --hardware h100 memory.optimizer_offload=1 memory.recompute=[]
check "a plan refuses what a run refuses" \
    says 'gradients of float32 weights are float32' model.dtype=float32 optim.master=float32 \
        optim.grad_dtype=bfloat16
check "unknown hardware lists what there is"             says 'h100-sxm' --hardware abacus
thousands() { says '^  stage 15 ' --ranks 4096 parallel.pp=16 parallel.vpp=3 train.global_tokens=67108864; }
check "thousands of ranks"                               thousands
json() {
    "$treb" plan "$big" --ranks 256 --hardware b200 --json >"$tmp/plan.json" 2>/dev/null
    [ "$(head -c 1 "$tmp/plan.json")" = '{' ] && [ "$(grep -c '"device_bytes"' "$tmp/plan.json")" = 8 ] &&
        grep -q '"labels"' "$tmp/plan.json" && grep -q '"inter_node"' "$tmp/plan.json" &&
        grep -q '"fit"' "$tmp/plan.json"
}
check "JSON has every stage"                             json
page() {
    "$treb" plan "$big" --ranks 256 --html "$tmp/plan.html" >/dev/null 2>&1
    [ "$(grep -oE '\[[0-9]+,[0-9]+,[0-9]+,(true|false),' "$tmp/plan.html" | wc -l)" -gt 500 ] &&
        grep -q '</html>' "$tmp/plan.html" && grep -qE '\[255,[0-9]+,"' "$tmp/plan.html" &&
        [ "$(grep -c '<script' "$tmp/plan.html")" = 1 ] && ! grep -qE 'https?://|<link|src=' "$tmp/plan.html"
}
check "a page of one file, with a timeline"              page
report
