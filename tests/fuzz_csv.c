/* tests/fuzz_csv.c -- hostile tables of texts; see fuzz_rows.h. */
#include "fuzz_rows.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return fuzz_rows("csv", data, size); }

#ifndef TREB_LIBFUZZER
#include "fuzz_driver.h"

static void fuzz_seeds(Fuzz *f)
{
    static const char *const seeds[] = { "a,b\n1,2\n", "a,\"b\"\"c\"\r\n\"x\ny\",\"[1]\"\r\n",
                                         "messages\n\"[{\"\"role\"\": 1}]\"\n" };
    for (int i = 0; i < 3; i++) fuzz_add(f, seeds[i], strlen(seeds[i]));
}
#endif
