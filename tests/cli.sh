#!/usr/bin/env bash
# The command line: what each command prints, and its exit code.
passed=0 failed=0
treb=${TREB:-build/treb}
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT

# expect CODE WORD command...: exit code, and a word that must be in the output
expect() {
    local code=$1 word=$2 out rc; shift 2
    out=$("$@" 2>&1); rc=$?
    if [ $rc -eq "$code" ] && grep -qF -- "$word" <<<"$out"; then passed=$((passed + 1)); return; fi
    failed=$((failed + 1))
    echo "  FAIL $*: exit $rc (want $code), wanted \"$word\" in:"; head -n 5 <<<"$out" | sed 's/^/    /'
}

gold=tests/gold/vl-moe-mix
expect 0 "parity"            $treb --help
expect 0 "treb 0"            $treb --version
expect 0 "usage: treb parity" $treb parity --help
expect 0 "learning_rate"     $treb help optim
expect 0 "model data image"  $treb help
expect 0 "layouts to list (default 5)" $treb plan --help
expect 2 "neither a verb nor a section" $treb help 12345
expect 2 "parity"            $treb parrity
expect 0 "--restart K"       $treb launch --help
expect 2 "name a verb"       $treb launch -n 2
expect 2 "Did you mean train" $treb launch -n 2 trian recipe.yaml
expect 2 "between"           $treb launch -n 0 train recipe.yaml
expect 2 "how many ranks"    $treb launch train /dev/null
expect 2 "in one process"    $treb launch -n 2 plan recipe.yaml
expect 2 "--steps"           $treb parity $gold --step 3
expect 2 "between"           $treb parity $gold --steps -1
expect 2 "argument"          $treb parity
expect 2 "name a model and the folder to write (two arguments, 1 given)" $treb convert $gold
expect 2 "two arguments or more" $treb init $gold
expect 2 "plan: --networks is not an option. Did you mean --network?" $treb plan r.yaml --networks 4
expect 2 "doctor: --qqq is not an option; options are --json" $treb doctor --qqq
expect 2 "data pack: --zz is not an option" $treb data pack a --zz
expect 2 "treb: data synth: --trin is not an option. Did you mean --train?" $treb data synth --trin 3
expect 2 "bench ops: a is one argument too many; see treb bench ops --help" $treb bench ops a
expect 2 "--moments = f8: must be f32, bf16 or int8" $treb bench step --moments f8
expect 2 "--dtype = f12: must be f32 or bf16" $treb parity $gold --dtype f12
expect 2 "--dtype = f12: must be f32, bf16" $treb convert $gold "$tmp/f12" --dtype f12
expect 2 "--frobnicate: not a key. \`treb help config\`" $treb train --frobnicate
expect 2 "--max_step: not a key. Did you mean --train.max_steps?" $treb train --max-step 4
expect 2 "cpu"               $treb parity $gold --backend tpu
expect 2 "f32 or bf16"       $treb parity $gold --dtype i64
expect 2 "moe_act"           $treb parity $gold --recompute everything
expect 4 "inputs.safetensors" $treb parity "$tmp"/none
expect 0 "gradients"         $treb parity $gold
expect 0 '"ok": true'        $treb parity $gold --json
expect 0 ""                  $treb parity $gold --steps 0 --out "$tmp/out.safetensors"
expect 4 "No such file"      $treb report "$tmp"/none
expect 2 "one argument"      $treb report
expect 2 "too many"          $treb report a b c
expect 0 "20 held out"       $treb data synth --out "$tmp/set" --train 20 --eval 20
expect 2 "--out DIR"         $treb data synth
cp $treb "$tmp/treb"
expect 4 "$tmp/treb-demo: "  "$tmp/treb" data synth --out "$tmp/alone"
expect 0 "cores"             $treb doctor
expect 0 '"cores"'           $treb doctor --json
expect 0 "written"           $treb convert $gold "$tmp/hub"
expect 2 "already"           $treb convert $gold "$tmp/hub"
expect 0 "written"           $treb convert "$tmp/hub" "$tmp/bf16" --dtype bf16 --shard-mb 1
expect 4 "No such file"      $treb convert "$tmp/none" "$tmp/x"
mkdir "$tmp/empty"
expect 4 "$tmp/empty/config.json: No such file" $treb convert "$tmp/empty" "$tmp/x"
adapter=tests/gold_lora/vl-moe-all/adapter
expect 0 "37 modules merged" $treb convert --merge $adapter "$tmp/merged" --base $gold
expect 2 "already"           $treb convert --merge $adapter "$tmp/merged" --base $gold
expect 0 "adapter of 37"     $treb convert $adapter "$tmp/adapter" --base $gold
expect 2 "already"           $treb convert $adapter "$tmp/hub" --base $gold
expect 2 "an adapter is written as f32" $treb convert $adapter "$tmp/x" --base $gold --dtype bf16
expect 2 "--shard-mb"        $treb convert $adapter "$tmp/x" --base $gold --shard-mb 1
expect 2 "--native"          $treb convert --native --merge $adapter "$tmp/x"
expect 2 "--config"          $treb convert --merge $adapter "$tmp/x" --config $gold
mkdir "$tmp/baseless"; cp $adapter/* "$tmp/baseless"  # an adapter whose base model is absent
sed -i 's|tests/gold/vl-moe-mix|some/where|' "$tmp/baseless/adapter_config.json"
expect 2 "some/where is not here; name its folder with --base" $treb convert --merge "$tmp/baseless" "$tmp/x"
expect 2 "no adapter in it"  $treb convert --merge $gold "$tmp/x"
expect 2 "no adapter in it"  $treb convert $gold "$tmp/x" --base $gold
expect 4 "shape [4, 24] instead of [4, 16]" \
    $treb convert --merge $adapter "$tmp/x" --base tests/gold/vl-dense-bias
expect 2 "adapter of some/where, which is not a model folder here" \
    $treb generate --model "$tmp/baseless" --prompt hello
expect 4 "tokenizer.json"    $treb generate --model "$tmp/adapter" --prompt hello
expect 4 "tokenizer.json"    $treb generate --model $gold --lora $adapter --prompt hello
mkdir -p "$tmp/arun/last/state"
expect 2 "name one of its checkpoints, such as $tmp/arun/last" $treb convert --merge "$tmp/arun" "$tmp/x"
expect 2 "model.path: $tmp/arun is a run folder" $treb generate --model "$tmp/arun" --prompt hello
expect 2 "name is empty" $treb generate --model $gold --lora "" --prompt hello
expect 2 "name is empty" $treb eval --model $gold --lora "" --data "$tmp/none"
expect 4 "adapters and none is named" \
    $treb eval recipes/demo-lora.yaml model.path="$tmp/none" --data "$tmp/none"
expect 2 "set lora.path" \
    $treb train /dev/null model.path=$adapter "data.train=[x]" checkpoint.output_dir="$tmp/run"
expect 0 "learning_rate"     $treb config recipes/example.yaml
expect 2 "Did you mean"      $treb config recipes/example.yaml train.max_step=3
expect 2 "must be between"   $treb config recipes/example.yaml optim.learning_rate=3
short="--model $gold --tokens 64 --doc 32 --images 0 --repeat 1"
expect 0 "ragged: 2 documents" $treb bench step $short --ragged
expect 0 "predicted by cpu-node" $treb bench step $short --hardware cpu
expect 2 "unknown; known are" $treb bench step $short --hardware h42
expect 0 "floor, the same frozen weights" $treb bench step $short --lora 4 --floor
expect 2 "are of --lora RANK" $treb bench step $short --floor
expect 2 "names nothing"     $treb bench step $short --lora 4 --targets q_prj
expect 2 "ops step"          $treb bench
expect 0 "of its floor"      $treb bench decode --model $gold --docs 2 --prompt 8 --tokens 4

tok="tests/gold_text"
expect 0 "[64,188,65,576]"   $treb tokenize --tokenizer $tok <<<'{"text": "a\u0000b<|im_end|>"}'
expect 0 '{"text":"a\u0000b<|im_end|>"}' \
    $treb tokenize --tokenizer $tok/tokenizer.json --decode <<<'[64,188,65,576]'
expect 0 '{"text":"ab"}'     $treb tokenize --tokenizer $tok --decode --skip-special <<<'[64, 65, 576]'
expect 0 "[]"                $treb tokenize --tokenizer $tok <<<'{"text": ""}'
expect 2 "--tokenizer"       $treb tokenize
expect 4 "line 2"            $treb tokenize --tokenizer $tok <<<$'{"text": "a"}\n{"words": "b"}'
expect 4 "line 1"            $treb tokenize --tokenizer $tok --decode <<<'[99999]'
expect 4 "No such file"      $treb tokenize --tokenizer "$tmp/none"

# An image of one black pixel, and damaged files, which are reported while the other images are read.
base64 -d > "$tmp/dot.png" \
    <<<iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgYGAAAAAEAAH2FzhVAAAAAElFTkSuQmCC
printf '....ftypheic' > "$tmp/bad.jpg"; printf '\xff\xd8\xff\xe0' > "$tmp/cut"$'\xe9'.jpg
expect 0 '"grid": [1, 16, 16]' $treb image "$tmp/dot.png" --json --index 0,393215
expect 0 '"values": [-1.0, -1.0]' $treb image "$tmp/dot.png" --json --index 0,393215
expect 0 "MP/s"              $treb image "$tmp/dot.png" --repeat 3 --min-pixels 1024
expect 4 "2 of 3 pictures"   $treb image "$tmp/bad.jpg" "$tmp/dot.png" "$tmp/cut"$'\xe9'.jpg --json
expect 4 '"tokens": 64'      $treb image "$tmp/bad.jpg" "$tmp/dot.png" --json
expect 4 "HEIC is not read"  $treb image "$tmp/bad.jpg"
expect 4 "No such file"      $treb image "$tmp/none.png"
expect 4 "have 393216"       $treb image "$tmp/dot.png" --index 393216
expect 2 "--index"           $treb image "$tmp/dot.png" --index 1,x
expect 2 "above"             $treb image "$tmp/dot.png" --min-pixels 5000 --max-pixels 4000
expect 2 "argument"          $treb image

expect 2 "recipe"            $treb train
expect 2 "model.path"        $treb train /dev/null
expect 2 "data.train"        $treb train /dev/null model.path=$gold
expect 2 "tp 2 x cp 1"       $treb plan /dev/null --ranks 1 model.path=$gold parallel.tp=2
expect 4 "tokenizer.json" \
    $treb train /dev/null model.path=$gold "data.train=[x]" checkpoint.output_dir="$tmp/run"

expect 2 "--model"           $treb generate --prompt hello
expect 4 "No such file"      $treb generate --model "$tmp/none" --prompt hello
expect 2 "between"           $treb generate --model "$tmp/none" --prompt hello --top-p 2
expect 2 "not in this build"  $treb generate --model "$tmp/none" --prompt hello --backend tpu
expect 4 "tokenizer.json"    $treb generate --model $gold --prompt hello
expect 2 "no data"           $treb eval --model $gold
expect 2 "no model"          $treb eval --data none.jsonl
expect 2 "two models"        $treb eval --model $gold model.path=elsewhere --data none.jsonl

# The converted folder computes the same as its source: same inputs, same recorded outputs.
cp $gold/inputs.safetensors $gold/expected.safetensors $gold/info.json "$tmp/hub"
expect 0 "gradients"         $treb parity "$tmp/hub"

# A damaged checkpoint is an error that names the file, at any length.
for cut in 4 100 5000; do
    mkdir -p "$tmp/cut"; cp $gold/* "$tmp/cut" 2>/dev/null
    head -c $cut $gold/model.safetensors > "$tmp/cut/model.safetensors"
    expect 4 "model.safetensors" $treb parity "$tmp/cut"
done
echo "lab: $passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
