/* tests/test_grad_dtype.c -- optim.grad_dtype=bfloat16: whose gradients are bf16, that each is the f32 one
 * rounded once, and that adding micro-batches in bf16 stays near adding them in f32. */
#include "modelab.h"

typedef struct Run { ModelShape shape; EngineConf conf; Stream stream; Engine e; } Run;

static void run_open(Run *r, DType grads)
{
    r->shape = small_shape(deep_text);
    r->conf = small_conf(mode_budget(&r->shape, 7));
    r->conf.dtype = BF16, r->conf.store.grads = grads;
    omp_set_num_threads(1);
    small_stream(&r->stream, &r->shape, r->conf.budget, 0, 3, 7);
    small_engine(&r->e, &r->shape, &r->conf, &r->stream);
}

static void run_close(Run *r)
{
    engine_close(&r->e);
    stream_close(&r->stream);
}

static bool is_wide(const char *name)
{
    static const char *const words[] = { "norm", "mlp.gate.weight", "embed", "bias", "lm_head" };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(name, words[i])) return true;
    return false;
}

static void linear_weights_have_rounded_gradients(void)
{
    Run    r;
    size_t want = 0;
    run_open(&r, BF16);
    for (int i = 0; i < r.e.model.params.n; i++) {
        const Param *p = r.e.model.params.p[i];
        DType        d = is_wide(p->piece[0].name) || p->linear == LINEAR_NO ? F32 : BF16;
        EXPECT((DType)p->shard.g.dtype == d, "%s: %s", p->piece[0].name, t_fmt(p->shard.g));
        want += (size_t)param_local(p) * dtype_size(d);
    }
    size_t used = r.e.plan.bytes[A_GRAD];
    EXPECT(used >= want && used < want + 300 * ARENA_ALIGN, "%zu bytes, not %zu", used, want);
    run_close(&r);
}

/* Of `backwards` micro-batches, the same one each time. */
static void make_grads(Run *r, int backwards)
{
    engine_begin_step(&r->e, backwards);
    for (int i = 0; i < backwards; i++) {
        engine_forward(&r->e, 0.1f);
        engine_backward(&r->e);
    }
    EXPECT_OK(backend_sync(&r->e.be));
    shard_finish_grads(&r->e.shard);
}

static double relative_error(Tensor got, Tensor want)
{
    double off = 0, all = 0;
    for (int64_t i = 0; i < t_count(got); i++) {
        double x = bf16_to_f32(((const uint16_t *)got.data)[i]), y = ((const float *)want.data)[i];
        off += (x - y) * (x - y), all += y * y;
    }
    return all > 0 ? sqrt(off / all) : sqrt(off);
}

/* One micro-batch: the bits of the f32 gradient, rounded. Four of them are rounded four times. */
static void compare_grads(int backwards, double bound)
{
    Run wide, narrow;
    run_open(&wide, F32), run_open(&narrow, BF16);
    make_grads(&wide, backwards), make_grads(&narrow, backwards);
    for (int i = 0; i < wide.e.model.params.n; i++) {
        Tensor got = narrow.e.model.params.p[i]->shard.g, want = wide.e.model.params.p[i]->shard.g;
        int64_t other = 0;
        const char *name = wide.e.model.params.p[i]->piece[0].name;
        if (got.dtype == F32) continue;
        for (int64_t k = 0; k < t_count(got); k++)
            other += ((const uint16_t *)got.data)[k] != bf16_from_f32(((const float *)want.data)[k]);
        EXPECT(backwards > 1 || !other, "%s: %lld gradients are not those in f32, rounded", name,
               (long long)other);
        EXPECT(relative_error(got, want) < bound, "%s: off by %g", name, relative_error(got, want));
    }
    run_close(&wide), run_close(&narrow);
}

static void gradients_are_rounded_once_a_micro_batch(void)
{
    compare_grads(1, 0x1p-8);
    compare_grads(4, 0x1p-7);
}

static void the_plan_is_the_run(void)
{
    Run r;
    run_open(&r, BF16);
    small_step(&r.e, 0.1f);
    engine_begin_step(&r.e, 1);
    ledger_clear(&r.e.be.ledger);
    engine_forward(&r.e, 0.1f);
    engine_backward(&r.e);
    EXPECT_OK(backend_sync(&r.e.be));
    expect_planned(&r.e, "gradients in bf16");
    run_close(&r);
}

int main(void)
{
    RUN(linear_weights_have_rounded_gradients);
    RUN(gradients_are_rounded_once_a_micro_batch);
    RUN(the_plan_is_the_run);
    return lab_report();
}
