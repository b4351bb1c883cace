#!/usr/bin/env bash
# The examples of docs/data.md, as they stand there: every record and file is made from the page and read by
# `treb data check`, which has to find as many good samples as there are examples.
passed=0 failed=0
treb=$(realpath "${TREB:-build/treb}")
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
root=$PWD

block() { awk -v tag="\`\`\`$1" '/^```/ { on = $0 == tag; next } on' "$root/docs/data.md"; }

# check WHAT command...
check() {
    local what=$1; shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "  FAIL $what"; fi
}

# good FILE N: N good samples and none that is bad
good() {
    "$treb" data check "$1" >"$tmp/out" 2>&1
    if grep -q "; $2 good, 0 bad" "$tmp/out"; then passed=$((passed + 1)); return; fi
    failed=$((failed + 1)); echo "  FAIL $1: $2 good samples are expected:"
    head -n 20 "$tmp/out" | cut -c -200 | sed 's/^/    /'
}

cd "$tmp" || exit 1
for name in cat 1 2 3 4; do cp "$root/tests/tiff/raw.tif" $name.jpg; done
cp "$root/tests/video/ntsc_h264.mp4" jump.mp4
block json > all.jsonl
block csv > example.csv; block tsv > example.tsv; block txt > example.txt
# A program without FFmpeg's libraries says so for every video file, and reads the rest.
if "$treb" data check all.jsonl 2>&1 | grep -q "built without FFmpeg"; then
    echo "  skip video files: the program is built without FFmpeg's libraries"
    grep -v 'jump\.mp4' all.jsonl > train.jsonl
else
    cp all.jsonl train.jsonl
fi
records=$(wc -l < train.jsonl)
check "17 records or more in docs/data.md" [ "$records" -ge 17 ]
block sh > commands.sh
check "the commands of docs/data.md" bash -e commands.sh
good train.jsonl "$records"
good train.json "$records"
good train.jsonl.gz "$records"
good example.csv 2
good example.csv.gz 2
good example.tsv 1
good example.txt 1
good shard.tar 2
good "$root/tests/parquet/indexed.parquet" 15
if command -v zstd >/dev/null; then zstd -q train.jsonl && good train.jsonl.zst "$records"; fi
echo "lab: $passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
