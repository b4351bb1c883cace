/* tests/fuzz_shards.c -- hostile runs.json. Whatever the text, it is refused with a reason, or every element
 * that is read is an element of the file, and a tensor is complete or reported as incomplete. */
#include "checkpoint/shards.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4096 };                    /* elements of a tensor that is read back */

static const char header[] = "{\"master.a\":{\"dtype\":\"F32\",\"shape\":[24],\"data_offsets\":[0,96]},"
                             "\"v.a\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[96,120]},"
                             "\"w.b\":{\"dtype\":\"BF16\",\"shape\":[8],\"data_offsets\":[120,136]}}";

/* The described file, with counting bytes as data. */
static size_t make_file(uint8_t out[512])
{
    size_t n = strlen(header);
    for (int i = 0; i < 8; i++) out[i] = (uint8_t)((uint64_t)n >> (8 * i));
    memcpy(out + 8, header, n);
    for (int i = 0; i < 136; i++) out[8 + n + (size_t)i] = (uint8_t)i;
    return 8 + n + 136;
}

static void read_back(const Shards *s, Backend *be, const StoredShard *x, int64_t from, int64_t n)
{
    static float buffer[MOST];
    StridedRange  need = { .at = from, .len = n, .stride = n, .count = 1 };
    Sink  sink;
    REQUIRE(!sink_open(&sink, be, t_wrap(buffer, F32, 1, &n)), "%s", status_text());
    Status st = shards_read(s, x->name, &need, 1, &sink);
    REQUIRE(!st || status_text()[0], "an error without text");
    REQUIRE(!sink_close(&sink), "%s", status_text());
}

static void check(const Shards *s, Backend *be)
{
    for (int i = 0; i < s->n; i++) {
        const StoredShard *x = &s->item[i];
        int64_t all = 1, stored = 0;
        for (int d = 0; d < x->rank; d++) all *= x->shape[d];
        for (int r = 0; r < x->runs; r++) {
            const StridedRange *c = &x->run[r];
            stored += c->len * c->count;
            REQUIRE(c->at >= 0 && c->at + (c->count - 1) * c->stride + c->len <= all, "%s: %d", x->name, r);
        }
        REQUIRE(stored == x->t->shape[0], "%s: %lld elements", x->name, (long long)stored);
        if (all <= MOST) read_back(s, be, x, 0, all);
        read_back(s, be, x, x->run[0].at, x->run[0].len);
        read_back(s, be, x, all / 2, all - all / 2 < MOST ? all - all / 2 : MOST);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t     file[512];
    SafeTensors st;
    Shards      s = { 0 };
    Backend     be;
    Json       *o = NULL;
    REQUIRE(!st_open_memory(&st, file, make_file(file), "file"), "%s", status_text());
    REQUIRE(!backend_open(&be, "cpu"), "%s", status_text());
    Status r = json_parse(&o, (const char *)data, size, "fuzz");
    if (!r) r = shards_add_description(&s, &st, o);
    REQUIRE(!r || status_text()[0], "an error without text");
    if (!r) {
        shards_sort(&s);
        check(&s, &be);
    }
    json_decref(o);
    shards_close(&s), shards_close(&s);
    backend_close(&be);
    st_close(&st);
    return 0;
}

#ifndef TREB_LIBFUZZER
#include "fuzz_driver.h"

static void fuzz_seeds(Fuzz *f)
{
    static const char *const seeds[] = {
        "{\"format\":1,\"rank\":0,\"ranks\":2,\"tensors\":{"
        "\"master.a\":{\"shape\":[8,6],\"runs\":[[0,3,6,8]]},"
        "\"v.a\":{\"shape\":[8,6],\"runs\":[[4,2,6,1],[6,4,6,1]]},"
        "\"w.b\":{\"shape\":[8],\"runs\":[[0,8,8,1]]}}}",
        "{\"format\":1,\"tensors\":{"
        "\"master.a\":{\"shape\":[2,3,4],\"runs\":[[0,1,1,1],[1,2,3,2],[7,19,19,1]]},"
        "\"v.a\":{\"shape\":[9007199254740993,512],\"runs\":[[4611686018427387904,3,9,2]]},"
        "\"w.b\":{\"shape\":[4,2,1,1,1],\"runs\":[[0,4,4,2]]}}}",
        "{\"format\":1,\"tensors\":{}}",
    };
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) fuzz_add(f, seeds[i], strlen(seeds[i]));
}
#endif
