#!/usr/bin/env bash
# Checks that includes go downwards only. A folder may include itself and the folders listed for it.
set -eu
cd "$(dirname "$0")/.."
declare -A may=(
    [base]="" [tensor]="base" [ops]="tensor base" [comm]="ops tensor base" [nn]="comm ops tensor base"
    [model]="nn comm ops tensor base" [parallel]="model nn comm ops tensor base" [data]="tensor base"
    [train]="parallel data model nn comm ops tensor base" [plan]="train parallel data model nn comm ops tensor base"
    [cli]="plan train parallel data model nn comm ops tensor base"
)
bad=0
for file in src/*/*; do
    from=$(basename "$(dirname "$file")")
    [ -n "${may[$from]+x}" ] || { echo "layers: src/$from is not a layer (see tools/layers.sh)"; bad=1; continue; }
    while read -r to; do
        case " $from ${may[$from]} " in *" $to "*) ;; *) echo "layers: $file includes $to/, which is above $from/"; bad=1 ;; esac
    done < <(sed -nE 's/^[[:space:]]*#[[:space:]]*include[[:space:]]+"([a-z]+)\/.*/\1/p' "$file")
done
exit $bad
