/* tests/fuzz_csv.c -- hostile tables of texts: any bytes are refused with a text, or every row of the file
 * reads as text or fails with one. */
#include "base/folder.h"
#include "data/format.h"

#include <stdlib.h>
#include <string.h>

static void rows_read(const FormatFile *f)
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    FormatFile f;
    if (format_open_memory(&f, "csv", data, size, "fuzz.csv", &(FormatConf){ 0 })) {
        REQUIRE(status_text()[0], "a refusal without text");
        return 0;
    }
    rows_read(&f);
    format_close(&f);
    return 0;
}

#ifndef TREB_LIBFUZZER
#include "fuzz_driver.h"

static void fuzz_seeds(Fuzz *f)
{
    static const char *const seeds[] = { "a,b\n1,2\n", "a,\"b\"\"c\"\r\n\"x\ny\",\"[1]\"\r\n",
                                         "messages\n\"[{\"\"role\"\": 1}]\"\n" };
    for (int i = 0; i < 3; i++) fuzz_add(f, seeds[i], strlen(seeds[i]));
}
#endif
