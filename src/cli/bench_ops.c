/* cli/bench_ops.c -- `treb bench ops`: every op at a training size against its floor.
 *
 * The floor of an op is the larger of its FLOPs over the sgemm rate and its bytes over the copy rate, both
 * measured in this run; the price is the one the ledger charges. A ratio of 1 is as good as it gets, for an
 * op whose data does not stay in cache. */
#include "cli/bench.h"
#include "cli/options.h"

#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct Setup {
    Backend *be;
    Arena   *a;
    DType    d;
    int64_t  T, D, F, E, K, H, G, C, V, P;
} Setup;

typedef struct Case { const Setup *s; Tensor t[12]; Segments seg; } Case;

/* A row: how to lay out its tensors (inputs are random, never zeros), and one call. */
typedef struct Bench { const char *name; void (*make)(Case *c); BenchFn *run; } Bench;

static Tensor randn(const Setup *s, DType d, int64_t rows, int64_t cols)
{
    Tensor t = t2(s->a, "bench", d, rows, cols);
    ArenaMark mark = arena_mark(s->a);
    Tensor f = d == F32 ? t : t2(s->a, "bench", F32, rows, cols);
    rng_fill_normal(f.data, rows * cols, 7, (uint64_t)mark.used, 0, 0.0f, 1.0f);
    if (d != F32) op_copy(s->be, t, f);
    arena_reset(s->a, mark);
    return t;
}
static Tensor blank(const Setup *s, DType d, int64_t rows, int64_t cols)
{
    Tensor t = t2(s->a, "bench", d, rows, cols);
    memset(t.data, 0, (size_t)t_bytes(t));
    return t;
}

static void make_gemm(Case *c)
{
    const Setup *s = c->s;
    c->t[0] = blank(s, s->d, 2048, 2048), c->t[1] = randn(s, s->d, 2048, 2048),
    c->t[2] = randn(s, s->d, 2048, 2048);
}
static void run_gemm_nt(void *p)
{
    Case *c = p;
    op_gemm(c->s->be, c->t[0], c->t[1], c->t[2], (Tensor){ 0 }, GEMM_NT);
}
static void run_gemm_nn(void *p)
{
    Case *c = p;
    op_gemm(c->s->be, c->t[0], c->t[1], c->t[2], (Tensor){ 0 }, GEMM_NN);
}
static void run_gemm_tn(void *p)
{
    Case *c = p;
    op_gemm(c->s->be, c->t[0], c->t[1], c->t[2], (Tensor){ 0 }, GEMM_TN);
}

/* A routing as a trained router makes it: uneven, every expert used. */
static void make_route(Case *c)
{
    const Setup *s = c->s;
    c->t[6]  = randn(s, F32, s->T, s->E);                                    /* logits */
    c->t[7] = blank(s, I32, s->T, s->K), c->t[8] = blank(s, F32, s->T, s->K),
    c->t[9]  = blank(s, F32, s->T, 1);
    c->t[10] = blank(s, I32, s->T, s->K), c->t[11] = blank(s, I32, s->T * s->K, 1);
    c->t[5]  = blank(s, I32, s->E + 1, 1);
    op_router_fwd(s->be, c->t[7], c->t[8], c->t[9], c->t[6], true);
    op_moe_index(s->be, c->t[5], c->t[10], c->t[11], c->t[7]);
}
static void run_router(void *p)
{
    Case *c = p;
    op_router_fwd(c->s->be, c->t[7], c->t[8], c->t[9], c->t[6], true);
}
static void make_router(Case *c)
{
    make_route(c);
    c->t[1] = randn(c->s, c->s->d, c->s->T, c->s->D), c->t[2] = randn(c->s, c->s->d, c->s->E, c->s->D);
}
static void run_router_all(void *p)
{
    Case *c = p;
    op_gemm(c->s->be, c->t[6], c->t[1], c->t[2], (Tensor){ 0 }, GEMM_NT);
    run_router(p);
}
static void run_index(void *p)  { Case *c = p; op_moe_index(c->s->be, c->t[5], c->t[10], c->t[11], c->t[7]); }
static void make_route_bwd(Case *c)
{
    make_route(c);
    c->t[0] = blank(c->s, F32, c->s->T, c->s->E), c->t[1] = randn(c->s, F32, c->s->T, c->s->K);
}
static void run_route_bwd(void *p)
{
    Case *c = p;
    op_router_bwd(c->s->be, c->t[0], c->t[1], c->t[8], c->t[7], c->t[6], c->t[9], (Tensor){ 0 },
                  (Tensor){ 0 }, 0.0f, true);
}
static void make_permute(Case *c)
{
    make_route(c);
    c->t[0] = blank(c->s, c->s->d, c->s->T * c->s->K, c->s->D),
    c->t[1] = randn(c->s, c->s->d, c->s->T, c->s->D);
}
static void run_gather(void *p)
{
    Case *c = p;
    op_gather_rows(c->s->be, c->t[0], c->t[1], c->t[11], c->s->K);
}
static void run_combine(void *p)
{
    Case *c = p;
    op_combine(c->s->be, c->t[1], c->t[0], c->t[10], (Tensor){ 0 });
}

static void make_experts(Case *c)
{
    const Setup *s = c->s;
    int64_t R = s->T * s->K, n[3] = { s->E, s->F, s->D };
    make_route(c);
    Tensor w = randn(s, s->d, s->E * s->F, s->D), g = blank(s, F32, s->E * s->F, s->D);
    c->t[0] = randn(s, s->d, R, s->F), c->t[1] = randn(s, s->d, R, s->D);
    c->t[2] = t_wrap(w.data, s->d, 3, n), c->t[3] = t_wrap(g.data, F32, 3, n);
}
static void run_experts_nt(void *p)
{
    Case *c = p;
    op_grouped_gemm(c->s->be, c->t[0], c->t[1], c->t[2], c->t[5], GEMM_NT);
}
static void run_experts_nn(void *p)
{
    Case *c = p;
    op_grouped_gemm(c->s->be, c->t[1], c->t[0], c->t[2], c->t[5], GEMM_NN);
}
static void run_experts_tn(void *p)
{
    Case *c = p;
    op_grouped_gemm(c->s->be, c->t[3], c->t[0], c->t[1], c->t[5], GEMM_TN);
}

static void segments(Case *c, int64_t rows, int64_t n, bool causal)
{
    Tensor starts = t1(c->s->a, "bench", I32, n + 1);
    int64_t len = rows / n;
    for (int64_t i = 0; i <= n; i++) ((int32_t *)starts.data)[i] = (int32_t)(i * len);
    double pairs = causal ? (double)len * (double)(len + 1) / 2 : (double)len * (double)len;
    c->seg = (Segments){ .starts = starts, .n = n, .longest = len, .pairs = (double)n * pairs,
                         .causal = causal };
}
static Tensor heads(Case *c, int64_t rows, int64_t n)
{
    return t_heads(randn(c->s, c->s->d, rows, n * c->s->C), 0, n, c->s->C);
}

static void make_attention_of(Case *c, int64_t rows, int64_t H, int64_t G, int64_t n, bool causal)
{
    for (int i = 0; i < 8; i++) c->t[i] = heads(c, rows, i == 1 || i == 2 || i == 6 || i == 7 ? G : H);
    c->t[8] = blank(c->s, F32, H, rows), c->t[9] = blank(c->s, F32, H, rows);
    segments(c, rows, n, causal);
}
static void run_attention(void *p)
{
    Case *c = p;                                     /* q k v | o do dq | dk dv | lse delta */
    op_attention_fwd(c->s->be, c->t[3], c->t[8], c->t[0], c->t[1], c->t[2], c->seg,
                     1.0f / sqrtf((float)c->s->C));
}
static void make_attention(Case *c) { make_attention_of(c, c->s->T, c->s->H, c->s->G, 2, true); }
static void make_vision(Case *c)    { make_attention_of(c, c->s->P, c->s->H, c->s->H, 8, false); }
static void make_attention_bwd(Case *c) { make_attention(c), run_attention(c); }
static void make_vision_bwd(Case *c)    { make_vision(c), run_attention(c); }
static void run_attention_bwd(void *p)
{
    Case *c = p;
    op_attention_bwd(c->s->be, c->t[5], c->t[6], c->t[7], c->t[9], c->t[4], c->t[3], c->t[8], c->t[0],
                     c->t[1], c->t[2], c->seg, 1.0f / sqrtf((float)c->s->C));
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
    c->t[0] = heads(c, s->T, s->H), c->t[1] = heads(c, s->T, s->H), c->t[2] = randn(s, s->d, 1, s->C);
    c->t[3] = blank(s, F32, s->T, s->H), c->t[4] = randn(s, F32, s->T, s->C);
}
static void run_rope(void *p)
{
    Case *c = p;
    op_rope_fwd(c->s->be, c->t[0], c->t[3], c->t[1], c->t[2], c->t[4], 1e-6f);
}

static void make_act(Case *c)
{
    const Setup *s = c->s;
    c->t[0] = blank(s, s->d, s->T, s->D), c->t[1] = randn(s, s->d, s->T, 2 * s->D),
    c->t[2] = randn(s, s->d, s->T, s->D);
    c->t[3] = blank(s, s->d, s->T, 2 * s->D);
}
static void run_swiglu(void *p)     { Case *c = p; op_swiglu_fwd(c->s->be, c->t[0], c->t[1], (Tensor){ 0 }); }
static void run_swiglu_bwd(void *p)
{
    Case *c = p;
    op_swiglu_bwd(c->s->be, c->t[3], (Tensor){ 0 }, c->t[2], c->t[1], (Tensor){ 0 });
}
static void run_gelu(void *p)       { Case *c = p; op_gelu_fwd(c->s->be, c->t[0], c->t[2], GELU_TANH); }
static void run_gelu_erf(void *p)   { Case *c = p; op_gelu_fwd(c->s->be, c->t[0], c->t[2], GELU_ERF); }

static void make_ce(Case *c)
{
    const Setup *s = c->s;
    c->t[0] = randn(s, F32, 512, s->V), c->t[1] = blank(s, F32, 512, 1),
    c->t[2] = t1(s->a, "bench", I32, 512);
    c->t[3] = t1(s->a, "bench", F64, 1), c->t[4] = blank(s, F32, 512, s->V);
    for (int i = 0; i < 512; i++) ((int32_t *)c->t[2].data)[i] = i;
}
static void run_ce(void *p)
{
    Case *c = p;
    op_ce_fwd(c->s->be, c->t[3], c->t[1], c->t[0], c->t[2], 1.0f);
}
static void run_ce_bwd(void *p)
{
    Case *c = p;
    op_ce_bwd(c->s->be, c->t[4], c->t[0], c->t[1], c->t[2], 1.0f);
}

static void make_adam(Case *c)
{
    for (int i = 0; i < 4; i++) c->t[i] = randn(c->s, F32, 8192, 2048);
    op_fill(c->s->be, c->t[2], 1.0f);
}
static void run_adam(void *p)
{
    Case *c = p;
    op_adamw(c->s->be, c->t[0], (Tensor){ 0 }, c->t[1], c->t[2], c->t[3], (Tensor){ 0 },
             (AdamW){ 1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.0f, 3 });
}

static const Bench benches[] = {
    { "gemm y = x w'",              make_gemm,          run_gemm_nt },
    { "gemm dx = dy w",             make_gemm,          run_gemm_nn },
    { "gemm dw = dy' x",            make_gemm,          run_gemm_tn },
    { "experts y = x w'",           make_experts,       run_experts_nt },
    { "experts dx = dy w",          make_experts,       run_experts_nn },
    { "experts dw = dy' x",         make_experts,       run_experts_tn },
    { "attention causal fwd",       make_attention,     run_attention },
    { "attention causal bwd",       make_attention_bwd, run_attention_bwd },
    { "attention vision fwd",       make_vision,        run_attention },
    { "attention vision bwd",       make_vision_bwd,    run_attention_bwd },
    { "rmsnorm fwd",                make_norm,          run_rms },
    { "rmsnorm bwd",                make_norm,          run_rms_bwd },
    { "layernorm fwd",              make_norm,          run_layer },
    { "layernorm bwd",              make_norm,          run_layer_bwd },
    { "q/k norm + rope fwd",        make_rope,          run_rope },
    { "swiglu fwd",                 make_act,           run_swiglu },
    { "swiglu bwd",                 make_act,           run_swiglu_bwd },
    { "gelu tanh fwd",              make_act,           run_gelu },
    { "gelu erf fwd",               make_act,           run_gelu_erf },
    { "router: logits + top-k",     make_router,        run_router_all },
    { "top-k alone",                make_route,         run_router },
    { "router bwd",                 make_route_bwd,     run_route_bwd },
    { "sort by expert",             make_route,         run_index },
    { "permute (gather rows)",      make_permute,       run_gather },
    { "combine (sum K rows)",       make_permute,       run_combine },
    { "cross entropy fwd",          make_ce,            run_ce },
    { "cross entropy bwd",          make_ce,            run_ce_bwd },
    { "adamw",                      make_adam,          run_adam },
};
enum { BENCHES = sizeof benches / sizeof *benches };

typedef struct Result { double ms, floor_ms, gflops, gbs; } Result;

static Result measure(const Setup *s, const Bench *b, Ceiling top, int repeats)
{
    Case c = { .s = s };
    ArenaMark mark = arena_mark(s->a);
    b->make(&c);
    ledger_clear(&s->be->ledger);
    b->run(&c);
    LedgerRow w = s->be->ledger.by_part[PART_VISION];            /* a cleared ledger charges its first part */
    double sec = bench_median(b->run, &c, repeats), work = w.flops + w.extra;
    Result    r = { sec * 1e3, fmax(work / top.gflops, (double)w.bytes / top.gbs) / 1e6, work / sec / 1e9,
                    (double)w.bytes / sec / 1e9 };
    arena_reset(s->a, mark);
    return r;
}

static void show(const char *name, Result r)
{
    printf("%-24s %9.2f ms  floor %9.2f ms  ratio %5.2f  %8.1f GFLOP/s  %6.1f GB/s\n", name, r.ms, r.floor_ms,
           r.ms / r.floor_ms, r.gflops, r.gbs);
    fflush(stdout);
}

static Json *row_json(const char *name, Result r)
{
    return json_pack("{s:s, s:f, s:f, s:f}", "op", name, "ms", r.ms, "floor_ms", r.floor_ms, "ratio",
                     r.ms / r.floor_ms);
}

static Status run_all(Setup *s, Json *rows, int repeats)
{
    Ceiling top = bench_ceiling(s->be, s->a);
    if (!rows)
        printf("%s  ceilings of this run: sgemm %.1f GFLOP/s, copy %.1f GB/s\n", dtype_name(s->d), top.gflops,
               top.gbs);
    for (int i = 0; i < BENCHES; i++) {
        Result r = measure(s, &benches[i], top, repeats);
        if (rows) json_array_append_new(rows, row_json(benches[i].name, r));
        else      show(benches[i].name, r);
        TRY(backend_sync(s->be));
    }
    return OK;
}

Status bench_ops(int argc, char **argv)
{
    bool json = false;
    const char *dtype = "f32", *repeat = "7";
    const Option options[] = {
        { "--json", NULL, &json }, { "--dtype", &dtype, NULL }, { "--repeat", &repeat, NULL }, { 0 }
    };
    int64_t repeats;
    Backend be = { 0 };
    Arena a = { 0 };
    Setup   s  = { .be = &be,
                   .a  = &a,
                   .T  = 4096,
                   .D  = 1024,
                   .F  = 384,
                   .E  = 128,
                   .K  = 8,
                   .H  = 16,
                   .G  = 4,
                   .C  = 64,
                   .V  = 32768,
                   .P  = 4096 };
    TRY(options_parse(argc, argv, options, NULL, 0));
    TRY(option_int("--repeat", repeat, 1, 99, &repeats));
    TRY(dtype_parse(&s.d, dtype));
    if (s.d != F32 && s.d != BF16) return fail(E_CONFIG, "--dtype %s: f32 or bf16", dtype);
    TRY(backend_open(&be, "cpu"));
    Status st = backend_arena_open(&be, &a, "bench", (size_t)6 << 30);
    Json *rows = json ? json_array() : NULL;
    if (!st) st = run_all(&s, rows, (int)repeats);
    if (rows) json_dumpf(rows, stdout, JSON_INDENT(2)), putchar('\n'), json_decref(rows);
    backend_arena_close(&be, &a);
    backend_close(&be);
    return st;
}
