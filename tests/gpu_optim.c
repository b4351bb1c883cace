/* The optimizer on the GPU against the CPU: the gradient's norm, AdamW masters, clipping. */
#include "gpulab.h"
#include "ops/moment_code.h"

static Tensor flat(DType d, int64_t n) { return gpu_normal(gpu_new(d, 1, &n, DENSE, 0), 0, 1); }

/* A list over two random tensors, one in bf16: tensors that begin `shift` elements behind a border and `gap`
 * after each other; their cells are in another order, with one unwritten cell between them. */
static Addends addends(int n, const int64_t *sizes, int64_t shift, int64_t gap)
{
    Addends list = { .n = n };
    int64_t   all = shift, at = shift;
    for (int i = 0; i < n; i++) all += sizes[i] + gap;
    Tensor x[] = { flat(F32, all), flat(BF16, all) };
    for (int i = 0; i < n; at += sizes[i] + gap, i++) {
        bool half = num_below(3) == 0;
        list.at[i] = (Addend){ t_rows(x[half], at, sizes[i]), 2 * (n - 1 - i), !half && num_below(4) == 0 };
    }
    return list;
}

static void sum_list(int n, const int64_t *sizes, int64_t shift, int64_t gap, bool apart)
{
    fresh();
    static const Tolerance doubles = { 1e-9, 1e-9, 0, 0 };              /* a double sum of f32 squares */
    const Addends made = addends(n, sizes, shift, gap), *list = &made;
    int64_t cells = 2 * n;
    Tensor  sum = add_scalar(0.25), each = apart ? output(gpu_new(F64, 1, &cells, DENSE, 0xff)) : none;
    within(sum, doubles);
    if (apart) within(each, doubles);
    CALL(squares, sum, each, list);
}

static void squares(void)
{
    const int64_t odd[] = { 0, 1, 3, 31, 1000, 4096, 0, 65537, gpu_size(1000003, 100003), 2, 0,
                            gpu_size(8 << 20, 1 << 18) };
    int64_t many[ADDENDS];
    for (int i = 0; i < 12; i++) sum_list(1, &odd[i], 0, 0, i % 2);
    for (int shift = 0; shift < 4; shift++) {
        sum_list(11, odd, shift, 0, true);
        sum_list(11, odd, shift, 1, shift % 2);
        sum_list(5, odd, shift, 3, true);
    }
    for (int i = 0; i < ADDENDS; i++) many[i] = any_size(0, i % 7 ? 50 : 40000);
    sum_list(ADDENDS, many, 0, 0, true);
    sum_list(ADDENDS, many, 1, 4, true);
    sum_list(ADDENDS - 1, many, 3, 0, false);
    sum_list(0, many, 0, 0, true);
    for (int i = 0; i < ADDENDS; i++) many[i] = any_size(280000, 300000);     /* longer parts */
    sum_list(ADDENDS, many, 0, 1, true);
    fresh();
    const Addends one = { 1, { { in2(F32, 33, 77, DENSE), 0, false } } }, *list = &one;
    Tensor sum = add_scalar(0);
    within(sum, (Tolerance){ 1e-9, 1e-9, 0, 0 });
    CALL(squares, sum, none, list);
}

/* What a bf16 weight lacks of its master. It hangs on the last bit of the arithmetic and is not compared here
 * but with a second run. */
static Tensor split_rest(int64_t n)
{
    Tensor t = output(gpu_new(I16, 1, &n, DENSE, 0));
    for (int64_t i = 0; i < n; i++) ((uint16_t *)t.data)[i] = (uint16_t)num_below(65536);
    scratch(t);
    return t;
}

static const AdamStep *in_memory(AdamW h)
{
    AdamStep *at = t1(&num_.a, "lab", U8, sizeof *at).data;
    *at = adam_step(&h);
    return at;
}

/* Bits: 1 a bf16 weight (with its master), 2 an f32 master, of a bf16 weight a split one, 4 a bf16 m, 8 a
 * bf16 v, 16 the norm, 32 clip; half of the gradients are bf16. */
static void update(int64_t n, unsigned kind, int64_t step)
{
    fresh();
    bool   half = kind & 1, split = half && kind & 2;
    Tensor w = output(flat(half ? BF16 : F32, n));
    Tensor master = split ? split_rest(n) : half || kind & 2 ? output(flat(F32, n)) : none;
    Tensor m = output(gpu_normal(flat(kind & 4 ? BF16 : F32, n), 0, 0.1f)),
           v = output(flat(kind & 8 ? BF16 : F32, n));
    Tensor g = flat(num_below(2) ? F32 : BF16, n);
    Tensor norm = kind & 16 ? add_scalar((double)n * num_below(3)) : none;
    gpu_normal(v, 0.5f, 0.05f);                                         /* never negative */
    AdamW h = { .lr       = 1e-2f,
                .beta1    = 0.9f,
                .beta2    = 0.95f,
                .eps      = 1e-8f,
                .decay    = 0.1f,
                .max_norm = kind & 32 ? 1.0f : 0.0f,
                .step     = step };
    if (t_has(norm)) exact(norm);
    if (kind % 3 == 1) h.now = in_memory(h);
    CALL(adamw, w, master, m, v, g, norm, h);
}

static void updates(void)
{
    static const int64_t sizes[] = { 1, 7, 64, 1000, 4097 };
    for (unsigned kind = 0; kind < 64; kind++)
        update(sizes[kind % 5], kind, 1 + num_below(2) * num_below(5000));
    update(0, 0, 1);
    update(0, 1, 1);
    update(gpu_size(3000001, 30001), 1 | 16 | 32, 7);
    update(gpu_size(3000001, 30001), 1 | 2 | 4 | 8 | 16 | 32, 7);
    update(gpu_size(4 << 20, 4 << 12), 1 | 16 | 32, 1);
    update(gpu_size(1 << 20, 1 << 12), 4 | 8, 100);
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

/* Moments in codes: weights, codes and scales have the bits of the CPU's. Bits of kind: 1 a bf16 weight (with
 * its master), 2 an f32 master, of a bf16 weight a split one, 4 blocks of zeros, 8 moments that are not
 * finite, 16 the norm, 32 clip, 64 no element aligned for four, 128 gradients of all sizes, 256 eps 0, 512
 * eps 1e25. */
static Tensor codes(int64_t n, int64_t shift)
{
    int64_t all = n + shift;
    Tensor  t = output(gpu_new(U8, 1, &all, DENSE, 0));
    for (int64_t i = 0; i < all; i++) ((uint8_t *)t.data)[i] = (uint8_t)num_below(256);
    exact(t);
    return t_rows(t, shift, n);
}

static Tensor scales(int64_t n, unsigned kind, bool positive)
{
    Tensor t = output(flat(F32, moment_blocks(n)));
    float *s = t.data;
    for (int64_t i = 0; i < t_count(t); i++) {
        s[i] = (positive ? fabsf(s[i]) : s[i]) * powf(10, -(float)num_below(12));
        if (kind & 4 && i % 3 == 0) s[i] = 0;
        if (kind & 8 && i % 5 == 1) s[i] = i % 2 ? NAN : INFINITY;
    }
    exact(t);
    return t;
}

static Tensor exact_output(Tensor t)
{
    exact(output(t));
    return t;
}

static Tensor gradients(int64_t n, unsigned kind)
{
    Tensor g = flat(!(kind & 128) && num_below(2) ? BF16 : F32, n);
    float *x = g.data;
    for (int64_t i = 0; i < n && kind & 128; i++) {
        x[i] *= powf(10, 8 - (float)num_below(48));
        if (num_below(8) == 0) x[i] = num_below(2) ? 0.0f : -0.0f;
    }
    return g;
}

static void update_coded(int64_t n, unsigned kind, int64_t step)
{
    fresh();
    int64_t shift = kind & 64 ? 1 : 0;
    bool    half = kind & 1, split = half && kind & 2;
    Tensor  w = t_rows(exact_output(flat(half ? BF16 : F32, n + shift)), shift, n), master = none;
    if (split) exact(master = split_rest(n));
    else if (kind & 3) master = exact_output(flat(F32, n));
    Tensor m = codes(n, shift), v = codes(n, shift), ms = scales(n, kind, false), vs = scales(n, kind, true);
    Tensor g = gradients(n, kind), norm = kind & 16 ? add_scalar((double)n * num_below(3)) : none;
    AdamW  h = { .lr = 1e-2f, .beta1 = 0.9f, .beta2 = step % 2 ? 0.95f : 0.9999f,
                 .eps = kind & 256 ? 0 : kind & 512 ? 1e25f : 1e-8f, .decay = 0.1f,
                 .max_norm = kind & 32 ? 1.0f : 0.0f, .step = step };
    if (t_has(norm)) exact(norm);
    if (kind % 3 == 1) h.now = in_memory(h);
    CALL(adamw_coded, w, master, m, ms, v, vs, g, norm, h);
}

static void coded_updates(void)
{
    static const int64_t sizes[] = { 1, 255, 256, 257, 1000, 4097 };
    for (unsigned kind = 0; kind < 128; kind++)
        update_coded(sizes[kind % 6], kind, 1 + num_below(2) * num_below(5000));
    for (unsigned kind = 0; kind < 16; kind++)
        update_coded(5000, kind % 8 | 128 | (kind & 8) << 3 | (kind % 3) << 8, 1 + kind * kind * 100);
    update_coded(0, 0, 1);
    update_coded(gpu_size(3000001, 30001), 1 | 2 | 16 | 32, 7);
    update_coded(gpu_size(4 << 20, 4 << 12), 16 | 32, 1);
}

static const uint32_t edges[] = { 0, 0x80000000, 1, 0x8000, 0x80008000, 0x3f808000, 0xbf818000, 0x7f7f8000,
                                  0xff7fffff, 0x7f800000, 0xff800000, 0x7f800001, 0xffffffff };

static void edge_values(Tensor x)
{
    for (int64_t i = 0; i < t_count(x) && i < (int64_t)(sizeof edges / sizeof *edges); i++)
        ((uint32_t *)x.data)[i] = edges[i];
}

static void weights_are_set(void)
{
    static const int64_t sizes[] = { 0, 1, 7, 4097, 1000003 };
    for (int i = 0; i < 5; i++)
        for (int kind = 0; kind < 3; kind++) {                /* f32 alone, beside an f32 master, split */
            fresh();
            Tensor x = flat(F32, sizes[i]), w = output(gpu_new(kind ? BF16 : F32, 1, &sizes[i], DENSE, 0));
            Tensor master = kind == 1   ? output(flat(F32, sizes[i]))
                            : kind == 2 ? output(gpu_new(I16, 1, &sizes[i], DENSE, 0)) : none;
            if (kind) edge_values(x);
            exact(w);
            if (kind) exact(master);
            CALL(set_weight, w, master, x);
        }
}

/* Fifty steps on the GPU with an f32 master and with a split one: the same bits, from every kind of
 * number. */
static void split_masters_take_the_same_steps(DType moments, int64_t n)
{
    Arena   a;
    Tensor  w[2], p, rest, m[2], v[2], g, sum, each, x = flat(F32, n);
    AdamW   h = { .lr = 0.03f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.1f,
                  .max_norm = 30.0f };
    edge_values(x);
    EXPECT_OK(backend_arena_open(GPU, &a, "lab", (size_t)n * 40 + (16 << 10)));
    p = t1(&a, "lab", F32, n), rest = t1(&a, "lab", I16, n), g = t1(&a, "lab", F32, n);
    sum = t1(&a, "lab", F64, 1), each = t1(&a, "lab", F64, 1);
    for (int k = 0; k < 2; k++)
        w[k] = t1(&a, "lab", BF16, n), m[k] = t1(&a, "lab", moments, n), v[k] = t1(&a, "lab", moments, n);
    backend_upload(GPU, p, x.data);
    op_set_weight(GPU, w[1], rest, p);
    op_set_weight(GPU, w[0], p, p);
    for (h.step = 1; h.step <= 50; h.step++) {
        gpu_normal(x, 0, 1);
        backend_upload(GPU, g, x.data);
        op_fill(GPU, sum, 0.0f);
        op_squares(GPU, sum, each, &(Addends){ 1, { { g, 0, false } } });
        op_adamw(GPU, w[0], p, m[0], v[0], g, sum, h);
        op_adamw(GPU, w[1], rest, m[1], v[1], g, sum, h);
    }
    uint32_t *whole = malloc((size_t)n * 4);
    uint16_t *half[3] = { malloc((size_t)n * 2), malloc((size_t)n * 2), malloc((size_t)n * 2) };
    backend_fetch(GPU, whole, p), backend_fetch(GPU, half[0], w[0]);
    backend_fetch(GPU, half[1], w[1]), backend_fetch(GPU, half[2], rest);
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++)
        bad += half[0][i] != half[1][i] || whole[i] != bits_join(half[1][i], half[2][i]);
    EXPECT(!bad, "%lld of %lld differ", (long long)bad, (long long)n);
    free(whole), free(half[0]), free(half[1]), free(half[2]);
    backend_arena_close(GPU, &a);
}

static void split_masters(void)
{
    static const int64_t sizes[] = { 5, 4096, 100003 };
    for (int i = 0; i < 3; i++) {
        fresh();
        split_masters_take_the_same_steps(F32, sizes[i]);
        fresh();
        split_masters_take_the_same_steps(BF16, sizes[i]);
    }
}

int main(void)
{
    gpulab_open();
    GPU_RUN(squares);
    GPU_RUN(updates);
    GPU_RUN(coded_updates);
    GPU_RUN(an_expert_tensor);
    GPU_RUN(weights_are_set);
    GPU_RUN(split_masters);
    return gpulab_report();
}
