/* tests/test_shard.c -- weights, gradients and optimizer state over ranks: with every layout and level a
 * step has the result of one rank.
 *
 * The model is a list of parameters of every kind, with no modules. Each rank makes up a gradient for every
 * element it holds, in sixteenths, so that sums are exact in any order and results can be compared bit for
 * bit; the sum over all ranks that hold an element is what one rank would have had. */
#include "commlab.h"

#include "engine/optim.h"

#include <omp.h>

enum { D = 12, HEADS = 8, WIDTH = 3, EXPERTS = 8, F = 4, V = 37, STEPS = 3, MOST = 640 };

typedef struct Case {
    int    world;
    MeshLayout layout;
    int    zero, micro, layers;
    DType  dtype;
    bool   rough, freeze, alone;         /* gradients that do not add up exactly; the tower; no overlap */
} Case;

typedef struct Whole { float *w, *m, *v, *g; int64_t n; uint16_t *narrow; } Whole;    /* of one parameter */

static Case   now;
static Whole  truth[STEPS][MOST];        /* after each step; g: its gradient */
static double norms[STEPS];
static float *seen[4][MOST];             /* final weights of the ranks, by ZeRO level */

/* ---- a list of parameters ---- */

typedef struct Toy { Mesh mesh; Model m; Param *pos; } Toy;

static void declare_layer(ParamSet *s, int l, int kv)
{
    params_unit(s);
    param_vector(s, G_LLM, INIT_ONE, D, "layers.%d.norm", l);
    Param *qkv = param_matrix(s, G_LLM, HEADS * WIDTH, D, "layers.%d.q", l);
    param_piece(qkv, kv * WIDTH, "layers.%d.k", l);
    param_piece(qkv, kv * WIDTH, "layers.%d.v", l);
    param_cut_heads(s, qkv, WIDTH);
    Param *bias = param_vector(s, G_LLM, INIT_ZERO, HEADS * WIDTH, "layers.%d.q.bias", l);
    param_piece(bias, kv * WIDTH, "layers.%d.k.bias", l);
    param_piece(bias, kv * WIDTH, "layers.%d.v.bias", l);
    param_cut_heads(s, bias, WIDTH);
    param_cut(s, param_matrix(s, G_LLM, D, HEADS * WIDTH, "layers.%d.o", l), AX_TP, 1);
    param_matrix(s, G_LLM, EXPERTS, D, "layers.%d.router", l);
    Param *gu = param_experts(s, FORM_EXPERT_GATE_UP, EXPERTS, 2 * F, D, "layers.%d.gate_up", l);
    Param *d  = param_experts(s, FORM_EXPERT_DOWN, EXPERTS, D, F, "layers.%d.down", l);
    param_cut(s, gu, AX_EP, 0), param_cut(s, gu, AX_ETP, 1);
    param_cut(s, d, AX_EP, 0), param_cut(s, d, AX_ETP, 2);
}

static Param *declare_table(ParamSet *s, const char *name)
{
    Param *p = param_matrix(s, G_LLM, V, D, "%s", name);
    param_cut(s, p, AX_TP, 0);
    return p;
}

/* On two stages the table is tied: the first embeds with it, the last has a copy for its head. */
static void declare(Toy *t, const Mesh *mesh)
{
    ParamSet *s = &t->m.params;
    int stages = mesh_size(mesh, AX_PP), stage = mesh_at(mesh, AX_PP);
    s->mesh = mesh;
    if (!stage) {
        params_unit(s);
        param_matrix(s, G_VIT, 13, 7, "patch");
        param_vector(s, G_VIT, INIT_ZERO, 13, "patch.bias");
        t->pos = param_matrix(s, G_VIT, 9, 13, "pos");
        params_unit(s);
        t->m.embed = declare_table(s, "embed");
    }
    for (int l = 0; l < now.layers; l++)
        if (l * stages / now.layers == stage) declare_layer(s, l, mesh ? mesh->layout.kv_heads : 2);
    if (stage < stages - 1) return;
    params_unit(s);
    param_vector(s, G_LLM, INIT_ONE, D, "norm");
    if (now.layout.pp > 1 && stages == 1) return;            /* one rank has one table */
    t->m.head.w = declare_table(s, stages > 1 ? "embed" : "head");
    if (stages > 1) t->m.head.w->tied_copy = true, t->m.head.w->shard.unique = 0;
}

/* ---- values ---- */

static int index_of(const char *name)
{
    static char known[MOST][120];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < MOST - 1 && known[i][0] && strcmp(known[i], name)) i++;
    snprintf(known[i], sizeof known[i], "%s", name);
    pthread_mutex_unlock(&lock);
    return i;
}
static int index_param(const Param *p) { return index_of(p->piece[0].name); }

static float start_value(int param, int64_t e)
{
    return (float)(int)(mix((uint64_t)(param * 7919 + e)) % 401) / 200.0f - 1;
}

/* The gradient of a micro-batch at element e of the whole parameter, from one of the ranks that hold it. */
static float slope(int param, int64_t e, int rank, int step, int micro)
{
    uint64_t h = mix(mix((uint64_t)(param * 1000 + rank * 37 + step * 11 + micro)) + (uint64_t)e);
    return now.rough ? (float)(int64_t)h / 9e18f : (float)((int)(h % 33) - 16) / 16;
}

/* A rank without an image; in the second step no rank has one. */
static bool writes(const Param *p, int rank, int step, int micro)
{
    if (p->group != G_VIT) return true;
    return step != 1 && (rank + micro) % 3 != 1;
}

/* Loops over all elements of the rank's part: `here` indexes the part, `there` the whole parameter. */
#define EACH_ELEMENT(p, here, there)                                                                         \
    for (int k_ = 0; k_ < (p)->pieces; k_++)                                                                 \
        for (int64_t r_ = 0; r_ < (p)->shard.range[k_].count; r_++)                                          \
            for (int64_t j_ = 0, here = (p)->shard.range[k_].local + r_ * (p)->shard.range[k_].len,          \
                         there = (p)->shard.range[k_].at + r_ * (p)->shard.range[k_].stride;                 \
                 j_ < (p)->shard.range[k_].len; j_++, here++, there++)

static AdamW adam(int step)
{
    return (AdamW){ .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-3f, .decay = 0.1f, .max_norm = 1.0f,
                    .step = step + 1 };
}

/* ---- the reference: one rank ---- */

static void add_slopes(int rank, int step)
{
    Toy t = { 0 };
    mesh_place(&t.mesh, rank, now.world, &now.layout);
    declare(&t, &t.mesh);
    for (int i = 0; i < t.m.params.n; i++) {
        const Param *p = t.m.params.p[i];
        int id = index_param(p);
        for (int j = 0; j < now.micro; j++)
            if (writes(p, rank, step, j))
                EACH_ELEMENT(p, at, e) truth[step][id].g[e] += slope(id, e, rank, step, j);
    }
    params_close(&t.m.params);
}

static bool is_live(const Param *p, int step) { return p->group == G_LLM || (step != 1 && !now.freeze); }

static void step_truth(Backend *be, const ParamSet *s, int step)
{
    double sum = 0;
    Tensor sumsq = t_wrap(&sum, F64, 1, &(int64_t){ 1 });
    for (int i = 0; i < s->n; i++) {
        Whole *w = &truth[step][index_param(s->p[i])];
        if (is_live(s->p[i], step))
            op_squares(be, sumsq, (Tensor){ 0 }, &(Addends){ 1, { { t_wrap(w->g, F32, 1, &w->n), 0,
                                                                         false } } });
    }
    norms[step] = sum;
    for (int i = 0; i < s->n; i++) {
        Whole *w = &truth[step][index_param(s->p[i])];
        AdamW h = adam(step);
        if (!s->p[i]->decay) h.decay = 0;
        if (is_live(s->p[i], step))
            op_adamw(be, t_wrap(w->w, F32, 1, &w->n), (Tensor){ 0 }, t_wrap(w->m, F32, 1, &w->n),
                     t_wrap(w->v, F32, 1, &w->n), t_wrap(w->g, F32, 1, &w->n), sumsq, h);
        for (int64_t e = 0; e < w->n; e++) w->narrow[e] = bf16_from_f32(w->w[e]);
    }
}

static void *zeros(int64_t n, size_t size) { return calloc((size_t)n, size); }

static void make_truth(void)
{
    Backend be;
    Toy t = { 0 };
    if (backend_open(&be, "cpu")) exit(1);
    mesh_place(&t.mesh, 0, 1, &(MeshLayout){ .kv_heads = now.layout.kv_heads });
    declare(&t, &t.mesh);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < t.m.params.n; i++) {
            const Param *p = t.m.params.p[i];
            int id = index_param(p);
            Whole *w = &truth[step][id];
            int64_t n = param_count(p);
            *w = (Whole){ zeros(n, 4), zeros(n, 4), zeros(n, 4), zeros(n, 4), n, zeros(n, 2) };
            for (int64_t e = 0; e < n; e++) {
                w->w[e] = step ? truth[step - 1][id].w[e] : start_value(id, e);
                w->m[e] = step ? truth[step - 1][id].m[e] : 0;
                w->v[e] = step ? truth[step - 1][id].v[e] : 0;
            }
        }
        for (int r = 0; r < now.world; r++) add_slopes(r, step);
        step_truth(&be, &t.m.params, step);
    }
    params_close(&t.m.params);
    backend_close(&be);
}

static void drop_truth(void)
{
    for (int s = 0; s < STEPS; s++)
        for (int i = 0; i < MOST; i++) {
            Whole *w = &truth[s][i];
            free(w->w), free(w->m), free(w->v), free(w->g), free(w->narrow);
            *w = (Whole){ 0 };
        }
}

/* ---- a rank ---- */

typedef struct Rank { Peer *peer; Toy toy; Shard s; Arena arena[3]; } Rank;

static uint16_t narrow(float x)                              /* as the optimizer rounds */
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return bits_near(u);
}

static bool alike(double a, double b) { return now.rough ? fabs(a - b) <= 1e-6 * (1 + fabs(b)) : a == b; }

static void load(Rank *r)
{
    for (int i = 0; i < r->toy.m.params.n; i++) {
        const Param *p = r->toy.m.params.p[i];
        ShardView    view = t_has(p->shard.master) ? param_state_view(p, p->shard.master)
                                                   : param_weight_view(p);
        int    id = index_param(p);
        EACH_ELEMENT(p, at, e) {
            if (at < view.at || at >= view.at + view.n) continue;
            float x = start_value(id, e);
            if (view.t.dtype == F32) ((float *)view.t.data)[at - view.at] = x;
            else                     ((uint16_t *)view.t.data)[at - view.at] = bf16_from_f32(x);
        }
    }
    shard_refresh_weights(&r->s);
}

/* The rank's part of the weights, as a module reads it, is the result of the previous step. */
static void check_whole(Rank *r, const Param *p, int step)
{
    int64_t bad = 0;
    int     id = index_param(p);
    EXPECT(t_count(p->shard.w) == param_local(p), "%s: %s in use", p->piece[0].name, t_fmt(p->shard.w));
    if (now.rough) return;
    EACH_ELEMENT(p, at, e) {
        float want = step ? truth[step - 1][id].w[e] : start_value(id, e);
        if (p->shard.w.dtype == F32) bad += ((float *)p->shard.w.data)[at] != want;
        else                   bad += ((uint16_t *)p->shard.w.data)[at] != narrow(want);
    }
    EXPECT(!bad, "rank %d step %d: %lld weights of %s are not there", r->peer->rank, step, (long long)bad,
           p->piece[0].name);
}

static void write_grad(Rank *r, Param *p, int step, int micro)
{
    int id = index_param(p);
    if (!t_has(p->shard.g) || !writes(p, r->peer->rank, step, micro)) return;
    EXPECT(t_count(p->shard.g) == param_local(p), "%s: gradient %s in use", p->piece[0].name,
           t_fmt(p->shard.g));
    if (p->step.grad_unset) memset(p->shard.g.data, 0, (size_t)t_bytes(p->shard.g));
    p->step.grad_unset = false;
    EACH_ELEMENT(p, at, e) ((float *)p->shard.g.data)[at] += slope(id, e, r->peer->rank, step, micro);
    p->step.has_grad = true;
}

static void unit_params(Rank *r, int unit, int step, int micro, bool backward)
{
    if (!r->peer->be.device->host_memory) return;           /* a plan: nothing to read or write */
    for (int i = 0; i < r->toy.m.params.n; i++) {
        Param *p = r->toy.m.params.p[i];
        if (p->unit != unit) continue;
        check_whole(r, p, step);
        if (backward) write_grad(r, p, step, micro);
    }
}

/* A rank without images may skip the tower's backward on ZeRO levels that reduce once a step; on the other
 * levels either all ranks skip it or none. */
static bool skips(Rank *r, int unit, int step, int micro)
{
    const Param *p = r->toy.m.params.p[0];
    bool idle = now.zero < 2 ? !writes(p, r->peer->rank, step, micro) : step == 1;
    return p->unit == unit && p->group == G_VIT && idle;
}

/* A partial forward, as in an evaluation that ends early: the prefetch of the next unit is not waited for. */
static void peek(Rank *r, int step)
{
    const UnitHooks *h = shard_hooks(&r->s);
    for (int u = 0; u < 4 && u < r->toy.m.params.units; u++) {
        h->begin(h->self, u, false);
        unit_params(r, u, step, 0, false);
        h->end(h->self, u, false);
    }
}

/* While a unit is computed, the gather of the one that is used next is under way or done. */
static void check_ahead(const Rank *r, int next)
{
    bool any = next >= 0 && next < r->s.units, gathered = any && r->s.unit[next].slot >= 0;
    EXPECT(now.zero < 3 || now.alone || !gathered || r->s.unit[next].held >= 0,
           "rank %d: unit %d is not gathered ahead", r->peer->rank, next);
}

static void pass(Rank *r, int step, int micro)
{
    const UnitHooks *h = shard_hooks(&r->s);
    int units = r->toy.m.params.units;
    for (int u = 0; u < units; u++) {
        bool head = u == units - 1;                          /* its gradients are made in the forward */
        h->begin(h->self, u, head);
        if (!head) check_ahead(r, u + 1);
        unit_params(r, u, step, micro, head);
        h->end(h->self, u, head);
    }
    for (int u = units - 2; u >= 0; u--) {
        if (skips(r, u, step, micro)) continue;
        h->begin(h->self, u, true);
        check_ahead(r, u - 1);
        unit_params(r, u, step, micro, true);
        h->end(h->self, u, true);
    }
}

static void check_step(Rank *r, int step)
{
    for (int i = 0; i < r->toy.m.params.n; i++) {
        const Param *p = r->toy.m.params.p[i];
        if (now.freeze && p->group == G_VIT) continue;
        const Whole *want = &truth[step][index_param(p)];
        const float *w = t_has(p->shard.master) ? p->shard.master.data : shard_slice(p, p->shard.w).data;
        const float *m = p->shard.m.data, *v = p->shard.v.data;
        int64_t bad = 0;
        EACH_ELEMENT(p, at, e) {
            int64_t k = at - p->shard.offset;
            if (k < 0 || k >= p->shard.len) continue;
            bad += !alike(w[k], want->w[e]) || !alike(m[k], want->m[e]) || !alike(v[k], want->v[e]);
            if (step == STEPS - 1 && p->shard.is_writer && at < p->shard.unique)
                seen[now.zero][index_param(p)][e] = w[k];
        }
        EXPECT(p->step.has_grad == is_live(p, step), "%s: live %d", p->piece[0].name, p->step.has_grad);
        EXPECT(!bad, "rank %d zero %d step %d: %lld of %lld of %s differ", r->peer->rank, now.zero, step,
               (long long)bad, (long long)p->shard.len, p->piece[0].name);
    }
}

/* Every element of every parameter is updated, and counted by exactly one rank. */
static void check_partition(Rank *r)
{
    int64_t counted[MOST] = { 0 };
    for (int i = 0; i < r->toy.m.params.n; i++) {
        const Param *p = r->toy.m.params.p[i];
        int64_t n = 0;
        EACH_ELEMENT(p, at, e)
            n += at >= p->shard.offset && at < p->shard.offset + p->shard.len && at < p->shard.unique;
        if (p->shard.is_writer) counted[index_param(p)] += n;
    }
    comm_host_sum64(r->peer->world, counted, MOST);
    for (int i = 0; i < MOST; i++)
        EXPECT(counted[i] == truth[0][i].n, "parameter %d: %lld of %lld elements have an owner", i,
               (long long)counted[i], (long long)truth[0][i].n);
}

static void open_rank(Rank *r, Peer *peer)
{
    static const char *const names[] = { "param", "grad", "optim" };
    *r = (Rank){ .peer = peer };
    omp_set_num_threads(1);
    EXPECT_OK(mesh_open(&r->toy.mesh, peer->world, &now.layout));
    mesh_bind(&r->toy.mesh, &peer->be);
    declare(&r->toy, &r->toy.mesh);
    for (int i = 0; i < r->toy.m.params.n; i++)
        r->toy.m.params.p[i]->frozen = now.freeze && r->toy.m.params.p[i]->group == G_VIT;
    ShardConf c = { .params = &r->toy.m.params, .zero = now.zero, .dtype = now.dtype,
                    .table = { r->toy.m.embed, r->toy.pos }, .overlap = !now.alone };
    if (r->toy.mesh.size[AX_PP] > 1) c.tied = r->toy.m.embed ? r->toy.m.embed : r->toy.m.head.w;
    EXPECT_OK(shard_open(&r->s, &c));
    ShardSizes z = shard_sizes(&r->s);
    size_t bytes[] = { z.param, z.grad, z.optim + 256 };
    for (int i = 0; i < 3; i++) EXPECT_OK(backend_arena_open(&peer->be, &r->arena[i], names[i], bytes[i]));
    bool real = peer->be.device->host_memory;               /* moments are zero, the rest must be written */
    for (int i = 0; real && i < 3; i++) memset(r->arena[i].base, i < 2 ? 0x7f : 0, r->arena[i].cap);
    shard_bind(&r->s, &peer->be, &r->arena[0], &r->arena[1], &r->arena[2], NULL);
}

static void close_rank(Rank *r)
{
    for (int i = 0; i < 3; i++) backend_arena_close(&r->peer->be, &r->arena[i]);
    shard_close(&r->s);
    params_close(&r->toy.m.params);
    mesh_close(&r->toy.mesh);
}

static void run_rank(Peer *peer)
{
    Rank r;
    open_rank(&r, peer);
    Tensor sumsq = t1(&r.arena[2], "norm", F64, 1);
    int64_t pushes = r.arena[0].pushes + r.arena[1].pushes + r.arena[2].pushes;
    check_partition(&r);
    load(&r);
    for (int step = 0; step < STEPS; step++) {
        const OptimConf o = { .adam = adam(step) };
        peek(&r, step);
        shard_hooks(&r.s)->begin(&r.s, 1, true);             /* a forward whose backward never comes */
        shard_begin_step(&r.s, now.micro);
        for (int j = 0; j < now.micro; j++) pass(&r, step, j);
        peek(&r, step);
        shard_finish_grads(&r.s);
        optim_grad_norm(&r.toy.m, &peer->be, sumsq, (Tensor){ 0 });
        double sum = *(double *)sumsq.data;
        EXPECT(alike(sum, norms[step]), "rank %d zero %d step %d: norm^2 %.17g, not %.17g", peer->rank,
               now.zero, step, sum, norms[step]);
        optim_step(&peer->be, sumsq, &o, &r.s);
        check_ahead(&r, 0);
        check_step(&r, step);
    }
    shard_wait_weights(&r.s);
    EXPECT_OK(backend_sync(&peer->be));
    EXPECT(pushes == r.arena[0].pushes + r.arena[1].pushes + r.arena[2].pushes, "a step took memory");
    for (int i = 0; i < 2; i++)
        EXPECT(r.arena[i].peak == r.arena[i].cap, "%s: %zu of %zu bytes", r.arena[i].name, r.arena[i].peak,
               r.arena[i].cap);
    close_rank(&r);
}

static void run(Case c)
{
    now = c;
    if (!now.layers) now.layers = 5;
    make_truth();
    for (int i = 0; i < MOST; i++) {
        free(seen[c.zero][i]);
        seen[c.zero][i] = truth[0][i].n ? calloc((size_t)truth[0][i].n, sizeof(float)) : NULL;
    }
    on_ranks(c.world, 0, run_rank);
}

static void compare_levels(int a, int b)
{
    for (int i = 0; i < MOST; i++)
        if (truth[0][i].n)
            EXPECT(!memcmp(seen[a][i], seen[b][i], (size_t)truth[0][i].n * sizeof(float)),
                   "parameter %d: zero %d and %d leave other bits", i, a, b);
}

/* ---- tests ---- */

static const MeshLayout layouts[] = {
    { .tp = 1, .ep = 1, .kv_heads = 2 },
    { .tp = 2, .ep = 2, .kv_heads = 2 },
    { .tp = 2, .cp = 2, .ep = 4, .kv_heads = 4 },
    { .tp = 4, .ep = 8, .kv_heads = 2 },
    { .tp = 8, .ep = 4, .etp = 2, .kv_heads = 1 },
    { .tp = 2, .ep = 2, .etp = 2, .kv_heads = 1 },
    { .tp = 1, .ep = 2, .replicas = 2, .kv_heads = 2 },
    { .tp = 2, .ep = 1, .replicas = 4, .kv_heads = 2 },
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static void every_level_on_every_layout(void)
{
    for (int l = 0; l < LAYOUTS; l++)
        for (int zero = 0; zero < 4; zero++) {
            run((Case){ .world = 8, .layout = layouts[l], .zero = zero, .micro = 3 });
            drop_truth();
        }
}

static void narrow_weights(void)
{
    for (int l = 1; l < LAYOUTS; l += 2)
        for (int zero = 0; zero < 4; zero++) {
            run((Case){ .world = 8, .layout = layouts[l], .zero = zero, .micro = 2, .dtype = BF16 });
            drop_truth();
        }
}

static void levels_leave_equal_bits(void)
{
    for (int l = 0; l < LAYOUTS; l += 3) {
        for (int zero = 1; zero < 4; zero++) {
            run((Case){ .world = 8, .layout = layouts[l], .zero = zero, .micro = 1, .rough = true });
            if (zero > 1) compare_levels(zero - 1, zero);
            drop_truth();
        }
        for (int zero = 2; zero < 4; zero++) {
            run((Case){ .world = 8, .layout = layouts[l], .zero = zero, .micro = 3, .rough = true });
            if (zero > 2) compare_levels(2, 3);
            drop_truth();
        }
    }
}

static void a_frozen_tower(void)
{
    for (int zero = 0; zero < 4; zero++) {
        run((Case){ .world = 4, .layout = layouts[1], .zero = zero, .micro = 2, .dtype = BF16,
                    .freeze = true });
        drop_truth();
    }
}

static void waiting_at_once(void)
{
    for (int zero = 0; zero < 4; zero++) {
        run((Case){ .world = 4, .layout = layouts[1], .zero = zero, .micro = 2, .alone = true });
        drop_truth();
    }
}

static void tied_ends_of_a_pipeline(void)
{
    for (int zero = 0; zero < 4; zero++) {
        run((Case){ .world = 8, .layout = { .tp = 2, .pp = 2, .ep = 2, .kv_heads = 1 }, .zero = zero,
                    .micro = 2 });
        drop_truth();
    }
}

/* More units than tickets. */
static void many_layers(void)
{
    for (int zero = 0; zero < 4; zero++) {
        run((Case){ .world = 4, .layout = layouts[1], .zero = zero, .micro = 2, .layers = 80 });
        drop_truth();
    }
}

/* A plan and a run use the same bytes. */
static void plan_rank(Peer *peer)
{
    Rank    r, plan;
    Comm   *world;
    Peer    alone = { .rank = peer->rank };
    Tensor  sumsq;
    EXPECT_OK(comm_open(&world, &(CommConf){ .kind = "fake", .rank = peer->rank, .size = now.world }));
    EXPECT_OK(backend_open(&alone.be, "meta"));
    alone.world = world;
    comm_bind(world, &alone.be);
    open_rank(&plan, &alone);
    sumsq = t1(&plan.arena[2], "norm", F64, 1);
    shard_refresh_weights(&plan.s);
    shard_begin_step(&plan.s, now.micro);
    for (int j = 0; j < now.micro; j++) pass(&plan, 0, j);
    shard_finish_grads(&plan.s);
    optim_grad_norm(&plan.toy.m, &alone.be, sumsq, (Tensor){ 0 });
    optim_step(&alone.be, sumsq, &(OptimConf){ .adam = adam(0) }, &plan.s);
    shard_wait_weights(&plan.s);
    EXPECT_OK(backend_sync(&alone.be));
    open_rank(&r, peer);
    t1(&r.arena[2], "norm", F64, 1);
    for (int i = 0; i < 3; i++)
        EXPECT(r.arena[i].peak == plan.arena[i].peak, "%s: plan %zu, run %zu", r.arena[i].name,
               plan.arena[i].peak, r.arena[i].peak);
    close_rank(&r);
    close_rank(&plan);
    comm_close(world);
    backend_close(&alone.be);
}

static void plans_agree(void)
{
    for (int l = 0; l < LAYOUTS; l++)
        for (int zero = 0; zero < 4; zero++) {
            now = (Case){ .world = 8, .layout = layouts[l], .zero = zero, .micro = 2, .layers = 5,
                          .dtype = BF16 };
            on_ranks(8, 0, plan_rank);
        }
}

static void one_rank(void)
{
    for (int zero = 0; zero < 4; zero++) {
        run((Case){ .world = 1, .layout = { .tp = 1, .kv_heads = 2 }, .zero = zero, .micro = 2 });
        drop_truth();
    }
}

int main(void)
{
    RUN(one_rank);
    RUN(every_level_on_every_layout);
    RUN(narrow_weights);
    RUN(levels_leave_equal_bits);
    RUN(a_frozen_tower);
    RUN(waiting_at_once);
    RUN(tied_ends_of_a_pipeline);
    RUN(many_layers);
    RUN(plans_agree);
    return lab_report();
}
