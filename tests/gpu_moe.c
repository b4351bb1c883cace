/* Routing on the GPU against the CPU: expert selection, its statistics and losses, rows to expert order
 * and back. Selections, indices and moved rows are bit-equal. */
#include "gpulab.h"

/* Logits with ties, which test the rule for equals. */
static Tensor logits_of(int64_t T, int64_t E, Layout l)
{
    Tensor z = in2(F32, T, E, l);
    bool   ties = maybe();
    for (int64_t t = 0; ties && t < T; t++)
        for (int64_t e = 0; e < E; e++)
            ((float *)gpu_row(z, t))[e] = rintf(((float *)gpu_row(z, t))[e] * 2) / 2;
    return z;
}

/* NaN and infinities in every fourth token or so. */
static void damage(Tensor z)
{
    for (int64_t t = 0; t < z.n[0]; t++) {
        float *row = (float *)gpu_row(z, t);
        switch (num_below(12)) {
        case 0: row[num_below(z.n[1])] = NAN; break;
        case 1: row[num_below(z.n[1])] = INFINITY; break;
        case 2: for (int64_t e = 0; e < z.n[1]; e++) row[e] = NAN; break;
        case 3: row[num_below(z.n[1])] = -INFINITY; break;
        default: break;
        }
    }
}

typedef struct Sizes { int64_t T, E, K; } Sizes;
static const Sizes sizes[] = { { 0, 8, 2 },    { 1, 1, 1 },    { 5, 3, 3 },      { 67, 5, 2 },
                               { 33, 17, 4 },  { 129, 64, 6 }, { 70, 128, 8 },   { 31, 160, 6 },
                               { 9, 257, 16 }, { 4, 512, 10 }, { 4096, 128, 8 }, { 2000, 60, 4 } };
enum { SIZES = sizeof sizes / sizeof *sizes };

typedef struct Routed { Tensor logits, idx, weight, lse; } Routed;

static Routed route(Sizes s, bool renorm, bool damaged)
{
    Routed r = { .logits = logits_of(s.T, s.E, any_layout()) };
    if (damaged) damage(r.logits);
    r.idx = out2(I32, s.T, s.K, DENSE), r.weight = out2(F32, s.T, s.K, DENSE),
    r.lse = out2(F32, s.T, 1, DENSE);
    at_least(r.lse, 1);
    CALL(router_fwd, r.idx, r.weight, r.lse, r.logits, renorm);
    return r;
}

static void choices(void)
{
    for (int i = 0; i < SIZES; i++)
        for (int k = 0; k < 4; k++) {
            fresh();
            route(sizes[i], k & 1, k & 2);
        }
}

static void choices_backward(void)
{
    for (int i = 0; i < SIZES; i++)
        for (int k = 0; k < 8; k++) {
            int64_t T = sizes[i].T, E = sizes[i].E, G = any_size(1, 5);
            bool    renorm = k & 1, by_group = maybe();
            fresh();
            Routed r = route(sizes[i], renorm, false);
            Tensor dweight = k & 2 || !maybe() ? in2(F32, T, sizes[i].K, DENSE) : none;
            Tensor group = by_group ? int_below(T, -1, G) : none;
            Tensor coef = k & 4 ? in2(F32, by_group ? G : 1, E, any_layout()) : none;
            Tensor dlogits = out2(any_float(), T, E, any_layout());
            Factor zcoef = any_factor(maybe() ? 0.01f : 0);
            at_least(dlogits, 0.01);
            CALL(router_bwd, dlogits, dweight, r.weight, r.idx, r.logits, r.lse, coef, group, zcoef, renorm);
        }
}

static void statistics(void)
{
    static const AuxForm forms[] = { AUX_NONE, AUX_POOLED, AUX_LAYER, AUX_DOCUMENT,
                                     AUX_DOCUMENT_TOKENS };
    for (int i = 0; i < SIZES; i++)
        for (int k = 0; k < 4; k++) {
            int64_t T = sizes[i].T, E = sizes[i].E, G = any_size(1, 6), L = any_size(1, 3);
            fresh();
            Tensor count = in3(F32, L, G, E, DENSE), prob = in3(F32, L, G, E, DENSE),
                   zsum = in2(F32, 1, L, DENSE);
            for (int64_t l = 0; l < L; l++) {
                Routed r = route(sizes[i], true, false);
                Tensor group = int_below(T, -1, G);
                Tensor c = output(t_at(count, l)), p = output(t_at(prob, l)), z = output(t_cols(zsum, l, 1));
                exact(c);
                CALL(router_stats, c, p, z, r.logits, r.lse, r.idx, group);
            }
            Tensor out = out2(F32, 1, 3, DENSE), len = int_below(G, 0, 40),
                   coef = num_below(4) ? out3(F32, L, G, E, DENSE) : none;
            int64_t K = sizes[i].K;
            Factor  coeff = any_factor(0.01f);
            len.dtype = F32; /* tokens per group; an empty one now and then */
            for (int64_t g = 0; g < G; g++) ((float *)len.data)[g] = (float)((int32_t *)len.data)[g];
            zsum = t_as2(zsum, L, 1);
            CALL(aux_loss, out, coef, count, prob, zsum, len, forms[k], K, coeff);
        }
    fresh();
    Tensor out = out2(F32, 1, 3, DENSE), zsum = in2(F32, 1, 2, DENSE), len = in2(F32, 1, 3, DENSE);
    gpu_normal(len, 5, 0);
    CALL(aux_loss, out, none, none, none, zsum, len, AUX_NONE, 2, factor(0.5f));
}

/* Selected experts: evenly, by Zipf's law, always the same one, or indices out of range. */
typedef enum { EVEN, ZIPF, ONE, ABSENT, WAYS } Way;

static Tensor chosen(Sizes s, Way way)
{
    Tensor   idx = int2(s.T, s.K);
    int32_t *v = idx.data, one = (int32_t)num_below(s.E);
    uint64_t stream = num_.draws++;
    for (int64_t i = 0; i < s.T * s.K; i++) {
        float u = rng_uniform(num_.seed, stream, (uint64_t)i);
        int32_t e = (int32_t)(u * (float)s.E), z = (int32_t)(powf((float)s.E, u)) - 1;
        v[i] = way == ZIPF ? z : way == ONE ? one : e;
        if (way == ABSENT && i % 5 == 0) v[i] = i % 2 ? -1 : (int32_t)s.E + 3;
    }
    return idx;
}

typedef struct Order { Tensor offsets, rows, src; } Order;

static Order sorted(Sizes s, Way way)
{
    Tensor idx = chosen(s, way);
    Order  o = { output(int1(s.E + 1)), output(int2(s.T, s.K)), output(int1(s.T * s.K)) };
    CALL(sort_by_expert, o.offsets, o.rows, o.src, idx);
    return o;
}

static void index_of_slots(void)
{
    for (int i = 0; i < SIZES; i++)
        for (int way = 0; way < WAYS; way++) {
            fresh();
            sorted(sizes[i], (Way)way);
        }
    fresh();
    sorted((Sizes){ 32768, 128, 8 }, ZIPF);
}

static void to_experts_and_back(Sizes s, Way way, DType d, int64_t D)
{
    fresh();
    Order  o = sorted(s, way);
    Tensor x = in2(d, s.T, D, any_layout()), y = out2(d, s.T * s.K, D, any_layout());
    exact(y);
    CALL(gather_rows, y, x, o.src, s.K);
    Tensor res = maybe() ? in2(d, s.T, D, any_layout()) : none, z = out2(d, s.T, D, any_layout());
    exact(z);                                                           /* fixed order of the sum */
    CALL(combine, z, y, o.rows, res);
    exact(output(z));
    CALL(combine, z, y, o.rows, z);                                     /* over the residual */
    Tensor flat = t_as2(o.rows, s.T * s.K, 1), gate = in2(F32, s.T * s.K, 1, DENSE),
           moved = out2(F32, s.T * s.K, 1, DENSE);
    exact(moved);
    CALL(gather_rows, moved, gate, o.src, 1);                           /* a column of gates there */
    Tensor home = add2(F32, s.T * s.K, 1, DENSE);
    exact(home);
    CALL(scatter_rows, home, moved, o.src, false);                      /* and its gradient back */
    Tensor sum = add2(d, s.T * s.K, D, any_layout());
    exact(sum);
    CALL(scatter_rows, sum, y, flat, true);
    exact(output(sum));
    CALL(scatter_rows, sum, y, flat, false);
}

static void rows_there_and_back(void)
{
    static const int64_t widths_[] = { 1, 7, 8, 33, 64, 100, 768, 2048 };
    for (int i = 0; i < SIZES - 2; i++)
        for (int way = 0; way < WAYS; way++)
            to_experts_and_back(sizes[i], (Way)way, any_float(), widths_[num_below(8)]);
    to_experts_and_back((Sizes){ 2000, 64, 4 }, ZIPF, BF16, 2048);
    to_experts_and_back((Sizes){ 1000, 32, 8 }, ABSENT, F32, 512);
}

int main(void)
{
    gpulab_open();
    GPU_RUN(choices);
    GPU_RUN(choices_backward);
    GPU_RUN(statistics);
    GPU_RUN(index_of_slots);
    GPU_RUN(rows_there_and_back);
    return gpulab_report();
}
