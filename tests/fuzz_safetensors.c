/* tests/fuzz_safetensors.c -- hostile safetensors files. Whatever the bytes, the reader returns an error with
 * a text, or tensors whose bytes really are inside the file and can be converted.
 *
 * Each input is run twice: as it is, and with its length field set to where its JSON ends, so that edits of
 * the header reach the checks behind the length as well. */
#include "tensor/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void tensor_check(const SafeTensors *s, const StTensor *t)
{
    const char *from = s->file[t->file].bytes, *data = t->data;
    size_t      size = dtype_size(t->dtype), count = 1;
    float       sink[16];
    for (int i = 0; i < t->rank; i++) count *= (size_t)t->shape[i];
    REQUIRE(st_find(s, t->name) == t && t->rank <= ST_MAXDIM, "%s is not found", t->name);
    REQUIRE(count * size == t->bytes, "%s: %zu elements in %zu bytes", t->name, count, t->bytes);
    REQUIRE(data >= from && data + t->bytes <= from + s->file[t->file].len, "%s is outside", t->name);
    size_t n = count < 16 ? count : 16;
    dtype_convert(sink, F32, data, t->dtype, (int64_t)n);
    dtype_convert(sink, F32, data + t->bytes - n * size, t->dtype, (int64_t)n);
}

/* A copy of exactly the right size lets the sanitizer see a read beyond its end. */
static void file_check(const uint8_t *bytes, size_t len)
{
    SafeTensors s;
    uint8_t    *copy = malloc(len ? len : 1);
    if (len) memcpy(copy, bytes, len);
    Status st = st_open_memory(&s, copy, len, "fuzz");
    REQUIRE(!st || (status_text()[0] && !s.tensor && !s.file), "an error without text, or half open");
    for (int i = 0; i < s.count; i++) tensor_check(&s, &s.tensor[i]);
    st_close(&s);
    st_close(&s);
    free(copy);
}

/* The length of the JSON object that begins at byte 8, counting braces outside of strings. */
static size_t json_length(const uint8_t *b, size_t len)
{
    int  depth = 0;
    bool text = false;
    for (size_t i = 8; i < len; i++) {
        if (text && b[i] == '\\')            i++;
        else if (b[i] == '"')                text = !text;
        else if (!text && b[i] == '{')       depth++;
        else if (!text && b[i] == '}' && --depth == 0) return i + 1 - 8;
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    file_check(data, size);
    size_t header = size > 8 ? json_length(data, size) : 0;
    if (!header) return 0;
    uint8_t *fixed = malloc(size);
    memcpy(fixed, data, size);
    for (int i = 0; i < 8; i++) fixed[i] = (uint8_t)((uint64_t)header >> (8 * i));
    file_check(fixed, size);
    free(fixed);
    return 0;
}

#ifndef TREB_LIBFUZZER
#include "fuzz_driver.h"

static void seed_from(Fuzz *f, const StTensor *t, int n)
{
    char        path[sizeof f->path + 16];
    SafeTensors s;
    snprintf(path, sizeof path, "%s.safetensors", f->path);
    REQUIRE(!st_save(path, t, n) && !st_open(&s, path), "%s", status_text());
    fuzz_add(f, s.file[0].bytes, s.file[0].len);
    st_close(&s);
    unlink(path);
}

static void fuzz_seeds(Fuzz *f)
{
    static const char zeros[4096];
    StTensor all[DTYPE_N], few[] = {
        { "model.embed.weight",        BF16, 2, { 16, 8 },         zeros, 256, 0, NULL },
        { "model.layers.0.mlp.weight", BF16, 3, { 2, 3, 4 },       zeros, 48,  0, NULL },
        { "model.layers.0.bias",       F32,  1, { 5 },             zeros, 20,  0, NULL },
        { "model.patch",               F16,  5, { 2, 3, 2, 2, 2 }, zeros, 96,  0, NULL },
        { "step",                      I64,  0, { 0 },             zeros, 8,   0, NULL },
        { "nothing",                   F32,  2, { 0, 7 },          zeros, 0,   0, NULL },
    };
    enum { FEW = sizeof few / sizeof *few };
    for (int i = 0; i < DTYPE_N; i++)
        all[i] = (StTensor){ dtype_name((DType)i), (DType)i, 1, { 3 }, zeros, 3 * dtype_size((DType)i), 0,
                             NULL };
    for (int n = 0; n <= FEW; n++) seed_from(f, few, n);
    seed_from(f, all, DTYPE_N);
}
#endif
