#!/usr/bin/env bash
# The command line as a person meets it: what is printed, and the exit codes scripts rely on.
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
expect 2 "parity"            $treb parrity
expect 2 "--steps"           $treb parity $gold --step 3
expect 2 "between"           $treb parity $gold --steps -1
expect 2 "argument"          $treb parity
expect 2 "cpu"               $treb parity $gold --backend tpu
expect 2 "f32 or bf16"       $treb parity $gold --dtype i64
expect 2 "moe_act"           $treb parity $gold --recompute everything
expect 4 "No such file"      $treb parity "$tmp"/none
expect 0 "gradients"         $treb parity $gold
expect 0 '"ok": true'        $treb parity $gold --json
expect 0 ""                  $treb parity $gold --steps 0 --out "$tmp/out.safetensors"
expect 0 "cores"             $treb doctor
expect 0 '"cores"'           $treb doctor --json
expect 0 "written"           $treb convert $gold "$tmp/hub"
expect 2 "already"           $treb convert $gold "$tmp/hub"
expect 0 "written"           $treb convert "$tmp/hub" "$tmp/bf16" --dtype bf16 --shard-mb 1
expect 4 "No such file"      $treb convert "$tmp/none" "$tmp/x"
expect 0 "learning_rate"     $treb config recipes/example.yaml
expect 2 "Did you mean"      $treb config recipes/example.yaml train.max_step=3
expect 2 "must be between"   $treb config recipes/example.yaml optim.learning_rate=3
expect 0 "GFLOP/s"           $treb bench step --tokens 64 --doc 32 --images 0 --repeat 1
expect 2 "ops or step"       $treb bench

# The converted folder computes the same as its source: same inputs, same record.
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
