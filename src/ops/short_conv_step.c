/* ops/short_conv_step.c -- the short convolution over new rows of documents that are being decoded: contract,
 * cost, CPU.
 *
 * Segment i of seg has new rows of document doc[i]; before them lie the rows of tail[doc[i]], or nothing
 * where they are the first (seg.kv_used[i] counts no others). y is that of short_conv_fwd over all of them;
 * then tail[doc[i]] becomes the last K - 1 rows up to the first kept[i] new ones.
 *
 * x, y (T, H, C) as in short_conv.c; tail (docs, K - 1, H C), f32 or bf16, zero rows where a document has
 * fewer; w (H C, K); doc, kept (n) i32. Rows outside all segments give 0. */
#include "ops/cpu/segment.h"

enum { MAX_K = 16 };

Cost short_conv_step_cost(Backend *be, Tensor y, Tensor tail, Tensor x, Tensor w, Segments seg, Tensor doc,
                          Tensor kept)
{
    int64_t T = x.n[0], H = x.n[1], C = x.n[2], K = w.n[1];
    REQUIRE(is_heads(x, T, H, C) && is_heads(y, T, H, C) && is_rows(w, H * C, K) && K >= 2 && K <= MAX_K &&
            is_heads(tail, tail.n[0], K - 1, H * C) && borders_fit(seg) && t_has(seg.kv_used) &&
            doc.dtype == I32 && doc.n[0] == seg.n && kept.dtype == I32 && kept.n[0] == seg.n,
            "short_conv_step: y %s tail %s x %s w %s starts %s", t_fmt(y), t_fmt(tail), t_fmt(x), t_fmt(w),
            t_fmt(seg.starts));
    return (Cost){ .flops = (double)(2 * K + 4) * (double)t_count(x), .rd = t_bytes(x) + t_bytes(w),
                   .wr = t_bytes(y) };
}

static char *element(Tensor t, int64_t a, int64_t b, int64_t c)
{
    return (char *)t.data + (a * t.s[0] + b * t.s[1] + c) * (int64_t)dtype_size((DType)t.dtype);
}
static float get(Tensor t, int64_t a, int64_t b, int64_t c)
{
    char *p = element(t, a, b, c);
    return t.dtype == F32 ? *(float *)p : bf16_to_f32(*(uint16_t *)p);
}
static void store_element(Tensor t, int64_t a, int64_t b, int64_t c, float v)
{
    char *p = element(t, a, b, c);
    if (t.dtype == F32) *(float *)p = v;
    else                *(uint16_t *)p = bf16_from_f32(v);
}

typedef struct ConvDoc { int64_t from, to, kept, doc; bool fresh; } ConvDoc;

static ConvDoc doc_at(Segments seg, Tensor doc, Tensor kept, int64_t i)
{
    const int32_t *at = seg.starts.data, *used = seg.kv_used.data;
    return (ConvDoc){ at[i], at[i + 1], ((int32_t *)kept.data)[i], ((int32_t *)doc.data)[i],
                      used[i] == at[i + 1] - at[i] };
}

/* One column of a document: its K - 1 rows before, then its new ones. */
static void step_column(Tensor y, Tensor tail, Tensor x, const float *w, ConvDoc d, int64_t col, int64_t K)
{
    int64_t C = x.n[2], h = col / C, c = col % C;
    float   last[MAX_K], keep[MAX_K];
    for (int64_t k = 0; k < K - 1; k++) keep[k] = last[k] = d.fresh ? 0.0f : get(tail, d.doc, k, col);
    for (int64_t t = d.from; t < d.to; t++) {
        float p = 0.0f;
        last[K - 1] = get(x, t, h, c);
        for (int64_t k = 0; k < K; k++) p += w[k] * last[k];
        store_element(y, t, h, c, p / (1.0f + expf(-p)));
        for (int64_t k = 0; k < K - 1; k++) last[k] = last[k + 1];
        for (int64_t k = 0; t < d.from + d.kept && k < K - 1; k++) keep[k] = last[k];
    }
    for (int64_t k = 0; k < K - 1; k++) store_element(tail, d.doc, k, col, keep[k]);
}

void cpu_short_conv_step(Backend *be, Tensor y, Tensor tail, Tensor x, Tensor w, Segments seg, Tensor doc,
                         Tensor kept)
{
    int64_t C = x.n[2], cols = x.n[1] * C, K = w.n[1];
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(x)))
    for (int64_t col = 0; col < cols; col++) {
        float buf[MAX_K];
        const float *taps = row_read(w, col, buf);
        for (int64_t t = 0; t < x.n[0]; t++)
            if (segment_of(seg, t) < 0) store_element(y, t, col / C, col % C, 0.0f);
        for (int64_t i = 0; i < seg.n; i++)
            step_column(y, tail, x, taps, doc_at(seg, doc, kept, i), col, K);
    }
}
