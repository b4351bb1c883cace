/* tests/recordlab.h -- records of dataset files in tests. */
#ifndef TESTS_RECORDLAB_H
#define TESTS_RECORDLAB_H

#include "lab.h"

#include "data/format.h"

static inline Json *record_json(const FormatFile *f, int64_t i)
{
    Record r;
    Json  *v = NULL;
    EXPECT_OK(format_read(f, i, &r));
    EXPECT_OK(json_parse(&v, r.text, r.len, r.where));
    record_close(&r);
    return v;
}

#endif
