/* The whole model: plan against run, recompute, packing, padding, frozen parts, auxiliary losses. */
#include "small.h"
#include "engine/pipeline_run.h"

#include <omp.h>
#include <stdatomic.h>

/* Counts every allocation of our own code. */
static atomic_long allocations;
#ifndef TREB_SANITIZE
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t m);
void *__libc_realloc(void *p, size_t n);
extern char __executable_start, etext;

static void count(const char *caller) { allocations += caller >= &__executable_start && caller < &etext; }

void *malloc(size_t n)           { count(__builtin_return_address(0)); return __libc_malloc(n); }
void *calloc(size_t n, size_t m) { count(__builtin_return_address(0)); return __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { count(__builtin_return_address(0)); return __libc_realloc(p, n); }
#endif

static const Budget roomy = { .tokens = 120, .patches = 64, .docs = 6, .supervised = 100 };

/* Budgets that these documents fill exactly. */
static Budget exact(const ModelShape *shape, int first, int n, unsigned pictures)
{
    Stream s;
    small_stream(&s, shape, roomy, first, n, pictures);
    Budget b = { .tokens = s.tokens, .patches = s.patches, .docs = s.docs, .supervised = s.supervised };
    stream_close(&s);
    return b;
}

static void plan_equals_run(void)
{
    ModelShape shape = small_shape(small_vl_moe);
    const char *drop[] = { NULL, "norm", "core_attn", "moe", "vision", "full" };
    for (int d = 0; d < 6; d++)
        for (int pics = 0; pics < 8; pics += 7) {
            Stream s;
            Engine e;
            EngineConf conf = small_conf(exact(&shape, 0, 3, (unsigned)pics));
            if (drop[d]) EXPECT_OK(policy_drop(conf.policy, drop[d]));
            conf.dtype = d % 2 ? BF16 : F32;
            small_stream(&s, &shape, conf.budget, 0, 3, (unsigned)pics);
            small_engine(&e, &shape, &conf, &s);
            engine_begin_step(&e, 1);
            ledger_clear(&e.be.ledger);
            engine_forward(&e, 1.0f);
            engine_backward(&e);
            EXPECT_OK(backend_sync(&e.be));
            for (int i = 0; i < ARENA_N; i++)
                EXPECT(e.arena[i].peak == e.plan.bytes[i], "%s: run %zu, plan %zu", e.arena[i].name,
                       e.arena[i].peak, e.plan.bytes[i]);
            EXPECT(!memcmp(e.be.ledger.op, e.plan.ledger.op, sizeof e.plan.ledger.op),
                   "calls, FLOPs or bytes differ by op");
            EXPECT(!memcmp(e.be.ledger.by_part, e.plan.ledger.by_part, sizeof e.plan.ledger.by_part),
                   "or by part");
            engine_close(&e);
            stream_close(&s);
        }
}

static void allocates_nothing(const char *recompute, const char *offload, const LoraConf *lora)
{
    ModelShape shape = small_shape(small_vl_moe);
    EngineConf conf = small_conf(exact(&shape, 0, 3, 7));
    OptimConf o = { .adam = { 1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 1 } };
    Stream s;
    Engine e;
    conf.ranks.micro = 2;
    EXPECT_OK(recompute_words(conf.policy, &conf.full, recompute));
    EXPECT_OK(offload_words(conf.policy, offload));
    if (lora) conf.lora = *lora;
    small_stream(&s, &shape, conf.budget, 0, 3, 7);
    small_engine(&e, &shape, &conf, &s);
    e.dropout_seed = 1;
    long before = 0;
    Stream *micro[2] = { &s, &s };
    ExpertCounts routing;
    StepSums sums;
    double norm;
    EXPECT_OK(expert_counts_open(&routing, &e));
    StepStats w = { .experts = &routing };
    for (int i = 0; i < 3; i++) {                            /* the first step warms OpenMP up */
        if (i == 1) before = allocations;
        EXPECT_OK(pipeline_run(&e, &(PipelineStep){ .micro = micro, .n = 2, .stats = &w }, &sums));
        engine_compute_grad_norm(&e);
        EXPECT_OK(engine_read_grad_norm(&e, &norm));
        engine_apply_update(&e, &o);
        expert_counts_end_line(&routing);
    }
    EXPECT(allocations == before, "%ld allocations in two steps", allocations - before);
    EXPECT(before > 0, "the counter counts nothing");
    expert_counts_close(&routing);
    engine_close(&e);
    stream_close(&s);
}

static void step_allocates_nothing(void)
{
#ifdef TREB_SANITIZE
    SKIP("a sanitizer owns malloc");
#endif
    WordList all = { (const char *const[]){ "all-linear" }, 1 };
    LoraConf lora = { .rank = 4, .alpha = 8, .dropout = 0.1, .target = &all };
    allocates_nothing(NULL, NULL, NULL);
    allocates_nothing("full:2", "attn_norm", NULL);
    allocates_nothing("moe_act", "core_attn,expert_fc1,vision", NULL);
    allocates_nothing(NULL, NULL, &lora);
    allocates_nothing("moe", "attn_norm", &lora);
}

static size_t grad_bytes(const Engine *e) { return e->arena[A_GRAD].used; }

static void recompute_changes_no_bit(void)
{
    ModelShape shape = small_shape(small_vl_moe);
    EngineConf conf = small_conf(exact(&shape, 0, 3, 7));
    Stream s;
    Engine plain;
    small_stream(&s, &shape, conf.budget, 0, 3, 7);
    small_engine(&plain, &shape, &conf, &s);
    Losses want = small_step(&plain, 0.1f);
    const char *words[] = { "norm", "core_attn", "qkv", "moe_act", "moe_dispatch", "moe", "mlp", "vision_act",
                            "vision", "full" };
    for (int i = 0; i < 10; i++) {
        Engine e;
        EngineConf c = conf;
        EXPECT_OK(policy_drop(c.policy, words[i]));
        small_engine(&e, &shape, &c, &s);
        Losses got = small_step(&e, 0.1f);
        EXPECT(got.total == want.total, "%s: loss %.9g, not %.9g", words[i], got.total, want.total);
        EXPECT(!memcmp(e.arena[A_GRAD].base, plain.arena[A_GRAD].base, grad_bytes(&plain)),
               "%s: gradients differ", words[i]);
        EXPECT(e.arena[A_ACT].peak < plain.arena[A_ACT].peak, "%s: saves no memory", words[i]);
        engine_close(&e);
    }
    uint8_t policy[LABEL_N];
    policy_default(policy);
    EXPECT_FAIL(policy_drop(policy, "moe_acts"), E_CONFIG, "moe_act");
    engine_close(&plain);
    stream_close(&s);
}

static void runs_are_bitwise_equal(void)
{
    ModelShape shape = small_shape(small_vl_moe);
    EngineConf conf = small_conf(exact(&shape, 0, 3, 7));
    Stream s;
    Engine a, b;
    small_stream(&s, &shape, conf.budget, 0, 3, 7);
    small_engine(&a, &shape, &conf, &s);
    small_engine(&b, &shape, &conf, &s);
    small_step(&a, 0.1f), small_step(&b, 0.1f);
    EXPECT(!memcmp(a.arena[A_GRAD].base, b.arena[A_GRAD].base, grad_bytes(&a)), "two engines differ");
    small_step(&b, 0.1f);
    EXPECT(!memcmp(a.arena[A_GRAD].base, b.arena[A_GRAD].base, grad_bytes(&a)),
           "the second step differs from the first");
    int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    small_step(&b, 0.1f);
    omp_set_num_threads(threads);
    EXPECT(!memcmp(a.arena[A_GRAD].base, b.arena[A_GRAD].base, grad_bytes(&a)), "one thread differs from %d",
           threads);
    engine_close(&a), engine_close(&b);
    stream_close(&s);
}

/* Gradients of a run over some documents, added into sum; no auxiliary loss, which pools documents. */
static double add_gradients(double *sum, Budget b, int first, int n, unsigned pictures)
{
    ModelShape shape = small_shape(small_vl_moe);
    EngineConf conf = small_conf(b);
    Stream s;
    Engine e;
    conf.aux_coeff = 0;
    small_stream(&s, &shape, b, first, n, pictures);
    small_engine(&e, &shape, &conf, &s);
    Losses l = small_step(&e, 0.05f);
    for (size_t i = 0; i < grad_bytes(&e) / 4; i++) sum[i] += ((float *)e.arena[A_GRAD].base)[i];
    engine_close(&e);
    stream_close(&s);
    return l.ce;
}

static void pack_equals_its_documents(void)
{
    enum { MOST = 1 << 18 };
    double *pack = calloc(2 * MOST, sizeof *pack), *sum = pack + MOST, big = 0, diff = 0;
    double whole = add_gradients(pack, roomy, 0, 3, 5), apart = 0;     /* roomy: with a masked tail too */
    for (int d = 0; d < 3; d++) apart += add_gradients(sum, roomy, d, 1, 5);
    for (int i = 0; i < MOST; i++) big = fmax(big, fabs(sum[i])), diff = fmax(diff, fabs(pack[i] - sum[i]));
    EXPECT(big > 0 && diff < 2e-6 * big, "gradients differ by %.3g of %.3g", diff, big);
    EXPECT(fabs(whole - apart) < 1e-6 * apart, "loss %.9g, not %.9g", whole, apart);
    free(pack);
}

static void tail_changes_nothing(void)
{
    enum { MOST = 1 << 18 };
    ModelShape shape = small_shape(small_vl_moe);
    double *a = calloc(2 * MOST, sizeof *a), *b = a + MOST, big = 0, diff = 0;
    double x = add_gradients(a, exact(&shape, 0, 3, 7), 0, 3, 7), y = add_gradients(b, roomy, 0, 3, 7);
    for (int i = 0; i < MOST; i++) big = fmax(big, fabs(a[i])), diff = fmax(diff, fabs(a[i] - b[i]));
    EXPECT(diff < 3e-6 * big, "gradients differ by %.3g of %.3g", diff, big);
    EXPECT(fabs(x - y) < 1e-6 * x, "loss %.9g, not %.9g", y, x);
    free(a);
}

static void odd_batches(void)
{
    ModelShape shape = small_shape(small_vl_moe);
    EngineConf conf = small_conf(roomy);
    Stream s;
    Engine e;
    small_stream(&s, &shape, roomy, 0, 3, 7);
    small_engine(&e, &shape, &conf, &s);
    small_step(&e, 1.0f);
    stream_clear(&s);                                        /* an empty stream */
    engine_upload(&e, &s);
    Losses l = small_step(&e, 0.0f);
    EXPECT(l.total == 0, "an empty batch has loss %g", l.total);
    for (size_t i = 0; i < grad_bytes(&e) / 4; i++)
        if (((float *)e.arena[A_GRAD].base)[i] != 0) { EXPECT(0, "an empty batch has a gradient"); break; }
    static SmallDoc doc;
    Document d = small_doc(&doc, 1, false, 9);               /* text without a supervised token */
    for (int64_t i = 0; i < doc.n; i++) doc.targets[i] = -1;
    EXPECT_OK(stream_add(&s, &d));
    engine_upload(&e, &s);
    l = small_step(&e, 0.0f);
    EXPECT(l.ce == 0 && isfinite(l.aux) && l.aux > 0, "ce %g aux %g", l.ce, l.aux);
    for (int i = 0; i < e.model.params.n; i++) {
        const Param *p = e.model.params.p[i];
        EXPECT(p->step.has_grad == (p->group == G_LLM), "%s: live %d on a batch without pictures",
               p->piece[0].name, p->step.has_grad);
    }
    engine_close(&e);
    stream_close(&s);
}

static void bf16_follows_f32(void)
{
    ModelShape shape = small_shape(small_vl_moe);
    EngineConf conf = small_conf(exact(&shape, 0, 3, 7));
    Losses l[2];
    for (int i = 0; i < 2; i++) {
        Stream s;
        Engine e;
        conf.dtype = i ? BF16 : F32;
        small_stream(&s, &shape, conf.budget, 0, 3, 7);
        small_engine(&e, &shape, &conf, &s);
        l[i] = small_step(&e, 1.0f / (float)s.supervised);
        engine_close(&e);
        stream_close(&s);
    }
    EXPECT(fabs(l[1].total - l[0].total) < 0.02 * l[0].total, "bf16 %.6f, f32 %.6f", l[1].total, l[0].total);
}

static void frozen_parts_cost_nothing(void)
{
    ModelShape shape = small_shape(small_vl_moe);
    EngineConf conf = small_conf(exact(&shape, 0, 3, 7));
    Stream s;
    Engine all;
    small_stream(&s, &shape, conf.budget, 0, 3, 7);
    small_engine(&all, &shape, &conf, &s);
    Losses want = small_step(&all, 0.1f);
    for (int g = 1; g < 8; g++) {
        Engine e;
        EngineConf c = conf;
        for (int k = 0; k < GROUP_N; k++) c.frozen[k] = g >> k & 1;
        small_engine(&e, &shape, &c, &s);
        Losses got = small_step(&e, 0.1f);
        EXPECT(got.total == want.total, "frozen %d: loss %.9g", g, got.total);
        EXPECT(grad_bytes(&e) < grad_bytes(&all), "frozen %d: saves no gradient memory", g);
        EXPECT(!c.frozen[G_VIT] || e.arena[A_ACT].peak < all.arena[A_ACT].peak,
               "frozen %d: keeps activations", g);
        for (int i = 0; i < e.model.params.n; i++) {
            const Param *p = e.model.params.p[i], *q = all.model.params.p[i];
            if (c.frozen[p->group])
                EXPECT(!t_has(p->shard.g) && !p->step.has_grad, "%s: frozen with a gradient",
                       p->piece[0].name);
            else
                EXPECT(!memcmp(p->shard.g.data, q->shard.g.data, (size_t)t_bytes(p->shard.g)),
                       "frozen %d: %s differs", g, p->piece[0].name);
        }
        engine_close(&e);
    }
    engine_close(&all);
    stream_close(&s);
}

/* d(loss)/d(t) along a random direction of all parameters, by central difference, for each auxiliary loss. */
static void directional_derivative(void)
{
    ModelShape shape = small_shape(small_vl_moe);
    AuxForm forms[] = { AUX_NONE, AUX_POOLED, AUX_LAYER, AUX_DOCUMENT };
    for (int f = 0; f < 4; f++) {
        Budget b = exact(&shape, 0, 3, 7);
        b.by_document = forms[f] == AUX_DOCUMENT;
        EngineConf conf = small_conf(b);
        Stream s;
        Engine e;
        conf.aux = forms[f], conf.aux_coeff = forms[f] ? 0.5f : 0.0f, conf.z_coeff = f ? 0.05f : 0.0f;
        small_stream(&s, &shape, b, 0, 3, 7);
        small_engine(&e, &shape, &conf, &s);
        small_step(&e, 0.1f);
        double slope = 0, loss[2];
        const float h = 3e-5f;
        for (int side = 0; side < 2; side++) {
            for (int i = 0; i < e.model.params.n; i++) {
                Param *p = e.model.params.p[i];
                for (int64_t k = 0; k < t_count(p->shard.w); k++) {
                    float dir = rng_normal(77, (uint64_t)i, (uint64_t)k);
                    if (!side) slope += (double)dir * ((float *)p->shard.g.data)[k];
                    ((float *)p->shard.w.data)[k] += dir * (side ? -2 * h : h);
                }
            }
            Losses l;
            engine_forward(&e, 0.1f);
            EXPECT_OK(engine_read_losses(&e, &l));
            loss[side] = l.total;
        }
        double got = (loss[0] - loss[1]) / (2.0 * h);
        EXPECT(fabs(got - slope) < 0.01 * fabs(slope) + 0.05, "form %d: difference %.6f, gradient %.6f", f,
               got, slope);
        engine_close(&e);
        stream_close(&s);
    }
}

static void full_arena_says_so(void)
{
    ModelShape shape = small_shape(small_vl_moe);
    EngineConf conf = small_conf(exact(&shape, 0, 3, 7));
    Stream s;
    Engine e;
    small_stream(&s, &shape, conf.budget, 0, 3, 7);
    for (int64_t at = 1; at < 400; at += 37) { /* the n-th push fails: an error, never a crash */
        small_engine(&e, &shape, &conf, &s);
        e.arena[A_ACT].fail_at = e.arena[A_ACT].pushes + at;
        engine_forward(&e, 1.0f);
        engine_backward(&e);
        Status st = backend_sync(&e.be);
        EXPECT(st == OK || (st == E_FIT && strstr(status_text(), "arena act")), "push %ld: %s", (long)at,
               status_text());
        EXPECT(st == E_FIT || e.arena[A_ACT].pushes < e.arena[A_ACT].fail_at, "push %ld did not fail",
               (long)at);
        engine_close(&e);
    }
    stream_close(&s);
}

static int joins;
static void go_ahead(Backend *be, bool on) { }
static void count_join(Backend *be)        { joins++; }

/* On a device that prefetches, simulated here: the prefetched stream is the next batch, also after the
 * batches of an evaluation have taken its place in the ring. */
static void prefetch_and_evaluation(void)
{
    ModelShape shape = small_shape(small_vl_moe);
    EngineConf conf = small_conf(roomy);
    Engine     e;
    Stream     s[3];
    Arena      arena;
    Batch      ring[2], *own;
    for (int i = 0; i < 3; i++) small_stream(&s[i], &shape, roomy, i, 1, 7);
    small_engine(&e, &shape, &conf, &s[0]);
    BatchConf bc = { .shape = shape_stream(&shape), .budget = roomy, .mesh = &e.mesh, .tower = true };
    const Device *cpu = e.be.device;
    Device device = *cpu;
    EXPECT_OK(backend_arena_open(&e.be, &arena, "test", 1 << 20));
    EXPECT_OK(batch_open(&ring[1], &arena, &bc));
    device.ahead = go_ahead, device.join = count_join, e.be.device = &device;
    own = e.batch, ring[0] = e.batch[0], e.batch = ring, e.batches = 2;
    for (int evals = 0; evals < 4; evals++) {
        joins = 0;
        engine_upload(&e, &s[0]);
        engine_prefetch(&e, &s[1]);
        for (int i = 0; i < evals; i++) engine_upload(&e, &s[2]);
        engine_upload(&e, &s[1]);
        EXPECT(!memcmp(engine_batch(&e)->ids.data, s[1].ids, (size_t)s[1].tokens * sizeof *s[1].ids) &&
                   engine_batch(&e)->real == s[1].tokens,
               "after %d batches of an evaluation the step has another batch", evals);
        EXPECT(joins == 2 + evals, "%d joins: a prefetch waits for the batch before each upload", joins);
    }
    e.batch = own, e.batches = 1, e.be.device = cpu;
    batch_close(&ring[1]);
    backend_arena_close(&e.be, &arena);
    engine_close(&e);
    for (int i = 0; i < 3; i++) stream_close(&s[i]);
}

int main(void)
{
    RUN(plan_equals_run);
    RUN(step_allocates_nothing);
    RUN(recompute_changes_no_bit);
    RUN(runs_are_bitwise_equal);
    RUN(pack_equals_its_documents);
    RUN(tail_changes_nothing);
    RUN(odd_batches);
    RUN(bf16_follows_f32);
    RUN(frozen_parts_cost_nothing);
    RUN(directional_derivative);
    RUN(full_arena_says_so);
    RUN(prefetch_and_evaluation);
    return lab_report();
}
