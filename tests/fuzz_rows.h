/* tests/fuzz_rows.h -- hostile files of rows: any bytes are refused with a text, or every row of the file
 * reads as a JSON object or fails with a text. */
#ifndef TESTS_FUZZ_ROWS_H
#define TESTS_FUZZ_ROWS_H

#include "base/folder.h"
#include "data/format.h"

#include <stdlib.h>
#include <string.h>

static inline void fuzz_rows_read(const FormatFile *f)
{
    int64_t step = f->samples / 64 + 1;
    for (int64_t i = 0; i < f->samples; i += step) {
        Record r;
        if (format_read(f, i, &r)) {
            REQUIRE(status_text()[0], "an error without text");
            continue;
        }
        REQUIRE(r.kind == RECORD_JSON && r.len >= 2 && r.text[0] == '{' && r.text[r.len - 1] == '}',
                "row %lld", (long long)i);
        record_close(&r);
    }
}

/* format: the name of its row in data/formats.c. */
static inline int fuzz_rows(const char *format, const uint8_t *data, size_t size)
{
    FormatFile f;
    if (format_open_memory(&f, format, data, size, "fuzz", &(FormatConf){ 0 })) {
        REQUIRE(status_text()[0], "a refusal without text");
        return 0;
    }
    fuzz_rows_read(&f);
    format_close(&f);
    return 0;
}

#endif
