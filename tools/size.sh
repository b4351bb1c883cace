#!/usr/bin/env bash
# Lines of code by folder, and the longest source files.
cd "$(dirname "$0")/.." || exit 1
for d in src/* src/ops/*/ bench demo tests tools; do
    [ -d "$d" ] || continue
    d=${d%/} files=$(find "$d" -maxdepth 1 -type f)
    printf '%-14s %6d lines in %3d files\n' "$d" "$(cat $files | wc -l)" "$(wc -w <<<"$files")"
done
echo; find src -type f | xargs wc -l | sort -rn | sed -n 2,8p
