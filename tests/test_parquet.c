/* tests/test_parquet.c -- Parquet files: rows against those of JSON lines, and damaged pages. */
#include "data/parquet.h"
#include "recordlab.h"

static void encrypted_parquet_is_named(void)
{
    static const char bytes[] = "PARE........PARE";
    FormatFile f;
    EXPECT_FAIL(format_open_memory(&f, "parquet", bytes, 16, "a.parquet", &(FormatConf){ 0 }), E_DATA,
                "encrypted");
}

static void expect_twin(const char *name, const FormatFile *twin)
{
    FormatFile f;
    char       path[128];
    snprintf(path, sizeof path, "tests/parquet/%s.parquet", name);
    EXPECT_OK(format_open(&f, path, &(FormatConf){ 0 }));
    EXPECT(f.samples == twin->samples, "%s: %lld rows", name, (long long)f.samples);
    for (int64_t n = 0; n < f.samples; n++) {
        int64_t i = n * 7 % f.samples;
        Json   *a = record_json(&f, i), *b = record_json(twin, i);
        EXPECT(json_equal(a, b), "%s: row %lld", name, (long long)i);
        json_decref(a), json_decref(b);
    }
    format_close(&f);
}

/* Every encoding, codec and page version gives the rows of the twin, in any order; "indexed" has
 * OffsetIndexes and an empty row group, "numbers" 32-bit numbers whose differences wrap, "meanings" decimals,
 * times and other values that an annotation tells from what is stored. */
static void parquet_rows_equal_their_twin(void)
{
    static const char *const names[] = { "plain", "snappy-dictionary", "gzip-v2", "lz4-delta",
                                         "hadoop-delta-bytes", "indexed" };
    FormatFile               twin;
    EXPECT_OK(format_open(&twin, "tests/parquet/twin.jsonl", &(FormatConf){ 0 }));
    for (int k = 0; k < 6; k++) expect_twin(names[k], &twin);
    format_close(&twin);
    static const char *const others[] = { "numbers", "meanings" };
    for (int k = 0; k < 2; k++) {
        char path[64];
        snprintf(path, sizeof path, "tests/parquet/%s.jsonl", others[k]);
        EXPECT_OK(format_open(&twin, path, &(FormatConf){ 0 }));
        expect_twin(others[k], &twin);
        format_close(&twin);
    }
}

/* One value of 16 bytes whose page says that it has 3: the lengths of a page in deltas are the page's own. */
static void fixed_values_have_their_length(void)
{
    static const uint8_t page[][16] = {
        { 0x80, 1, 4, 1, 0, 0x80, 1, 4, 1, 6, 'a', 'b', 'c' },
        { 0x80, 1, 4, 1, 0, 0x80, 1, 4, 1, 4, 'a', 'b' },
    };
    const ParquetNode leaf[] = {
        { .name = "id", .type = PQ_FIXED, .type_length = 16, .meaning = PQ_UUID },
        { .name = "half", .type = PQ_FIXED, .type_length = 2, .meaning = PQ_HALF },
    };
    for (int i = 0; i < 2; i++) {
        MemPool     keep = { 0 };
        ParquetCell cell = { 0 };
        PageBytes   b = { page[i], page[i] + (i ? 12 : 13) };
        if (i) EXPECT_OK(parquet_values(&leaf[i], 7, b, NULL, &cell, 1, &keep));
        else   EXPECT_FAIL(parquet_values(&leaf[i], 7, b, NULL, &cell, 1, &keep), E_DATA, "column id");
        EXPECT(!i || (cell.n == 2 && !memcmp(cell.v, "ab", 2)), "%u bytes", cell.n);
        mem_pool_close(&keep);
    }
}

int main(void)
{
    RUN(encrypted_parquet_is_named);
    RUN(parquet_rows_equal_their_twin);
    RUN(fixed_values_have_their_length);
    return lab_report();
}
