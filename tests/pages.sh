#!/usr/bin/env bash
# Pages that users follow: the ten commands of docs/quickstart.md run as written on a model of two million
# parameters, every error text of docs/troubleshooting.md is in the source, and exit codes are the program's.
passed=0 failed=0
treb=$(realpath "${TREB:-build/treb}") root=$PWD
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
export OMP_NUM_THREADS=1 TREB_CACHE_DIR="$tmp/cache" HF_HOME="$tmp/hf"

check() {                                # check WHAT command...
    local what=$1; shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "  FAIL $what"; fi
}

# ---- error texts ----
# Adjacent string literals are one string; a macro between two of them ends a piece of a text.
find src -name '*.c' -o -name '*.h' -o -name '*.def' -o -name '*.cu' | xargs cat | tr '\n' ' ' |
    sed -E 's/"[[:space:]]+"//g; s/\\"/"/g' > "$tmp/source"
in_source() {                            # in_source TEXT: every piece between the … of it
    local piece
    while read -r piece; do
        [ -z "$piece" ] || grep -qF -- "$piece" "$tmp/source" || { echo "    not in src: $piece"; return 1; }
    done < <(sed 's/…/\n/g' <<< "$1" | sed -E 's/^[ ]+//; s/[ ]+$//')
}
texts=0
while IFS= read -r text; do
    text=${text#\#\#\# \`} text=${text%\`}
    check "docs/troubleshooting.md: $text" in_source "$text"
    texts=$((texts + 1))
done < <(grep '^### `' docs/troubleshooting.md)
check "docs/troubleshooting.md has texts" [ "$texts" -ge 20 ]
codes_page=$(sed -nE '/^## Exit codes/,$ s/^\| ([0-9]+) \|.*/\1/p' docs/quickstart.md | sort -n | xargs)
codes_source=$(sed -nE '/^int status_exit_code/,/^}/ s/.*return ([0-9]+);.*/\1/p' src/base/status.c |
    sort -n | xargs)
check "exit codes: $codes_page and $codes_source" [ "$codes_page" = "$codes_source" ]

# ---- ten commands ----
"$treb" data synth --out "$tmp/set" --train 60 --eval 18 >"$tmp/out" 2>&1 || { cat "$tmp/out"; exit 1; }
"$treb" train recipes/demo.yaml "data.train=[$tmp/set/train.jsonl]" "data.eval=[]" eval.eval_steps=0 \
    train.micro_tokens=1024 train.micro_patches=2560 train.max_steps=1 checkpoint.output_dir="$tmp/base" \
    >"$tmp/out" 2>&1 || { cat "$tmp/out"; exit 1; }
mkdir "$tmp/bin" "$tmp/user" && ln -s "$treb" "$tmp/bin/treb" && cd "$tmp/user" || exit 1
cp -rL "$tmp/base/last" model && cp "$tmp/set/train.jsonl" my.jsonl && cp -r "$tmp/set/images" images
cp "$(find images -name '*.jpg' | head -n 1)" images/cat.jpg
PATH="$tmp/bin:$PATH" n=0
while IFS= read -r line; do
    n=$((n + 1))
    bash -c "$line" </dev/null >"$tmp/out" 2>&1 && passed=$((passed + 1)) && continue
    failed=$((failed + 1)); echo "  FAIL docs/quickstart.md: $line"; tail -n 3 "$tmp/out" | cut -c -300
done < <(awk '/^<!-- commands:/ { on = 1; next } on && /^```/ { if (seen++) exit; next } on' \
             "$root/docs/quickstart.md")
check "docs/quickstart.md has ten commands, not $n" [ "$n" -eq 10 ]
check "they leave a model" [ -s merged/model.safetensors ]
check "they leave pages" [ -s runs/my/report.html -a -s sample.html ]

echo "lab: $passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
