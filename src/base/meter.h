/* base/meter.h -- progress of long work before the first step: how much is done, how fast, how long it still
 * takes.
 *
 *   Meter m;
 *   meter_open(&m, log, "indexing samples", METER_COUNT, total);
 *   meter_add(&m, n);                    from any thread
 *   meter_close(&m);
 *
 * A terminal has one line that is overwritten twice a second; elsewhere a line comes every ten seconds. Work
 * that takes less than a second shows nothing. */
#ifndef BASE_METER_H
#define BASE_METER_H

#include "base/log.h"

typedef enum { METER_COUNT, METER_BYTES } MeterUnit;

typedef struct Meter {
    const Log  *log;
    Log         own; /* for log NULL: stderr */
    const char *what;
    MeterUnit   unit;
    double      total, began;
    int64_t     done;  /* atomic */
    int64_t     shown; /* atomic: milliseconds since `began` of the latest line; 0: none */
} Meter;

/* log NULL: stderr, on rank 0 of one. total 0: not known. */
void meter_open(Meter *m, const Log *log, const char *what, MeterUnit unit, double total);
void meter_add(Meter *m, int64_t n); /* m NULL: nothing happens */
void meter_close(Meter *m);

enum { METER_TEXT = 160 };
/* "indexing samples: 1.20 M of 10.0 M, 41.0 k/s, 3m" after so many seconds. */
const char *meter_text(char out[METER_TEXT], const Meter *m, double seconds);

#endif
