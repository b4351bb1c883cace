/* bench/hold_sms.c -- hold_sms.h in a build without CUDA; hold_sms.cu is the other. */
#include "bench/hold_sms.h"

#ifndef TREB_CUDA
Status hold_sms(int n)
{
    return fail(E_CONFIG, "--held-sms %d: only a GPU has SMs, and this build is without CUDA", n);
}

void release_sms(void) { }
#endif
