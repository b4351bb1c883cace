/* model/step.c -- forward and backward of one micro-batch through the model, chunk by chunk. */
#include "model/model.h"

#include "nn/embed.h"
#include "nn/rows.h"
#include "nn/visual.h"

static bool vision_trains(const Model *m) { return !m->frozen[G_VIT] || !m->frozen[G_ALIGNER]; }

static bool taught(const Pass *c, const Model *m)         /* whether gradients of visual rows are wanted */
{
    return m->shape.vision.depth && c->batch->pictures && vision_trains(m);
}

/* The lowest layer that has a backward, of the whole model and so the same for all stages; those above it
 * pass gradients on to the one below. -1: so does layer 0; L: only the head has one; L + 1: nothing has. */
static int64_t bottom(const Pass *c, const Model *m)
{
    return c->mode == EVAL ? m->shape.text.L + 1 : taught(c, m) ? -1 : m->first_trainable;
}

bool model_has_backward(const Pass *c, const Model *m) { return bottom(c, m) <= m->shape.text.L; }

/* The same whether or not a micro-batch has pictures. */
static int64_t lowest(const Model *m)
{
    bool sees = m->shape.vision.depth && vision_trains(m);
    return sees ? -1 : m->first_trainable;
}

bool model_chunk_has_backward(const Model *m, int chunk)
{
    const Chunk *k = &m->chunk[chunk];
    return lowest(m) < k->to + k->heads;
}

bool model_chunk_sends_grad(const Model *m, int chunk) { return lowest(m) < m->chunk[chunk].from; }

/* What forward keeps was planned. */
static int64_t keeps_from(const Pass *c, const Model *m)
{
    return c->mode == EVAL ? m->shape.text.L + 1 : lowest(m);
}

/* Features that join after layer `from` or later: how many, they are the last ones. */
static int64_t features(const Model *m, int64_t from)
{
    int64_t n = m->shape.vision.deepstacks < m->shape.text.L ? m->shape.vision.deepstacks : m->shape.text.L;
    return n > from ? n - from : 0;
}

int64_t model_boundary_rows(const Batch *b, const Model *m, int64_t layer)
{
    return b->T + features(m, layer) * b->M;
}

/* The first layer of a chunk that keeps something for a backward. */
static int64_t first_kept(const Pass *c, const Model *m, const Chunk *k)
{
    int64_t b = keeps_from(c, m);
    return b < k->from ? k->from : b < k->to ? b : k->to;
}

/* What is replayed together with layer l; where there will be no backward nothing is. */
static RecomputeGroup stretch_of(const Pass *c, const Model *m, const Chunk *k, int64_t l)
{
    int64_t first = first_kept(c, m, k);
    if (!c->full || l < first) return (RecomputeGroup){ l, l + 1, false };
    return recompute_group(c->full, (RecomputeGroup){ first, k->to, false }, l);
}

/* What the stretch that begins with layer l parks on the host; NULL: nothing. The first layers of a chunk
 * that keep something do, which wait for longest. c->policy is that of layers which are not dropped whole. */
static OffloadRecord *parked_by(const Pass *c, const Model *m, const Chunk *k, ModelAct *a, int64_t l)
{
    int64_t first = first_kept(c, m, k);
    if (!c->env->offload || l < first || l >= k->to) return NULL;
    double share = (double)(l - first) / (double)(k->to - first);
    bool   whole = stretch_of(c, m, k, l).full;
    bool   any = whole ? c->policy[L_INPUT] == OFFLOAD : any_offloaded(c, 0, L_MLP_ACT);
    return any && share + c->env->offload->resident < 1 - 1e-9 ? &a->parked[l] : NULL;
}

/* Room for the input of layer l, which is the output of the one before it. */
static Tensor input(const Pass *c, const Model *m, const Chunk *k, ModelAct *a, int64_t l)
{
    OffloadRecord *p = parked_by(c, m, k, a, l);
    int64_t T = c->batch->T, D = m->shape.text.D;
    if (!p || c->policy[L_INPUT] != OFFLOAD) return t2(c->act, label_name(L_INPUT), c->env->dtype, T, D);
    offload_open(c, p);
    return offload_push(c, p, &a->x[l], L_INPUT, c->env->dtype, T, D);
}

static Tensor visual(const Pass *c, const Model *m, const char *label)
{
    return t2(c->act, label, c->env->dtype, c->batch->M, m->shape.text.D);
}

/* Visual tokens and features of this rank's rows, from pictures that other ranks may have encoded. */
static void see(const Pass *c, const Model *m, ModelAct *a, Tensor *tokens)
{
    int64_t D = m->shape.text.D;
    vision_fwd(c, &m->vision, &a->vision);
    *tokens = (Tensor){ 0 };
    if (!c->batch->media) return;
    ledger_enter(&c->be->ledger, PART_VISION);
    *tokens = visual_send(c, a->vision.out, D);
    for (int64_t f = 0; f < features(m, 0); f++)
        a->feature[f] = visual_send(c, a->vision.feature[f], D);
}

/* Token embeddings with the visual tokens in their places. */
static void embed_fwd(const Pass *c, const Model *m, const Chunk *k, ModelAct *a)
{
    Tensor tokens = { 0 };
    if (m->vision.depth && c->batch->pictures) see(c, m, a, &tokens);
    ledger_enter(&c->be->ledger, PART_DECODER);
    a->x[0] = input(c, m, k, a, 0);
    unit_begin(c, m->embed->unit, false);
    embed_table_fwd(c, m->embed, a->x[0]);
    unit_end(c, m->embed->unit, false);
    if (t_has(tokens)) op_scatter_rows(c->be, a->x[0], tokens, c->batch->visual_row, false);
}

static int64_t sparse_between(const Model *m, int64_t from, int64_t to)
{
    int64_t n = 0;
    for (int64_t l = from; l < to; l++) n += shape_is_sparse(&m->shape.text, l);
    return n;
}

/* Statistics of all routers live until backward: the pooled loss needs every layer's before the first. */
static const Aux *aux_open(const Pass *c, const Model *m, const Chunk *k, Aux *x)
{
    int64_t L = sparse_between(m, k->from, k->to), G = c->batch->groups, E = m->shape.text.E;
    if (!L) return NULL;
    x->first = sparse_between(m, 0, k->from);
    x->stat  = t1(c->act, label_name(L_STAT), F32, L * (2 * G * E + 1));
    x->count = t_as3(t_rows(x->stat, 0, L * G * E), L, G, E);
    x->prob  = t_as3(t_rows(x->stat, L * G * E, L * G * E), L, G, E);
    x->zsum  = t_rows(x->stat, 2 * L * G * E, L);
    x->coef  = t3(c->act, label_name(L_STAT), F32, L, G, E);
    x->out   = t1(c->act, label_name(L_STAT), F32, 3);
    if (t_has(x->so_far)) {
        x->so_far = t_rows(x->so_far, x->first, L);
        x->scaled = t3(c->act, label_name(L_STAT), F32, L, G, E);
    }
    return x;
}

/* For whoever asks what a rank that waits was at; -1: no layer. */
static void at_layer(const Pass *c, int64_t l)
{
    if (c->env->mesh && c->env->mesh->comm[GR_world]->trace) c->env->mesh->comm[GR_world]->trace->layer = (int)l;
}

/* Deepstack joins after the whole layer. */
static void join_feature(const Pass *c, const Model *m, ModelAct *a, int64_t l)
{
    if (c->batch->media && l < m->shape.vision.deepstacks)
        op_scatter_rows(c->be, a->x[l + 1], a->feature[l], c->batch->visual_row, true);
}

static void layer_fwd(const Pass *c, const Model *m, ModelAct *a, int64_t l)
{
    ArenaMark mark = arena_mark(c->scratch);
    at_layer(c, l);
    unit_begin(c, m->layer[l].norm->unit, false);
    decoder_fwd(c, &m->layer[l], &a->layer[l], a->x[l + 1], a->x[l], a->cs);
    unit_end(c, m->layer[l].norm->unit, false);
    tap(c, "decoder.out", (int)l, a->x[l + 1]);
    join_feature(c, m, a, l);
    arena_reset(c->scratch, mark);
}

/* Whether the backward of a chunk is what follows its forward. */
static bool goes_on(const Pass *c, const Chunk *k) { return k->heads && !(c->env->offload && c->env->offload->separate); }

/* Of the inputs inside a group two buffers of scratch take turns. The output is pushed before scratch is
 * marked: in evaluation that may be the same arena. A layer that keeps nothing leaves its output alone, as in
 * evaluation, and nobody will read the input of the one before it again. */
static void stretch_fwd(const Pass *c, const Model *m, const Chunk *k, ModelAct *a, RecomputeGroup s)
{
    OffloadRecord *p = parked_by(c, m, k, a, s.from);
    bool    spent = s.to < keeps_from(c, m) && s.from > k->from;
    Tensor  turn[2] = { { 0 } };
    if (p && c->policy[L_INPUT] != OFFLOAD) offload_open(c, p);
    a->x[s.to] = spent ? a->x[s.to - 2] : input(c, m, k, a, s.to);
    ArenaMark mark = arena_mark(c->scratch);
    for (int64_t i = 0; i < 2 && i < s.to - s.from - 1; i++)
        turn[i] = scratch2(c, c->env->dtype, c->batch->T, m->shape.text.D);
    Pass group = *c;
    group.offload_record = p;
    if (s.full) group.policy = policy_full();
    if (s.from < keeps_from(c, m)) group.mode = EVAL;
    for (int64_t l = s.from; l < s.to; l++) {
        if (l + 1 < s.to) a->x[l + 1] = turn[(l - s.from) % 2];
        layer_fwd(&group, m, a, l);
    }
    if (p) offload_start(c, p, s.to == k->to && goes_on(c, k));
    arena_reset(c->scratch, mark);
}

static void layers_fwd(const Pass *c, const Model *m, const Chunk *k, ModelAct *a)
{
    a->cs = t2(c->act, "ROPE_TABLE", F32, c->batch->Ta, m->shape.text.C);
    op_rope_table(c->be, a->cs, c->batch->pos, m->inv, m->axis);
    for (int64_t l = k->from; l < k->to;) {
        RecomputeGroup s = stretch_of(c, m, k, l);
        stretch_fwd(c, m, k, a, s);
        l = s.to;
    }
    at_layer(c, -1);
}

void model_hidden_states(const Pass *c, const Model *m, ModelAct *a)
{
    embed_fwd(c, m, &m->chunk[0], a);
    layers_fwd(c, m, &m->chunk[0], a);
}

/* The counts that the balance loss is made of: of this micro-batch, or of the step as far as it has come,
 * scaled to this micro-batch's tokens. */
static Tensor aux_counts(const Pass *c, const Aux *x)
{
    if (!t_has(x->so_far)) return x->count;
    op_mix(c->be, x->so_far, x->so_far, x->count, x->keep, 1.0f);
    op_mix(c->be, x->scaled, x->so_far, x->so_far, x->part, 0.0f);
    return x->scaled;
}

/* Each rank counted its own tokens: a micro-batch's statistics are the sum over the ranks that share it, and
 * those of a step over all. */
static void aux_loss(const Pass *c, const Model *m, const Aux *x)
{
    if (!t_has(x->out)) return;
    if (c->env->mesh) comm_all_reduce(c->env->mesh->comm[GR_tp_cp], x->stat, RED_SUM);
    if (c->env->mesh && t_has(x->so_far)) comm_all_reduce(c->env->mesh->comm[GR_dp], x->count, RED_SUM);
    op_aux_loss(c->be, x->out, x->coef, aux_counts(c, x), x->prob, x->zsum, c->batch->group_len, x->form,
                m->shape.text.K, x->coeff);
}

static bool tied(const Model *m) { return m->head.w == m->embed; }

/* The head's gradients are made in the forward pass, so that is also the backward of its parameters; a table
 * that is the embedding too has the rest of its own to come (embed_bwd), where backward gets there. */
static void head_fwd(const Pass *c, const Model *m, ModelAct *a, float scale)
{
    bool back = model_has_backward(c, m), table = back && bottom(c, m) < 0;
    a->dx = (Tensor){ 0 };
    if (bottom(c, m) < m->shape.text.L)
        a->dx = t2(c->act, "GRADIENT", c->env->dtype, c->batch->T, m->shape.text.D);
    unit_begin(c, m->head.norm->unit, back);
    if (tied(m)) unit_begin(c, m->embed->unit, table);
    head_loss(c, &m->head, a->loss, a->dx, a->x[m->shape.text.L], scale, back);
    if (tied(m) && !table) unit_end(c, m->embed->unit, false);
    unit_end(c, m->head.norm->unit, back);
}

static Tensor border_feature(const Pass *c, Tensor border, int64_t i)
{
    return t_rows(border, c->batch->T + i * c->batch->M, c->batch->M);
}

/* The border's buffer is needed for the next micro-batch before this one's backward: what stays is copied. */
static void enter(const Pass *c, const Model *m, const Chunk *k, ModelAct *a, Tensor in)
{
    a->x[k->from] = input(c, m, k, a, k->from);
    op_copy(c->be, a->x[k->from], t_rows(in, 0, c->batch->T));
    for (int64_t i = 0, n = c->batch->media ? features(m, k->from) : 0; i < n; i++) {
        a->feature[k->from + i] = visual(c, m, "VISUAL");
        op_copy(c->be, a->feature[k->from + i], border_feature(c, in, i));
    }
}

Tensor model_output(const Pass *c, const Model *m, int chunk, ModelAct *a)
{
    const Chunk *k = &m->chunk[chunk];
    int64_t n = features(m, k->to);
    if (k->heads || !n) return a->x[k->to];
    Tensor out = t2(c->act, "BORDER", c->env->dtype, model_boundary_rows(c->batch, m, k->to), m->shape.text.D);
    op_copy(c->be, t_rows(out, 0, c->batch->T), a->x[k->to]);
    for (int64_t i = 0; i < n && c->batch->media; i++)
        op_copy(c->be, border_feature(c, out, i), a->feature[k->to + i]);
    return out;
}

void model_forward(const Pass *pass, const Model *m, int chunk, ModelAct *a, float scale, Tensor in)
{
    const Chunk *k = &m->chunk[chunk];
    Pass own = *pass, *c = &own;
    own.dropout_seed = c->mode == FORWARD ? a->chance : 0;
    a->loss = t1(c->act, label_name(L_STAT), F64, 1);
    op_fill(c->be, a->loss, 0.0f);
    own.aux = aux_open(c, m, k, &a->aux);
    ledger_enter(&c->be->ledger, PART_DECODER);
    if (c->mode == FORWARD) offload_chunk_begin(c);
    if (k->embeds) embed_fwd(c, m, k, a);
    else           enter(c, m, k, a, in);
    layers_fwd(c, m, k, a);
    aux_loss(c, m, &a->aux);
    if (k->heads) head_fwd(c, m, a, scale);
    if (c->mode == FORWARD) offload_chunk_end(c, goes_on(c, k));
}

/* What this pass gave a gradient to. */
static void mark_live(const Model *m, bool media)
{
    for (int i = 0; i < m->params.n; i++) {
        Param *p = m->params.p[i];
        p->step.has_grad |= !p->frozen && !p->unused && (p->group == G_LLM || media);
    }
}

/* To the tower: gradients of visual tokens and features, from the ranks that have them. */
static void see_bwd(const Pass *c, const Model *m, ModelAct *a)
{
    Tensor  dout = { 0 }, dfeature[MAX_DEEPSTACK] = { 0 };
    if (c->batch->media) {
        Tensor rows = visual(c, m, "GRADIENT");
        op_gather_rows(c->be, rows, a->dx, c->batch->visual_row, 1);
        dout = visual_return(c, rows);
        for (int64_t f = 0; f < features(m, 0); f++) dfeature[f] = visual_return(c, a->dfeature[f]);
    }
    vision_bwd(c, &m->vision, &a->vision, dout, dfeature);
}

/* From the gradient of the decoder's input to the embedding table, and to the tower. */
static void embed_bwd(const Pass *c, const Model *m, ModelAct *a)
{
    if (!tied(m)) unit_begin(c, m->embed->unit, true);
    if (t_has(m->embed->shard.g)) embed_table_bwd(c, m->embed, a->dx, m->shape.text.pad_id);
    unit_end(c, m->embed->unit, true);
    if (taught(c, m)) see_bwd(c, m, a);
}

/* The gradients that crossed the border behind the chunk. */
static void enter_back(const Pass *c, const Model *m, const Chunk *k, ModelAct *a, Tensor din)
{
    a->dx = t2(c->act, "GRADIENT", c->env->dtype, c->batch->T, m->shape.text.D);
    op_copy(c->be, a->dx, t_rows(din, 0, c->batch->T));
    for (int64_t i = 0, n = taught(c, m) && c->batch->media ? features(m, k->to) : 0; i < n; i++) {
        a->dfeature[k->to + i] = visual(c, m, "GRADIENT");
        op_copy(c->be, a->dfeature[k->to + i], border_feature(c, din, i));
    }
}

void model_input_grad(const Pass *c, const Model *m, int chunk, const ModelAct *a, Tensor dout)
{
    const Chunk *k = &m->chunk[chunk];
    if (bottom(c, m) >= k->from) return;
    op_copy(c->be, t_rows(dout, 0, c->batch->T), a->dx);
    for (int64_t i = 0, n = taught(c, m) && c->batch->media ? features(m, k->from) : 0; i < n; i++)
        op_copy(c->be, border_feature(c, dout, i), a->dfeature[k->from + i]);
}

/* last: it has yet to be replayed, inside the pair of its backward, so that its weights come once. */
static void layer_bwd(const Pass *c, const Model *m, ModelAct *a, int64_t l, bool last)
{
    const Decoder *d = &m->layer[l];
    Tensor none = { 0 };
    at_layer(c, l);
    if (taught(c, m) && c->batch->media && l < m->shape.vision.deepstacks) {
        a->dfeature[l] = visual(c, m, "GRADIENT");
        op_gather_rows(c->be, a->dfeature[l], a->dx, c->batch->visual_row, 1);
    }
    unit_begin(c, d->norm->unit, true);
    if (last) decoder_replay(c, d, &a->layer[l], none, a->x[l], a->cs);
    decoder_bwd(c, d, &a->layer[l], l > bottom(c, m) ? a->dx : none, a->dx, a->x[l], a->cs);
    unit_end(c, d->norm->unit, true);
}

/* The layers l … s.to - 1 of a stretch: forward again on the way down, all values in scratch, and back on the
 * way up, as far as there is a backward. With two buffers for weights those of the layer before the last are
 * still there when it has gone back. */
static void stretch_bwd(const Pass *c, const Model *m, ModelAct *a, RecomputeGroup s, int64_t l)
{
    const Decoder *d = &m->layer[l];
    bool      last = l + 1 == s.to;
    ArenaMark mark = arena_mark(c->scratch);
    at_layer(c, l);
    if (!last) {
        unit_begin(c, d->norm->unit, false);
        a->x[l + 1] = scratch2(c, c->env->dtype, c->batch->T, m->shape.text.D);
        decoder_replay(c, d, &a->layer[l], a->x[l + 1], a->x[l], a->cs);
        join_feature(c, m, a, l);
        unit_end(c, d->norm->unit, false);
        stretch_bwd(c, m, a, s, l + 1);
    }
    if (l >= bottom(c, m)) layer_bwd(c, m, a, l, last);
    arena_reset(c->scratch, mark);
}

/* What the stretch parked is here, and those that come next are on their way. */
static OffloadRecord *unpark(const Pass *c, const Model *m, const Chunk *k, ModelAct *a, RecomputeGroup s)
{
    OffloadRecord *p = parked_by(c, m, k, a, s.from), *q;
    if (p) offload_wait(c, p);
    for (int i = 0; c->env->offload && i < c->env->offload->buffers && s.from > k->from && s.from > bottom(c, m); i++) {
        s = stretch_of(c, m, k, s.from - 1);
        if ((q = parked_by(c, m, k, a, s.from))) offload_prefetch(c, q);
    }
    return p;
}

static void layers_bwd(const Pass *c, const Model *m, const Chunk *k, ModelAct *a)
{
    for (int64_t l = k->to - 1; l >= k->from && l >= bottom(c, m);) {
        RecomputeGroup s = stretch_of(c, m, k, l);
        OffloadRecord *p = unpark(c, m, k, a, s);
        Pass group = *c;
        if (s.full) group.policy = policy_full();
        stretch_bwd(&group, m, a, s, s.from);
        if (p) offload_release(c, p);
        l = s.from - 1;
    }
    at_layer(c, -1);
}

void model_backward(const Pass *pass, const Model *m, int chunk, ModelAct *a, Tensor din)
{
    const Chunk *k = &m->chunk[chunk];
    Pass own = *pass, *c = &own;
    if (bottom(c, m) >= k->to + k->heads) return;
    ledger_enter(&c->be->ledger, PART_DECODER);
    if (!k->heads) enter_back(c, m, k, a, din);
    own.aux = t_has(a->aux.out) ? &a->aux : NULL, own.dropout_seed = a->chance;
    layers_bwd(c, m, k, a);
    if (k->embeds && bottom(c, m) < 0) embed_bwd(c, m, a);
    mark_live(m, taught(c, m));
}

/* The head's parameters for a pass that takes no loss. */
static void head_units(const Pass *c, const Model *m, void (*hook)(const Pass *, int, bool))
{
    hook(c, m->head.norm->unit, false);
    if (tied(m)) hook(c, m->embed->unit, false);
}

void model_rows_logits(const Pass *c, const Model *m, Tensor y, Tensor x, int64_t from)
{
    head_units(c, m, unit_begin);
    head_logits(c, &m->head, y, x, from);
    head_units(c, m, unit_end);
}

void model_logits(const Pass *c, const Model *m, ModelAct *a, Tensor y, int64_t from)
{
    ArenaMark mark = arena_mark(c->scratch);
    model_rows_logits(c, m, y, all_rows(c, a->x[m->shape.text.L]), from);
    arena_reset(c->scratch, mark);
}
