#!/usr/bin/env bash
# Every test that needs a GPU, with programs that are already built: TREB is the binary, GPU_TESTS the
# programs of tests/gpu_*.c. Needs bash, awk, tests/, recipes/ and demo/, so it runs on a machine
# without the tools that built them.
# All run twice, with the GPU's own kernels and with the portable ones (TREB_KERNELS; docs/gpus.md): the
# second time without what does not depend on them. GPU_KERNELS names the sets: "auto portable".
# TREB_GPU_BACKEND=cpu runs the CPU backend in place of the GPU, which tests the tests.
set -u
here=$(dirname "$0")
export TREB=${TREB:-build/cuda/treb} TREB_GPU_OPS TREB_TEST_TIMEOUT=${TREB_TEST_TIMEOUT:-900}
export TREB_TEST_WORKERS=1
TREB_GPU_OPS=$(mktemp); trap 'rm -f "$TREB_GPU_OPS"' EXIT
if [ -z "${GPU_TESTS:-}" ]; then
    for t in "$(dirname "$TREB")"/tests/gpu_*; do [ "${t%.d}" = "$t" ] && GPU_TESTS="${GPU_TESTS:-} $t"; done
fi
once="$here/gpu_nccl.sh $here/gpu_eval_ranks.sh $here/gpu_faults.sh $here/gpu_endless.sh $here/gpu_peer.sh"
status=0
for kernels in ${GPU_KERNELS:-auto portable}; do
    export TREB_KERNELS=${kernels#auto}
    [ "$kernels" = auto ] || { once=; echo "=== $kernels kernels"; : > "$TREB_GPU_OPS"; }
    # shellcheck disable=SC2086
    "$here/run.sh" ${GPU_TESTS:-} "$here/gpu_model.sh" "$here/gpu_ranks.sh" $once \
        "$here/gpu_graph.sh" "$here/gpu_fp8.sh" "$here/gpu_fp8_ranks.sh" || status=1
done
exit $status
