#!/usr/bin/env bash
# eval_ranks.sh with ranks that share a GPU: over MPI, staged through the host, and over NCCL. Part of gpu.sh;
# TREB_GPU_BACKEND=cpu tests the test.
export TREB_GPU_BACKEND=${TREB_GPU_BACKEND:-cuda} bad=0
for comm in mpi nccl; do
    [ "$TREB_GPU_BACKEND $comm" = "cpu nccl" ] && continue
    TREB_RANK_COMM=$comm "$(dirname "$0")/eval_ranks.sh" | sed "s/^/  over $comm: /"
    [ "${PIPESTATUS[0]}" -eq 0 ] || bad=1
done
echo "lab: $((1 - bad)) passed, $bad failed, 0 skipped"
exit $bad
