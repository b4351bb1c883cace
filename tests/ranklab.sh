# Shared by the scripts that start ranks, which source this file: a small MoE and its data, counting, and the
# comparison of two runs.
passed=0 failed=0
treb=$(realpath "${TREB:-build/treb}")
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
export OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0         # MPI does not free all its memory

check() {                                # check WHAT command...: counts, and prints what failed
    local what=$1; shift
    if "$@"; then passed=$((passed + 1)); return; fi
    failed=$((failed + 1)); echo "  FAIL $what"; last_lines 6 | cut -c -300 | sed 's/^/    /'
}
last_lines() {                           # last_lines N: of each output, without those of mpirun
    local file
    for file in "$tmp"/out*; do
        grep -av -e '^ *-*$' -e '^mpirun' -e 'job to be terminated' -e 'Process name' -e 'Exit code' "$file" |
            tail -n "$1"
    done
}
report() { echo "lab: $passed passed, $failed failed, ${1:-0} skipped"; [ "$failed" -eq 0 ]; exit; }
skip()   { echo "  skip $(basename "$0"): $*"; report 1; }
now_ms() { echo $(($(date +%s%N) / 1000000)); }
pause()  { sleep "$(printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)))"; }     # milliseconds

# Many processes share a GPU faster under MPS than in time slices. MPS has a limited number of hardware queues
# for all of them: of 20 ranks some find the GPU busy or unavailable. A client that is killed ends others.
start_mps() {
    command -v nvidia-cuda-mps-control >/dev/null || return 0
    export CUDA_MPS_PIPE_DIRECTORY=$tmp/mps CUDA_MPS_LOG_DIRECTORY=$tmp/mps CUDA_DEVICE_MAX_CONNECTIONS=8
    mkdir -p "$tmp/mps" && nvidia-cuda-mps-control -d >"$tmp/out" 2>&1 || return 0
    trap 'echo quit | nvidia-cuda-mps-control >/dev/null 2>&1; rm -rf "$tmp"' EXIT
}

has_mpi() { command -v mpirun >/dev/null && "$treb" doctor 2>&1 | grep -q mpi; }

small_moe() {                            # the model and its data, in $tmp; their keys in `recipe`
    local i n
    mkdir -p "$tmp/model"
    cp tests/gold_text/tokenizer.json "$tmp/model"
    cat > "$tmp/model/config.json" <<'JSON'
{"model_type": "qwen3_moe", "vocab_size": 600, "hidden_size": 48, "num_hidden_layers": 4,
 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96,
 "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": true,
 "rope_theta": 10000, "torch_dtype": "float32"}
JSON
    for i in $(seq 1 200); do
        n=$((i * 7919 % 31))
        echo "{\"text\": \"line $i of a text that goes on for $n words $(printf 'word %.0s' $(seq 1 $n))\"}"
    done > "$tmp/data.jsonl"
    recipe=(model.preset="$tmp/model" "data.train=[$tmp/data.jsonl]" data.max_length=128 data.bad_sample=skip
            train.micro_tokens=128 train.global_tokens=1024 optim.learning_rate=1e-3 optim.adam_epsilon=1e-5
            checkpoint.hf=none)
}

losses() { grep -o '"train/loss": [0-9.e+-]*' "$1/metrics.jsonl" | cut -d' ' -f2; }
agree() {                                # agree A B N: N losses each, within 1e-5
    paste <(losses "$1") <(losses "$2") | awk -v n="$3" '
        { d = $1 - $2; if (d < 0) d = -d }
        NF != 2 || d > 1e-5 * $1 { print "  step " NR ": " $1 " " $2; bad = 1 }
        END { exit bad || NR != n }'
}
state_of() { grep -v '"recipe"' "$1/last/trainer_state.json"; }
same_bits() {                            # same_bits A B: weights, moments, data position, every loss
    [ -s "$1/last/state/rank-00000/MANIFEST.json" ] &&
    cmp -s <(cat "$1"/last/state/rank-*/MANIFEST.json) <(cat "$2"/last/state/rank-*/MANIFEST.json) &&
    cmp -s <(state_of "$1") <(state_of "$2") &&
    cmp -s <(losses "$1") <(losses "$2")
}

same_run() {                             # same_run A B: weights, moments and every loss
    cmp -s <(hashes "$1") <(hashes "$2") && [ -n "$(hashes "$1")" ] && cmp -s <(losses "$1") <(losses "$2")
}
hashes() { (cd "$1/last/state" && find . -name '*.safetensors' -print0 | sort -z | xargs -0 sha256sum); }

# Layouts, several at a time. A script that has them sets `gpu` (a backend), `steps` and at_once (ranks),
# lists them by `layout`, and defines try_layout NAME RANKS words..., which prints why a layout fails.
# LAYOUTS="pp cp2" runs those whose name contains pp or cp2; VERBOSE=1 prints each result at once.
rows=() picked=()
layout() {                               # layout NAME RANKS words...
    local word
    rows+=("$*")
    for word in ${LAYOUTS:-}; do case $1 in *"$word"*) picked+=("$*"); return;; esac; done
    [ -n "${LAYOUTS:-}" ] || picked+=("$*")
}
as_rank=()                               # a command that starts a rank in its environment, if any
train_ranks() {                          # train_ranks FOLDER RANKS MODEL keys...: MODEL is an array of keys
    local folder=$1 n=$2 by=(); declare -n model=$3; shift 3
    [ "$n" = 1 ] || by=(mpirun --oversubscribe --allow-run-as-root --bind-to none -np "$n" "${as_rank[@]}")
    timeout -k 5 "${RANK_LIMIT:-90}" "${by[@]}" "$treb" train /dev/null "${model[@]}" \
        train.max_steps="$steps" device.backend="$gpu" model.dtype=float32 device.dtype=float32 \
        checkpoint.output_dir="$folder" "$@" >"$folder.log" 2>&1
}
declare -A running                       # ranks by process id
wait_for_ranks() {                       # wait_for_ranks N: until N more are at most `at_once`, or alone
    local pid sum
    while :; do
        sum=$1
        for pid in "${!running[@]}"; do
            if kill -0 "$pid" 2>/dev/null; then sum=$((sum + running[$pid])); else unset "running[$pid]"; fi
        done
        [ "$sum" -gt "$at_once" ] && [ ${#running[@]} -gt 0 ] || return 0
        wait -n
    done
}
run_all() {                              # run_all command rows...: the second word of a row is its ranks
    local command=$1 row words; shift
    for row in "$@"; do
        read -ra words <<<"$row"
        wait_for_ranks "${words[1]}"
        "$command" "${words[@]}" &
        running[$!]=${words[1]}
    done
    wait
}
time_layout() {                          # writes $tmp/NAME.result: ok, or what failed
    local began=$SECONDS why
    if why=$(try_layout "$@"); then why="ok $((SECONDS - began)) s"; fi
    echo "$why" >"$tmp/$1.result"
    [ -z "${VERBOSE:-}" ] || echo "  $1 $why" \
        "$(grep -ohE 'dispatch +[a-z_]+|[0-9]* communicators took [0-9.]* MiB' "$tmp/$1.log" | tr '\n' ' ')"
}
run_layouts() {
    local row name
    run_all time_layout "${picked[@]}"
    for row in "${picked[@]}"; do
        name=${row%% *}
        cp "$tmp/$name.log" "$tmp/out"
        check "$name $(cat "$tmp/$name.result")" grep -q '^ok' "$tmp/$name.result"
    done
}
agrees() {                               # agrees A B: the losses of `steps` steps; prints where they do not
    local where
    where=$(agree "$1" "$2" "$steps") || { echo "has other losses than one rank: ${where%%$'\n'*}"; false; }
}

# Under mpirun each rank runs in its own session: when a rank dies, mpirun kills the other ranks, and would
# otherwise do so before they exit by themselves. Rank R writes its process id to $tmp/pid.R, its exit code to
# $tmp/code.R and its output to $tmp/out.R. RANK_PRELOAD is preloaded into ranks alone; with a host name each,
# ranks may share a GPU over NCCL.
from=()                                  # the command that starts mpirun, if any
start_rank='r=$OMPI_COMM_WORLD_RANK
    NCCL_HOSTID=h$r LD_PRELOAD=$RANK_PRELOAD "$0" "$@" >"$RANKLAB/out.$r" 2>&1 & echo $! >"$RANKLAB/pid.$r"
    wait $!; echo $? >"$RANKLAB/code.$r"'
ranks_start() {                          # ranks_start N options of mpirun... -- command...
    local n=$1 options=(); shift
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
    rm -f "$tmp"/pid.* "$tmp"/code.* "$tmp"/out.*
    RANKLAB=$tmp timeout -k 5 "${RANK_LIMIT:-240}" "${from[@]}" \
        mpirun --oversubscribe --allow-run-as-root --bind-to none -x RANKLAB "${options[@]}" -np "$n" \
        setsid -w bash -c "$start_rank" "$@" >"$tmp/out" 2>&1 &
    job=$!
}
count()    { cat "$tmp/$1".* 2>/dev/null | wc -l; }          # lines in files $1.*
until_of() {                             # until_of MS command...: waits until it succeeds; fails after MS
    local end=$(($(now_ms) + $1)); shift
    until "$@"; do [ "$(now_ms)" -lt "$end" ] || return 1; sleep 0.05; done
}
