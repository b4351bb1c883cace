/* ops/cuda/comm_clock.cuh -- communication on the device's clock: how long calls last, and how long the
 * compute stream waits for them.
 *
 * A span is a pair of timing events in one stream. A span in a stream of communication is the length of a
 * call. A span in the compute stream, recorded before and after its wait for a call, is exposed
 * communication: compute that was queued before has ended, what is queued after has not begun. Waits of one
 * stream do not overlap, so their sum is the time in which communication keeps compute waiting, whatever
 * calls run at the same time. Time in which the compute stream is empty because the host is late is not
 * counted. A wait includes the hand-over between the streams, some 10 us, so that the waits for many short
 * calls may exceed their lengths.
 *
 * The events are made once. Ended spans are read at a sync, or when all spans are in use; the host never
 * waits for one. */
#ifndef OPS_CUDA_COMM_CLOCK_CUH
#define OPS_CUDA_COMM_CLOCK_CUH

#include "ops/cuda/cuda.cuh"

Status comm_clock_open(Backend *be);                     /* by transports that use it; twice is fine */
void   comm_clock_close(Cuda *c);
int    comm_clock_begin(Backend *be, cudaStream_t s);    /* a span; -1: all are in use, it is not measured */
void   comm_clock_end(Backend *be, int span, cudaStream_t s, int group);
/* Of a span in the compute stream whose kernels communicate themselves: exposed, and the length of a call. */
void   comm_clock_end_push(Backend *be, int span, int group);
void   comm_clock_read(Backend *be);                     /* adds spans that have ended to the ledger */

#endif
