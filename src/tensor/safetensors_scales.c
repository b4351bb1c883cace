/* tensor/safetensors_scales.c -- 8-bit tensors with block scales, as models on the hub have them: a matrix
 * NAME (N, K), or a stack (E, N, K), of e4m3 codes and NAME_scale_inv ([E,] ceil(N/128), ceil(K/128)); an
 * element is its code times the scale of its block. */
#include "tensor/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BLOCK = 128 };

static int64_t blocks(int64_t n) { return (n + BLOCK - 1) / BLOCK; }

bool st_is_scale(const char *name)
{
    size_t n = strlen(name), tail = strlen(ST_SCALE);
    return n > tail && !strcmp(name + n - tail, ST_SCALE);
}

static const StTensor *scales_of(const SafeTensors *s, const StTensor *t)
{
    char name[512];
    int  n = snprintf(name, sizeof name, "%s" ST_SCALE, t->name);
    return n < (int)sizeof name ? st_find(s, name) : NULL;
}

static bool scales_fit(const StTensor *t, const StTensor *s)
{
    int r = t->rank;
    return (r == 2 || r == 3) && s->rank == r && (s->dtype == F32 || s->dtype == BF16) &&
           s->shape[r - 2] == blocks(t->shape[r - 2]) && s->shape[r - 1] == blocks(t->shape[r - 1]) &&
           (r == 2 || s->shape[0] == t->shape[0]);
}

void st_link_scales(SafeTensors *s)
{
    for (int i = 0; i < s->count; i++) {
        StTensor       *t = &s->tensor[i];
        const StTensor *scale = t->dtype == E4M3 ? scales_of(s, t) : NULL;
        t->scale = scale && scales_fit(t, scale) ? scale : NULL;
    }
}

static Status no_scales(const SafeTensors *s, const StTensor *t)
{
    char a[ST_SHAPE_TEXT], b[ST_SHAPE_TEXT];
    const StTensor *scale = scales_of(s, t);
    if (!scale)
        return fail(E_DATA, "%s is FP8 without " ST_SCALE "; only scales of 128 x 128 blocks are read, "
                    "convert the model to bfloat16 first", t->name);
    return fail(E_DATA, "%s has shape %s and its scales %s %s; only scales of 128 x 128 blocks, f32 or bf16, "
                "are read", t->name, st_shape_text(a, t->rank, t->shape), dtype_name(scale->dtype),
                st_shape_text(b, scale->rank, scale->shape));
}

static bool scales_nothing(const SafeTensors *s, const StTensor *t)
{
    char name[512];
    if (!st_is_scale(t->name)) return false;
    snprintf(name, sizeof name, "%.*s", (int)(strlen(t->name) - strlen(ST_SCALE)), t->name);
    const StTensor *of = st_find(s, name);
    return !of || of->dtype != E4M3;
}

/* The format whose files have tensors of such a name; NULL: none that is known. */
static const char *other_format(const char *name)
{
    static const struct { const char *part, *format; } list[] = {
        { ".quant_state.bitsandbytes", "bitsandbytes" }, { ".weight.absmax", "bitsandbytes" },
        { ".weight.quant_map", "bitsandbytes" },         { ".SCB", "bitsandbytes" },
        { ".qweight", "GPTQ or AWQ" },                   { ".weight_packed", "compressed-tensors" },
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const char *at = strstr(name, list[i].part);
        if (at && (!at[strlen(list[i].part)] || i == 0)) return list[i].format;
    }
    return NULL;
}

/* A scale that is negative, infinite or NaN is that of a damaged file. */
static Status check_values(const StTensor *scale)
{
    float x[1024];
    int64_t n = (int64_t)(scale->bytes / dtype_size(scale->dtype));
    for (int64_t at = 0; at < n; at += 1024) {
        int64_t k = n - at < 1024 ? n - at : 1024;
        const char *from = (const char *)scale->data + (size_t)at * dtype_size(scale->dtype);
        dtype_convert(x, F32, from, scale->dtype, k);
        for (int64_t i = 0; i < k; i++)
            if (!(x[i] >= 0 && x[i] < INFINITY))
                return fail(E_DATA, "%s: scale %lld is %g; the file is damaged, fetch it again", scale->name,
                            (long long)(at + i), (double)x[i]);
    }
    return OK;
}

static Status check_format(const SafeTensors *s, const StTensor *t)
{
    const char *format = other_format(t->name);
    if (format)
        return fail(E_DATA, "%s: the files are quantised by %s, which is not read; use the model in "
                    "bfloat16, and model.base_quant to quantise it while it is loaded", t->name, format);
    if (t->dtype == E4M3 && !t->scale) return no_scales(s, t);
    if (scales_nothing(s, t))
        return fail(E_DATA, "%s: there is no F8_E4M3 tensor that it scales; other formats are not read, "
                    "convert the model to bfloat16 first", t->name);
    return t->scale ? check_values(t->scale) : OK;
}

static bool ends_with(const char *name, const char *tail)
{
    size_t n = strlen(name), k = strlen(tail);
    return n >= k && !strcmp(name + n - k, tail);
}

/* Codes of an unknown format would be read as numbers. */
static Status check_type(const StTensor *t)
{
    bool weight = ends_with(t->name, ".weight") || ends_with(t->name, "_proj");
    DType d = t->dtype;
    if (!weight || d == F32 || d == BF16 || d == F16 || d == F64 || d == E4M3) return OK;
    return fail(E_DATA, "%s is stored as %s: codes of a format that is not read; use the model in bfloat16, "
                "and model.base_quant to quantise it while it is loaded", t->name, dtype_name(d));
}

/* Names of formats come first: they say more than the type of a weight. */
Status st_check_scales(const SafeTensors *s)
{
    for (int i = 0; i < s->count; i++) TRY(check_format(s, &s->tensor[i]));
    for (int i = 0; i < s->count; i++) TRY(check_type(&s->tensor[i]));
    return OK;
}

/* The scale of the block that holds element i; *left: elements of the block in this row from i on. */
static float scale_at(const StTensor *t, int64_t i, int64_t *left)
{
    int64_t K = t->shape[t->rank - 1], N = t->shape[t->rank - 2], row = i / K, col = i % K, to;
    int64_t block = (row / N * blocks(N) + row % N / BLOCK) * blocks(K) + col / BLOCK;
    float   s;
    to = (col / BLOCK + 1) * BLOCK;
    *left = (to < K ? to : K) - col;
    dtype_convert(&s, F32, (const char *)t->scale->data + (size_t)block * dtype_size(t->scale->dtype),
                  t->scale->dtype, 1);
    return s;
}

void st_read(float *out, const StTensor *t, int64_t from, int64_t n)
{
    dtype_convert(out, F32, (const char *)t->data + (size_t)from * dtype_size(t->dtype), t->dtype, n);
    for (int64_t i = 0, left; t->scale && i < n; i += left) {
        float s = scale_at(t, from + i, &left);
        if (left > n - i) left = n - i;
        for (int64_t k = i; k < i + left; k++) out[k] *= s;
    }
}
