/* tests/fuzz_parquet.c -- hostile Parquet files; see fuzz_rows.h. */
#include "fuzz_rows.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return fuzz_rows("parquet", data, size); }

#ifndef TREB_LIBFUZZER
#include "fuzz_driver.h"

static void fuzz_seeds(Fuzz *f) { fuzz_add_path(f, "tests/parquet"); }
#endif
