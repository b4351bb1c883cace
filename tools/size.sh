#!/usr/bin/env bash
# Lines of code by folder, and the longest files.
cd "$(dirname "$0")/.." || exit 1
for d in src/* tests tools; do
    printf '%-14s %6d lines in %3d files\n' "$d" "$(find "$d" -maxdepth 1 -type f | xargs cat | wc -l)" "$(find "$d" -maxdepth 1 -type f | wc -l)"
done
echo; wc -l src/*/* | sort -rn | sed -n 2,8p
