/* bench/hold_sms.h -- a kernel that holds SMs of the GPU, as a collective under way does: what other kernels
 * compute and how long they take beside it. */
#ifndef BENCH_HOLD_SMS_H
#define BENCH_HOLD_SMS_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Holds n whole SMs from now until release_sms, 10 s at most. A call that waits for the whole GPU (memory
 * that is freed, a prepared backend) waits for the end of this kernel. */
MUST Status hold_sms(int n);
void        release_sms(void);

#ifdef __cplusplus
}
#endif
#endif
