/* Both ends of the model on the GPU against the CPU: token and position embeddings, cross entropy. */
#include "gpulab.h"

/* Ids of T tokens: drawn by Zipf's law, some absent; or one token thousands of times. */
static Tensor ids_of(int64_t T, int64_t V, bool one)
{
    Tensor   t = int1(T);
    uint64_t stream = num_.draws++;
    int32_t  the = (int32_t)num_below(V);
    for (int64_t i = 0; i < T; i++) {
        float u = rng_uniform(num_.seed, stream, (uint64_t)i);
        ((int32_t *)t.data)[i] = one ? the : u < 0.1f ? -1 : (int32_t)powf((float)V, u) - 1;
    }
    return t;
}

static void embedding(int64_t T, int64_t V, int64_t D, bool one)
{
    fresh();
    Tensor table = in2(any_float(), V, D, any_layout()), ids = ids_of(T, V, one),
           y = out2(any_float(), T, D, any_layout());
    exact(y);
    CALL(embed_fwd, y, table, ids);
    Tensor  dy = in2(any_float(), T, D, any_layout()), dtable = add2(F32, V, D, any_layout());
    int64_t skip = maybe() && !one ? num_below(V) : -1;
    at_least(dtable, one ? sqrt((double)T) / 8 : 1);
    CALL(embed_bwd, dtable, dy, ids, skip);
    Tensor here = output(int1(T));
    CALL(slice_ids, here, ids, V / 3, V / 2);
}

static void tokens(void)
{
    for (int i = 0; i < 20; i++) embedding(any_size(1, 200), any_size(1, 100), any_size(1, 300), false);
    embedding(0, 10, 16, false);
    embedding(4096, 1000, 256, false);
    embedding(500, 20000, 2048, false);
}

static void one_token_thousands_of_times(void)
{
    for (int i = 0; i < 3; i++) embedding(5000, 50, i ? 64 * i : 37, true);
}

/* Patches of images of many shapes, then padding. */
static Tensor cells_of(int64_t P)
{
    Tensor   t = int2(P, 4);
    int32_t *c = t.data;
    int64_t  at = 0;
    memset(c, 0, (size_t)t_bytes(t));
    while (at < P - P / 8) {
        int64_t h = any_size(1, 12), w = any_size(1, 12);
        for (int64_t i = 0; i < h * w && at < P; i++, at++) {
            int32_t row[4] = { (int32_t)(i / w), (int32_t)(i % w), (int32_t)h, (int32_t)w };
            memcpy(c + 4 * at, row, sizeof row);
        }
    }
    return t;
}

static void positions_of(int64_t P, int64_t side, int64_t D)
{
    fresh();
    Tensor cell = cells_of(P), table = in2(any_float(), side * side, D, any_layout());
    Tensor x = in2(any_float(), P, D, any_layout()), y = out2(any_float(), P, D, any_layout());
    if (y.dtype == BF16) times(y, 8);                    /* rounded twice, and the larger addend may cancel */
    CALL(pos_embed_fwd, y, x, table, cell);
    times(output(x), 8);
    CALL(pos_embed_fwd, x, x, table, cell);
    Tensor dy = in2(any_float(), P, D, any_layout()), dtable = add2(F32, side * side, D, any_layout());
    CALL(pos_embed_bwd, dtable, dy, cell);
}

static void patches(void)
{
    for (int i = 0; i < 16; i++) positions_of(any_size(1, 300), any_size(1, 12), any_size(1, 200));
    positions_of(0, 5, 24);
    positions_of(4096, 48, 256);
    positions_of(700, 48, 1152);
}

static Tensor labels_of(int64_t n, int64_t V)
{
    Tensor labels = int_below(n, 0, V);
    for (int64_t i = 0; i < n; i++) if (!num_below(4)) ((int32_t *)labels.data)[i] = -1;
    return labels;
}

/* Sums and gradient from one reading of the logits, into other memory and in place. */
static void in_one_pass(Tensor logits, Tensor labels, Factor scale)
{
    int64_t n = logits.n[0];
    Tensor  part = output(gpu_new(F64, 2, (int64_t[]){ n, 3 }, DENSE, 0xff));
    Tensor  dlogits = out2(any_float(), n, logits.n[1], any_layout());
    CALL(ce_grad, part, dlogits, logits, labels, scale);
    Tensor  again = output(gpu_new(F64, 2, (int64_t[]){ n, 3 }, DENSE, 0xff));
    Tensor  z = output(in2((DType)logits.dtype, n, logits.n[1], maybe() ? DENSE : any_layout()));
    CALL(ce_grad, again, z, z, labels, scale);
}

/* The vocabulary in `slices` runs of columns; with more than one, some may be empty. */
static void loss_of(int64_t n, int64_t V, DType d, float spread, int slices)
{
    fresh();
    Tensor  logits = gpu_normal(in2(d, n, V, any_layout()), 0, spread), labels = labels_of(n, V);
    Tensor  parts = gpu_new(F64, 2, (int64_t[]){ slices * n, 3 }, DENSE, 0xff);
    Factor  scale = any_factor(1.0f / (float)(n + 1));
    int64_t wide = V / slices + (slices > 1), from = 0;
    for (int i = 0; i < slices; i++, from += wide) {
        int64_t cols = from >= V ? 0 : V - from < wide ? V - from : wide;
        Tensor  part = output(t_rows(parts, i * n, n)), z = t_cols(logits, from < V ? from : 0, cols);
        CALL(ce_part, part, z, labels, from);
    }
    Tensor loss = add_scalar(1.5), lse = out2(F32, n, 1, DENSE), each = out2(F32, n, 1, DENSE);
    at_least(lse, 1), at_least(each, 1);
    CALL(ce_join, loss, lse, each, parts, labels, scale);
    from = (slices - 1) / 2 * wide;
    int64_t cols = from >= V ? 0 : V - from < wide ? V - from : wide;
    Tensor  dlogits = out2(any_float(), n, cols, any_layout()), z = t_cols(logits, from < V ? from : 0, cols);
    CALL(ce_bwd, dlogits, z, lse, labels, from, scale);
    if (slices == 1) in_one_pass(logits, labels, scale);
    output(z);
    CALL(ce_bwd, z, z, lse, labels, from, scale);
}

static void losses(void)
{
    for (int i = 0; i < 16; i++) loss_of(any_size(1, 80), any_size(1, 700), floats[i & 1], i & 2 ? 1 : 8, 1);
    for (int d = 0; d < 2; d++) {
        loss_of(0, 100, floats[d], 1, 1);
        loss_of(3, 4097, floats[d], 30, 1);                             /* nearly certain */
        loss_of(24, 151936, floats[d], 3, 1);
        loss_of(2048, 520, floats[d], 2, 1);
    }
}

/* Rows without a label have no gradient, whatever their logits are; other rows are as ever. */
static void rows_without_a_label(void)
{
    static const float odd[] = { INFINITY, -INFINITY, NAN, 3e38f };
    for (int i = 0; i < 16; i++) {
        fresh();
        int64_t n = 12, V = i & 1 ? 264 : 4099;
        Tensor  logits = in2(floats[i / 2 & 1], n, V, i & 1 ? DENSE : any_layout()), labels = labels_of(n, V);
        for (int64_t r = 0; r < n; r++) {
            size_t w = dtype_size((DType)logits.dtype);
            if (((int32_t *)labels.data)[r] >= 0) continue;
            char *at = gpu_row(logits, r) + (size_t)num_below(V) * w;
            dtype_convert(at, (DType)logits.dtype, &odd[i / 4], F32, 1);
        }
        Tensor part = output(gpu_new(F64, 2, (int64_t[]){ n, 3 }, DENSE, 0xff));
        Tensor dlogits = out2(any_float(), n, V, i & 1 ? DENSE : any_layout());
        scratch(part);
        CALL(ce_grad, part, dlogits, logits, labels, factor(0.5f));
    }
}

static void losses_of_vocabulary_shards(void)
{
    for (int i = 0; i < 12; i++) loss_of(any_size(1, 40), any_size(1, 400), floats[i & 1], 2, 2 + i % 7);
    loss_of(0, 100, F32, 1, 4);
    loss_of(5, 3, BF16, 1, 8);
    loss_of(24, 151936, BF16, 3, 8);
}

int main(void)
{
    gpulab_open();
    GPU_RUN(tokens);
    GPU_RUN(one_token_thousands_of_times);
    GPU_RUN(patches);
    GPU_RUN(losses);
    GPU_RUN(rows_without_a_label);
    GPU_RUN(losses_of_vocabulary_shards);
    return gpulab_report();
}
