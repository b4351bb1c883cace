/* LoRA products on the GPU against the CPU: scaled products, products with a LoRA term, narrow products and
 * their gradients, all with and without dropout, with the GPU to themselves and not. */
#include "grouplab.h"

static const int modes[] = { GEMM_NT, GEMM_NN, GEMM_TN };

/* Weights per expert, or one for all, for the mode. */
static Tensor weights(DType d, int64_t E, int64_t N, int64_t K, int mode, bool shared, Layout l)
{
    return mode == GEMM_NT ? in3(d, shared ? 1 : E, N, K, l) : in3(d, shared ? 1 : E, K, N, l);
}

static Tensor out_of(DType d, int64_t rows, int64_t cols, Layout l, int flags)
{
    Tensor c = out2(d, rows, cols, l);
    if (flags & GEMM_ACC) gpu_normal(c, 0, 1);
    at_least(c, 1);
    return c;
}

/* Half the calls have no dropout; of the others most begin at a multiple of `on` columns, as the fast kernels
 * need. */
static Dropout drop_by_value(int64_t on)
{
    if (maybe()) return (Dropout){ 0 };
    return (Dropout){ (float[]){ 0.05f, 0.3f, 0.5f, 0.9f }[num_below(4)], (uint64_t)num_below(1 << 20) << 30,
                   (uint64_t)num_below(99) << 35, num_below(1 << 20),
                   num_below(4) ? on * num_below(9) : num_below(99), NULL };
}

/* Half the seeds lie in memory, among the tensors of the call: after fresh(). */
static Dropout any_base(Dropout d)
{
    if (!(d.p > 0) || maybe()) return d;
    uint64_t *base = t1(&num_.a, "lab", F64, 1).data;
    *base  = (uint64_t)num_below(1 << 30) << 20;
    d.base = base;
    return d;
}

static Dropout any_drop(int64_t on) { return any_base(drop_by_value(on)); }

/* The second run of a call is alone, beside a kernel that holds SMs, or leaves SMs free. */
static void share_gpu(void)
{
    int i = (int)num_below(3);
    gpu_share((int[]){ 0, 16, 0 }[i], (int[]){ 0, 0, 40 }[i]);
}

/* Operands of a product in NT or NN, with weights of each expert or one for all. */
typedef struct Product { Tensor off, a, b, c; int64_t used; } Product;

static Product product(Shape x, Share s, int flags, DType in, DType out, Layout l, bool shared)
{
    Product p;
    fresh(), share_gpu();
    p.off  = offsets_of(s, x.E, x.most);
    p.used = rows_used(p.off);
    p.a = routed(in, p.used, x.spare, x.K, l), p.b = weights(in, x.E, x.N, x.K, flags & GEMM_MODE, shared, l);
    p.c = out_of(out, p.used + x.spare, x.N, l, flags);
    return p;
}

static void with_tail(Shape x, int64_t r, Share s, int flags, DType in, DType out, Layout l, bool shared)
{
    Product p = product(x, s, flags, in, out, l, false);
    LoraTerm    lora = { routed(in, p.used, x.spare, r, l),
                     weights(in, x.E, x.N, r, flags & GEMM_MODE, shared, l),
                     (flags & GEMM_MODE) == GEMM_NN ? any_drop(32) : (Dropout){ 0 } };
    CALL(grouped_gemm, p.c, p.a, p.b, p.off, lora, flags);
}

/* Forward and backward with the activation; padding rows only for the fast path, which does not write
 * them. */
static void fused_with_lora(Shape x, int64_t r, Share s, DType d, Layout l, bool shared)
{
    for (int back = 0; back < 2; back++) {
        fresh(), share_gpu();
        Tensor  off = offsets_of(s, x.E, x.most);
        int64_t used = rows_used(off), R = used + x.spare, S = shared ? 1 : x.E;
        Tensor  gate = in2(F32, R, 1, l), a = routed(d, used, x.spare, x.K, l);
        LoraTerm    lora = { .low_rank = routed(d, used, x.spare, r, l) };
        Tensor  wide = out_of(d, R, 2 * x.N, l, 0), w, slim, gu;
        times(wide, d == BF16 ? 2 : 1);                     /* dh has been rounded */
        if (!back) {
            w    = in3(d, x.E, 2 * x.N, x.K, l), lora.w = in3(d, S, 2 * x.N, r, l);
            slim = out_of(d, R, x.N, l, 0);
            times(slim, d == BF16 ? 2 : 1);
            CALL(grouped_swiglu, wide, slim, a, w, off, gate, lora);
        } else {
            w    = in3(d, x.E, x.K, x.N, l), lora.w = in3(d, S, r, x.N, l);
            gu   = in2(d, R, 2 * x.N, l), lora.dropout = any_drop(32);
            if (x.spare) lora.dropout.col -= lora.dropout.col % 32;
            slim = out_of(F32, R, 1, l, 0);
            if (d == BF16) within(slim, (Tolerance){ 2e-3, 4e-3, 1e-2, 1 });
            CALL(grouped_dswiglu, wide, slim, a, w, off, gu, gate, lora);
        }
    }
}

static void scaled(Shape x, Share s, int flags, DType in, DType out, Layout l, bool shared, float scale)
{
    Product p = product(x, s, flags, in, out, l, shared);
    Dropout    drop = any_drop((flags & GEMM_MODE) == GEMM_NN ? 32 : 8);
    CALL(grouped_scaled, p.c, p.a, p.b, p.off, scale, drop, flags);
}

/* c (E, M, N), or their sum. */
static void gradient(Shape x, Share s, int64_t M, bool acc, DType in, DType out, Layout l, bool shared)
{
    fresh(), share_gpu();
    Tensor  off = offsets_of(s, x.E, x.most);
    int64_t used = rows_used(off);
    Tensor  a = routed(in, used, x.spare, M, l), b = routed(in, used, x.spare, x.N, l);
    Tensor  c = out3(out, shared ? 1 : x.E, M, x.N, l);
    if (acc) gpu_normal(c, 0, 1);
    at_least(c, 1);
    if (acc && out == BF16) added_rounded(c);
    Dropout    drop = any_drop(8);
    float   scale = maybe() ? 1.0f : -0.5f;
    CALL(grouped_scaled, c, a, b, off, scale, drop, GEMM_TN | (acc ? GEMM_ACC : 0));
}

static Share any_share(void)  { return (Share)num_below(SHARES); }
static int   any_mode(void)   { return modes[num_below(2)] | (maybe() ? GEMM_ACC : 0); }
static int64_t any_rank(void) { return (int64_t[]){ 1, 3, 8, 16, 24, 64, 72, 136 }[num_below(8)]; }

static void lora_terms_of_any_size(void)
{
    for (int i = 0; i < 60; i++)
        with_tail((Shape){ any_size(1, 9), any_size(1, 40), any_size(1, 90), any_size(1, 90), num_below(9) },
                  any_rank(), (Share)(i % SHARES), any_mode(), any_float(), any_float(), any_layout(),
                  maybe());
}

/* What the fast kernels take: ranks in eights, around the stages of 64 and the sixteens within them. */
static void lora_terms_in_eights(void)
{
    for (int r = 8; r <= 136; r += 8)
        for (int i = 0; i < 4; i++)
            with_tail((Shape){ 8, 48, 8 * any_size(1, 70), 8 * any_size(1, 50), 9 }, r, any_share(),
                      modes[i % 2] | (i / 2 && maybe() ? GEMM_ACC : 0), BF16, i / 2 ? any_float() : BF16,
                      maybe() ? DENSE : STRIDED, maybe());
}

/* Experts of 1,030 rows: clusters of two blocks. */
static void lora_terms_of_a_model(void)
{
    for (int i = 0; i < 2; i++) {
        bool  shared = maybe();
        Share s = i ? ZIPF : EVEN;
        with_tail((Shape){ 16, 128, 1536, 2048, 500 }, 16, s, GEMM_NT, BF16, BF16, DENSE, shared);
        with_tail((Shape){ 16, 128, 2048, 768, 500 }, 16, s, GEMM_NT, BF16, BF16, DENSE, shared);
        with_tail((Shape){ 16, 128, 2048, 1536, 500 }, 64, s, GEMM_NN, BF16, BF16, DENSE, shared);
    }
    with_tail((Shape){ 3, 1030, 264, 256, 7 }, 16, ZIPF, GEMM_NT, BF16, BF16, DENSE, maybe());
    with_tail((Shape){ 3, 1030, 264, 256, 7 }, 72, EVEN, GEMM_NN, BF16, BF16, DENSE, maybe());
    with_tail((Shape){ 128, 8, 256, 512, 0 }, 16, ANY, GEMM_NT, BF16, BF16, DENSE, false);
    with_tail((Shape){ 128, 8, 256, 512, 0 }, 16, ANY, GEMM_NN, BF16, BF16, DENSE, false);
    with_tail((Shape){ 4, 0, 128, 64, 33 }, 16, EVEN, GEMM_NT, BF16, BF16, DENSE, false);
}

static void fused_lora_terms(void)
{
    for (int i = 0; i < 30; i++)
        fused_with_lora((Shape){ any_size(1, 9), any_size(1, 40), any_size(1, 90), any_size(1, 90), 0 },
                        any_rank(), (Share)(i % SHARES), any_float(), any_layout(), maybe());
    for (int r = 8; r <= 136; r += 8)
        fused_with_lora((Shape){ 8, 48, 8 * any_size(1, 50), 8 * any_size(1, 50), 9 }, r, any_share(), BF16,
                        maybe() ? DENSE : STRIDED, maybe());
    fused_with_lora((Shape){ 16, 128, 768, 2048, 500 }, 16, ZIPF, BF16, DENSE, false);
    fused_with_lora((Shape){ 16, 128, 768, 1024, 500 }, 32, EDGES, BF16, DENSE, true);
    fused_with_lora((Shape){ 3, 1030, 264, 256, 7 }, 16, ZIPF, BF16, DENSE, maybe());
    fused_with_lora((Shape){ 140, 1, 128, 64, 5 }, 16, ONE_EACH, BF16, DENSE, false);
    fused_with_lora((Shape){ 4, 0, 128, 64, 33 }, 16, EVEN, BF16, DENSE, false);
}

static void scaled_rows(void)
{
    for (int i = 0; i < 60; i++)
        scaled((Shape){ any_size(1, 9), any_size(1, 40), any_rank(), any_size(1, 90), num_below(9) },
               (Share)(i % SHARES), any_mode(), any_float(), any_float(), any_layout(), maybe(), -0.375f);
    for (int i = 0; i < 60; i++)                             /* what the fast kernels take */
        scaled((Shape){ any_size(1, 12), 150, 8 * any_size(1, 20), 8 * any_size(1, 99), 9 },
               (Share)(i % SHARES), any_mode(), BF16, any_float(), maybe() ? DENSE : STRIDED, maybe(), 2.5f);
    for (int m = 0; m < 2; m++) {
        scaled((Shape){ 16, 700, 16, 2048, 500 }, ZIPF, modes[m], BF16, BF16, DENSE, false, 2);
        scaled((Shape){ 128, 100, 32, 768, 500 }, ANY, modes[m], BF16, BF16, DENSE, true, 2);
    }
    scaled((Shape){ 4, 0, 16, 64, 33 }, EVEN, GEMM_NT, BF16, BF16, DENSE, false, 2);
}

/* Narrow on either side; few experts, whose rows are cut in parts, and many. */
static void gradients(void)
{
    for (int i = 0; i < 80; i++) {
        int64_t slim = i % 5 ? 8 * any_size(1, 8) : any_rank(), wide = 8 * any_size(1, 80);
        gradient((Shape){ any_size(1, 12), any_size(1, 200), maybe() ? slim : wide, 0, num_below(20) },
                 (Share)(i % SHARES), maybe() ? slim : wide, maybe(), i % 7 ? BF16 : F32, any_float(),
                 maybe() ? DENSE : STRIDED, maybe());
    }
    for (int swapped = 0; swapped < 2; swapped++)
        for (int shared = 0; shared < 2; shared++) {
            gradient((Shape){ 16, 700, swapped ? 2048 : 16, 0, 500 }, ZIPF, swapped ? 16 : 2048, false, BF16,
                     F32, DENSE, shared);
            gradient((Shape){ 2, 1500, swapped ? 136 : 24, 0, 7 }, EVEN, swapped ? 24 : 136, shared, BF16,
                     floats[shared], STRIDED, false);
            gradient((Shape){ 128, 40, swapped ? 768 : 16, 0, 500 }, ANY, swapped ? 16 : 768, true, BF16, F32,
                     DENSE, shared);
            gradient((Shape){ 4, 0, swapped ? 128 : 16, 0, 33 }, EVEN, swapped ? 16 : 128, shared, BF16, F32,
                     DENSE, shared);
        }
}

static void dense(int flags, int64_t M, int64_t N, int64_t K, DType in, DType out, Layout l, float scale,
                  Dropout drop)
{
    int     mode = flags & GEMM_MODE;
    int64_t rows = mode == GEMM_TN ? K : M, cols = mode == GEMM_TN ? M : K;
    fresh(), gpu_share(0, 0);
    drop = any_base(drop);
    Tensor a = t_cols(in2(in, rows, (cols + 7) / 8 * 8, l), 0, cols);      /* strided */
    Tensor b = mode == GEMM_NT ? in2(in, N, K, l) : in2(in, K, N, l), c = out_of(out, M, N, l, flags);
    if (out == BF16 && flags & GEMM_ACC) times(c, 3);      /* the product may be rounded before it is added */
    CALL(gemm_scaled, c, a, b, scale, drop, flags);
}

static void dense_scaled(void)
{
    for (int i = 0; i < 120; i++) {
        int     flags = modes[i % 3] | (maybe() ? GEMM_ACC : 0);
        int64_t M = any_size(1, 300), N = maybe() ? any_rank() : any_size(1, 200), K = any_size(0, 200);
        dense(flags, M, N, K, any_float(), any_float(), any_layout(), i % 4 ? 0.125f : -3.0f,
              drop_by_value(8));
    }
}

/* Adapters of dense layers: the output of A, the gradient of A, the gradient of the input. */
static void dense_dropped(void)
{
    for (int i = 0; i < 20; i++) {
        int64_t T = any_size(1, 900), D = 8 * any_size(1, 150);
        int64_t r = maybe() ? 8 * any_size(1, 24) : any_size(1, 70);
        Layout  l = maybe() ? DENSE : STRIDED;
        int64_t    col = i % 3 ? 0 : 8 * any_size(0, 50);
        Dropout    d = { 0.25f, 7, 1 + (uint64_t)i, any_size(0, 5000), col, NULL };
        dense(GEMM_NT, T, r, D, BF16, any_float(), l, 2.5f, d);
        dense(GEMM_TN | (maybe() ? GEMM_ACC : 0), r, D, T, BF16, F32, l, 1, d);
        dense(GEMM_NN | GEMM_ACC, T, D, r, BF16, any_float(), l, i % 2 ? 1 : 0.5f, d);
    }
    Dropout d = { 0.05f, 1, 2, 3, 0, NULL };
    dense(GEMM_NT, 1500, 48, 2048, BF16, BF16, DENSE, 2, d);
    dense(GEMM_TN | GEMM_ACC, 16, 4304, 1500, BF16, F32, DENSE, 1, d);
    dense(GEMM_NN | GEMM_ACC, 1500, 4304, 16, BF16, BF16, DENSE, 1, d);
}

int main(void)
{
    gpulab_open();
    GPU_RUN(lora_terms_of_any_size);
    GPU_RUN(lora_terms_in_eights);
    GPU_RUN(lora_terms_of_a_model);
    GPU_RUN(fused_lora_terms);
    GPU_RUN(scaled_rows);
    GPU_RUN(gradients);
    GPU_RUN(dense_scaled);
    GPU_RUN(dense_dropped);
    return gpulab_report();
}
