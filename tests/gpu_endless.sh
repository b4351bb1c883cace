#!/usr/bin/env bash
# Long kernels, with two ranks over NCCL that share the GPU (tests/gpu_endless.c): a micro-batch that takes
# longer than comm.timeout goes on, layer by layer; a kernel of rank 1 that never ends makes both ranks exit
# with 6 within comm.timeout + 10 s, and the message names rank 1, the call before which its device computes,
# and rank 0, which waits in that call. Part of gpu.sh. Arguments: endless, full, or both.
. tests/ranklab.sh
program=$(dirname "$treb")/tests/gpu_endless limit=4
[ "${TREB_GPU_BACKEND:-cuda}" = cuda ] || skip "a kernel that never ends needs a GPU"
has_mpi && [ -x "$program" ] || skip "no mpirun, a build without MPI, or no $program"
export NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1
codes() { for r in 0 1; do cat "$tmp/code.$r" 2>/dev/null || echo none; done | tr '\n' ' '; }
said()  { grep -aqE "$1" "$tmp"/out.*; }
named() { grep -aohE "(waits in|s before) all_reduce [0-9]+" "$tmp"/out.* | grep -o '[0-9]*$' | sort -u; }
ended() { [ "$(count code)" -ge 2 ]; }
long()  { grep -aq "a micro-batch of" "$tmp/out.0" "$tmp/out.1" 2>/dev/null || ended; }

endless() {                              # endless HOW
    ranks_start 2 -- "$program" "$1"
    until_of 90000 long
    local start; start=$(now_ms)
    check "$1: a long micro-batch goes on" said "rank 1: a micro-batch of"
    until_of $((1000 * limit + 20000)) ended
    local ms=$(($(now_ms) - start)) who="rank 1 \(host [^,]*, process $(cat "$tmp/pid.1")\)"
    for r in 0 1; do [ -e "$tmp/code.$r" ] || kill -9 "$(cat "$tmp/pid.$r")"; done
    { wait $job; } 2>/dev/null
    echo "  $1: exit codes $(codes)after $ms ms, comm.timeout is $limit s"
    check "$1: exit codes 6 6 and not $(codes)" [ "$(codes)" = "6 6 " ]
    check "$1: within comm.timeout + 10 s, not $ms ms" [ $ms -lt $((1000 * limit + 10000)) ]
    check "$1: the message names rank 1" said "all ranks exit: $who has made no progress for [0-9]+ s"
    local call="all_reduce [0-9]+ of world \(4096 bytes, layer 2, micro-batch 0\)"
    check "$1: and the call that rank 0 waits in" said "rank 0 waits in $call: rank 0 arrived, rank 1 did not"
    check "$1: and where rank 1 computes" \
        said "$who computes for [0-9.]+ s before $call; its host is in step 2"
    check "$1: both are one call" [ "$(named | wc -l)" = 1 ]
    check "$1: records of the last calls" [ "$(find "$tmp/hang" -name 'rank-*.json' | wc -l)" = 2 ]
    [ -z "${TREB_SHOW:-}" ] || grep -ahE "^treb:|^  rank" "$tmp"/out.* | cut -c -250 | sed 's/^/    /'
}
[ $# -gt 0 ] || set -- endless full
for how; do endless "$how"; done
report
