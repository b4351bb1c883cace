#!/usr/bin/env bash
# Weak scaling on this machine: 2, 4, 8 ranks (or RANKS) under mpirun, with TOKENS tokens and one thread each, for dp,
# ZeRO-3, tp, ep and pp. Prints medians over steps: the share of a step that a rank waits for other ranks
# (perf/exposed_comm), and the step time over that of as many independent runs of one rank, timed before and after on the
# same machine. The ratio is the cost of communication on the cores there are; seconds are not comparable between
# machines, ratios are. With more ranks than cores a rank that waits yields its core to another.
. tests/ranklab.sh
has_mpi || { echo "no mpirun, or a build without MPI"; exit 1; }
ranks=${RANKS:-2 4 8} steps=${STEPS:-7} tokens=${TOKENS:-512}
small_moe
cat > "$tmp/model/config.json" <<'JSON'
{"model_type": "qwen3_moe", "vocab_size": 600, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
 "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 512, "moe_intermediate_size": 192, "num_experts": 16,
 "num_experts_per_tok": 4, "norm_topk_prob": true, "rope_theta": 10000, "torch_dtype": "float32"}
JSON
for i in $(seq 1 2000); do
    echo "{\"text\": \"line $i of a text that goes on for $((i * 7919 % 23)) words $(printf 'word %.0s' $(seq 1 $((i * 7919 % 23))))\"}"
done > "$tmp/data.jsonl"

# run RANKS MICRO_TOKENS GLOBAL_TOKENS overrides...: trains into $tmp/run; independent runs into $tmp/run.R each.
run() {
    local n=$1 micro=$2 global=$3; shift 3
    rm -rf "$tmp"/run*
    mpirun --oversubscribe --allow-run-as-root --bind-to none -np "$n" bash -c '
        if [ "$1" = alone ]; then set -- "$@" comm.kind=self; end=.$OMPI_COMM_WORLD_RANK; fi
        dir=$2$end; shift 2; exec "$0" train /dev/null checkpoint.output_dir="$dir" "$@"' \
        "$treb" "${mode:-together}" "$tmp/run" "${recipe[@]}" train.max_steps="$steps" train.micro_tokens="$micro" \
        train.global_tokens="$global" data.max_length=128 "$@" >"$tmp/out" 2>&1 || { tail -n 5 "$tmp/out"; exit 1; }
}
median() {                               # median METRIC: over all steps except the first, of all folders
    cat "$tmp"/run*/metrics.jsonl | grep -v '"step": 1,' | grep -o "\"$1\": [0-9.e+-]*" | cut -d' ' -f2 | sort -g |
        awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'
}
alone() { mode=alone run "$1" "$tokens" "$tokens"; median perf/step_time; }
together() {
    case $1 in
        dp)    run "$2" "$tokens" $(($2 * tokens)) ;;
        zero3) run "$2" "$tokens" $(($2 * tokens)) parallel.zero=3 ;;
        tp)    run "$2" $(($2 * tokens)) $(($2 * tokens)) parallel.tp="$2" ;;
        ep)    run "$2" "$tokens" $(($2 * tokens)) parallel.ep="$2" ;;
        pp)    run "$2" $((tokens / 4)) $(($2 * tokens)) parallel.pp="$2" ;;
    esac
    median perf/exposed_comm > "$tmp/waits"
    median perf/step_time
}

echo "$(date -u +%F), $(env -u OMP_NUM_THREADS nproc) cores, load $(cut -d' ' -f1 /proc/loadavg), $tokens tokens a rank"
echo "| ranks | parallelism | s a step | over independent runs | exposed communication |"
echo "|---|---|---|---|---|"
for n in $ranks; do
    before=$(alone "$n") rows=()
    for way in ${WAYS:-dp zero3 tp ep pp}; do
        [ "$way $n" = "pp 8" ] && continue                        # the model has four layers
        rows+=("$way $(together "$way" "$n") $(cat "$tmp/waits")")
    done
    after=$(alone "$n")
    printf '%s\n' "${rows[@]}" | awk -v n="$n" -v a="$before" -v b="$after" '
        { printf "| %d | %s | %.3f | %.2f | %.0f %% |\n", n, $1, $2, $2 / ((a + b) / 2), 100 * $3 }'
    echo "| $n | none | $before, $after | 1 | 0 % |"
done
