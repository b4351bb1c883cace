#!/usr/bin/env bash
# `treb eval`, `treb generate` and the answers of a training run under mpirun: on every layout the losses, the
# answers and the tokens of one rank, written and printed once. What fails is said once, and all ranks exit
# with the same code. TREB_GPU_BACKEND=cuda runs them on a GPU that all ranks share, TREB_RANK_COMM=nccl over
# NCCL.
. tests/ranklab.sh
has_mpi || skip "no mpirun, or a build without MPI"
backend=${TREB_GPU_BACKEND:-cpu} comm=${TREB_RANK_COMM:-mpi}
[ "$backend" != cuda ] || start_mps
small_moe
recipe+=(model.dtype=float32 device.backend="$backend")
as_rank='exec "$0" "$@"'
[ "$comm" = mpi ] || as_rank='export NCCL_HOSTID=h$OMPI_COMM_WORLD_RANK NCCL_SOCKET_IFNAME=lo
    export NCCL_IB_DISABLE=1 NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1; exec "$0" "$@"'

ranks() {                                # ranks N command...: stdout to $tmp/said, stderr to $tmp/out
    local n=$1 start=() kind=(); shift
    [ "$n" -eq 1 ] || kind=(comm.kind="$comm")
    [ "$n" -eq 1 ] || start=(mpirun --oversubscribe --allow-run-as-root --bind-to none -np "$n"
                             bash -c "$as_rank")
    timeout 120 "${start[@]}" "$@" "${kind[@]}" >"$tmp/said" 2>"$tmp/out"
}
for i in $(seq 1 23); do
    printf '{"channel": "c%d", "messages": [{"role": "user", "content": "what is %d%s"}, ' $((i % 3)) "$i" \
        "$(printf ' and more%.0s' $(seq $((i * 5 % 7))))"
    printf '{"role": "assistant", "content": "it is %d"}]}\n' $((i * i))
done > "$tmp/questions.jsonl"

# A few steps make a model with weights, and answers during training.
train() {                                # train FOLDER RANKS overrides...
    local folder=$1 n=$2; shift 2
    ranks "$n" "$treb" train /dev/null "${recipe[@]}" train.global_tokens=512 train.max_steps=4 \
        eval.eval_steps=2 "data.eval=[$tmp/questions.jsonl]" eval.max_new_tokens=6 \
        checkpoint.output_dir="$folder" "$@"
}
# Weights that were trained on another layout differ by rounding, on a GPU enough for another answer.
same_samples() { [ "$backend" != cpu ] || cmp -s "$1/samples/step-2.jsonl" "$2/samples/step-2.jsonl"; }
same_eval() {                            # same_eval A B: losses within 1e-5, equal accuracies and answers
    paste <(values "$1" eval/loss) <(values "$2" eval/loss) | awk '
        { d = $1 - $2; if (d < 0) d = -d }
        NF != 2 || d > 1e-5 * $1 { bad = 1 }
        END { exit bad || NR != 2 }' &&
    cmp -s <(values "$1" eval/accuracy) <(values "$2" eval/accuracy) &&
    same_samples "$1" "$2"
}
values() { grep -o "\"$2\": [0-9.e+-]*" "$1/metrics.jsonl" | cut -d' ' -f2; }
check "a run on one rank" train "$tmp/one" 1 checkpoint.hf=every
during() {                               # during NAME RANKS overrides...
    local name=$1 n=$2; shift 2
    check "a run on $name" train "$tmp/$name" "$n" "$@"
    check "$name has the losses and answers of one rank" same_eval "$tmp/one" "$tmp/$name"
}

planned() {                              # bytes of rank 0 by treb plan, on the layout of the last run
    "$treb" plan /dev/null "${recipe[@]}" train.global_tokens=512 "data.eval=[$tmp/questions.jsonl]" \
        eval.max_new_tokens=6 comm.kind="$comm" --ranks 4 --json "$@" 2>/dev/null |
        grep -m1 -o '"device_bytes": [0-9]*'
}
reserved() {                             # the same by the run's own plan.json: arenas are six columns in
    awk -F '[:,]' -v gpu="$backend" '
        /^      "name"/  { host = $2 == "\"host\"" && gpu != "cpu" }
        /^      "bytes"/ { if (!host) n += $2 }
        END              { print "\"device_bytes\": " n }' "$1/plan.json"
}
during pp2-ep2-zero3 4 parallel.pp=2 parallel.ep=2 parallel.zero=3
check "the plan has the bytes of the run, with those of decoding" \
    [ "$(planned parallel.pp=2 parallel.ep=2 parallel.zero=3)" = "$(reserved "$tmp/pp2-ep2-zero3")" ]

model=$tmp/one/last
evaluate() {                             # evaluate NAME RANKS overrides...
    local name=$1 n=$2; shift 2
    ranks "$n" "$treb" eval --model "$model" --data "$tmp/questions.jsonl" --max-new 6 --json \
        --samples "$tmp/$name.answers" train.micro_tokens=128 data.max_length=128 model.dtype=float32 \
        device.backend="$backend" "$@" &&
    grep -v seconds "$tmp/said" >"$tmp/$name.result"
}
same_result() {                          # same_result NAME: lines are equal, losses within 1e-5
    paste -d' ' "$tmp/alone.result" "$tmp/$1.result" | awk '
        $1 == "\"loss\":" { d = $2 - $4; if (d < 0) d = -d; if (d > 1e-5 * $2) bad = 1; next }
        $1 != $(NF / 2 + 1) || $(NF / 2) != $NF { bad = 1 }
        END { exit bad || NR < 30 }' && cmp "$tmp/alone.answers" "$tmp/$1.answers"
}
check "eval on one rank" evaluate alone 1
layout() {                               # layout NAME RANKS overrides...
    check "eval on $1" evaluate "$@"
    check "$1 has the losses and answers of one rank" same_result "$1" >>"$tmp/out"
}
layout dp3 3
chose() { grep -q "layout .* over $comm: $1, chosen" "$tmp/out"; }
check "and the layout that was chosen is printed" chose 'dp 3'
layout tp2-pp2 4 parallel.tp=2 parallel.pp=2

draw=(--temperature 1 --top-p 0.9 --seed 5)
generate() {                             # generate RANKS options...
    local n=$1; shift
    ranks "$n" "$treb" generate --model "$model" --prompt "what is 7" --max-new 12 --dtype f32 \
        --backend "$backend" "$@" && [ -s "$tmp/said" ]
}
same_text() { cmp -s "$tmp/said" "$tmp/$1.text"; }
check "generate on one rank" generate 1
mv "$tmp/said" "$tmp/greedy.text"
check "with draws" generate 1 "${draw[@]}"
mv "$tmp/said" "$tmp/drawn.text"
check "generate on two ranks"               generate 2
check "prints the same text, once"          same_text greedy
check "and the layout that was chosen"      chose 'tp 2 ep 2'
check "generate on pp2, vpp2, with draws"   generate 2 parallel.pp=2 parallel.vpp=2 "${draw[@]}"
check "prints the same text"                same_text drawn

fails() {                                # fails CODE TEXT RANKS arguments of treb...
    local code=$1 text=$2 n=$3; shift 3
    ranks "$n" "$treb" "$@"
    [ $? -eq "$code" ] && [ "$(grep -ac "^treb: .*$text" "$tmp/out")" -eq 1 ]
}
check "a layout of other ranks is refused once" \
    fails 2 'not a multiple' 3 eval --model "$model" --data "$tmp/data.jsonl" parallel.tp=2
check "a missing file is named once" fails 4 'no such file' 2 eval --model "$model" --data "$tmp/none.jsonl"
report
