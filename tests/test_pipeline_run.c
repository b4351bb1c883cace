/* One step over several micro-batches: the gradient does not depend on how documents are split into them. */
#include "small.h"
#include "engine/pipeline_run.h"

#include <omp.h>

static const Budget large = { .tokens = 160, .patches = 96, .docs = 8, .supervised = 140 };

typedef struct Cut { int first, n; } Cut;                    /* documents of one micro-batch */

/* Gradients of documents 0 .. 4, split by `cut`, into out; returns the sums of the step. */
static StepSums run(float **out, size_t *n, AuxForm form, bool over_step, float z, const Cut *cut, int cuts)
{
    ModelShape shape = small_shape(small_vl_moe);
    Budget b = large;
    b.by_document = form == AUX_DOCUMENT;
    EngineConf conf = small_conf(b);
    conf.aux = form, conf.aux_over_step = over_step, conf.aux_coeff = form ? 0.5f : 0, conf.z_coeff = z,
    conf.ranks.micro = cuts;
    Stream s[5], *micro[5], full;
    StreamShape ss = shape_stream(&shape);
    Engine e;
    StepSums sums = { 0 };
    full = stream_full(&ss, &b);
    for (int i = 0; i < cuts; i++) small_stream(micro[i] = &s[i], &shape, b, cut[i].first, cut[i].n, 0x15);
    EXPECT_OK(engine_open(&e, &shape, &conf, &full));
    EXPECT_OK(model_init(&e.model, &e.be, 3));
    engine_publish_weights(&e);
    for (int twice = 0; twice < 2; twice++) {                /* a step begins afresh */
        if (!twice) sums.ce = -1;
        EXPECT_OK(pipeline_run(&e, &(PipelineStep){ .micro = micro, .n = cuts }, &sums));
    }
    *n = e.arena[A_GRAD].used / 4;
    *out = malloc(*n * 4);
    memcpy(*out, e.arena[A_GRAD].base, *n * 4);
    engine_close(&e);
    for (int i = 0; i < cuts; i++) stream_close(&s[i]);
    return sums;
}

static double apart(const float *a, const float *b, size_t n)
{
    double big = 0, diff = 0;
    for (size_t i = 0; i < n; i++) big = fmax(big, fabs(a[i])), diff = fmax(diff, fabs((double)a[i] - b[i]));
    return diff / big;
}

static const Cut whole[] = { { 0, 5 } }, halves[] = { { 0, 2 }, { 2, 3 } },
                 many[] = { { 0, 1 }, { 1, 0 }, { 1, 2 }, { 3, 1 }, { 4, 1 } };     /* one of them is empty */

static void cutting_changes_nothing(void)
{
    for (int form = 0; form < 2; form++) {                   /* without a balance loss, and by document */
        AuxForm aux = form ? AUX_DOCUMENT : AUX_NONE;
        float *a, *b, *c;
        size_t n;
        StepSums x = run(&a, &n, aux, false, 0.05f, whole, 1), y = run(&b, &n, aux, false, 0.05f, halves, 2);
        StepSums z = run(&c, &n, aux, false, 0.05f, many, 5);
        EXPECT(apart(a, b, n) < 1e-6, "two micro-batches: gradients differ by %.3g", apart(a, b, n));
        EXPECT(apart(a, c, n) < 1e-6, "five micro-batches: gradients differ by %.3g", apart(a, c, n));
        EXPECT(fabs(x.total - y.total) < 1e-6 * x.total && fabs(x.total - z.total) < 1e-6 * x.total,
               "losses %.9g %.9g %.9g", x.total, y.total, z.total);
        EXPECT(x.supervised == y.supervised && x.docs == 5 && z.docs == 5 &&
                   z.token_budget == 5 * large.tokens,
               "counts");
        free(a), free(b), free(c);
    }
}

static void order_changes_nothing(void)
{
    const Cut swapped[] = { { 2, 3 }, { 0, 2 } };
    float *a, *b;
    size_t n;
    run(&a, &n, AUX_DOCUMENT, false, 0.05f, halves, 2);
    run(&b, &n, AUX_DOCUMENT, false, 0.05f, swapped, 2);
    EXPECT(apart(a, b, n) < 1e-6, "gradients differ by %.3g", apart(a, b, n));
    free(a), free(b);
}

static void global_is_layer_for_one_micro_batch(void)
{
    float *a, *b;
    size_t n;
    StepSums x = run(&a, &n, AUX_LAYER, false, 0, whole, 1), y = run(&b, &n, AUX_LAYER, true, 0, whole, 1);
    EXPECT(!memcmp(a, b, n * 4) && x.total == y.total, "losses %.9g %.9g", x.total, y.total);
    free(a), free(b);
}

/* The balance loss of the second micro-batch with counts of both, from the statistics themselves. */
static void global_counts_the_step_so_far(void)
{
    ModelShape shape = small_shape(small_vl_moe);
    EngineConf conf = small_conf(large);
    conf.aux = AUX_LAYER, conf.aux_over_step = true, conf.ranks.micro = 2;
    StreamShape ss = shape_stream(&shape);
    Stream full = stream_full(&ss, &large), s[2], *micro[2] = { &s[0], &s[1] };
    Engine e;
    enum { LE = 2 * 5 };
    double count[LE] = { 0 }, tokens = 0, want = 0;
    small_stream(&s[0], &shape, large, 0, 2, 0x15);
    small_stream(&s[1], &shape, large, 2, 3, 0x15);
    EXPECT_OK(engine_open(&e, &shape, &conf, &full));
    EXPECT_OK(model_init(&e.model, &e.be, 3));
    engine_publish_weights(&e);
    double all = (double)(s[0].tokens + s[1].tokens);
    for (int i = 0; i < 2; i++) {
        engine_upload(&e, micro[i]);
        engine_forward(&e, 1.0f);
        tokens += (double)s[i].tokens;
        for (int k = 0; k < LE; k++) {
            count[k] += ((float *)e.act[0].aux.count.data)[k];
            want += (double)s[i].tokens / all * 5 * count[k] / (2 * tokens) *
                    ((float *)e.act[0].aux.prob.data)[k] / (double)s[i].tokens;
        }
    }
    StepSums sums;
    EXPECT_OK(pipeline_run(&e, &(PipelineStep){ .micro = micro, .n = 2 }, &sums));
    EXPECT(fabs(sums.aux - want) < 1e-5 * want, "%.9g, want %.9g", sums.aux, want);
    engine_close(&e);
    stream_close(&s[0]), stream_close(&s[1]);
}

static void nothing_to_learn(void)
{
    const Cut none[] = { { 0, 0 }, { 0, 0 } };
    float *a;
    size_t n;
    StepSums x = run(&a, &n, AUX_LAYER, true, 0.1f, none, 2);
    EXPECT(x.total == 0 && x.supervised == 0, "loss %g", x.total);
    for (size_t i = 0; i < n; i++)
        if (a[i] != 0) { EXPECT(0, "an empty step has a gradient"); break; }
    free(a);
}

static void groups_have_their_rates(void)
{
    ModelShape shape = small_shape(small_vl_moe);
    EngineConf conf = small_conf(large);
    Stream s;
    Engine e;
    float lr[GROUP_N] = { 0, 1e-3f, 0 };
    OptimConf o = { .adam = { 1.0f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 1 }, .group_lr = lr };
    small_stream(&s, &shape, large, 0, 3, 7);
    small_engine(&e, &shape, &conf, &s);
    size_t bytes = e.arena[A_PARAM].used;
    char *before = malloc(bytes);
    memcpy(before, e.arena[A_PARAM].base, bytes);
    small_step(&e, 0.1f);
    engine_update(&e, &o);
    for (int i = 0; i < e.model.params.n; i++) {
        const Param *p = e.model.params.p[i];
        const char *was = before + ((char *)p->shard.w.data - e.arena[A_PARAM].base);
        bool same = !memcmp(p->shard.w.data, was, (size_t)t_bytes(p->shard.w));
        EXPECT(same == (p->group != G_ALIGNER), "%s: %s", p->piece[0].name, same ? "did not move" : "moved");
    }
    free(before);
    engine_close(&e);
    stream_close(&s);
}

int main(void)
{
    omp_set_num_threads(1); /* tiny products: threads would only wait for each other */
    RUN(cutting_changes_nothing);
    RUN(order_changes_nothing);
    RUN(global_is_layer_for_one_micro_batch);
    RUN(global_counts_the_step_so_far);
    RUN(nothing_to_learn);
    RUN(groups_have_their_rates);
    return lab_report();
}
