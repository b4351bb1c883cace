/* parallel/shard_layout.c -- the layout of parameters: units into buckets, buckets into slices, slices into
 * arenas. */
#include "parallel/shard_private.h"

#include "ops/moment_code.h"

#include <stdlib.h>

/* A group over which gradients are summed; the group whose slices make a bucket; the group with the same
 * slice. */
typedef struct SumGroup { GroupId sums, shard, copy; } SumGroup;

static const SumGroup sum_groups[] = {
#define SUM(g) { GR_##g, GR_shard_##g, GR_copy_##g }
    SUM(dp_cp), SUM(tp_dp_cp), SUM(edp), SUM(etp_edp), SUM(ep_edp),
#undef SUM
};
enum { SUM_GROUPS = sizeof sum_groups / sizeof *sum_groups, RING = 2 };

static int64_t round_up(int64_t n, int64_t grid) { return (n + grid - 1) / grid * grid; }

static bool is_matrix_product(const ShardConf *c, const Param *p)
{
    return p->ndim >= 2 && p != c->table[0] && p != c->table[1];
}

/* Only the weights of a frozen bucket can be sharded. */
static int level_of(const ShardConf *c, const ShardBucket *b)
{
    if (comm_size(b->shard_comm) == 1) return 0;
    return b->frozen && (c->zero < 3 || b->buffers) ? 0 : c->zero;
}

/* What a bucket holds: weights that train, those whose gradients are bf16 apart; frozen ones; or buffers,
 * which are f32. */
typedef enum { HOLDS_TRAINED, HOLDS_ROUNDED, HOLDS_FROZEN, HOLDS_BUFFERS, HOLDS_N } Holds;

static Holds holds_of(const ShardConf *c, const Param *p)
{
    if (p->buffer) return HOLDS_BUFFERS;
    if (p->frozen) return HOLDS_FROZEN;
    return c->grads == BF16 && param_rounds_grad(p) ? HOLDS_ROUNDED : HOLDS_TRAINED;
}

static bool trains(Holds holds) { return holds == HOLDS_TRAINED || holds == HOLDS_ROUNDED; }

/* As what a weight is stored: itself, codes that ranks gather or of a base, or codes that masters make. */
typedef enum { STORED_WEIGHTS, STORED_CODES, STORED_MASTERS, STORED_N } Stored;

static Stored stored_of(const ShardConf *c, const Param *p, int level)
{
    if (codes_replace(c, p, level)) return STORED_CODES;
    return masters_replace(c, p, level) ? STORED_MASTERS : STORED_WEIGHTS;
}

static void set_comms(ShardBucket *b, const Mesh *mesh, const SumGroup *of)
{
    if (!mesh) return;
    b->sum_comm   = mesh->comm[of->sums];
    b->shard_comm = mesh->comm[of->shard];
    b->copy_comm  = mesh->comm[of->copy];
}

/* Elements that tensors and slices are aligned to: for both dtypes, and for blocks of coded moments. */
static int64_t grid_of(const ShardConf *c, Holds holds)
{
    int64_t grid = ARENA_ALIGN / (int64_t)dtype_size(c->dtype);
    return trains(holds) && c->state == U8 ? MOMENT_BLOCK : grid;
}

/* Adds the bucket of the parameters of a unit that are summed over one group, if there are any. */
static void add_bucket(Shard *s, int unit, const SumGroup *of, Holds holds, Stored stored)
{
    const ShardConf *c = &s->conf;
    int64_t grid = grid_of(c, holds);
    ShardBucket b = { .unit = unit, .sums = of->sums, .frozen = !trains(holds),
                      .grads = holds == HOLDS_ROUNDED ? BF16 : F32,
                      .buffers = holds == HOLDS_BUFFERS, .coded = stored == STORED_CODES,
                      .from_master = stored == STORED_MASTERS };
    if (b.coded) b.format = codes_format(c, b.frozen);
    bool tied = false;
    set_comms(&b, c->params->mesh, of);
    b.level = level_of(c, &b);
    if (s->buckets) b.first = s->bucket[s->buckets - 1].first + s->bucket[s->buckets - 1].n;
    for (int i = 0; i < c->params->n; i++) {
        Param *p = c->params->p[i];
        if (p->unit != unit || p->grad_group != of->sums || holds_of(c, p) != holds) continue;
        if (stored_of(c, p, b.level) != stored) continue;
        s->item[b.first + b.n++] = (ShardItem){ p, b.elems, is_matrix_product(c, p) };
        b.elems += round_up(param_local(p), grid);
        tied |= p == c->tied;
    }
    if (!b.n) return;
    REQUIRE(!tied || b.n == 1, "%s: a tied embedding must be alone in its bucket",
            c->tied->piece[0].name);
    b.slice = b.elems;
    if (b.level) {
        b.elems = round_up(b.elems, grid * b.shard_comm->size);
        b.slice = b.elems / b.shard_comm->size;
        b.at    = b.slice * b.shard_comm->rank;
    }
    s->bucket[s->buckets++] = b;
}

static void make_buckets(Shard *s)
{
    for (int u = 0; u < s->units; u++) {
        s->unit[u] = (ShardUnit){ .first = s->buckets, .shape = -1, .held = -1, .slot = -1 };
        for (int kind = 0; kind < STORED_N * HOLDS_N; kind++)
            for (int g = 0; g < SUM_GROUPS; g++)
                add_bucket(s, u, &sum_groups[g], (Holds)(kind / STORED_N), (Stored)(kind % STORED_N));
        s->unit[u].n = s->buckets - s->unit[u].first;
    }
}

/* Sets the part of each parameter that this rank updates, and whether this rank writes it to checkpoints. */
static void set_slices(Shard *s)
{
    EACH_BUCKET(b, s)
        EACH_ITEM(i, s, b) {
            int64_t from = b->at - i->at, to = from + b->slice, n = param_local(i->p);
            from = from < 0 ? 0 : from > n ? n : from;
            to   = to < from ? from : to > n ? n : to;
            i->p->shard.offset = from, i->p->shard.len = to - from;
            const Comm *copies = b->level ? b->copy_comm : b->sum_comm;
            i->p->shard.is_writer = !copies || copies->rank == 0;
        }
}

static bool same_kind(const Shard *s, int u, int v)
{
    if (s->unit[u].n != s->unit[v].n) return false;
    const ShardBucket *a = buckets_of(s, u), *b = buckets_of(s, v);
    for (int i = 0; i < s->unit[u].n; i++)
        if (a[i].sums != b[i].sums || a[i].frozen != b[i].frozen || a[i].buffers != b[i].buffers ||
            a[i].level != b[i].level || a[i].elems != b[i].elems || a[i].coded != b[i].coded ||
            a[i].format != b[i].format || a[i].grads != b[i].grads)
            return false;
    return true;
}

static bool needs_slot(const Shard *s, int u)
{
    bool any = false;
    EACH_IN_UNIT(b, s, u) any |= b->level >= 2;
    return any;
}

/* Gradient buffers: units of equal shape take RING of them in turn, in the order of use, so that consecutive
 * units have different ones. Weight buffers: any unit of a shape may take each; the first units own them. */
static void assign_buffers(Shard *s)
{
    int most = RING * (s->conf.two_passes ? 2 : 1);
    for (int at = 0; at < s->units; at++) {
        int u = s->order[at], equal = 0, like = u, turn = u;
        s->unit[u].place = at;
        if (!needs_slot(s, u)) continue;
        for (int before = at - 1; before >= 0; before--)
            if (same_kind(s, u, s->order[before])) {
                like = s->order[before];
                if (++equal == RING) turn = like;
            }
        s->unit[u].slot  = equal >= RING ? s->unit[turn].slot : s->slots++;
        s->unit[u].shape = like;
        if (s->conf.zero == 3 && equal < most)
            s->weights[s->weight_buffers++] = (WeightBuffer){ .owner = u, .unit = -1 };
    }
}

static int count_units(const ParamSet *p)
{
    int n = p->units;
    for (int i = 0; i < p->n; i++)
        if (p->p[i]->unit >= n) n = p->p[i]->unit + 1;
    return n;
}

Status shard_open(Shard *s, const ShardConf *conf)
{
    const ParamSet *p = conf->params;
    size_t n = (size_t)p->n, units = (size_t)count_units(p);
    *s = (Shard){ .conf = *conf, .units = (int)units };
    s->bucket = calloc(n + 1, sizeof *s->bucket);
    s->item   = calloc(n + 1, sizeof *s->item);
    s->unit   = calloc(units + 1, sizeof *s->unit);
    s->weights = calloc(units + 1, sizeof *s->weights);
    s->grads  = calloc(units + 1, sizeof *s->grads);
    s->order  = calloc(units + 1, sizeof *s->order);
    s->live   = calloc(n + 1, sizeof *s->live);
    if (!s->bucket || !s->item || !s->unit || !s->weights || !s->grads || !s->order || !s->live) {
        shard_close(s);
        return fail(E_FIT, "no host memory to shard %d parameters", p->n);
    }
    for (int u = 0; u < s->units; u++) s->order[u] = conf->order ? conf->order[u] : u;
    make_buckets(s);
    set_slices(s);
    assign_buffers(s);
    masters_open(s);
    for (int i = 0; i < s->slots; i++) s->grads[i] = -1;
    s->conf.order = NULL;
    Status st = state_open(s);
    if (st) shard_close(s);
    return st;
}

void shard_close(Shard *s)
{
    free(s->bucket), free(s->item), free(s->unit), free(s->weights), free(s->grads);
    free(s->order), free(s->live), free(s->chunk);
    *s = (Shard){ 0 };
}

/* ---- memory ---- */

Tensor shard_slice(const Param *p, Tensor t)
{
    int64_t n = t_count(t), at = n == p->shard.len ? 0 : p->shard.offset;
    REQUIRE(n == p->shard.len || n == param_local(p), "%s: %s of %lld", p->piece[0].name, t_fmt(t),
            (long long)p->shard.len);
    return t_rows(t_wrap(t.data, (DType)t.dtype, 1, &n), at, p->shard.len);
}

/* A vector becomes one row, the shape that row-wise ops take. */
static Tensor full_view(const ShardItem *i, Tensor bucket)
{
    const Param *p = i->p;
    int64_t n[3] = { p->shard.shape[0], p->shard.shape[1], p->shard.shape[2] };
    if (p->ndim == 1) n[0] = 1, n[1] = p->shard.shape[0];
    return t_wrap(t_rows(bucket, i->at, 0).data, (DType)bucket.dtype, p->ndim == 1 ? 2 : p->ndim, n);
}

/* The part of a slice that belongs to this parameter; if there is none, an empty view, not an absent
 * tensor. */
Tensor slice_view(const ShardItem *i, const ShardBucket *b, Tensor slice)
{
    return t_rows(slice, i->p->shard.len ? i->at + i->p->shard.offset - b->at : 0, i->p->shard.len);
}

void weights_point(Shard *s, ShardBucket *b, bool whole)
{
    if (b->coded) {
        codes_point(s, b, whole);
        return;
    }
    if (b->from_master) return;                              /* p->shard.w stays absent */
    EACH_ITEM(i, s, b)
        i->p->shard.w = whole ? full_view(i, b->w) : slice_view(i, b, b->own_w);
}

void grads_point(Shard *s, ShardBucket *b, bool whole)
{
    EACH_ITEM(i, s, b)
        i->p->shard.g = whole ? full_view(i, b->g) : slice_view(i, b, b->own_g);
}

const char *label_of(const Shard *s, const ShardBucket *b)
{
    static const char *const names[GROUP_N] = { "vision", "merger", "decoder" };
    const Param *p = s->item[b->first].p;
    return p->form == FORM_ROWS ? names[p->group] : "experts";
}

/* Sums of squares that the products of an expert's gradient leave; 0: none, because the gradient is not whole
 * until ranks have added theirs. */
static int64_t squares_of(const ShardBucket *b, const Param *p)
{
    bool experts = p->form == FORM_EXPERT_GATE_UP || p->form == FORM_EXPERT_DOWN;
    bool whole = !b->frozen && !b->level && comm_size(b->sum_comm) == 1 && p->pieces == 1;
    return experts && whole ? grouped_squares_parts(p->shard.shape) : 0;
}

/* The kinds of memory that a bucket needs, for shard_sizes and shard_bind. */
typedef struct Needs { bool w, own_w, g, own_g; } Needs;

static Needs needs_of(const ShardBucket *b)
{
    return (Needs){ .w = b->level < 3 && !b->coded && !b->from_master,
                    .own_w = b->coded ? !b->frozen : b->level == 3,
                    .g = !b->frozen && b->level < 2, .own_g = !b->frozen && b->level >= 2 };
}

size_t arena_bytes(int64_t n, DType d)
{
    size_t b = (size_t)n * dtype_size(d);
    return (b + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
}

static DType weights_dtype(const Shard *s, const ShardBucket *b) { return b->buffers ? F32 : s->conf.dtype; }

/* Bytes of a buffer of gathered weights or codes. */
static size_t buffer_bytes(const Shard *s, const ShardBucket *b)
{
    return b->coded ? arena_bytes(code_bytes(b->format, b->elems), U8)
                    : arena_bytes(b->elems, weights_dtype(s, b));
}

static bool owns_weight_buffer(const Shard *s, int u)
{
    for (int i = 0; i < s->weight_buffers; i++)
        if (s->weights[i].owner == u) return true;
    return false;
}

/* The first unit in the order that has this unit's slot: all units of the slot share its buffer. */
static int slot_owner(const Shard *s, int u)
{
    for (int at = 0; at < s->units; at++)
        if (s->unit[s->order[at]].slot == s->unit[u].slot) return s->order[at];
    return u;
}

ShardSizes shard_sizes(const Shard *s)
{
    ShardSizes z = { 0 };
    EACH_BUCKET(b, s) {
        Needs n = needs_of(b);
        DType d = weights_dtype(s, b);
        bool ring = s->unit[b->unit].slot >= 0 && slot_owner(s, b->unit) == b->unit;
        z.param += n.w ? arena_bytes(b->elems, d) : n.own_w ? arena_bytes(b->slice, d) : 0;
        z.grad  += n.g ? arena_bytes(b->elems, b->grads) : n.own_g ? arena_bytes(b->slice, b->grads) : 0;
        if (b->level == 3 && owns_weight_buffer(s, b->unit))
            z.param += buffer_bytes(s, b);
        if (ring && n.own_g) z.grad  += arena_bytes(b->elems, b->grads);
        EACH_ITEM(i, s, b) z.optim += arena_bytes(squares_of(b, i->p), F32);
    }
    z.param += codes_bytes(s);
    state_sizes(s, &z);
    return z;
}

/* Memory for the whole run. */
static void bind_bucket(Shard *s, ShardBucket *b, Arena *param, Arena *grad)
{
    const char *label = label_of(s, b);
    Needs n = needs_of(b);
    if (n.w)     b->w     = t1(param, label, weights_dtype(s, b), b->elems);
    if (n.g)     b->g     = t1(grad, label, b->grads, b->elems);
    if (n.own_w) b->own_w = t1(param, label, s->conf.dtype, b->slice);
    if (n.own_g) b->own_g = t1(grad, label, b->grads, b->slice);
    if (n.w)     b->own_w = t_rows(b->w, b->at, b->slice);
    if (n.g)     b->own_g = t_rows(b->g, b->at, b->slice);
}

static void bind_squares(Shard *s, ShardBucket *b, Arena *optim)
{
    EACH_ITEM(i, s, b) {
        int64_t parts = squares_of(b, i->p);
        if (parts) i->p->shard.squares = t1(optim, "squares", F32, parts);
    }
}

/* Memory that a unit has while it is in use. */
static void bind_buffers(Shard *s, ShardBucket *b, Arena *param, Arena *grad)
{
    int owner = slot_owner(s, b->unit);
    Needs n = needs_of(b);
    const ShardBucket *of = buckets_of(s, owner) + (b - buckets_of(s, b->unit));
    bool mine = owner == b->unit;
    if (b->level == 3 && owns_weight_buffer(s, b->unit))
        b->buffer = b->coded ? t1(param, "in use", codes_dtype(b->format), code_bytes(b->format, b->elems))
                             : t1(param, "in use", s->conf.dtype, b->elems);
    if (n.own_g) b->g = mine ? t1(grad, "in use", b->grads, b->elems) : of->g;
}

void shard_bind(Shard *s, Backend *be, Arena *param, Arena *grad, Arena *optim, Arena *host)
{
    s->be = be;
    EACH_BUCKET(b, s) bind_bucket(s, b, param, grad);
    codes_bind(s, param);
    state_bind(s, optim, host);
    for (int at = 0; at < s->units; at++) {
        int u = s->order[at];
        EACH_IN_UNIT(b, s, u) bind_buffers(s, b, param, grad);
    }
    EACH_BUCKET(b, s) {
        bind_squares(s, b, optim);
        weights_point(s, b, b->level < 3);
        if (!b->frozen) grads_point(s, b, b->level < 2);
    }
    s->hooks = unit_hooks(s);
}

/* ---- the configuration of a model ---- */

static void order_add(int *order, int *n, const Param *p)
{
    bool there = !p;
    for (int i = 0; i < *n && !there; i++) there = order[i] == p->unit;
    if (!there) order[(*n)++] = p->unit;
}

static void order_vision(int *order, int *n, const Vision *v)
{
    order_add(order, n, v->w_patch);
    for (int64_t b = 0; b < v->depth; b++) {
        order_add(order, n, v->block[b].w_qkv);
        for (int f = 0; f < v->deepstacks; f++)
            if (v->after[f] == b) order_add(order, n, v->stack[v->weights[f]].w1);
    }
    order_add(order, n, v->merger.w1);
}

/* The embedding that the last stage reads too: its head is tied, or it predicts further tokens. */
static Param *embed_of_two_stages(const Model *m)
{
    const TextShape *t = &m->shape.text;
    if ((!t->tied && !t->mtp) || mesh_size(m->params.mesh, AX_PP) == 1) return NULL;
    return m->embed ? m->embed : t->tied ? m->head.w : m->mtp.embed;
}

void shard_conf_from_model(ShardConf *conf, Model *m, int *order)
{
    int n = 0;
    conf->params = &m->params, conf->order = order;
    conf->table[0] = m->embed ? m->embed : m->mtp.embed, conf->table[1] = m->vision.pos;
    conf->tied = embed_of_two_stages(m);
    order_vision(order, &n, &m->vision);
    order_add(order, &n, m->embed);
    for (int64_t l = 0; l < m->shape.text.L; l++) order_add(order, &n, m->layer[l].norm);
    order_add(order, &n, m->head.norm);
    order_add(order, &n, m->mtp.w);
    for (int i = 0; i < m->params.n; i++) order_add(order, &n, m->params.p[i]);
}
