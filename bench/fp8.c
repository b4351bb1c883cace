/* bench/fp8.c -- see bench/fp8.h. */
#include "bench/fp8.h"

#include "ops/quant.h"

static const Tensor none = { 0 };

static int64_t groups(int64_t n) { return (n + 127) / 128; }

static Tensor codes(const Setup *s, int64_t E, int64_t rows, int64_t cols)
{
    return t3(s->a, "bench", E4M3, E, rows, cols);
}

/* A quantised copy of x; its scales go to *scale. */
static Tensor quantized_rows(const Setup *s, Tensor x, Tensor *scale)
{
    Tensor q = t2(s->a, "bench", E4M3, x.n[0], x.n[1]);
    *scale = t2(s->a, "bench", F32, groups(x.n[1]), x.n[0]);
    op_quantize_rows(s->be, q, *scale, x, none, true);
    return q;
}

/* t: y, x, dx | offsets at 5 | codes and scales of x, dy, w, transposed w */
enum { Y, XIN, DX, XQ = 12, XS, DYQ, DYS, WQ, WS, WT, WTS, W };

void make_quantize(Case *c)
{
    const Setup *s = c->s;
    int64_t E = s->E, out = c->n ? c->n : 2 * s->F, in = c->k ? c->k : s->D, m = c->m ? c->m : s->T;
    c->t[XIN] = randn(s, s->d, m, in);
    c->t[XQ] = quantized_rows(s, c->t[XIN], &c->t[XS]);
    c->t[W] = t_as3(randn(s, s->d, E * out, in), E, out, in);
    c->t[WQ] = codes(s, E, out, in), c->t[WS] = t3(s->a, "bench", F32, E, groups(out), groups(in));
    c->t[WT] = codes(s, E, in, out), c->t[WTS] = t3(s->a, "bench", F32, E, groups(in), groups(out));
}
void run_quantize_rows(void *p)
{
    Case *c = p;
    op_quantize_rows(c->s->be, c->t[XQ], c->t[XS], c->t[XIN], none, true);
}
void run_quantize_weight(void *p)
{
    Case *c = p;
    op_quantize_weight(c->s->be, c->t[WQ], c->t[WS], c->t[WT], c->t[WTS], c->t[W], true);
}
/* An update as `optim.master: split` and `optim.state_dtype: bfloat16` store it, of the experts' weights. */
enum { REST = 24, MOMENT1, MOMENT2, GRAD };

void make_adam_fp8(Case *c)
{
    const Setup *s = c->s;
    bool    host = s->be->device->host_memory;
    int64_t E = host ? s->E / 8 : s->E, out = 2 * s->F, in = s->D, n[3] = { E, out, in };
    Tensor  p = randn(s, F32, E * out, in), rest = t2(s->a, "bench", I16, E * out, in);
    Tensor  w = t2(s->a, "bench", BF16, E * out, in);
    op_set_weight(s->be, w, rest, p);
    c->t[W] = t_wrap(w.data, BF16, 3, n), c->t[REST] = t_wrap(rest.data, I16, 3, n);
    c->t[MOMENT1] = t_as3(blank(s, BF16, E * out, in), E, out, in);
    c->t[MOMENT2] = t_as3(blank(s, BF16, E * out, in), E, out, in);
    c->t[GRAD] = t_wrap(p.data, F32, 3, n);
    c->t[WQ] = codes(s, E, out, in), c->t[WS] = t3(s->a, "bench", F32, E, groups(out), groups(in));
    c->t[WT] = codes(s, E, in, out), c->t[WTS] = t3(s->a, "bench", F32, E, groups(in), groups(out));
}

static const AdamW step_of_adam = { .lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.1f,
                                    .step = 3 };

void run_adam_split(void *p)
{
    Case *c = p; Tensor *t = c->t;
    op_adamw(c->s->be, t[W], t[REST], t[MOMENT1], t[MOMENT2], t[GRAD], none, step_of_adam);
}
void run_adam_then_fp8(void *p)
{
    run_adam_split(p);
    run_quantize_weight(p);
}
void run_adam_fp8(void *p)
{
    Case *c = p; Tensor *t = c->t;
    op_adamw_fp8(c->s->be, t[WQ], t[WS], t[WT], t[WTS], t[W], t[REST], t[MOMENT1], t[MOMENT2], t[GRAD], none,
                 step_of_adam, true);
}
void run_transpose_codes(void *p)
{
    Case *c = p;
    op_transpose(c->s->be, c->t[WT], c->t[WQ]);
}
void make_packed(Case *c)
{
    make_quantize(c);
    c->t[Y] = blank(c->s, BF16, c->t[XIN].n[0], quant_packed_width(c->t[XIN].n[1]));
}
void run_pack_rows(void *p)
{
    Case *c = p;
    op_pack_rows(c->s->be, c->t[Y], c->t[XIN]);
}
void run_unpack_rows(void *p)
{
    Case *c = p;
    op_unpack_rows(c->s->be, c->t[XIN], c->t[XQ], c->t[XS], c->t[Y], none);
}

void make_fp8_experts(Case *c)
{
    const Setup *s = c->s;
    int64_t R = s->T * s->K;
    c->m = R;
    bench_route(c);
    make_quantize(c);
    c->t[Y] = randn(s, s->d, R, c->t[W].n[1]);
    c->t[DYQ] = quantized_rows(s, c->t[Y], &c->t[DYS]);
    c->t[DX] = blank(s, s->d, R, c->t[W].n[2]);
    run_quantize_weight(c);
}
void run_fp8_y(void *p)
{
    Case *c = p; Tensor *t = c->t;
    op_grouped_gemm_fp8(c->s->be, t[Y], t[XQ], t[XS], t[WQ], t[WS], t[5]);
}
void run_fp8_dx(void *p)
{
    Case *c = p; Tensor *t = c->t;
    op_grouped_gemm_fp8(c->s->be, t[DX], t[DYQ], t[DYS], t[WT], t[WTS], t[5]);
}
void run_fp8_quantize_y(void *p)
{
    run_quantize_rows(p);
    run_fp8_y(p);
}

static ColumnCodes columns(const Setup *s, Tensor x, bool blocks, Tensor offsets)
{
    int64_t     C = quant_columns(x.n[0], s->E), n = blocks ? quant_groups(x.n[1]) : x.n[1];
    ColumnCodes z = { t2(s->a, "bench", E4M3, x.n[1], C), t2(s->a, "bench", F32, C / QUANT_GROUP, n) };
    op_quantize_cols(s->be, z, x, none, 1, offsets, true);
    return z;
}
void make_fp8_dw(Case *c)
{
    const Setup *s = c->s;
    int64_t     R = s->T * s->K, E = s->E;
    bench_route(c);
    ColumnCodes dy = columns(s, randn(s, s->d, R, c->n), false, c->t[5]);
    ColumnCodes x = columns(s, randn(s, s->d, R, c->k), true, c->t[5]);
    c->t[XQ] = x.q, c->t[XS] = x.scale, c->t[DYQ] = dy.q, c->t[DYS] = dy.scale;
    c->t[W] = t_as3(blank(s, F32, E * c->n, c->k), E, c->n, c->k);
}
void run_fp8_dw(void *p)
{
    Case *c = p; Tensor *t = c->t;
    ColumnCodes dy = { t[DYQ], t[DYS] }, x = { t[XQ], t[XS] };
    op_grouped_dw_fp8(c->s->be, t[W], none, dy, x, t[5], c->s->T * c->s->K, 0);
}

void make_fp8_dense(Case *c)
{
    const Setup *s = c->s;
    c->t[XIN] = randn(s, s->d, c->m, c->k);
    c->t[XQ] = quantized_rows(s, c->t[XIN], &c->t[XS]);
    c->t[W] = randn(s, s->d, c->n, c->k), c->t[Y] = blank(s, s->d, c->m, c->n);
    c->t[WQ] = t2(s->a, "bench", E4M3, c->n, c->k);
    c->t[WS] = t2(s->a, "bench", F32, groups(c->n), groups(c->k));
    op_quantize_weight(s->be, c->t[WQ], c->t[WS], none, none, c->t[W], true);
}
void run_fp8_dense(void *p)
{
    Case *c = p; Tensor *t = c->t;
    op_gemm_fp8(c->s->be, t[Y], t[XQ], t[XS], t[WQ], t[WS], none, none);
}
void run_fp8_residual(void *p)
{
    Case *c = p; Tensor *t = c->t;
    op_gemm_fp8(c->s->be, t[Y], t[XQ], t[XS], t[WQ], t[WS], none, t[Y]);
}
