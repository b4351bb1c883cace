/* model/step_layers.c -- the layers of a chunk: recompute groups, offload of what they keep, their
 * backward. */
#include "model/step_private.h"

#include "base/activity.h"
#include "nn/rows.h"

/* The first layer of a chunk that keeps something for a backward. */
static int64_t first_saved(const Pass *c, const Model *m, const Chunk *k)
{
    int64_t l = first_saved_layer(c, m);
    return l < k->from ? k->from : l < k->to ? l : k->to;
}

/* The layers that are replayed together with layer l; where there is no backward, l alone. */
static RecomputeGroup group_of(const Pass *c, const Model *m, const Chunk *k, int64_t l)
{
    int64_t first = first_saved(c, m, k);
    if (!c->full || l < first) return (RecomputeGroup){ l, l + 1, false };
    return recompute_group(c->full, (RecomputeGroup){ first, k->to, false }, l);
}

/* The offload record of the group that begins with layer l; NULL: it offloads nothing. The first layers of a
 * chunk offload, whose values wait for longest. c->policy is that of layers which are not recomputed
 * whole. */
static OffloadRecord *offload_of(const Pass *c, const Model *m, const Chunk *k, ModelAct *a, int64_t l)
{
    int64_t first = first_saved(c, m, k);
    if (!c->env->offload || l < first || l >= k->to) return NULL;
    double before = (double)(l - first) / (double)(k->to - first);
    bool   full = group_of(c, m, k, l).full;
    bool   any = full ? c->policy[L_INPUT] == OFFLOAD : any_offloaded(c, 0, L_MLP_ACT);
    return any && before + c->env->offload->resident < 1 - 1e-9 ? &a->offload[l] : NULL;
}

Tensor layer_input(const Pass *c, const Model *m, const Chunk *k, ModelAct *a, int64_t l)
{
    OffloadRecord *r = offload_of(c, m, k, a, l);
    int64_t T = c->batch->T, D = m->shape.text.D;
    if (!r || c->policy[L_INPUT] != OFFLOAD) return t2(c->act, label_name(L_INPUT), c->env->dtype, T, D);
    offload_open(c, r);
    return offload_push(c, r, &a->x[l], L_INPUT, c->env->dtype, T, D);
}

/* The host and the device show that they have come to a layer. */
static void enter_layer(const Pass *c, int64_t l)
{
    activity_layer(l);
    backend_mark(c->be);
}

static void layer_fwd(const Pass *c, const Model *m, ModelAct *a, int64_t l)
{
    ArenaMark mark = arena_mark(c->scratch);
    enter_layer(c, l);
    unit_begin(c, m->layer[l].norm->unit, false);
    decoder_fwd(c, &m->layer[l], &a->layer[l], a->x[l + 1], a->x[l], a->cs);
    unit_end(c, m->layer[l].norm->unit, false);
    tap(c, "decoder.out", (int)l, a->x[l + 1]);
    deepstack_add(c, m, a, l);
    arena_reset(c->scratch, mark);
}

bool backward_follows(const Pass *c, const Chunk *k)
{
    return k->heads && !(c->env->offload && c->env->offload->separate);
}

static Pass group_pass(const Pass *c, RecomputeGroup g)
{
    Pass pass = *c;
    if (g.full) pass.policy = policy_full();
    return pass;
}

/* The inputs inside a group alternate between two buffers of scratch. The output is pushed before scratch is
 * marked: in evaluation that may be the same arena. A layer that keeps nothing leaves only its output, and
 * takes the buffer of the input of the layer before it, which is read no more. */
static void group_fwd(const Pass *c, const Model *m, const Chunk *k, ModelAct *a, RecomputeGroup g)
{
    OffloadRecord *r = offload_of(c, m, k, a, g.from);
    bool   reuse = g.to < first_saved_layer(c, m) && g.from > k->from;
    Tensor inner[2] = { { 0 } };
    if (r && c->policy[L_INPUT] != OFFLOAD) offload_open(c, r);
    a->x[g.to] = reuse ? a->x[g.to - 2] : layer_input(c, m, k, a, g.to);
    ArenaMark mark = arena_mark(c->scratch);
    for (int64_t i = 0; i < 2 && i < g.to - g.from - 1; i++)
        inner[i] = scratch2(c, c->env->dtype, c->batch->T, m->shape.text.D);
    Pass pass = group_pass(c, g);
    pass.offload_record = r;
    if (g.from < first_saved_layer(c, m)) pass.mode = EVAL;
    for (int64_t l = g.from; l < g.to; l++) {
        if (l + 1 < g.to) a->x[l + 1] = inner[(l - g.from) % 2];
        layer_fwd(&pass, m, a, l);
    }
    if (r) offload_start(c, r, g.to == k->to && backward_follows(c, k));
    arena_reset(c->scratch, mark);
}

void layers_fwd(const Pass *c, const Model *m, const Chunk *k, ModelAct *a)
{
    a->cs = t2(c->act, "ROPE_TABLE", F32, c->batch->Ta, shape_rotary(&m->shape.text));
    op_rope_table(c->be, a->cs, c->batch->pos, m->inv, m->axis);
    if (m->shape.text.yarn.factor > 0)
        op_mix(c->be, a->cs, a->cs, a->cs, factor((float)m->shape.text.yarn.scale), factor(0));
    for (int64_t l = k->from; l < k->to;) {
        RecomputeGroup g = group_of(c, m, k, l);
        group_fwd(c, m, k, a, g);
        l = g.to;
    }
    activity_layer(-1);
}

/* replay: the layer has yet to be replayed, between the same unit_begin and unit_end, so that its weights are
 * gathered once. */
static void layer_bwd(const Pass *c, const Model *m, ModelAct *a, int64_t l, bool replay)
{
    const Decoder *d = &m->layer[l];
    Tensor none = { 0 };
    enter_layer(c, l);
    deepstack_add_bwd(c, m, a, l);
    unit_begin(c, d->norm->unit, true);
    if (replay) decoder_replay(c, d, &a->layer[l], none, a->x[l], a->cs);
    decoder_bwd(c, d, &a->layer[l], l > backward_stop_layer(c, m) ? a->dx : none, a->dx, a->x[l], a->cs);
    unit_end(c, d->norm->unit, true);
}

/* Layers l … g.to - 1 of a group: the recursion replays them upwards, all values in scratch, and runs their
 * backward on its way down, as far as there is one. With two buffers for gathered weights those of the layer
 * before the last are still there when the last has had its backward. */
static void group_bwd(const Pass *c, const Model *m, ModelAct *a, RecomputeGroup g, int64_t l)
{
    const Decoder *d = &m->layer[l];
    bool      last = l + 1 == g.to;
    ArenaMark mark = arena_mark(c->scratch);
    enter_layer(c, l);
    if (!last) {
        unit_begin(c, d->norm->unit, false);
        a->x[l + 1] = scratch2(c, c->env->dtype, c->batch->T, m->shape.text.D);
        decoder_replay(c, d, &a->layer[l], a->x[l + 1], a->x[l], a->cs);
        deepstack_add(c, m, a, l);
        unit_end(c, d->norm->unit, false);
        group_bwd(c, m, a, g, l + 1);
    }
    if (l >= backward_stop_layer(c, m)) layer_bwd(c, m, a, l, last);
    arena_reset(c->scratch, mark);
}

/* Waits for what the group offloaded and prefetches the groups that come next. */
static OffloadRecord *fetch_offloaded(const Pass *c, const Model *m, const Chunk *k, ModelAct *a,
                                      RecomputeGroup g)
{
    OffloadRecord *r = offload_of(c, m, k, a, g.from), *next;
    int buffers = c->env->offload ? c->env->offload->buffers : 0;
    if (r) offload_wait(c, r);
    for (int i = 0; i < buffers && g.from > k->from && g.from > backward_stop_layer(c, m); i++) {
        g = group_of(c, m, k, g.from - 1);
        if ((next = offload_of(c, m, k, a, g.from))) offload_prefetch(c, next);
    }
    return r;
}

void layers_bwd(const Pass *c, const Model *m, const Chunk *k, ModelAct *a)
{
    for (int64_t l = k->to - 1; l >= k->from && l >= backward_stop_layer(c, m);) {
        RecomputeGroup g = group_of(c, m, k, l);
        OffloadRecord *r = fetch_offloaded(c, m, k, a, g);
        Pass pass = group_pass(c, g);
        group_bwd(&pass, m, a, g, g.from);
        if (r) offload_release(c, r);
        l = g.from - 1;
    }
    activity_layer(-1);
}
