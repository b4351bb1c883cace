/* The optimizer on the card against the CPU: the gradient's norm, AdamW masters, clipping. */
#include "gpulab.h"

static Tensor flat(DType d, int64_t n) { return gpu_normal(gpu_new(d, 1, &n, DENSE, 0), 0, 1); }

static void squares(void)
{
    static const int64_t sizes[] = { 0, 1, 3, 31, 1000, 4096, 65537, 1000003, 8 << 20 };
    for (int i = 0; i < 9; i++) {
        fresh();
        Tensor x = flat(F32, sizes[i]), sum = add_scalar(0.25);
        within(sum, (Tolerance){ 1e-9, 1e-9, 0, 0 });                   /* a double sum of f32 squares */
        CALL(sumsq, sum, x);
    }
    fresh();
    Tensor m = in2(F32, 33, 77, DENSE), sum = add_scalar(0);
    within(sum, (Tolerance){ 1e-9, 1e-9, 0, 0 });
    CALL(sumsq, sum, m);
}

/* Bits: 1 a bf16 weight (with its master), 2 an f32 master, 4 a bf16 m, 8 a bf16 v, 16 the norm, 32 clip. */
static void update(int64_t n, unsigned kind, int64_t step)
{
    fresh();
    bool   half = kind & 1;
    Tensor w = output(flat(half ? BF16 : F32, n)), master = half || kind & 2 ? output(flat(F32, n)) : none;
    Tensor m = output(gpu_normal(flat(kind & 4 ? BF16 : F32, n), 0, 0.1f)),
           v = output(flat(kind & 8 ? BF16 : F32, n));
    Tensor g = flat(F32, n), norm = kind & 16 ? add_scalar((double)n * num_below(3)) : none;
    gpu_normal(v, 0.5f, 0.05f);                                         /* never negative */
    AdamW h = { .lr       = 1e-2f,
                .beta1    = 0.9f,
                .beta2    = 0.95f,
                .eps      = 1e-8f,
                .decay    = 0.1f,
                .max_norm = kind & 32 ? 1.0f : 0.0f,
                .step     = step };
    if (t_has(norm)) exact(norm);
    CALL(adamw, w, master, m, v, g, norm, h);
}

static void updates(void)
{
    static const int64_t sizes[] = { 1, 7, 64, 1000, 4097 };
    for (unsigned kind = 0; kind < 64; kind++)
        update(sizes[kind % 5], kind, 1 + num_below(2) * num_below(5000));
    update(0, 0, 1);
    update(0, 1, 1);
    update(3000001, 1 | 16 | 32, 7);
    update(4 << 20, 1 | 16 | 32, 1);
    update(1 << 20, 4 | 8, 100);
}

static void an_expert_tensor(void) /* rank 3, as the experts' weights are */
{
    fresh();
    Tensor w = output(in3(BF16, 3, 40, 72, DENSE)), p = output(in3(F32, 3, 40, 72, DENSE)),
           g = in3(F32, 3, 40, 72, DENSE);
    Tensor m = output(gpu_normal(in3(F32, 3, 40, 72, DENSE), 0, 0)),
           v = output(gpu_normal(in3(F32, 3, 40, 72, DENSE), 0, 0));
    AdamW  h = { .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .step = 1 };
    CALL(adamw, w, p, m, v, g, none, h);
}

int main(void)
{
    gpulab_open();
    GPU_RUN(squares);
    GPU_RUN(updates);
    GPU_RUN(an_expert_tensor);
    return gpulab_report();
}
