# Functions of both demos, which source this file. A demo sets treb, recipe, keys (overrides of the recipe)
# and dir.

say() { printf '\n== %s\n' "$*"; }

# draw SET option...: draws a set of pictures and questions into the folder SET. A set of another seed or
# size, or an incomplete one, is left from an earlier demo and is removed first.
draw() {
    local draw=("$treb" data synth --out "$@")
    if [ -d "$1" ] && ! "${draw[@]}" >"$dir/synth.log" 2>&1; then rm -rf "$1"; fi
    "${draw[@]}"
}

# ask NAME FILE [option...]: evaluates the model of the recipe, or of --model, on the questions of FILE.
# Answers go to $dir/NAME.jsonl, the table by channel to $dir/NAME.txt.
ask() {
    local name=$1 file=$2; shift 2
    "$treb" eval "$recipe" "${keys[@]}" "$@" --data "$file" --max-new 8 \
        --samples "$dir/$name.jsonl" >"$dir/$name.txt" 2>"$dir/$name.log" || { cat "$dir/$name.log"; exit 1; }
}

# Rows of the table end in "N of N"; the first line of the file names the model.
# share NAME [CHANNEL...]: right answers in percent, of the given channels or of all
share() {
    local name=$1; shift
    awk -v list="${*:-all}" 'BEGIN { split(list, l, " "); for (i in l) want[l[i]] = 1 }
        $(NF - 1) == "of" && $1 in want { right += $(NF - 2); n += $NF }
        END { printf "%.1f", n ? 100 * right / n : 0 }' "$dir/$name.txt"
}

# channels NAME: the channels of the table, in its order
channels() { awk '$(NF - 1) == "of" && $1 != "all" { print $1 }' "$dir/$1.txt"; }
