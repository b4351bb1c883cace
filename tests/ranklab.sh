# What scripts that start ranks share: a small MoE and its data, counting, and the comparison of two runs. Sourced.
passed=0 failed=0
treb=$(realpath "${TREB:-build/treb}")
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
export OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0         # MPI leaves memory behind

check() {                                # check WHAT command...: counts, and tells what failed
    local what=$1; shift
    if "$@"; then passed=$((passed + 1)); return; fi
    failed=$((failed + 1)); echo "  FAIL $what"; tail -qn 6 "$tmp"/out* | cut -c -300 | sed 's/^/    /'
}
report() { echo "lab: $passed passed, $failed failed, ${1:-0} skipped"; [ "$failed" -eq 0 ]; exit; }
skip()   { echo "  skip $(basename "$0"): $*"; report 1; }
now_ms() { echo $(($(date +%s%N) / 1000000)); }
pause()  { sleep "$(printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)))"; }     # milliseconds

has_mpi() { command -v mpirun >/dev/null && "$treb" doctor 2>&1 | grep -q mpi; }

small_moe() {                            # the model and its data, in $tmp; their keys in `recipe`
    mkdir -p "$tmp/model"
    cp tests/gold_text/tokenizer.json "$tmp/model"
    cat > "$tmp/model/config.json" <<'JSON'
{"model_type": "qwen3_moe", "vocab_size": 600, "hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
 "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "moe_intermediate_size": 32, "num_experts": 8,
 "num_experts_per_tok": 2, "norm_topk_prob": true, "rope_theta": 10000, "torch_dtype": "float32"}
JSON
    for i in $(seq 1 200); do
        echo "{\"text\": \"line $i of a text that goes on for $((i * 7919 % 31)) words $(printf 'word %.0s' $(seq 1 $((i * 7919 % 31))))\"}"
    done > "$tmp/data.jsonl"
    recipe=(model.preset="$tmp/model" "data.train=[$tmp/data.jsonl]" data.max_length=128 data.bad_sample=skip
            train.micro_tokens=128 train.global_tokens=1024 optim.learning_rate=1e-3 optim.adam_epsilon=1e-5
            moe.aux_loss_type=micro_batch checkpoint.hf=none)
}

losses() { grep -o '"train/loss": [0-9.e+-]*' "$1/metrics.jsonl" | cut -d' ' -f2; }
agree() {                                # agree A B N: N losses each, within 1e-5
    paste <(losses "$1") <(losses "$2") | awk -v n="$3" '
        { d = $1 - $2; if (d < 0) d = -d; if (NF != 2 || d > 1e-5 * $1) { print "  step " NR ": " $1 " " $2; bad = 1 } }
        END { exit bad || NR != n }'
}
same_bits() {                            # same_bits A B: weights, moments, place in the data, every loss
    cmp -s <(cat "$1"/last/state/rank-*/MANIFEST.json) <(cat "$2"/last/state/rank-*/MANIFEST.json) &&
    cmp -s <(grep -v '"recipe"' "$1/last/trainer_state.json") <(grep -v '"recipe"' "$2/last/trainer_state.json") &&
    cmp -s <(losses "$1") <(losses "$2")
}

# Under mpirun each rank has a session of its own, so that mpirun, which ends the others too, is not faster than they
# are. It leaves its process in $tmp/pid.R, its exit code in $tmp/code.R and what it says in $tmp/out.R.
from=()                                  # what mpirun itself is started by, if anything
ranks_start() {                          # ranks_start N words of mpirun... -- command...
    local n=$1 words=(); shift
    while [ "$1" != -- ]; do words+=("$1"); shift; done
    shift
    rm -f "$tmp"/pid.* "$tmp"/code.* "$tmp"/out.*
    RANKLAB=$tmp timeout -k 5 "${RANK_LIMIT:-240}" "${from[@]}" mpirun --oversubscribe --allow-run-as-root --bind-to none -x RANKLAB \
        "${words[@]}" -np "$n" setsid -w bash -c 'r=$OMPI_COMM_WORLD_RANK; "$0" "$@" >"$RANKLAB/out.$r" 2>&1 & echo $! >"$RANKLAB/pid.$r"
            wait $!; echo $? >"$RANKLAB/code.$r"' "$@" >"$tmp/out" 2>&1 &
    job=$!
}
count()    { cat "$tmp/$1".* 2>/dev/null | wc -l; }          # of files with a line in them
until_of() {                             # until_of MS command...: true as soon as it is, false when the time is up
    local end=$(($(now_ms) + $1)); shift
    until "$@"; do [ "$(now_ms)" -lt "$end" ] || return 1; sleep 0.05; done
}
