/* bench/cases.c -- see cases.h. */
#include "bench/attention.h"
#include "bench/delta_rule.h"
#include "bench/fp8.h"
#include "bench/hold_sms.h"

#include <math.h>
#include <string.h>

static void make_gemm(Case *c)
{
    const Setup *s = c->s;
    int64_t      m = c->m ? c->m : 2048, n = c->n ? c->n : 2048, k = c->k ? c->k : 2048;
    c->t[0] = blank(s, s->d, m, n), c->t[1] = randn(s, s->d, m, k), c->t[2] = randn(s, s->d, n, k);
    c->t[3] = t_as2(c->t[2], k, n), c->t[4] = t_as2(c->t[1], k, m), c->t[5] = blank(s, F32, m, n);
}
static void run_gemm_nt(void *p)
{
    Case *c = p;
    op_gemm(c->s->be, c->t[0], c->t[1], c->t[2], (Tensor){ 0 }, GEMM_NT);
}
static void run_gemm_nn(void *p)
{
    Case *c = p;
    op_gemm(c->s->be, c->t[0], c->t[1], c->t[3], (Tensor){ 0 }, GEMM_NN);
}
static void run_gemm_tn(void *p)
{
    Case *c = p;
    op_gemm(c->s->be, c->t[5], c->t[4], c->t[3], (Tensor){ 0 }, GEMM_TN);
}

/* Products with something beside them. */
static void make_fused(Case *c)
{
    const Setup *s = c->s;
    make_gemm(c);
    int64_t m = c->t[0].n[0], n = c->t[0].n[1];
    c->t[6] = randn(s, s->d, m, n), c->t[7] = randn(s, s->d, 1, n), c->t[8] = blank(s, F32, 1, n);
}
static void run_gemm_residual(void *p)
{
    Case *c = p;
    op_gemm_residual(c->s->be, c->t[0], c->t[6], c->t[1], c->t[2], c->t[7]);
}
static void run_gemm_gelu(void *p)
{
    Case *c = p;
    op_gemm_gelu(c->s->be, c->t[0], c->t[6], c->t[1], c->t[2], c->t[7], GELU_TANH);
}
static void run_gemm_dgelu(void *p)
{
    Case *c = p;
    op_gemm_dgelu(c->s->be, c->t[0], c->t[1], c->t[3], c->t[6], GELU_TANH);
}
static void run_colsum(void *p) { Case *c = p; op_colsum(c->s->be, c->t[8], c->t[6]); }

void bench_route(Case *c)
{
    const Setup *s = c->s;
    c->t[6]  = randn(s, F32, s->T, s->E);                                    /* logits */
    c->t[7] = blank(s, I32, s->T, s->K), c->t[8] = blank(s, F32, s->T, s->K),
    c->t[9]  = blank(s, F32, s->T, 1);
    c->t[10] = blank(s, I32, s->T, s->K), c->t[11] = blank(s, I32, s->T * s->K, 1);
    c->t[5]  = blank(s, I32, s->E + 1, 1);
    op_router_fwd(s->be, c->t[7], c->t[8], c->t[9], c->t[6], true);
    op_sort_by_expert(s->be, c->t[5], c->t[10], c->t[11], c->t[7]);
}
static void run_router(void *p)
{
    Case *c = p;
    op_router_fwd(c->s->be, c->t[7], c->t[8], c->t[9], c->t[6], true);
}
static void make_router(Case *c)
{
    bench_route(c);
    c->t[1] = randn(c->s, c->s->d, c->s->T, c->s->D), c->t[2] = randn(c->s, c->s->d, c->s->E, c->s->D);
}
static void run_router_all(void *p)
{
    Case *c = p;
    op_gemm(c->s->be, c->t[6], c->t[1], c->t[2], (Tensor){ 0 }, GEMM_NT);
    run_router(p);
}
static void run_index(void *p)
{
    Case *c = p;
    op_sort_by_expert(c->s->be, c->t[5], c->t[10], c->t[11], c->t[7]);
}
static void make_route_bwd(Case *c)
{
    bench_route(c);
    c->t[0] = blank(c->s, F32, c->s->T, c->s->E), c->t[1] = randn(c->s, F32, c->s->T, c->s->K);
}
static void run_route_bwd(void *p)
{
    Case *c = p;
    op_router_bwd(c->s->be, c->t[0], c->t[1], c->t[8], c->t[7], c->t[6], c->t[9], (Tensor){ 0 },
                  (Tensor){ 0 }, factor(0.0f), true);
}
static void make_permute(Case *c)
{
    bench_route(c);
    c->t[0] = blank(c->s, c->s->d, c->s->T * c->s->K, c->s->D),
    c->t[1] = randn(c->s, c->s->d, c->s->T, c->s->D);
}
static void run_permute(void *p)
{
    Case *c = p;
    op_expand_rows(c->s->be, c->t[0], c->t[1], c->t[10]);
}
static void run_combine(void *p)
{
    Case *c = p;
    op_combine(c->s->be, c->t[1], c->t[0], c->t[10], (Tensor){ 0 });
}

static void make_norm(Case *c)
{
    const Setup *s = c->s;
    c->t[0] = blank(s, s->d, s->T, s->D), c->t[1] = randn(s, s->d, s->T, s->D),
    c->t[2] = randn(s, s->d, 1, s->D);
    c->t[3] = randn(s, s->d, 1, s->D), c->t[4] = blank(s, F32, s->T, 1), c->t[5] = blank(s, F32, s->T, 2);
    c->t[6] = randn(s, s->d, s->T, s->D), c->t[7] = blank(s, F32, 1, s->D), c->t[8] = blank(s, F32, 1, s->D);
}
static void run_rms(void *p)
{
    Case *c = p; Tensor none = { 0 };
    op_rmsnorm_fwd(c->s->be, c->t[0], c->t[4], none, c->t[1], none, c->t[2], 1e-6f);
}
static void run_rms_bwd(void *p)
{
    Case *c = p;
    op_rmsnorm_bwd(c->s->be, c->t[0], c->t[7], c->t[6], c->t[1], c->t[2], c->t[4], (Tensor){ 0 });
}
static void run_layer(void *p)
{
    Case *c = p;
    op_layernorm_fwd(c->s->be, c->t[0], c->t[5], c->t[1], c->t[2], c->t[3], 1e-6f);
}
static void run_layer_bwd(void *p)
{
    Case *c = p;
    op_layernorm_bwd(c->s->be, c->t[0], c->t[7], c->t[8], c->t[6], c->t[1], c->t[2], c->t[5], (Tensor){ 0 });
}

static void make_rope(Case *c)
{
    const Setup *s = c->s;
    c->width = s->C;
    c->t[0] = bench_heads(c, s->T, s->H), c->t[1] = bench_heads(c, s->T, s->H);
    c->t[2] = randn(s, s->d, 1, s->C);
    c->t[3] = blank(s, F32, s->T, s->H), c->t[4] = randn(s, F32, s->T, s->C);
}
static void run_rope(void *p)
{
    Case *c = p;
    op_rope_fwd(c->s->be, c->t[0], c->t[3], c->t[1], c->t[2], c->t[4], 1e-6f);
}

static void make_rope_bwd(Case *c)
{
    make_rope(c);
    run_rope(c);
    c->t[5] = bench_heads(c, c->s->T, c->s->H), c->t[6] = blank(c->s, F32, 1, c->s->C);
}
static void run_rope_bwd(void *p)
{
    Case *c = p;
    op_rope_bwd(c->s->be, c->t[5], c->t[6], c->t[0], c->t[1], c->t[2], c->t[3], c->t[4]);
}

static void make_act(Case *c)
{
    const Setup *s = c->s;
    c->t[0] = blank(s, s->d, s->T, s->D), c->t[1] = randn(s, s->d, s->T, 2 * s->D),
    c->t[2] = randn(s, s->d, s->T, s->D);
    c->t[3] = blank(s, s->d, s->T, 2 * s->D);
}
static void run_swiglu(void *p)
{
    Case *c = p;
    op_swiglu_fwd(c->s->be, c->t[0], c->t[1], (Tensor){ 0 }, (Tensor){ 0 });
}
static void run_swiglu_bwd(void *p)
{
    Case *c = p;
    op_swiglu_bwd(c->s->be, c->t[3], (Tensor){ 0 }, c->t[2], c->t[1], (Tensor){ 0 });
}
static void run_gelu(void *p)       { Case *c = p; op_gelu_fwd(c->s->be, c->t[0], c->t[2], GELU_TANH); }
static void run_gelu_bwd(void *p)
{
    Case *c = p;
    op_gelu_bwd(c->s->be, c->t[0], c->t[2], c->t[2], GELU_TANH);
}
static void run_gelu_erf(void *p)   { Case *c = p; op_gelu_fwd(c->s->be, c->t[0], c->t[2], GELU_ERF); }

static void make_ce(Case *c)
{
    const Setup *s = c->s;
    bool narrow = !s->be->device->host_memory;
    c->t[0] = randn(s, narrow ? s->d : F32, s->rows, s->V), c->t[1] = blank(s, F32, s->rows, 1);
    c->t[2] = t1(s->a, "bench", I32, s->rows), c->t[3] = t1(s->a, "bench", F64, 1);
    c->t[4] = narrow ? c->t[0] : blank(s, F32, s->rows, s->V);
    c->t[5] = t2(s->a, "bench", F64, s->rows, 3);
    op_fill(s->be, c->t[2], 17.0f);
    op_fill(s->be, c->t[3], 0.0f);
}
static void run_ce(void *p)
{
    Case *c = p;
    op_ce_part(c->s->be, c->t[5], c->t[0], c->t[2], 0);
    op_ce_join(c->s->be, c->t[3], c->t[1], (Tensor){ 0 }, c->t[5], c->t[2], factor(1.0f));
}
static void run_ce_grad(void *p)
{
    Case *c = p;
    op_ce_grad(c->s->be, c->t[5], c->t[4], c->t[0], c->t[2], factor(1.0f));
}
static void run_ce_bwd(void *p)
{
    Case *c = p;
    op_ce_bwd(c->s->be, c->t[4], c->t[0], c->t[1], c->t[2], 0, factor(1.0f));
}

static void make_adam(Case *c)
{
    int64_t rows = c->s->be->device->host_memory ? 8192 : 196608;
    for (int i = 0; i < 4; i++) c->t[i] = randn(c->s, F32, rows, 2048);
    op_fill(c->s->be, c->t[2], 1.0f);
    c->t[4] = c->s->d == F32 ? c->t[0] : blank(c->s, c->s->d, rows, 2048);
}
static void run_adam(void *p)
{
    Case *c = p;
    op_adamw(c->s->be, c->t[4], c->s->d == F32 ? (Tensor){ 0 } : c->t[0], c->t[1], c->t[2], c->t[3],
             (Tensor){ 0 }, (AdamW){ .lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.1f,
                                     .step = 3 });
}

static void make_squares(Case *c)
{
    c->t[0] = t1(c->s->a, "bench", F64, 1), c->t[1] = randn(c->s, F32, c->s->T, 8 * c->s->D);
    op_fill(c->s->be, c->t[0], 0.0f);
}
static void run_squares(void *p)
{
    Case     *c = p;
    Addends list = { .n = ADDENDS };
    int64_t   rows = c->t[1].n[0] / ADDENDS;
    for (int i = 0; i < ADDENDS; i++) list.at[i].x = t_rows(c->t[1], i * rows, rows);
    op_squares(c->s->be, c->t[0], (Tensor){ 0 }, &list);
}

static const Bench benches[] = {
    { "gemm y = x w'",              make_gemm,          run_gemm_nt, 0, 0, 0 },
    { "gemm dx = dy w",             make_gemm,          run_gemm_nn, 0, 0, 0 },
    { "gemm dw = dy' x",            make_gemm,          run_gemm_tn, 0, 0, 0 },
    { "experts y = x w'",           make_experts,       run_experts_nt, 0, 0, 0 },
    { "experts dx = dy w",          make_experts,       run_experts_nn, 0, 0, 0 },
    { "experts dw = dy' x",         make_experts,       run_experts_tn, 0, 0, 0 },
    { "gemm + residual",            make_fused,         run_gemm_residual, 0, 0, 0 },
    { "gemm + gelu",                make_fused,         run_gemm_gelu, 0, 0, 0 },
    { "gemm dx + gelu bwd",         make_fused,         run_gemm_dgelu, 0, 0, 0 },
    { "column sums",                make_fused,         run_colsum, 0, 0, 0 },
    { "adapter low = s x a'",       make_low,           run_low, 0, 0, 0 },
    { "adapter low = s some x a'",  make_low,           run_low_dropped, 0, 0, 0 },
    { "adapter da = back' some x",  make_low,           run_da_dropped, 0, 0, 0 },
    { "adapter dx += some back a",  make_low,           run_dx_dropped, 0, 0, 0 },
    { "experts low = s x a'",       make_adapted,       run_expert_low, 0, 0, 0 },
    { "experts low = s some x a'",  make_adapted,       run_dropped_low, 0, 0, 0 },
    { "experts back = s dy b",      make_adapted,       run_expert_back, 0, 0, 0 },
    { "experts da = back' x",       make_adapted,       run_expert_da, 0, 0, 0 },
    { "experts da = back' some x",  make_adapted,       run_dropped_da, 0, 0, 0 },
    { "experts db = dy' low",       make_adapted,       run_expert_db, 0, 0, 0 },
    { "experts y + swiglu",         make_moe,           run_moe_up, 0, 0, 0 },
    { "experts y + swiglu fp8",     make_moe_fp8,       run_moe_up_fp8, 0, 0, 0 },
    { "experts dx + swiglu bwd",    make_moe,           run_moe_down_bwd, 0, 0, 0 },
    { "experts dx + swiglu bwd fp8", make_moe_fp8,      run_moe_down_bwd_fp8, 0, 0, 0 },
    { "experts dx + swiglu bwd cols", make_moe_fp8,     run_moe_down_bwd_cols, 0, 0, 0 },
    { "expert layer fwd",           make_moe,           run_moe_fwd, 0, 0, 0 },
    { "expert layer fwd fp8",       make_moe_fp8,       run_moe_fwd_fp8, 0, 0, 0 },
    { "expert layer fwd + bwd",     make_moe,           run_moe, 0, 0, 0 },
    { "expert layer fwd + bwd fp8", make_moe_fp8,       run_moe_fp8, 0, 0, 0 },
    { "expert layer fwd + bwd, dw fp8", make_moe_fp8,   run_moe_all_fp8, 0, 0, 0 },
    { "frozen experts fwd + bwd",   make_moe,           run_frozen, 0, 0, 0 },
    { "adapted y + swiglu",         make_adapted,       run_adapted_up, 0, 0, 0 },
    { "adapted dx + swiglu bwd",    make_adapted,       run_adapted_down_bwd, 0, 0, 0 },
    { "adapted dx + swiglu, some",  make_adapted,       run_dropped_down_bwd, 0, 0, 0 },
    { "adapted dx = dy w",          make_adapted,       run_adapted_dx, 0, 0, 0 },
    { "adapted dx = dy w, some",    make_adapted,       run_dropped_dx, 0, 0, 0 },
    { "adapted experts fwd",        make_adapted,       run_adapted_fwd, 0, 0, 0 },
    { "adapted experts fwd + bwd",  make_adapted,       run_adapted, 0, 0, 0 },
    { "attention causal fwd",       make_attention,     run_attention, 0, 0, 0 },
    { "attention causal bwd",       make_attention_bwd, run_attention_bwd, 0, 0, 0 },
    { "attention ragged fwd",       make_ragged,        run_attention, 0, 0, 0 },
    { "attention ragged bwd",       make_ragged_bwd,    run_attention_bwd, 0, 0, 0 },
    { "attention one document fwd", make_long,          run_attention, 0, 0, 0 },
    { "attention one document bwd", make_long_bwd,      run_attention_bwd, 0, 0, 0 },
    { "attention latent fwd",       make_attention_latent, run_attention, 0, 0, 0 },
    { "attention latent bwd",       make_latent_bwd,    run_attention_bwd, 0, 0, 0 },
    { "attention latent ragged fwd", make_latent_ragged, run_attention, 0, 0, 0 },
    { "attention latent ragged bwd", make_latent_ragged_bwd, run_attention_bwd, 0, 0, 0 },
    { "attention window fwd",       make_attention_window, run_attention, 0, 0, 0 },
    { "attention window bwd",       make_window_bwd,    run_attention_bwd, 0, 0, 0 },
    { "attention 256 wide fwd",     make_attention_wide, run_attention, 0, 0, 0 },
    { "attention 256 wide bwd",     make_wide_bwd,      run_attention_bwd, 0, 0, 0 },
    { "delta rule fwd",             make_delta_rule,    run_delta_rule, 0, 0, 0 },
    { "delta rule bwd",             make_delta_rule,    run_delta_rule_bwd, 0, 0, 0 },
    { "attention vision fwd",       make_vision,        run_attention, 0, 0, 0 },
    { "attention vision bwd",       make_vision_bwd,    run_attention_bwd, 0, 0, 0 },
    { "rmsnorm fwd",                make_norm,          run_rms, 0, 0, 0 },
    { "rmsnorm bwd",                make_norm,          run_rms_bwd, 0, 0, 0 },
    { "layernorm fwd",              make_norm,          run_layer, 0, 0, 0 },
    { "layernorm bwd",              make_norm,          run_layer_bwd, 0, 0, 0 },
    { "q/k norm + rope fwd",        make_rope,          run_rope, 0, 0, 0 },
    { "q/k norm + rope bwd",        make_rope_bwd,      run_rope_bwd, 0, 0, 0 },
    { "swiglu fwd",                 make_act,           run_swiglu, 0, 0, 0 },
    { "swiglu bwd",                 make_act,           run_swiglu_bwd, 0, 0, 0 },
    { "gelu tanh fwd",              make_act,           run_gelu, 0, 0, 0 },
    { "gelu tanh bwd",              make_act,           run_gelu_bwd, 0, 0, 0 },
    { "gelu erf fwd",               make_act,           run_gelu_erf, 0, 0, 0 },
    { "router: logits + top-k",     make_router,        run_router_all, 0, 0, 0 },
    { "top-k alone",                bench_route,         run_router, 0, 0, 0 },
    { "router bwd",                 make_route_bwd,     run_route_bwd, 0, 0, 0 },
    { "sort by expert",             bench_route,         run_index, 0, 0, 0 },
    { "permute (rows to experts)",  make_permute,       run_permute, 0, 0, 0 },
    { "permute with codes",         make_moe_fp8,       run_expand_fp8, 0, 0, 0 },
    { "permute to codes alone",     make_moe_fp8,       run_expand_codes, 0, 0, 0 },
    { "permute to columns of codes", make_moe_fp8,      run_columns_fp8, 0, 0, 0 },
    { "combine (sum K rows)",       make_permute,       run_combine, 0, 0, 0 },
    { "cross entropy fwd",          make_ce,            run_ce, 0, 0, 0 },
    { "cross entropy bwd",          make_ce,            run_ce_bwd, 0, 0, 0 },
    { "cross entropy fwd + bwd",    make_ce,            run_ce_grad, 0, 0, 0 },
    { "tokens to fp8",              make_quantize,      run_quantize_rows, 0, 0, 0 },
    { "expert weights to fp8",      make_quantize,      run_quantize_weight, 0, 0, 0 },
    { "expert codes transposed",    make_quantize,      run_transpose_codes, 0, 0, 0 },
    { "tokens packed to travel",    make_packed,        run_pack_rows,  0, 0, 0 },
    { "tokens unpacked",            make_packed,        run_unpack_rows, 0, 0, 0 },
    { "norm of gradients",          make_squares,       run_squares, 0, 0, 0 },
    { "adamw",                      make_adam,          run_adam, 0, 0, 0 },
    { "adamw split, bf16",          make_adam_fp8,      run_adam_split, 0, 0, 0 },
    { "adamw split, then to fp8",   make_adam_fp8,      run_adam_then_fp8, 0, 0, 0 },
    { "adamw split, with fp8",      make_adam_fp8,      run_adam_fp8, 0, 0, 0 },
};

/* The dense products and the experts of Qwen3-VL-30B-A3B by M, N, K; a packed step of 32,768 tokens, 16,384
 * patches. */
static const Bench card_benches[] = {
    { "qkv y = x w'",               make_gemm,          run_gemm_nt,    32768, 5120, 2048 },
    { "qkv y fp8",                  make_fp8_dense,     run_fp8_dense,  32768, 5120, 2048 },
    { "qkv dx = dy w",              make_gemm,          run_gemm_nn,    32768, 2048, 5120 },
    { "qkv dx fp8",                 make_fp8_dense,     run_fp8_dense,  32768, 2048, 5120 },
    { "qkv dw = dy' x",             make_gemm,          run_gemm_tn,    5120, 2048, 32768 },
    { "out y = x w'",               make_gemm,          run_gemm_nt,    32768, 2048, 4096 },
    { "out y fp8",                  make_fp8_dense,     run_fp8_dense,  32768, 2048, 4096 },
    { "out y fp8 + residual",       make_fp8_dense,     run_fp8_residual, 32768, 2048, 4096 },
    { "out dx = dy w",              make_gemm,          run_gemm_nn,    32768, 4096, 2048 },
    { "out dw = dy' x",             make_gemm,          run_gemm_tn,    2048, 4096, 32768 },
    { "head y = x w'",              make_gemm,          run_gemm_nt,    8192, 151936, 2048 },
    { "head y fp8",                 make_fp8_dense,     run_fp8_dense,  8192, 151936, 2048 },
    { "head dx = dy w",             make_gemm,          run_gemm_nn,    8192, 2048, 151936 },
    { "head dx fp8",                make_fp8_dense,     run_fp8_dense,  8192, 2048, 151936 },
    { "head dw = dy' x",            make_gemm,          run_gemm_tn,    151936, 2048, 8192 },
    { "router y = x w'",            make_gemm,          run_gemm_nt,    32768, 128, 2048 },
    { "router dw = dy' x",          make_gemm,          run_gemm_tn,    128, 2048, 32768 },
    { "tower qkv y = x w'",         make_gemm,          run_gemm_nt,    16384, 3456, 1152 },
    { "tower qkv dw",               make_gemm,          run_gemm_tn,    3456, 1152, 16384 },
    { "tower up y = x w'",          make_gemm,          run_gemm_nt,    16384, 4304, 1152 },
    { "tower up y fp8",             make_fp8_dense,     run_fp8_dense,  16384, 4304, 1152 },
    { "tower up dx = dy w",         make_gemm,          run_gemm_nn,    16384, 1152, 4304 },
    { "tower up dw",                make_gemm,          run_gemm_tn,    4304, 1152, 16384 },
    { "tower down y = x w'",        make_gemm,          run_gemm_nt,    16384, 1152, 4304 },
    { "tower down y fp8",           make_fp8_dense,     run_fp8_dense,  16384, 1152, 4304 },
    { "tower down dx = dy w",       make_gemm,          run_gemm_nn,    16384, 4304, 1152 },
    { "experts gate, up y = x w'",  make_experts,       run_experts_nt, 0, 1536, 2048 },
    { "experts gate, up y fp8",     make_fp8_experts,   run_fp8_y,      0, 1536, 2048 },
    { "experts gate, up x to fp8 + y", make_fp8_experts, run_fp8_quantize_y, 0, 1536, 2048 },
    { "experts gate, up dx = dy w", make_experts,       run_experts_nn, 0, 1536, 2048 },
    { "experts gate, up dx fp8",    make_fp8_experts,   run_fp8_dx,     0, 1536, 2048 },
    { "experts gate, up dw",        make_experts,       run_experts_tn, 0, 1536, 2048 },
    { "experts gate, up dw fp8",    make_fp8_dw,        run_fp8_dw,     0, 1536, 2048 },
    { "experts down y = x w'",      make_experts,       run_experts_nt, 0, 2048, 768 },
    { "experts down y fp8",         make_fp8_experts,   run_fp8_y,      0, 2048, 768 },
    { "experts down dx = dy w",     make_experts,       run_experts_nn, 0, 2048, 768 },
    { "experts down dx fp8",        make_fp8_experts,   run_fp8_dx,     0, 2048, 768 },
    { "experts down dw",            make_experts,       run_experts_tn, 0, 2048, 768 },
    { "experts down dw fp8",        make_fp8_dw,        run_fp8_dw,     0, 2048, 768 },
};

const Setup setup_cpu = { .T = 4096, .D = 1024, .F = 384, .E = 128, .K = 8, .H = 16, .G = 4, .C = 64,
                                 .V = 32768, .P = 4096, .docs = 2, .images = 8, .VH = 16, .VC = 64,
                                 .rows = 512 };
const Setup setup_gpu = { .T = 32768, .D = 2048, .F = 768, .E = 128, .K = 8, .H = 32, .G = 4,
                                  .C = 128, .V = 151936, .P = 16384, .docs = 8, .images = 8, .VH = 16,
                                  .VC = 72, .rows = 8192 };

enum { BENCHES = sizeof benches / sizeof *benches };
enum { CARD_BENCHES = sizeof card_benches / sizeof *card_benches };

BenchList bench_list(void)     { return (BenchList){ benches, BENCHES }; }
BenchList bench_products(void) { return (BenchList){ card_benches, CARD_BENCHES }; }

const Bench *bench_find(const char *name)
{
    BenchList l = bench_list();
    for (int i = 0; i < l.n; i++)
        if (!strcmp(l.at[i].name, name)) return &l.at[i];
    bug(__FILE__, __LINE__, "a name of bench_list", "%s", name);
}

/* One call with nothing behind it, where an op chooses how it will be done. */
static Status get_ready(Backend *be, const Bench *b, Case *c)
{
    if (!backend_prepares(be)) return OK;
    TRY(backend_prepare(be, true));
    b->run(c);
    return backend_prepare(be, false);
}

static int op_of(const Ledger *l)
{
    int64_t all = l->by_part[PART_VISION].bytes;
    for (int i = 0; i < OP_N; i++)
        if (l->op[i].bytes * 10 > all * 9) return i;
    return OP_N;
}

/* The same call beside a kernel that holds SMs. */
static Status time_held(double *seconds, const Setup *s, const Bench *b, Case *c, int repeats)
{
    TRY(hold_sms((int)s->held_sms));
    *seconds = bench_median(s->be, b->run, c, repeats);
    release_sms();
    return OK;
}

/* The energy of a call, measured over calls for so long that the counter of the GPU, which moves every 20 to
 * 100 ms, is exact to some percent. */
static Energy energy_of(const Setup *s, const Bench *b, Case *c, double seconds)
{
    const double long_enough = 0.4;
    EnergyMeter  m;
    int64_t      calls = 0, batch = (int64_t)(0.02 / seconds) + 1;
    double       from = clock_now();
    energy_start(&m, s->be);
    while (m.running && clock_now() - from < long_enough) {
        for (int64_t i = 0; i < batch; i++, calls++) b->run(c);
        if (backend_sync(s->be)) break;
    }
    Energy e = energy_stop(&m);
    if (calls) e.joules /= (double)calls, e.seconds /= (double)calls;
    return e;
}

Status bench_time(Timing *out, const Setup *s, const Bench *b, int repeats)
{
    Case      c = { .s = s, .m = b->m, .n = b->n, .k = b->k };
    ArenaMark mark = arena_mark(s->a);
    b->make(&c);
    TRY(get_ready(s->be, b, &c));
    ledger_clear(&s->be->ledger);
    b->run(&c);
    LedgerRow w = s->be->ledger.by_part[PART_VISION];            /* a cleared ledger charges its first part */
    *out = (Timing){ .flops = w.flops + w.extra, .bytes = w.bytes, .op = op_of(&s->be->ledger) };
    out->seconds = (s->best ? bench_best : bench_median)(s->be, b->run, &c, repeats);
    if (s->energy) out->energy = energy_of(s, b, &c, out->seconds);
    Status st = s->held_sms ? time_held(&out->held_seconds, s, b, &c, repeats) : OK;
    arena_reset(s->a, mark);
    return st ? st : backend_sync(s->be);
}
