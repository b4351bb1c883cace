#!/usr/bin/env bash
# The fault loop over NCCL, with two ranks that share the GPU: 10 kills, 5 stops, 2 freezes of a main thread,
# a cut network; four runs at a time, which is hardly slower than one: most of the time is start-up and
# comm.timeout. Part of gpu.sh. TREB_GPU_BACKEND=cpu runs it over MPI, which tests the test.
export DEVICE=${TREB_GPU_BACKEND:-cuda} COMM=nccl TREB_RANKS=2 TREB_RESUME=${TREB_RESUME:-no} TREB_SLOW=0
export TREB_KILLS=${TREB_KILLS:-10} TREB_STOPS=${TREB_STOPS:-5} TREB_FREEZES=${TREB_FREEZES:-2}
export TREB_CUTS=${TREB_CUTS:-1} TREB_AT_ONCE=${TREB_AT_ONCE:-4}
[ "$DEVICE" = cuda ] || COMM=mpi
exec tests/faults.sh
