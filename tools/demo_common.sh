# What the demos share, sourced by them. They set treb, recipe, keys (settings over the recipe's) and dir, their folder.

say() { printf '\n== %s\n' "$*"; }

# draw SET option...: a set of pictures and questions in the folder SET. A set of another seed or size, or half of
# one, is refused: it is an earlier demo's, and makes room.
draw() {
    local draw=("$treb" data synth --out "$@")
    if [ -d "$1" ] && ! "${draw[@]}" >"$dir/synth.log" 2>&1; then rm -rf "$1"; fi
    "${draw[@]}"
}

# ask NAME FILE [option...]: the questions of FILE to the recipe's model, or to that of --model.
# Answers go into $dir/NAME.jsonl, the table by channel into $dir/NAME.txt.
ask() {
    local name=$1 file=$2; shift 2
    "$treb" eval "$recipe" "${keys[@]}" "$@" --data "$file" --max-new 8 \
        --samples "$dir/$name.jsonl" >"$dir/$name.txt" 2>"$dir/$name.log" || { cat "$dir/$name.log"; exit 1; }
}

# share NAME [CHANNEL...]: right answers in percent, of those channels or of all
share() {
    local name=$1; shift
    awk -v list="${*:-all}" 'BEGIN { split(list, l, " "); for (i in l) want[l[i]] = 1 }
        $NF + 0 && $1 in want { right += $(NF - 2); n += $NF }
        END { printf "%.1f", n ? 100 * right / n : 0 }' "$dir/$name.txt"
}

# channels NAME: those of the table, in its order
channels() { awk '$NF + 0 && $1 != "channel" && $1 != "all" { print $1 }' "$dir/$1.txt"; }
