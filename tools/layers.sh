#!/usr/bin/env bash
# Checks that includes go downwards only: a folder may include itself and the folders named before it in
# `order`, except that ops to parallel do not include data/. ops/cpu and ops/cuda belong to ops.
set -eu
cd "$(dirname "$0")/.."
order="base jinja tensor data ops comm nn model parallel checkpoint engine infer train plan profile launch"
order="$order report watch diagnose tune cli"
declare -A hidden=([data]="" [ops]="data" [comm]="data" [nn]="data" [model]="data" [parallel]="data")
bad=0
for file in $(find src -type f); do
    from=${file#src/} from=${from%%/*} may=""
    for folder in $order; do
        case " ${hidden[$from]:-} " in *" $folder "*) ;; *) may="$may $folder" ;; esac
        [ "$folder" != "$from" ] || break
    done
    case " $order " in
        *" $from "*) ;;
        *) echo "layers: src/$from is not in the order of tools/layers.sh"; bad=1; continue ;;
    esac
    while read -r to; do
        case "$may " in
            *" $to "*) ;;
            *) echo "layers: $file includes $to/, which is above $from/"; bad=1 ;;
        esac
    done < <(sed -nE 's/^[[:space:]]*#[[:space:]]*include[[:space:]]+"([a-z]+)\/.*/\1/p' "$file")
done
exit $bad
