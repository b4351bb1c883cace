#!/usr/bin/env bash
# Layouts over NCCL, with ranks that share one GPU: each has the losses of one rank at every step. NCCL takes
# ranks of one GPU for ranks of several hosts, because each has a NCCL_HOSTID of its own, and connects them by
# sockets over loopback. Part of gpu.sh. TREB_GPU_BACKEND=cpu runs the layouts over MPI, which tests the test.
# LAYOUTS and VERBOSE: see ranklab.sh; layouts of up to RANKS ranks run at a time.
. tests/ranklab.sh
gpu=${TREB_GPU_BACKEND:-cuda} steps=${TREB_RANK_STEPS:-8} at_once=${RANKS:-10} comm=nccl
[ "$gpu" = cuda ] || comm=mpi
has_mpi || skip "no mpirun, or a build without MPI"
small_moe
text=("${recipe[@]}")
sed -i 's/"num_hidden_layers": 4/"num_hidden_layers": 12/' "$tmp/model/config.json"
"$treb" data synth --out "$tmp/set" --train 300 --eval 18 >"$tmp/out" 2>&1 || skip "$(tail -n 1 "$tmp/out")"
sed 's/"num_hidden_layers": 3/"num_hidden_layers": 6/' demo/config.json > "$tmp/vl.json"
cp demo/tokenizer.json "$tmp"
images=(model.preset="$tmp/vl.json" "data.train=[$tmp/set/train.jsonl]" data.max_length=256
        image.min_pixels=1024 image.max_pixels=9216 train.micro_tokens=256 train.micro_patches=768
        moe.aux_loss_type=micro_batch checkpoint.hf=none optim.adam_epsilon=1e-5)
lora=(lora.rank=8 lora.target_modules=[all-linear] optim.learning_rate=0.01)

# A rank with the environment that NCCL needs to share a GPU.
as_rank=(bash -c 'export NCCL_HOSTID=h$OMPI_COMM_WORLD_RANK NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1
    export NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1; exec "$0" "$@"')
adapted=("${text[@]}" "${lora[@]}") peer=moe.dispatcher=peer
hops="moe.dispatcher=deepep_peer comm.ranks_per_node=2"        # two nodes of two ranks

# name               ranks model tokens  overrides; a micro-batch has 128 tokens of text or 256 with pictures
layout dp2              2 text    512
layout dp4              4 text    512
layout zero1            2 text    512  parallel.zero=1
layout zero2            2 text    512  parallel.zero=2
layout zero3            2 text    512  parallel.zero=3
layout zero3-ep2        4 text    512  parallel.zero=3 parallel.ep=2 $peer
layout tp2              2 text    256  parallel.tp=2
layout tp4-ep4          4 text    256  parallel.tp=4 parallel.ep=4 $peer
layout tp2-dp2          4 text    512  parallel.tp=2 parallel.zero=2
layout cp2-p2p          2 text    256  parallel.cp=2 parallel.cp_comm=p2p
layout cp2-a2a          2 text    256  parallel.cp=2 parallel.cp_comm=a2a
layout cp2-gather       2 text    256  parallel.cp=2 parallel.cp_comm=all_gather
layout cp4-a2a+p2p      4 text    256  parallel.cp=4 parallel.cp_comm=a2a+p2p parallel.cp_sizes=[2,2]
layout ep2-alltoall     2 text    512  parallel.ep=2 moe.dispatcher=alltoall
layout ep4-peer         4 text    512  parallel.ep=4 $peer
layout ep2-peer-full    2 text    512  parallel.ep=2 memory.recompute=[full] $peer
layout ep4-deepep       4 text    512  parallel.ep=4 moe.dispatcher=deepep comm.ranks_per_node=2
layout ep4-hybridep     4 text   1024  parallel.ep=4 moe.dispatcher=hybridep comm.ranks_per_node=2 \
       moe.overlap=true
layout ep4-chunked      4 text    512  parallel.ep=4 moe.dispatcher=alltoall moe.rank_capacity=1
layout etp2-ep2         4 text    512  parallel.etp=2 parallel.ep=2 $peer
layout hops-ep4         4 text    512  parallel.ep=4 $hops
layout hops-etp2-ep2    4 text    512  parallel.etp=2 parallel.ep=2 $hops
layout hops-zero3-full  4 text    512  parallel.ep=4 parallel.zero=3 memory.recompute=[full] $hops
layout hops-overlap     4 text   1024  parallel.ep=4 moe.overlap=true $hops
layout hops-chunked     4 text    512  parallel.ep=4 moe.rank_capacity=1 $hops
layout hops-tp2         4 text    512  parallel.tp=2 parallel.ep=4 $hops
layout hops-lora        4 adapted 512  parallel.ep=4 $hops
layout hops-images      4 images  1024 parallel.ep=4 $hops
layout pp2-1            2 text    128  parallel.pp=2
layout pp2-2            2 text    256  parallel.pp=2
layout pp2-8            2 text   1024  parallel.pp=2
layout pp2-vpp2         2 text    512  parallel.pp=2 parallel.vpp=2
layout pp2-vpp3-group3  2 text   1024  parallel.pp=2 parallel.vpp=3 parallel.microbatch_group=3
layout pp2-uneven       2 text    512  parallel.pp=2 'parallel.layout=Et*5|t*7L'
layout pp3-2            3 text    256  parallel.pp=3
layout pp3-vpp2         3 text    768  parallel.pp=3 parallel.vpp=2
layout pp4-2            4 text    256  parallel.pp=4
layout pp4-8            4 text   1024  parallel.pp=4
layout pp4-vpp3-4       4 text    512  parallel.pp=4 parallel.vpp=3
layout pp4-vpp3         4 text   1024  parallel.pp=4 parallel.vpp=3
layout pp2-zero2        4 text    512  parallel.pp=2 parallel.zero=2
layout pp2-zero3-ep2    4 text    512  parallel.pp=2 parallel.zero=3 parallel.ep=2 $peer
layout pp2-tp2-ep2      4 text    512  parallel.pp=2 parallel.tp=2 parallel.ep=2 $peer
layout pp2-cp2-ep2      4 text    512  parallel.pp=2 parallel.cp=2 parallel.ep=2 moe.dispatcher=deepep
layout pp2-vpp2-ep2     4 text   1024  parallel.pp=2 parallel.vpp=2 parallel.ep=2 moe.overlap=true
layout lora-pp2-ep2     4 adapted 512  parallel.pp=2 parallel.ep=2 $peer
layout lora-zero3-tp2   4 adapted 512  parallel.zero=3 parallel.tp=2
layout images-dp2       2 images  512
layout images-tp2-ep2   2 images  512  parallel.tp=2 parallel.ep=2 $peer
layout images-cp2       2 images  512  parallel.cp=2
layout images-zero3     2 images  512  parallel.zero=3
layout images-pp2       2 images  512  parallel.pp=2
layout images-pp3-vpp2  3 images  768  parallel.pp=3 parallel.vpp=2
layout images-pp2-ep2   4 images  512  parallel.pp=2 parallel.ep=2 $peer

try_layout() {                           # try_layout NAME RANKS MODEL TOKENS keys...
    local name=$1 n=$2 model=$3 tokens=$4; shift 4
    train_ranks "$tmp/$name" "$n" "$model" comm.kind=$comm train.global_tokens="$tokens" "$@" ||
        { echo "does not run"; return 1; }
    agrees "$tmp/one-$model-$tokens" "$tmp/$name"
}
reference() { train_ranks "$tmp/one-$1-$3" 1 "$1" comm.kind=self train.global_tokens="$3"; } # MODEL 1 TOKENS
[ "$gpu" != cuda ] || [ -n "${TREB_NO_MPS:-}" ] || start_mps
mapfile -t references < <(printf '%s\n' "${picked[@]}" | awk '{ print $3, 1, $4 }' | sort -u)
run_all reference "${references[@]}"
first=$tmp/one-${references[0]/ 1 /-}
if ! grep -q . "$first/metrics.jsonl" 2>/dev/null; then
    tail -n 3 "$first.log"; skip "no GPU, or one rank does not run"
fi
run_layouts
report
