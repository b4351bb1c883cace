/* base/clock.h -- a monotonic clock for durations, the wall clock for log lines. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#ifdef __cplusplus
extern "C" {
#endif

double clock_now(void);       /* seconds from some fixed moment; never goes back */
double clock_wall(void);      /* seconds since 1970, UTC */

#ifdef __cplusplus
}
#endif
#endif
