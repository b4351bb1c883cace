#!/usr/bin/env bash
# Token dispatch through mapped memory (moe.dispatcher=peer, and deepep_peer on two nodes of two ranks) over
# processes: layouts of two and four ranks have the losses of one rank or the bits of alltoall, and steps that
# overflow are run again. On a GPU the ranks share it, by time slices or, with PEER_MPS=1, under MPS. Part of
# gpu.sh; TREB_GPU_BACKEND=cpu runs it on the CPU. LAYOUTS and VERBOSE: see ranklab.sh; layouts of up to RANKS
# ranks run at a time.
. tests/ranklab.sh
gpu=${TREB_GPU_BACKEND:-cuda} steps=${TREB_RANK_STEPS:-8}
has_mpi || skip "no mpirun, or a build without MPI"
small_moe
text=("${recipe[@]}" train.global_tokens=512)
wide=("${recipe[@]}" train.micro_tokens=256)                 # rows enough for the same kernels
adapters=("${text[@]}" lora.rank=8 lora.target_modules=[all-linear] optim.learning_rate=0.01)
"$treb" data synth --out "$tmp/set" --train 300 --eval 18 >"$tmp/out" 2>&1 || skip "$(tail -n 1 "$tmp/out")"
images=(model.preset=demo/config.json "data.train=[$tmp/set/train.jsonl]" data.max_length=256
        image.min_pixels=1024 image.max_pixels=9216 train.micro_tokens=256 train.micro_patches=768
        train.global_tokens=512 moe.aux_loss_type=micro_batch checkpoint.hf=none optim.adam_epsilon=1e-5)
nodes=comm.ranks_per_node=2

# name            ranks model  dispatcher  overrides
layout ep2            2 text     peer parallel.ep=2
layout ep4            4 text     peer parallel.ep=4
layout ep2-dp2        4 text     peer parallel.ep=2
layout ep2-tp2        2 text     peer parallel.ep=2 parallel.tp=2
layout ep2-etp2       4 text     peer parallel.ep=2 parallel.etp=2
layout ep2-pp2        4 text     peer parallel.ep=2 parallel.pp=2
layout ep4-zero3      4 text     peer parallel.ep=4 parallel.zero=3
layout ep2-full       2 text     peer parallel.ep=2 memory.recompute=[full]
layout ep2-moe-act    2 text     peer parallel.ep=2 memory.recompute=[moe_act,layernorm]
layout ep2-overlap    2 text     peer parallel.ep=2 moe.overlap=true
layout ep4-offload    4 text     peer parallel.ep=4 memory.activation_offload=[moe]
layout ep4-overflow   4 text     peer parallel.ep=4 moe.rank_capacity=1
layout hops-overflow  4 text     deepep_peer parallel.ep=4 $nodes moe.rank_capacity=1
layout images-ep2     2 images   peer parallel.ep=2
layout images-tp2-ep2 2 images   peer parallel.tp=2 parallel.ep=2
layout adapters-ep2   2 adapters peer parallel.ep=2
# The bits of alltoall. A token has two experts: in f32 two hops add in the same order.
layout ep2-bits       2 wide     peer parallel.ep=2
layout ep4-bits       4 wide     peer parallel.ep=4
layout hops-bits      4 wide     deepep_peer parallel.ep=4 $nodes

try_layout() {                           # try_layout NAME RANKS MODEL DISPATCHER keys...
    local name=$1 n=$2 model=$3 with=$4; shift 4
    train_ranks "$tmp/$name" "$n" "$model" "$@" moe.dispatcher="$with" || { echo "does not run"; return 1; }
    case $name in
    *-bits) compare_bits "$name" "$n" "$model" "$@" ;;
    *-overflow) agrees "$tmp/one-$model" "$tmp/$name" && runs_again "$name" ;;
    *) agrees "$tmp/one-$model" "$tmp/$name" ;;
    esac
}
compare_bits() {                         # compare_bits NAME RANKS MODEL keys...
    local other=$tmp/$1-alltoall; shift
    train_ranks "$other" "$@" moe.dispatcher=alltoall || { echo "does not run with alltoall"; return 1; }
    same_bits "$other" "${other%-alltoall}" || { echo "has other bits than alltoall"; false; }
}
runs_again() {                           # runs_again NAME: steps that overflow
    grep -qE '"moe/sliced_layers": [1-9]' "$tmp/$1/metrics.jsonl" || { echo "runs no step in chunks"; false; }
}
reference() { train_ranks "$tmp/one-$1" 1 "$1" comm.kind=self; }               # reference MODEL 1
[ "$gpu" != cuda ] || [ "${PEER_MPS:-0}" != 1 ] || start_mps
at_once=${RANKS:-4}                      # by time slices more would wait longer for their turn
[ -n "${RANKS:-}${CUDA_MPS_PIPE_DIRECTORY:-}" ] && at_once=${RANKS:-10}
mapfile -t references < <(printf '%s\n' "${picked[@]}" | awk '$3 != "wide" { print $3, 1 }' | sort -u)
run_all reference "${references[@]}"
first=$tmp/one-${references[0]% 1}
if [ -n "${references[*]}" ] && ! grep -q . "$first/metrics.jsonl" 2>/dev/null; then
    tail -n 3 "$first.log"; skip "no GPU, or one rank does not run"
fi
run_layouts
report
