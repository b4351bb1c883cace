/* tests/spin.h -- see spin.cu. */
#ifndef TESTS_SPIN_H
#define TESTS_SPIN_H

#include "ops/backend.h"

#ifdef __cplusplus
extern "C"
#endif
void spin_launch(Backend *be, double seconds);           /* on the compute stream */

#endif
