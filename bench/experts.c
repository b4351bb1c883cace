/* bench/experts.c -- see experts.h. */
#include "bench/experts.h"

#include "ops/quant.h"

#include <assert.h>

static const LoraTerm none = { 0 };

void make_experts(Case *c)
{
    const Setup *s = c->s;
    int64_t R = s->T * s->K, out = c->n ? c->n : s->F, in = c->k ? c->k : s->D, n[3] = { s->E, out, in };
    bench_route(c);
    Tensor w = randn(s, s->d, s->E * out, in), g = blank(s, F32, s->E * out, in);
    c->t[0] = randn(s, s->d, R, out), c->t[1] = randn(s, s->d, R, in);
    c->t[2] = t_wrap(w.data, s->d, 3, n), c->t[3] = t_wrap(g.data, F32, 3, n);
}
void run_experts_nt(void *p)
{
    Case *c = p;
    op_grouped_gemm(c->s->be, c->t[0], c->t[1], c->t[2], c->t[5], none, GEMM_NT);
}
void run_experts_nn(void *p)
{
    Case *c = p;
    op_grouped_gemm(c->s->be, c->t[1], c->t[0], c->t[2], c->t[5], none, GEMM_NN);
}
void run_experts_tn(void *p)
{
    Case *c = p;
    op_grouped_gemm(c->s->be, c->t[3], c->t[0], c->t[1], c->t[5], none, GEMM_TN);
}

/* A whole expert layer from routed tokens back to tokens, and its backward: the ops of nn/moe.c in order. */
enum { X = 12, XS, GU, ACT, OUT, GATE, W_GU, W_D, G_GU, G_D, DGU, DGATE,
       A_GU, B_GU, A_D, B_D, GA_GU, GB_GU, GA_D, GB_D, LOW_GU, LOW_D, BACK_GU, BACK_D, LAST };
static_assert((int)LAST <= (int)CASE_TENSORS, "enough tensors for all");

static Tensor stack(Tensor t, int64_t E, int64_t rows) { return t_as3(t, E, rows, t.n[1]); }

void make_moe(Case *c)
{
    const Setup *s = c->s;
    int64_t      R = s->T * s->K, D = s->D, F = s->F, E = s->E;
    bench_route(c);
    c->t[X] = randn(s, s->d, s->T, D), c->t[XS] = blank(s, s->d, R, D), c->t[GU] = blank(s, s->d, R, 2 * F);
    c->t[ACT] = blank(s, s->d, R, F), c->t[OUT] = blank(s, s->d, R, D), c->t[GATE] = blank(s, F32, R, 1);
    c->t[W_GU] = stack(randn(s, s->d, E * 2 * F, D), E, 2 * F);
    c->t[W_D]  = stack(randn(s, s->d, E * D, F), E, D);
    c->t[G_GU] = stack(blank(s, F32, E * 2 * F, D), E, 2 * F);
    c->t[G_D]  = stack(blank(s, F32, E * D, F), E, D);
    c->t[DGU] = blank(s, s->d, R, 2 * F), c->t[DGATE] = blank(s, F32, R, 1);
    c->t[0] = blank(s, s->d, s->T, D);
    op_gather_rows(s->be, c->t[GATE], t_as2(c->t[8], R, 1), c->t[11], 1);
}
void run_moe_fwd(void *p)
{
    Case *c = p; Tensor *t = c->t;
    Backend *be = c->s->be;
    op_expand_rows(be, t[XS], t[X], t[10]);
    op_grouped_swiglu(be, t[GU], t[ACT], t[XS], t[W_GU], t[5], t[GATE], none);
    op_grouped_gemm(be, t[OUT], t[ACT], t[W_D], t[5], none, GEMM_NT);
    op_combine(be, t[0], t[OUT], t[10], (Tensor){ 0 });
}
static void whole(Case *c, bool trained)
{
    Tensor  *t = c->t;
    Backend *be = c->s->be;
    run_moe_fwd(c);
    op_expand_rows(be, t[OUT], t[X], t[10]);
    op_grouped_dswiglu(be, t[DGU], t[DGATE], t[OUT], t[W_D], t[5], t[GU], t[GATE], none);
    if (trained) {
        op_grouped_gemm(be, t[G_D], t[OUT], t[ACT], t[5], none, GEMM_TN);
        op_grouped_gemm(be, t[G_GU], t[DGU], t[XS], t[5], none, GEMM_TN);
    }
    op_grouped_gemm(be, t[OUT], t[DGU], t[W_GU], t[5], none, GEMM_NN);
    op_combine(be, t[0], t[OUT], t[10], (Tensor){ 0 });
}
void run_moe(void *p)    { whole(p, true); }
void run_frozen(void *p) { whole(p, false); }

/* The same as nn/moe_experts.c computes it in e4m3: rows of tokens and their gradients are quantised as they
 * are expanded, h and dgu by the kernels that write them. */
enum { XQ = DGATE + 1, XQS, HQ, HQS, DGQ, DGQS, GUQ, GUQS, GUT, GUTS, DQ, DQS, DT, DTS,
       TOKEN_COLS, TOKEN_COLS_S, DGU_COLS, DGU_COLS_S, H_COLS, H_COLS_S, DOUT_COLS, DOUT_COLS_S, LAST_FP8 };
static_assert((int)LAST_FP8 <= (int)CASE_TENSORS, "enough tensors for all");

static void quantized_rows(Case *c, int at, int64_t K)
{
    int64_t R = c->s->T * c->s->K;
    c->t[at] = t2(c->s->a, "bench", E4M3, R, K), c->t[at + 1] = t2(c->s->a, "bench", F32, (K + 127) / 128, R);
}
static void quantized_weight(Case *c, int at, Tensor w)
{
    int64_t E = w.n[0], N = w.n[1], K = w.n[2], n = (N + 127) / 128, k = (K + 127) / 128;
    Arena  *a = c->s->a;
    c->t[at]     = t3(a, "bench", E4M3, E, N, K), c->t[at + 1] = t3(a, "bench", F32, E, n, k);
    c->t[at + 2] = t3(a, "bench", E4M3, E, K, N), c->t[at + 3] = t3(a, "bench", F32, E, k, n);
    op_quantize_weight(c->s->be, c->t[at], c->t[at + 1], c->t[at + 2], c->t[at + 3], w, true);
}
static void column_codes(Case *c, int at, int64_t K, bool blocks)
{
    int64_t C = quant_columns(c->s->T * c->s->K, c->s->E);
    c->t[at]     = t2(c->s->a, "bench", E4M3, K, C);
    c->t[at + 1] = t2(c->s->a, "bench", F32, C / QUANT_GROUP, blocks ? quant_groups(K) : K);
}
static ColumnCodes columns(const Case *c, int at) { return (ColumnCodes){ c->t[at], c->t[at + 1] }; }

void make_moe_fp8(Case *c)
{
    make_moe(c);
    quantized_rows(c, XQ, c->s->D), quantized_rows(c, HQ, c->s->F), quantized_rows(c, DGQ, 2 * c->s->F);
    quantized_weight(c, GUQ, c->t[W_GU]), quantized_weight(c, DQ, c->t[W_D]);
    column_codes(c, TOKEN_COLS, c->s->D, true), column_codes(c, DGU_COLS, 2 * c->s->F, false);
    column_codes(c, H_COLS, c->s->F, true), column_codes(c, DOUT_COLS, c->s->D, false);
}
void run_expand_fp8(void *p)
{
    Case *c = p; Tensor *t = c->t;
    op_expand_rows_fp8(c->s->be, t[XS], t[XQ], t[XQS], t[X], t[10], true);
}
void run_moe_up_fp8(void *p)
{
    Case *c = p; Tensor *t = c->t;
    op_grouped_swiglu_fp8(c->s->be, t[GU], t[ACT], t[HQ], t[HQS], t[XQ], t[XQS], t[GUQ], t[GUQS], t[5],
                          t[GATE], true);
}
void run_expand_codes(void *p)
{
    Case *c = p; Tensor *t = c->t;
    op_expand_rows_fp8(c->s->be, (Tensor){ 0 }, t[XQ], t[XQS], t[X], t[10], true);
}
static void up_codes_alone(Case *c)
{
    Tensor *t = c->t;
    op_grouped_swiglu_fp8(c->s->be, t[GU], t[ACT], t[HQ], t[HQS], t[XQ], t[XQS], t[GUQ], t[GUQS], t[5],
                          t[GATE], false);
}
void run_moe_fwd_fp8(void *p)
{
    Case *c = p; Tensor *t = c->t;
    Backend *be = c->s->be;
    run_expand_fp8(p);
    run_moe_up_fp8(p);
    op_grouped_gemm_fp8(be, t[OUT], t[HQ], t[HQS], t[DQ], t[DQS], t[5]);
    op_combine(be, t[0], t[OUT], t[10], (Tensor){ 0 });
}
void run_moe_down_bwd_fp8(void *p)
{
    Case *c = p; Tensor *t = c->t;
    Tensor dh = t_cols(t[DGU], 0, c->s->F);
    op_grouped_gemm_fp8(c->s->be, dh, t[XQ], t[XQS], t[DT], t[DTS], t[5]);
    op_swiglu_bwd_fp8(c->s->be, t[DGU], t[DGQ], t[DGQS], t[DGATE], dh, t[GU], t[GATE], t[5], true);
}
void run_moe_fp8(void *p)
{
    Case *c = p; Tensor *t = c->t;
    Backend *be = c->s->be;
    run_moe_fwd_fp8(p);
    op_expand_rows_fp8(be, t[OUT], t[XQ], t[XQS], t[X], t[10], true);
    run_moe_down_bwd_fp8(p);
    op_grouped_gemm(be, t[G_D], t[OUT], t[ACT], t[5], none, GEMM_TN);
    op_grouped_gemm(be, t[G_GU], t[DGU], t[XS], t[5], none, GEMM_TN);
    op_grouped_gemm_fp8(be, t[OUT], t[DGQ], t[DGQS], t[GUT], t[GUTS], t[5]);
    op_combine(be, t[0], t[OUT], t[10], (Tensor){ 0 });
}

/* The same with weight gradients from codes too: h and the rows of tokens exist as codes alone. */
void run_columns_fp8(void *p)
{
    Case *c = p;
    op_quantize_cols(c->s->be, columns(c, TOKEN_COLS), c->t[X], c->t[11], c->s->K, c->t[5], true);
}
void run_moe_down_bwd_cols(void *p)
{
    Case *c = p; Tensor *t = c->t;
    Tensor dh = t_cols(t[DGU], 0, c->s->F);
    op_grouped_gemm_fp8(c->s->be, dh, t[XQ], t[XQS], t[DT], t[DTS], t[5]);
    op_swiglu_bwd_cols(c->s->be, t[DGU], t[DGQ], t[DGQS], columns(c, DGU_COLS), columns(c, H_COLS),
                       t[DGATE], dh, t[GU], t[GATE], t[5], false);
}
void run_moe_all_fp8(void *p)
{
    Case *c = p; Tensor *t = c->t;
    Backend *be = c->s->be;
    int64_t  R = c->s->T * c->s->K;
    Tensor   absent = { 0 };
    run_expand_codes(p);
    up_codes_alone(c);
    op_grouped_gemm_fp8(be, t[OUT], t[HQ], t[HQS], t[DQ], t[DQS], t[5]);
    op_combine(be, t[0], t[OUT], t[10], absent);
    run_expand_codes(p);
    op_quantize_cols(be, columns(c, DOUT_COLS), t[X], t[11], c->s->K, t[5], true);
    run_moe_down_bwd_cols(p);
    op_grouped_dw_fp8(be, t[G_D], absent, columns(c, DOUT_COLS), columns(c, H_COLS), t[5], R, 0);
    op_grouped_gemm_fp8(be, t[OUT], t[DGQ], t[DGQS], t[GUT], t[GUTS], t[5]);
    run_columns_fp8(p);
    op_grouped_dw_fp8(be, t[G_GU], absent, columns(c, DGU_COLS), columns(c, TOKEN_COLS), t[5], R, 0);
    op_combine(be, t[0], t[OUT], t[10], absent);
}

void run_moe_up(void *p)
{
    Case *c = p; Tensor *t = c->t;
    op_grouped_swiglu(c->s->be, t[GU], t[ACT], t[XS], t[W_GU], t[5], t[GATE], none);
}
void run_moe_down_bwd(void *p)
{
    Case *c = p; Tensor *t = c->t;
    op_grouped_dswiglu(c->s->be, t[DGU], t[DGATE], t[OUT], t[W_D], t[5], t[GU], t[GATE], none);
}

/* The same with a pair of rank RANK on both weights, which are not trained: nn/moe.c with adapters. */
enum { RANK = 16 };
static const float SCALE = 2.0f;
static const Dropout  keep_all = { 0 }, drop_some = { .p = 0.05f, .seed = 1, .stream = 2 };

void make_adapted(Case *c)
{
    const Setup *s = c->s;
    int64_t      R = s->T * s->K, D = s->D, F = s->F, E = s->E;
    make_moe(c);
    op_expand_rows(s->be, c->t[XS], c->t[X], c->t[10]);
    c->t[A_GU]  = stack(randn(s, s->d, E * RANK, D), E, RANK);
    c->t[B_GU]  = stack(randn(s, s->d, E * 2 * F, RANK), E, 2 * F);
    c->t[A_D]   = stack(randn(s, s->d, E * RANK, F), E, RANK);
    c->t[B_D]   = stack(randn(s, s->d, E * D, RANK), E, D);
    c->t[GA_GU] = stack(blank(s, F32, E * RANK, D), E, RANK);
    c->t[GB_GU] = stack(blank(s, F32, E * 2 * F, RANK), E, 2 * F);
    c->t[GA_D]  = stack(blank(s, F32, E * RANK, F), E, RANK);
    c->t[GB_D]  = stack(blank(s, F32, E * D, RANK), E, D);
    for (int i = LOW_GU; i < LAST; i++) c->t[i] = randn(s, s->d, R, RANK);
}

/* The two kinds of narrow products, and a tail, by numbers of tensors. */
static void narrow(Case *c, int out, int a, int w, Dropout drop, int mode)
{
    op_grouped_scaled(c->s->be, c->t[out], c->t[a], c->t[w], c->t[5], SCALE, drop, mode);
}
static void gradient(Case *c, int g, int dy, int x, Dropout drop)
{
    op_grouped_scaled(c->s->be, c->t[g], c->t[dy], c->t[x], c->t[5], 1.0f, drop, GEMM_TN);
}
static LoraTerm pairs(const Case *c, int low, int w, Dropout drop)
{
    return (LoraTerm){ c->t[low], c->t[w], drop };
}

void run_adapted_fwd(void *p)
{
    Case *c = p; Tensor *t = c->t;
    Backend *be = c->s->be;
    op_expand_rows(be, t[XS], t[X], t[10]);
    narrow(c, LOW_GU, XS, A_GU, keep_all, GEMM_NT);
    op_grouped_swiglu(be, t[GU], t[ACT], t[XS], t[W_GU], t[5], t[GATE], pairs(c, LOW_GU, B_GU, keep_all));
    narrow(c, LOW_D, ACT, A_D, keep_all, GEMM_NT);
    op_grouped_gemm(be, t[OUT], t[ACT], t[W_D], t[5], pairs(c, LOW_D, B_D, keep_all), GEMM_NT);
    op_combine(be, t[0], t[OUT], t[10], (Tensor){ 0 });
}
static void adapted_dx(Case *c, Dropout drop)
{
    Tensor *t = c->t;
    op_grouped_gemm(c->s->be, t[OUT], t[DGU], t[W_GU], t[5], pairs(c, BACK_GU, A_GU, drop), GEMM_NN);
}
void run_adapted(void *p)
{
    Case *c = p; Tensor *t = c->t;
    Backend *be = c->s->be;
    run_adapted_fwd(p);
    op_expand_rows(be, t[OUT], t[X], t[10]);
    narrow(c, BACK_D, OUT, B_D, keep_all, GEMM_NN);
    run_adapted_down_bwd(p);
    gradient(c, GB_D, OUT, LOW_D, keep_all);
    gradient(c, GA_D, BACK_D, ACT, keep_all);
    narrow(c, BACK_GU, DGU, B_GU, keep_all, GEMM_NN);
    gradient(c, GB_GU, DGU, LOW_GU, keep_all);
    gradient(c, GA_GU, BACK_GU, XS, keep_all);
    adapted_dx(c, keep_all);
    op_combine(be, t[0], t[OUT], t[10], (Tensor){ 0 });
}

void run_adapted_up(void *p)
{
    Case *c = p; Tensor *t = c->t;
    op_grouped_swiglu(c->s->be, t[GU], t[ACT], t[XS], t[W_GU], t[5], t[GATE],
                      pairs(c, LOW_GU, B_GU, keep_all));
}
static void adapted_down_bwd(Case *c, Dropout drop)
{
    Tensor *t = c->t;
    op_grouped_dswiglu(c->s->be, t[DGU], t[DGATE], t[OUT], t[W_D], t[5], t[GU], t[GATE],
                       pairs(c, BACK_D, A_D, drop));
}
void run_adapted_down_bwd(void *p) { adapted_down_bwd(p, keep_all); }

/* Narrow products alone, those of width D: A of gate and up, B of down. */
void run_expert_low(void *p)  { narrow(p, LOW_GU, XS, A_GU, keep_all, GEMM_NT); }
void run_expert_back(void *p) { narrow(p, BACK_D, XS, B_D, keep_all, GEMM_NN); }
void run_expert_da(void *p)   { gradient(p, GA_GU, BACK_GU, XS, keep_all); }
void run_expert_db(void *p)   { gradient(p, GB_D, XS, LOW_D, keep_all); }

/* The same calls with dropout. */
void run_dropped_low(void *p)      { narrow(p, LOW_GU, XS, A_GU, drop_some, GEMM_NT); }
void run_dropped_da(void *p)       { gradient(p, GA_GU, BACK_GU, XS, drop_some); }
void run_adapted_dx(void *p)       { adapted_dx(p, keep_all); }
void run_dropped_dx(void *p)       { adapted_dx(p, drop_some); }
void run_dropped_down_bwd(void *p) { adapted_down_bwd(p, drop_some); }

/* A dense adapter, some of whose input is left out: low, and the gradients of A and of the input. */
void make_low(Case *c)
{
    const Setup *s = c->s;
    c->t[0] = randn(s, s->d, s->T, RANK), c->t[1] = randn(s, s->d, s->T, s->D);
    c->t[2] = randn(s, s->d, RANK, s->D), c->t[3] = randn(s, s->d, s->T, s->D);
    c->t[4] = blank(s, F32, RANK, s->D);
}
void run_low(void *p)
{
    Case *c = p;
    op_gemm_scaled(c->s->be, c->t[0], c->t[1], c->t[2], SCALE, keep_all, GEMM_NT);
}
void run_low_dropped(void *p)
{
    Case *c = p;
    op_gemm_scaled(c->s->be, c->t[0], c->t[1], c->t[2], SCALE, drop_some, GEMM_NT);
}
void run_da_dropped(void *p)
{
    Case *c = p;
    op_gemm_scaled(c->s->be, c->t[4], c->t[0], c->t[1], 1.0f, drop_some, GEMM_TN);
}
void run_dx_dropped(void *p)
{
    Case *c = p;
    op_gemm_scaled(c->s->be, c->t[3], c->t[0], c->t[2], 1.0f, drop_some, GEMM_NN | GEMM_ACC);
}
