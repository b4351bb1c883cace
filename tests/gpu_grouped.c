/* The experts' matrix products on the GPU against the CPU: many distributions of rows over experts. */
#include "grouplab.h"

static void product(Shape x, Share s, int flags, DType in, DType out, Layout l)
{
    int mode = flags & GEMM_MODE;
    fresh();
    x = sized(x);
    Tensor  off = offsets_of(s, x.E, x.most), a, b, c;
    int64_t used = rows_used(off), R = used + x.spare;
    a = routed(in, used, x.spare, x.K, l);
    if (mode == GEMM_TN)      b = routed(in, used, x.spare, x.N, l);
    else if (mode == GEMM_NT) b = in3(in, x.E, x.N, x.K, l);
    else                      b = in3(in, x.E, x.K, x.N, l);
    if (mode == GEMM_TN) c = out3(out, x.E, x.K, x.N, l);
    else                 c = out2(out, R, x.N, l);
    if (flags & GEMM_ACC) gpu_normal(c, 0, 1);
    at_least(c, 1);
    if (flags == (GEMM_TN | GEMM_ACC) && out == BF16) added_rounded(c);
    CALL(grouped_gemm, c, a, b, off, (LoraTerm){ 0 }, flags);
}

/* A weight gradient with the squares of its strips. */
static void product_squares(Shape x, Share s, DType in, Layout l)
{
    DType out = maybe() ? F32 : BF16;
    fresh();
    x = sized(x);
    Tensor  off = offsets_of(s, x.E, x.most);
    int64_t used = rows_used(off), n[] = { x.E, x.K, x.N }, parts = grouped_squares_parts(n);
    Tensor  a = routed(in, used, x.spare, x.K, l), b = routed(in, used, x.spare, x.N, l);
    Tensor  c = out3(out, x.E, x.K, x.N, DENSE), squares = output(gpu_new(F32, 1, &parts, DENSE, 0xff));
    at_least(c, 1), at_least(squares, 1);
    CALL(grouped_squares, c, squares, a, b, off);
}

/* The products fused with their activation, N = F, K = D. The separate ops leave padding rows undefined, so
 * only the fast path, which does not write them, gets any. */
static void fused(Shape x, Share s, DType d, Layout l, bool gated)
{
    x = sized(x);
    for (int back = 0; back < 2; back++) {
        fresh();
        Tensor  off = offsets_of(s, x.E, x.most), wide, slim, dgate = none, a, w, gu;
        int64_t used = rows_used(off), R = used + x.spare;
        Tensor  gate = gated ? in2(F32, R, 1, l) : none;
        a    = routed(d, used, x.spare, x.K, l);
        wide = out2(d, R, 2 * x.N, l);
        at_least(wide, 1);
        if (!back) {
            w    = in3(d, x.E, 2 * x.N, x.K, l);
            slim = out2(d, R, x.N, l);
            at_least(slim, 1);
            times(slim, d == BF16 ? 2 : 1);     /* g and u have each been rounded */
            CALL(grouped_swiglu, wide, slim, a, w, off, gate, (LoraTerm){ 0 });
        } else {
            w  = in3(d, x.E, x.K, x.N, l);
            gu = in2(d, R, 2 * x.N, l);
            if (gated) at_least(dgate = out2(F32, R, 1, l), 1);
            times(wide, d == BF16 ? 2 : 1);     /* dh has been rounded */
            if (gated && d == BF16) within(dgate, (Tolerance){ 2e-3, 4e-3, 1e-2, 1 });
            CALL(grouped_dswiglu, wide, dgate, a, w, off, gu, gate, (LoraTerm){ 0 });
        }
    }
}

static void fused_any_size(void)
{
    for (int i = 0; i < 40; i++)
        fused((Shape){ any_size(1, 9), any_size(1, 40), any_size(1, 90), any_size(1, 90), 0 },
              (Share)(i % SHARES), any_float(), any_layout(), maybe());
}

static void fused_tiles(void)
{
    for (int i = 0; i < 3 * SHARES; i++)
        fused((Shape){ 8, 48, 8 * any_size(1, 50), 8 * any_size(1, 50), 9 }, (Share)(i % SHARES), BF16,
              maybe() ? DENSE : STRIDED, maybe());
    fused((Shape){ 16, 128, 768, 1024, 500 }, ZIPF, BF16, DENSE, true);
    fused((Shape){ 16, 128, 256, 2048, 0 }, EDGES, BF16, DENSE, true);
    fused((Shape){ 140, 1, 128, 64, 5 }, ONE_EACH, BF16, DENSE, true);
    fused((Shape){ 4, 0, 128, 64, 33 }, EVEN, BF16, DENSE, true);
    fused((Shape){ 4, 0, 128, 64, 0 }, EVEN, F32, DENSE, true);
}

static const int modes[] = { GEMM_NT, GEMM_NN, GEMM_TN };

static void any_size_any_share(void)
{
    for (int i = 0; i < 90; i++) {
        Shape x = { any_size(1, 12), any_size(1, 40), any_size(1, 90), any_size(1, 90),
                    num_below(3) * num_below(40) };
        product(x, (Share)(i % SHARES), modes[i / SHARES % 3] | (maybe() ? GEMM_ACC : 0), any_float(),
                any_float(), any_layout());
    }
}

/* Widths that the fast path takes, with every border of its tiles. */
static void tails_of_tiles(void)
{
    for (int m = 0; m < 3; m++)
        for (int d = 0; d < 2; d++)
            for (int s = 0; s < SHARES; s++)
                product((Shape){ 8, 48, 128 + 64 * num_below(3), 64 + 64 * num_below(3), 64 }, (Share)s,
                        modes[m] | (maybe() ? GEMM_ACC : 0), floats[d], maybe() ? floats[d] : F32,
                        maybe() ? DENSE : STRIDED);
}

/* Multiples of 8 that are none of the tile. */
static void widths_off_the_tile(void)
{
    for (int m = 0; m < 3; m++)
        for (int i = 0; i < 4; i++)
            product((Shape){ 5, 70, 8 * any_size(1, 40), 8 * any_size(1, 40), 9 }, (Share)num_below(SHARES),
                    modes[m] | (maybe() ? GEMM_ACC : 0), BF16, any_float(), maybe() ? DENSE : STRIDED);
}

static void experts_of_a_model(void)
{
    static const Share shares[] = { EVEN, ZIPF, ONE_TAKES_ALL };
    for (int i = 0; i < 3; i++) {
        product((Shape){ 16, 128, 1536, 1024, 500 }, shares[i], GEMM_NT, BF16, BF16, DENSE);
        product((Shape){ 16, 128, 1024, 768, 500 }, shares[i], GEMM_NN, BF16, BF16, DENSE);
        product((Shape){ 16, 128, 768, 1024, 500 }, shares[i], GEMM_TN | GEMM_ACC, BF16, F32, DENSE);
    }
    product((Shape){ 128, 8, 256, 512, 0 }, ANY, GEMM_NT, BF16, BF16, DENSE);
    product((Shape){ 128, 8, 256, 512, 0 }, ANY, GEMM_TN | GEMM_ACC, BF16, F32, DENSE);
}

/* More than 1,024 rows an expert on average: clusters of two blocks compute them, weight gradients where c
 * has an even number of tiles along M. Of an expert with an odd number of tiles a block has one without rows;
 * ONE_TAKES_ALL leaves experts without rows. */
static void long_experts(void)
{
    static const Share shares[] = { EVEN, ZIPF, ONE_TAKES_ALL };
    for (int i = 0; i < 12; i++)
        product((Shape){ 3, 1030, 8 * any_size(9, 70), 128 + 8 * any_size(1, 34), 7 }, shares[i % 3],
                modes[i / 4] | (maybe() ? GEMM_ACC : 0), BF16, floats[maybe()], maybe() ? DENSE : STRIDED);
    for (int i = 0; i < 3; i++)
        fused((Shape){ 3, 1030, 8 * any_size(9, 50), 8 * any_size(9, 50), 7 }, shares[i], BF16,
              maybe() ? DENSE : STRIDED, maybe());
}

/* In tiles and clusters of them, narrow, and in f32; experts without rows have strips of zeros. */
static void squares_of_gradients(void)
{
    for (int i = 0; i < 2 * SHARES; i++) {
        product_squares((Shape){ any_size(1, 9), 48, 8 * any_size(10, 60), 8 * any_size(10, 60), 9 },
                        (Share)(i % SHARES), BF16, maybe() ? DENSE : STRIDED);
        product_squares((Shape){ 3, 20, any_size(1, 90), any_size(1, 300), 2 }, (Share)(i % SHARES),
                        floats[i & 1], any_layout());
    }
    product_squares((Shape){ 3, 1030, 264, 256, 7 }, ZIPF, BF16, DENSE);
    product_squares((Shape){ 16, 128, 768, 1024, 500 }, ZIPF, BF16, DENSE);
    product_squares((Shape){ 4, 0, 128, 256, 33 }, EVEN, BF16, DENSE);
    product_squares((Shape){ 4, 0, 128, 256, 0 }, EVEN, BF16, DENSE);
}

static void nothing_to_do(void)
{
    for (int m = 0; m < 3; m++) {
        for (int acc = 0; acc <= GEMM_ACC; acc += GEMM_ACC) {
            for (int d = 0; d < 2; d++) {
                /* no rows at all; rows, but none in use */
                product((Shape){ 4, 0, 64, 64, 0 }, EVEN, modes[m] | acc, floats[d], F32, DENSE);
                product((Shape){ 4, 0, 64, 72, 33 }, EVEN, modes[m] | acc, floats[d], floats[d], DENSE);
                product((Shape){ 1, 5, 3, 7, 2 }, EVEN, modes[m] | acc, floats[d], floats[d], LOOSE);
            }
        }
    }
}

/* A few rows in all, as in decoding. */
static void decoding(void)
{
    for (int i = 0; i < 12; i++)
        product((Shape){ 16, 1, 256, 512, num_below(4) }, i % 2 ? ONE_EACH : ANY, GEMM_NT, floats[i / 2 % 2],
                floats[i / 2 % 2], DENSE);
}

/* Beside a kernel that holds SMs, and on fewer SMs, tiles go to other blocks. The next call starts with the
 * tile counter that this one left. */
static void beside_a_kernel(void)
{
    static const int held[] = { 16, 100, 0, 40 }, reserved[] = { 0, 0, 16, 120 };
    for (int i = 0; i < gpu_size(4, 1); i++) {
        gpu_share(held[i], reserved[i]);
        experts_of_a_model();
        long_experts();
        product_squares((Shape){ 16, 128, 768, 1024, 500 }, ZIPF, BF16, DENSE);
        tails_of_tiles();
        fused_tiles();
        nothing_to_do();
    }
    gpu_share(0, 0);
}

int main(void)
{
    gpulab_open();
    GPU_RUN(any_size_any_share);
    GPU_RUN(tails_of_tiles);
    GPU_RUN(widths_off_the_tile);
    GPU_RUN(experts_of_a_model);
    GPU_RUN(long_experts);
    GPU_RUN(squares_of_gradients);
    GPU_RUN(fused_any_size);
    GPU_RUN(fused_tiles);
    GPU_RUN(nothing_to_do);
    GPU_RUN(decoding);
    GPU_RUN(beside_a_kernel);
    return gpulab_report();
}
