/* tests/gpu_coded.c -- products of experts with a frozen weight in codes on the GPU, against the CPU: every
 * format, with LoRA terms and dropout, rings of one matrix and more, shapes that go through panels. */
#include "codelab.h"

enum { RANK = 16 };

typedef struct Operands { Tensor off, panel; WeightCodes z; LoraTerm lora; int64_t R; } Operands;

/* Of a product over `terms` into `columns`; w (E, columns, terms) in NT, (E, terms, columns) in NN. */
static Operands operands(Shape x, CodeFormat f, Share s, int mode, int64_t columns, bool lora)
{
    Operands o = { .off = offsets_of(s, x.E, x.most) };
    int64_t  N = mode == GEMM_NT ? columns : x.K, K = mode == GEMM_NT ? x.K : columns;
    o.R = rows_used(o.off) + x.spare;
    o.z = usual_codes(f, x.E, N, K);
    o.panel = out3(BF16, 1 + num_below(x.E), N, K, DENSE);
    scratch(o.panel);
    if (!lora) return o;
    int64_t each = maybe() ? x.E : 1;
    o.lora.low_rank = routed(BF16, rows_used(o.off), x.spare, RANK, DENSE);
    o.lora.w = mode == GEMM_NT ? in3(BF16, each, columns, RANK, DENSE)
                               : in3(BF16, each, RANK, columns, DENSE);
    if (mode == GEMM_NN && maybe()) o.lora.dropout = (Dropout){ .p = 0.25f, .seed = 7, .stream = 3 };
    return o;
}

static void product(Shape x, CodeFormat f, Share s, int mode, bool lora)
{
    fresh();
    x = sized(x);
    Operands o = operands(x, f, s, mode, x.N, lora);
    Tensor   a = routed(BF16, rows_used(o.off), x.spare, x.K, DENSE), c = out2(BF16, o.R, x.N, DENSE);
    at_least(c, 1);
    CALL(grouped_coded, c, a, o.z, o.panel, o.off, o.lora, mode);
}

static void forward(Shape x, CodeFormat f, Share s, bool lora)
{
    fresh();
    x = sized(x);
    Operands o = operands(x, f, s, GEMM_NT, 2 * x.N, lora);
    Tensor   a = routed(BF16, rows_used(o.off), x.spare, x.K, DENSE), gu = out2(BF16, o.R, 2 * x.N, DENSE);
    Tensor   h = out2(BF16, o.R, x.N, DENSE), gate = maybe() ? in2(F32, o.R, 1, DENSE) : (Tensor){ 0 };
    at_least(gu, 1), at_least(h, 1), times(h, 2);
    CALL(grouped_swiglu_coded, gu, h, a, o.z, o.panel, o.off, gate, o.lora);
}

static void backward(Shape x, CodeFormat f, Share s, bool lora)
{
    fresh();
    x = sized(x);
    Operands o = operands(x, f, s, GEMM_NN, x.N, lora);
    Tensor   a = routed(BF16, rows_used(o.off), x.spare, x.K, DENSE), dgu = out2(BF16, o.R, 2 * x.N, DENSE);
    Tensor   gu = in2(BF16, o.R, 2 * x.N, DENSE), gate = maybe() ? in2(F32, o.R, 1, DENSE) : (Tensor){ 0 };
    Tensor   dgate = t_has(gate) ? out2(F32, o.R, 1, DENSE) : (Tensor){ 0 };
    at_least(dgu, 1), times(dgu, 2);
    if (t_has(dgate)) within(dgate, (Tolerance){ 2e-3, 4e-3, 1e-2, 1 });
    CALL(grouped_dswiglu_coded, dgu, dgate, a, o.z, o.panel, o.off, gu, gate, o.lora);
}

/* Tails of tiles and stages, blocks that are cut; rows that the ring takes (code_ring.cuh) in half of the
 * cases. */
static void any_shape(CodeFormat f)
{
    for (int i = 0; i < gpu_size(4 * SHARES, SHARES); i++) {
        Shape x = { any_size(1, 12), 90, 64 * any_size(2, 8), 16 * any_size(9, 30), maybe() ? 0 : 40 };
        Share s = (Share)(i % SHARES);
        if (f == CODE_NF4) x.K = 64 * any_size(3, 8);
        if (i % 2) x.K = 256 * any_size(1, 3), x.N = 256 * any_size(1, 2);      /* rows of whole lines */
        product(x, f, s, GEMM_NT, maybe()), product(x, f, s, GEMM_NN, maybe());
        if (!(i % 2)) x.N = 128 * any_size(1, 4);
        forward(x, f, s, maybe()), backward(x, f, s, maybe());
    }
}

static void fp8(void)  { any_shape(CODE_FP8); }
static void int8(void) { any_shape(CODE_INT8); }
static void nf4(void)  { any_shape(CODE_NF4); }

static void experts_of_a_model(void)
{
    static const Share shares[] = { EVEN, ZIPF, ONE_TAKES_ALL };
    for (int i = 0; i < 3; i++)
        for (int lora = 0; lora < 2; lora++) {
            forward((Shape){ 16, 128, 768, 2048, 500 }, CODE_FP8, shares[i], lora);
            product((Shape){ 16, 128, 2048, 768, 500 }, CODE_FP8, shares[i], GEMM_NT, lora);
            product((Shape){ 16, 128, 2048, 1536, 500 }, CODE_FP8, shares[i], GEMM_NN, lora);
            backward((Shape){ 16, 128, 768, 2048, 500 }, CODE_FP8, shares[i], lora);
        }
}

/* Few stages, rows that are no whole lines, next to no columns: through panels. */
static void shapes_for_panels(void)
{
    product((Shape){ 3, 40, 200, 128, 9 }, CODE_FP8, EDGES, GEMM_NT, true);
    product((Shape){ 3, 40, 64, 256, 9 }, CODE_FP8, ANY, GEMM_NN, false);
    forward((Shape){ 3, 40, 72, 256, 9 }, CODE_FP8, ANY, true);
    backward((Shape){ 3, 40, 72, 88, 9 }, CODE_FP8, ANY, false);
    product((Shape){ 4, 0, 256, 256, 33 }, CODE_FP8, EVEN, GEMM_NT, false);
}

int main(void)
{
    gpulab_open();
    GPU_RUN(fp8);
    GPU_RUN(int8);
    GPU_RUN(nf4);
    GPU_RUN(experts_of_a_model);
    GPU_RUN(shapes_for_panels);
    return gpulab_report();
}
