#!/usr/bin/env bash
# Every key of config.def and config_source.def is used by a source file; a key that is accepted and read by
# nothing is found here. The compiler finds the uses: with CONFIG_AUDIT each field is declared deprecated
# under the name of its key.
set -u
cd "$(dirname "$0")/.."
CC=${CC:-gcc}
pkgs="jansson yaml-0.1 libjpeg libpng libwebp libpcre2-8 libutf8proc libxxhash"
flags="-std=gnu17 -fsyntax-only -Wdeprecated-declarations -fopenmp -DCONFIG_AUDIT -Isrc"
flags="$flags $(pkg-config --cflags $pkgs 2>/dev/null)"
work=$(mktemp -d) passed=0 failed=0
trap 'rm -rf "$work"' EXIT
check() { if [ "$1" = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "  FAIL $2"; fi; }

# The table itself initialises and names every field: that is no use of a key.
sources() {
    find src -name '*.c' -print0 | xargs -0 grep -lE 'cfg_|Config|Source|recipe|conf' |
        grep -v '^src/base/config'
}
uses() {
    xargs -P"$(nproc)" -n8 $CC $flags 2>&1 | grep -oE 'deprecated: [a-z_]+\.[a-z_0-9]+' |
        sed 's/.*: //' | sort -u
}
rows='FLAG|INT|REAL|TEXT|CHOICE|LIST|SOURCES'
sed -nE "s/^ *($rows) *\(([a-z_]+), *([a-z_0-9]+),.*/\2.\3/p" src/base/config{,_source}.def |
    sort -u > "$work/keys"
sources | uses > "$work/used"
comm -23 "$work/keys" "$work/used" > "$work/unread"
[ "$(wc -l < "$work/keys")" -gt 80 ]; rc=$?
check $rc "config.def has $(wc -l < "$work/keys") keys, more than 80 were expected"
[ ! -s "$work/unread" ]; rc=$?
check $rc "no source file reads or refuses $(tr '\n' ' ' < "$work/unread")"

# The check can fail: without the file that reads it, a key is found to be unread.
sources | grep -v '^src/train/lr.c$' | uses > "$work/fewer"
comm -23 "$work/keys" "$work/fewer" | grep -q '^optim\.warmup_ratio$'; rc=$?
check $rc "optim.warmup_ratio counts as read without src/train/lr.c"
echo "lab: $passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
