/* tests/test_graph_cache.c -- steps as graphs on the CPU (graphlab.h) against the same steps run eagerly: the
 * same bits; and limits of the cache. */
#include "graphsteps.h"
#include "graphlab.h"

#include "comm/comm_threads.h"

#include <omp.h>
#include <pthread.h>

static _Thread_local Device device;

/* Text alone, of an even number of experts. */
static const char rank_moe[] =
    "{\"model_type\": \"qwen3_moe\", \"torch_dtype\": \"float32\", \"vocab_size\": 97, \"hidden_size\": 32,"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8,"
    " \"intermediate_size\": 48, \"moe_intermediate_size\": 24, \"num_experts\": 4,"
    " \"num_experts_per_tok\": 2, \"rope_theta\": 10000.0, \"initializer_range\": 0.2}";

static void attach(Engine *e)      { graphlab_open(e, &device, SIZE_MAX, 0); }
static void attach_few(Engine *e)  { graphlab_open(e, &device, 3, 0); }      /* a graph counts one byte */
static void attach_two(Engine *e)  { attach(e), e->graphs.most = 2; }        /* clearing, a forward */
static void attach_rank(Engine *e) { graphlab_open(e, &device, SIZE_MAX, GRAPH_ALL_SCOPES); }

enum { BEFORE_DISPATCH = GRAPH_BIT(ATTN) | GRAPH_BIT(MOE_ROUTER) | GRAPH_BIT(MOE_PREPROCESS) };

static void attach_scopes(Engine *e, unsigned scopes, size_t limit)
{
    graphlab_open(e, &device, limit, scopes);
    e->graphs.phases = false;
}
static void attach_partly(Engine *e) { attach_scopes(e, BEFORE_DISPATCH, SIZE_MAX); }
static void attach_all(Engine *e)    { attach_scopes(e, GRAPH_ALL_SCOPES, SIZE_MAX); }
static void attach_scarce(Engine *e) { attach_scopes(e, GRAPH_ALL_SCOPES, 5); }

/* Phases, the scopes before the dispatch, all scopes. */
static void graphs_give_the_same_bits(void)
{
    void (*const ways[])(Engine *e) = { attach, attach_partly, attach_all };
    for (int i = 0; i < GRAPH_CASES; i++) {
        GraphRig r;
        graph_rig_open(&r, &graph_cases[i], small_vl_moe);
        EngineConf  c = graph_conf(&r, "cpu");
        GraphResult want = graph_train(&r, &c, NULL);
        for (int w = 0; w < 3; w++) {
            GraphResult got = graph_train(&r, &c, ways[w]);
            graph_compare(r.of, &want, &got);
        }
        graph_rig_close(&r);
    }
}

static void a_full_cache_runs_eagerly(void)
{
    GraphRig r;
    graph_rig_open(&r, &graph_cases[0], small_vl_moe);
    EngineConf  c = graph_conf(&r, "cpu");
    GraphResult want = graph_train(&r, &c, NULL), got = graph_train(&r, &c, attach_few);
    EXPECT(got.counts.captured == 3 && got.counts.eager > got.counts.launched && want.state == got.state,
           "%d captured, %d eagerly", (int)got.counts.captured, (int)got.counts.eager);
    graph_rig_close(&r);
}

static void a_forward_alone_is_a_graph(void)
{
    for (int i = 2; i < GRAPH_CASES; i++) {
        GraphRig r;
        graph_rig_open(&r, &graph_cases[i], small_vl_moe);
        EngineConf  c = graph_conf(&r, "cpu");
        GraphResult want = graph_train(&r, &c, NULL), got = graph_train(&r, &c, attach_two);
        EXPECT(got.counts.captured == 2, "%d captured", (int)got.counts.captured);
        got.counts = (GraphCounts){ .launched = 9, .captured = 1 };
        graph_compare(r.of, &want, &got);
        graph_rig_close(&r);
    }
}

/* Activations that are copied to the host and back between the scopes. */
static void offloaded_scopes_give_the_same_bits(void)
{
    GraphRig r;
    graph_rig_open(&r, &graph_cases[0], small_vl_moe);
    EngineConf c = graph_conf(&r, "cpu");
    c.policy[L_ACT] = c.policy[L_CORE] = OFFLOAD;
    GraphResult want = graph_train(&r, &c, NULL), got = graph_train(&r, &c, attach_all);
    graph_compare(r.of, &want, &got);
    graph_rig_close(&r);
}

static void scopes_without_memory_run_eagerly(void)
{
    GraphRig r;
    graph_rig_open(&r, &graph_cases[0], small_vl_moe);
    EngineConf  c = graph_conf(&r, "cpu");
    GraphResult want = graph_train(&r, &c, NULL), got = graph_train(&r, &c, attach_scarce);
    EXPECT(got.counts.captured == 5 && got.counts.eager > 30 && want.state == got.state,
           "%d captured, %d eagerly", (int)got.counts.captured, (int)got.counts.eager);
    graph_rig_close(&r);
}

/* ---- ranks ---- */

enum { RANKS = 2 };
typedef struct GraphRank {
    Comm       *world;
    GraphRig    rig;
    int         zero, tp;
    const char *dispatcher;
    void      (*attach)(Engine *e);
    GraphResult result;
} GraphRank;

static void *rank_main(void *arg)
{
    GraphRank *p = arg;
    EngineConf c = graph_conf(&p->rig, "cpu");
    omp_set_num_threads(1);
    c.ranks = (Ranks){ .world = p->world, .zero = p->zero, .micro = p->rig.of->micros,
                       .layout = { .tp = p->tp ? p->tp : 1, .cp = 1, .pp = 1, .vpp = 1, .ep = RANKS,
                                   .etp = 1 },
                       .dispatch = { .name = p->dispatcher },
                       .chunk = { { 0, p->rig.shape.text.L, true, true } } };
    p->result = graph_train(&p->rig, &c, p->attach);
    return NULL;
}

static void run_ranks(GraphRank *p, const GraphCase *of, GraphRank like)
{
    Comm     *world[RANKS];
    pthread_t thread[RANKS];
    EXPECT_OK(comm_open_threads(world, RANKS, 0));
    for (int i = 0; i < RANKS; i++) {
        p[i] = like, p[i].world = world[i];
        graph_rig_open(&p[i].rig, of, rank_moe);
    }
    for (int i = 0; i < RANKS; i++) pthread_create(&thread[i], NULL, rank_main, &p[i]);
    for (int i = 0; i < RANKS; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < RANKS; i++) comm_close(world[i]), graph_rig_close(&p[i].rig);
}

static const GraphCase two_ranks = { "two ranks", { 0, 0, 0 }, 3, false, false, false, false, F32, false };

static GraphCounts compare_ranks(GraphRank like)
{
    static GraphRank want[RANKS], got[RANKS];
    GraphRank eager = like;
    eager.attach = NULL;
    run_ranks(want, &two_ranks, eager);
    run_ranks(got, &two_ranks, like);
    for (int i = 0; i < RANKS; i++) graph_compare(&two_ranks, &want[i].result, &got[i].result);
    return got[0].result.counts;
}

/* Experts on two ranks, which write rows into each other's memory; gradients and, with ZeRO 1, weights are
 * exchanged in passes of which scopes are graphs, and in phases that run eagerly. */
static void ranks_give_the_same_bits(void)
{
    for (int zero = 0; zero < 2; zero++) {
        GraphRank   like = { .zero = zero, .dispatcher = "peer", .attach = attach_rank };
        GraphCounts n = compare_ranks(like);
        int last = 1 + zero;                             /* the norm, with ZeRO the update */
        EXPECT(n.eager == last * GRAPH_STEPS + n.captured, "%d eagerly, %d captured", (int)n.eager,
               (int)n.captured);
    }
}

/* Dispatchers that count rows on the host; the sort of rows is a graph. */
static void counted_dispatch_has_scopes(void)
{
    const GraphRank like[] = { { .zero = 3, .dispatcher = "alltoall", .attach = attach_partly },
                               { .zero = 2, .tp = 2, .dispatcher = "deepep", .attach = attach_partly } };
    for (int i = 0; i < 2; i++) {
        GraphCounts n = compare_ranks(like[i]);
        EXPECT(n.eager == n.captured, "%d eagerly, %d captured", (int)n.eager, (int)n.captured);
    }
}

/* ---- calls of ranks and ops that wait ---- */

typedef struct Caller { Comm *world; Backend be; OpQueue q; int waits[4]; } Caller;

static void play_all(void *self)
{
    OpQueue *q = &((Caller *)self)->q;
    op_queue_play(q), op_queue_clear(q);
}

/* Ops wait before a call is started and before it is joined; waits: the length of the queue before and after
 * both. */
static void *call_in_scope(void *arg)
{
    Caller       *p = arg;
    float         data[4] = { 0 };
    const int64_t one[] = { 1 }, all[] = { RANKS };
    Tensor        own = t_wrap(data, F32, 1, one), gathered = t_wrap(data + 1, F32, 1, all);
    Tensor        other = t_wrap(data + 3, F32, 1, one);
    p->q = (OpQueue){ .scopes = GRAPH_BIT(ATTN), .run = play_all, .self = p };
    p->be.queue = &p->q;
    backend_scope(&p->be, GRAPH_ATTN);
    op_fill(&p->be, own, 1), p->waits[0] = p->q.n;
    Ticket t = comm_all_gather_start(p->world, gathered, own);
    p->waits[1] = p->q.n;
    op_fill(&p->be, other, 2), p->waits[2] = p->q.n;
    comm_join(t), p->waits[3] = p->q.n;
    p->be.queue = NULL, op_queue_close(&p->q);
    return NULL;
}

static void calls_run_what_waits(void)
{
    static Caller p[RANKS];
    Comm     *world[RANKS];
    pthread_t thread[RANKS];
    EXPECT_OK(comm_open_threads(world, RANKS, 0));
    for (int i = 0; i < RANKS; i++) {
        p[i].world = world[i];
        EXPECT_OK(backend_open(&p[i].be, "cpu"));
        comm_bind(world[i], &p[i].be);
    }
    for (int i = 0; i < RANKS; i++) pthread_create(&thread[i], NULL, call_in_scope, &p[i]);
    for (int i = 0; i < RANKS; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < RANKS; i++) {
        const int *n = p[i].waits;
        EXPECT(n[0] == 1 && n[1] == 0 && n[2] == 1 && n[3] == 0, "%d %d %d %d", n[0], n[1], n[2], n[3]);
        comm_close(world[i]), backend_close(&p[i].be);
    }
}

static int waits_at_join;
static void count_waits(Backend *be) { waits_at_join = be->queue->n; }

/* Uploads of the next batch are joined behind the ops that wait, which may read the batch before it. */
static void a_join_runs_what_waits(void)
{
    Caller p = { 0 };
    float  x;
    Device own = device_cpu;
    EXPECT_OK(backend_open(&p.be, "cpu"));
    own.join = count_waits, p.be.device = &own;
    p.q = (OpQueue){ .scopes = GRAPH_BIT(ATTN), .run = play_all, .self = &p };
    p.be.queue = &p.q, waits_at_join = -1;
    backend_scope(&p.be, GRAPH_ATTN);
    op_fill(&p.be, t_wrap(&x, F32, 1, (int64_t[]){ 1 }), 2);
    backend_join(&p.be);
    EXPECT(waits_at_join == 0 && x == 2, "%d ops wait", waits_at_join);
    p.be.queue = NULL, op_queue_close(&p.q);
    backend_close(&p.be);
}

/* Scopes that end inside one leave ops that run at once. */
static void closed_scopes_are_gone(void)
{
    GraphRig r;
    graph_rig_open(&r, &graph_cases[0], small_vl_moe);
    EngineConf c = graph_conf(&r, "cpu");
    EXPECT_OK(engine_open(&r.e, &r.shape, &c, &r.s[0]));
    attach_all(&r.e);
    backend_scope(&r.e.be, GRAPH_ATTN);
    EXPECT(r.e.be.ops == &op_queue_ops, "no scope");
    scope_cache_close(&r.e.scopes);
    EXPECT(r.e.be.ops == r.e.be.device->ops, "ops would wait in a queue that is gone");
    engine_close(&r.e);
    graph_rig_close(&r);
}

static void refusals_name_the_cause(void)
{
    GraphRig   r;
    EnginePlan p;
    graph_rig_open(&r, &graph_cases[0], small_vl_moe);
    EngineConf c = graph_conf(&r, "cpu");
    c.graphs = GRAPH_FULL;
    EXPECT_FAIL(engine_open(&r.e, &r.shape, &c, &r.s[0]), E_CONFIG, "device.backend=cuda");
    c.store.offload_fraction = 0.5;
    EXPECT_FAIL(engine_plan(&p, &r.shape, &c, &r.s[0]), E_CONFIG, "memory.optimizer_offload=0");
    c.store.offload_fraction = 0, c.policy[L_ACT] = OFFLOAD;
    EXPECT_FAIL(engine_plan(&p, &r.shape, &c, &r.s[0]), E_CONFIG, "memory.activation_offload=[]");
    c.graphs = GRAPH_BIT(ATTN);
    EXPECT_OK(engine_plan(&p, &r.shape, &c, &r.s[0]));
    graph_rig_close(&r);
    r.shape = small_shape(rank_moe), c = graph_conf(&r, "cpu");
    c.graphs = GRAPH_BIT(MLP);
    EXPECT_FAIL(engine_plan(&p, &r.shape, &c, &r.s[0]), E_CONFIG, "every layer of the model has experts");
    c.graphs = GRAPH_BIT(VISION);
    EXPECT_FAIL(engine_plan(&p, &r.shape, &c, &r.s[0]), E_CONFIG, "no tower");
}

typedef struct Keys { Backend be; OpQueue q; int64_t first[256]; size_t words; } Keys;

/* Whether what is queued has the key of the first time; empties the queue. */
static bool same_key(Keys *k)
{
    bool same = k->words == k->q.words && !memcmp(k->first, k->q.key, k->words * sizeof *k->first);
    if (!k->words) memcpy(k->first, k->q.key, k->q.words * sizeof *k->first), k->words = k->q.words;
    op_queue_clear(&k->q);
    return same;
}

/* An attention, which is not run: its tensors are never read. */
static void queue_attention(Keys *k, double pairs, int64_t longest, float scale)
{
    static float data[4096];
    const int64_t row[] = { 64, 2, 8 }, stat[] = { 2, 64 }, borders[] = { 3 };
    Tensor q = t_wrap(data, F32, 3, row), lse = t_wrap(data, F32, 2, stat);
    Segments s = { .starts = t_wrap(data, I32, 1, borders), .n = 2, .longest = longest, .pairs = pairs,
                   .causal = true };
    op_attention_fwd(&k->be, q, lse, q, q, q, s, scale);
}

/* The number of pairs decides by whether segments are even; every other argument decides. */
static void keys_are_the_arguments(void)
{
    Keys k = { 0 };
    EXPECT_OK(backend_open(&k.be, "cpu"));
    k.be.queue = &k.q, k.be.ops = &op_queue_ops;
    queue_attention(&k, 1000, 32, 0.5f), same_key(&k);
    queue_attention(&k, 999, 32, 0.5f);
    EXPECT(same_key(&k), "another number of pairs");
    queue_attention(&k, 2 * 528, 32, 0.5f);
    EXPECT(!same_key(&k), "even segments");
    queue_attention(&k, 1000, 40, 0.5f);
    EXPECT(!same_key(&k), "a longer segment");
    queue_attention(&k, 1000, 32, 0.25f);
    EXPECT(!same_key(&k), "another scale");
    queue_attention(&k, 1000, 32, 0.5f), queue_attention(&k, 1000, 32, 0.5f);
    EXPECT(!same_key(&k), "twice");
    op_queue_close(&k.q);
    k.be.queue = NULL;
    backend_close(&k.be);
}

static void words_are_read(void)
{
    const char *list[] = { "attn", "moe_router", "full" }, *moe = "moe";
    const char *wrong[][2] = { { "full_iteration", "write full" }, { "local", "write the scopes" },
                               { "mamba", "belong to attn" }, { "attention", "write attn" },
                               { "layers", "there are none, full, attn, mlp, moe_router" } };
    unsigned bits = 9;
    EXPECT_OK(graph_scopes_read(&bits, NULL, 0));
    EXPECT(!bits, "no word: %x", bits);
    EXPECT_OK(graph_scopes_read(&bits, list, 2));
    EXPECT(bits == (GRAPH_BIT(ATTN) | GRAPH_BIT(MOE_ROUTER)), "bits %x", bits);
    EXPECT_OK(graph_scopes_read(&bits, &moe, 1));
    EXPECT(bits == (GRAPH_BIT(MOE) | GRAPH_BIT(MOE_ROUTER) | GRAPH_BIT(MOE_PREPROCESS)), "bits %x", bits);
    EXPECT_OK(graph_scopes_read(&bits, &list[2], 1));
    EXPECT(bits == GRAPH_FULL, "bits %x", bits);
    EXPECT_FAIL(graph_scopes_read(&bits, list, 3), E_CONFIG, "full stands alone");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        EXPECT_FAIL(graph_scopes_read(&bits, &wrong[i][0], 1), E_CONFIG, wrong[i][1]);
}

static void buckets_are_few(void)
{
    const struct { int64_t n, want; } rows[] = { { 0, 0 }, { 1, 64 }, { 64, 64 }, { 65, 128 }, { 1024, 1024 },
                                                 { 1025, 1152 }, { 30000, 30720 }, { 32760, 32768 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        EXPECT(bucket_rows(rows[i].n, 32768) == rows[i].want, "%d rows: %d", (int)rows[i].n,
               (int)bucket_rows(rows[i].n, 32768));
    EXPECT(bucket_rows(40, 50) == 50, "no more than there are");
    Segments s = { .n = 5, .longest = 300, .pairs = 1, .causal = true }, t = bucket_segments(s, 4096, 100);
    EXPECT(t.n == 8 && t.longest == 384, "%d of %d", (int)t.n, (int)t.longest);
    t = bucket_segments(s, 310, 6);
    EXPECT(t.n == 6 && t.longest == 310, "%d of %d", (int)t.n, (int)t.longest);
    s = (Segments){ .n = 3, .longest = 100, .pairs = 3 * 5050, .causal = true };
    t = bucket_segments(s, 300, 100);
    EXPECT(segments_even(&s, 300) && t.n == 3 && t.longest == 100, "even segments stay");
}

int main(void)
{
    omp_set_num_threads(1);
    RUN(graphs_give_the_same_bits);
    RUN(a_full_cache_runs_eagerly);
    RUN(a_forward_alone_is_a_graph);
    RUN(offloaded_scopes_give_the_same_bits);
    RUN(scopes_without_memory_run_eagerly);
    RUN(ranks_give_the_same_bits);
    RUN(counted_dispatch_has_scopes);
    RUN(calls_run_what_waits);
    RUN(a_join_runs_what_waits);
    RUN(closed_scopes_are_gone);
    RUN(refusals_name_the_cause);
    RUN(keys_are_the_arguments);
    RUN(words_are_read);
    RUN(buckets_are_few);
    return lab_report();
}
