/* cli/parity_values.c -- this build's values of a recorded case, laid out and named as the reference has
 * them. */
#include "cli/parity.h"

#include "model/family.h"
#include "model/weights.h"

#include <stdlib.h>
#include <string.h>

static Status value_add(Parity *p, ParityValue **out, const char *name, int rank, const int64_t *shape)
{
    if (p->values == PARITY_MAX_VALUES)
        return fail(E_OTHER, "more than %d tensors in a case", PARITY_MAX_VALUES);
    ParityValue *v = &p->value[p->values];
    *v = (ParityValue){ .rank = rank, .count = 1 };
    snprintf(v->name, sizeof v->name, "%s", name);
    for (int i = 0; i < rank; i++) v->count *= v->shape[i] = shape[i];
    v->data = calloc((size_t)v->count + 1, sizeof *v->data);
    if (!v->data) return fail(E_FIT, "no memory to keep %s", name);
    p->values++;
    return *out = v, OK;
}

/* A dense device tensor as floats. */
static Status fetch_floats(Parity *p, float *out, Tensor t)
{
    void *raw = t.dtype == F32 ? out : malloc((size_t)t_bytes(t) + 1);
    if (!raw) return fail(E_FIT, "no memory to fetch a tensor");
    backend_fetch(&p->e.be, raw, t);
    Status st = backend_sync(&p->e.be);
    if (raw != out) dtype_convert(out, F32, raw, (DType)t.dtype, t_count(t)), free(raw);
    return st;
}

/* Rows of the stream to their places in the padded batch; padded places stay 0. */
static Status add_by_row(Parity *p, const char *name, int rank, Tensor t)
{
    int64_t width = t.n[1], flat[2] = { p->c.B * p->c.S, width }, deep[3] = { p->c.B, p->c.S, width };
    ParityValue *v = NULL;
    float *rows = malloc((size_t)t_count(t) * sizeof *rows + 1);
    Status st = rows ? fetch_floats(p, rows, t) : fail(E_FIT, "no memory for %s", name);
    if (!st) st = value_add(p, &v, name, rank, rank == 2 ? flat : deep);
    for (int64_t i = 0; !st && i < t.n[0]; i++)
        memcpy(v->data + p->c.at[i] * width, rows + i * width, (size_t)width * sizeof *rows);
    free(rows);
    return st;
}

/* The reference runs videos after images and in a call of their own: where there are both, the recorded
 * visual rows are the videos'. */
static Status add_visual(Parity *p, const char *name, Tensor t)
{
    int64_t width = t.n[1], n = p->c.videos ? p->c.videos : p->c.stream.visual, shape[2] = { n, width };
    ParityValue *v = NULL;
    float *rows = malloc((size_t)t_count(t) * sizeof *rows + 1);
    Status st = rows ? fetch_floats(p, rows, t) : fail(E_FIT, "no memory for %s", name);
    if (!st) st = value_add(p, &v, name, 2, shape);
    for (int64_t i = 0, k = 0; !st && i < p->c.stream.visual; i++)
        if (!p->c.videos || p->c.is_video[i])
            memcpy(v->data + k++ * width, rows + i * width, (size_t)width * sizeof *rows);
    free(rows);
    return st;
}

/* Cases with weights of routers number routers by layer, others by MoE layer. */
static int router_index(const Parity *p, int index)
{
    const TextShape *t = &p->c.shape.text;
    bool by_layer = false;
    for (int i = 0; i < p->c.expected.count && !by_layer; i++) {
        const char *name = p->c.expected.tensor[i].name;
        by_layer = !strncmp(name, "router.", 7) && strstr(name, ".weights");
    }
    for (int l = 0, moe = 0; by_layer && l < shape_layers(t); l++)
        if (shape_is_sparse(t, l) && moe++ == index) return l;
    return index;
}

/* The weights (T, K) of the experts idx (T, K) as (T, E), 0 where an expert is not chosen. */
static Status add_router_weights(Parity *p, int index, Tensor t)
{
    int64_t T = t.n[0], K = t.n[1], E = p->c.shape.text.E, shape[2] = { p->c.B * p->c.S, E };
    char name[140];
    ParityValue *v = NULL;
    float *weight = malloc((size_t)(T * K) * sizeof *weight + 1);
    snprintf(name, sizeof name, "router.%d.weights", router_index(p, index));
    Status st = weight ? fetch_floats(p, weight, t) : fail(E_FIT, "no memory for %s", name);
    if (!st) st = value_add(p, &v, name, 2, shape);
    for (int64_t i = 0; !st && i < T * K; i++) v->data[p->c.at[i / K] * E + p->chosen[i]] = weight[i];
    free(weight);
    return st;
}

static Status keep_chosen(Parity *p, Tensor idx)
{
    free(p->chosen);
    p->chosen = malloc((size_t)t_bytes(idx) + 1);
    if (!p->chosen) return fail(E_FIT, "no memory for the choices of a router");
    backend_fetch(&p->e.be, p->chosen, idx);
    return backend_sync(&p->e.be);
}

void parity_watch(void *self, const char *what, int index, Tensor t)
{
    Parity *p = self;
    char name[140];
    Status st = OK;
    if (p->tap_status) return;
    if (!strcmp(what, "decoder.out")) {
        snprintf(name, sizeof name, "decoder.%d.out", index);
        st = add_by_row(p, name, 3, t);
    } else if (!strcmp(what, "decoder.mixer")) {
        snprintf(name, sizeof name, "decoder.%d.mixer", index);
        st = add_by_row(p, name, 3, t);
    } else if (!strcmp(what, "router.logits")) {
        snprintf(name, sizeof name, "router.%d.logits", router_index(p, index));
        st = add_by_row(p, name, 2, t);
    } else if (!strcmp(what, "router.chosen")) {
        st = keep_chosen(p, t);
    } else if (!strcmp(what, "router.weights")) {
        st = add_router_weights(p, index, t);
    } else {
        if (index < 0) snprintf(name, sizeof name, "%s", what);
        else           snprintf(name, sizeof name, "%s.%d", what, index);
        st = add_visual(p, name, t);
    }
    p->tap_status = st;
}

Status parity_add_scalar(Parity *p, const char *name, double x)
{
    int64_t one = 1;
    ParityValue *v = NULL;
    TRY(value_add(p, &v, name, 1, &one));
    return v->data[0] = (float)x, OK;
}

Status parity_add_logits(Parity *p)
{
    int64_t T = engine_batch(&p->e)->T, V = p->c.shape.text.V, shape[3] = { p->c.B, p->c.S, V },
            step = p->e.model.head.chunk;
    ParityValue *v = NULL;
    TRY(value_add(p, &v, "logits", 3, shape));
    float *rows = malloc((size_t)(step < T ? step : T) * (size_t)V * sizeof *rows + 1);
    if (!rows) return fail(E_FIT, "no memory for logits");
    for (int64_t i = 0; i < T; i += step) {
        int64_t k[2] = { T - i < step ? T - i : step, V };
        engine_compute_logits(&p->e, t_wrap(rows, F32, 2, k), i);
        for (int64_t r = 0; r < k[0]; r++)
            memcpy(v->data + p->c.at[i + r] * V, rows + r * V, (size_t)V * sizeof *rows);
    }
    free(rows);
    return backend_sync(&p->e.be);
}

/* The B of experts is (E, out, r) here and (out, r E) in a file, rank-major. */
static Status turn_lora_b(const Param *q, float *x)
{
    int64_t E = q->shape[0], out = q->shape[1], r = q->shape[2], n = E * out * r;
    float *from = malloc((size_t)n * sizeof *from + 1);
    if (!from) return fail(E_FIT, "no memory for %s", q->piece[0].name);
    memcpy(from, x, (size_t)n * sizeof *from);
    for (int64_t e = 0; e < E; e++)
        for (int64_t o = 0; o < out; o++)
            for (int64_t j = 0; j < r; j++) x[(o * r + j) * E + e] = from[(e * out + o) * r + j];
    free(from);
    return OK;
}

/* Experts (E, out, in) as transformers holds them, (E, in, out). */
static Status turn_experts(const Param *q, float *x)
{
    int64_t out = q->shape[1], in = q->shape[2];
    float *from = malloc((size_t)(out * in) * sizeof *from + 1);
    if (!from) return fail(E_FIT, "no memory for %s", q->piece[0].name);
    for (int64_t e = 0; e < q->shape[0]; e++, x += out * in) {
        memcpy(from, x, (size_t)(out * in) * sizeof *from);
        for (int64_t i = 0; i < out * in; i++) x[i % in * out + i / in] = from[i];
    }
    free(from);
    return OK;
}

/* Under the names of a file: those of modules that are trained whole beside adapters are longer there. */
static Status add_gradient(Parity *p, const Param *q, int k)
{
    static const char peft[] = "base_model.model.";
    const Piece *c = &q->piece[k];
    bool longer = p->c.adapter.conf.rank && strncmp(c->name, peft, sizeof peft - 1);
    char name[140];
    ParityValue *v = NULL;
    snprintf(name, sizeof name, "grad.%s%s", longer ? peft : "", c->name);
    TRY(value_add(p, &v, name, c->rank, c->shape));
    TRY(fetch_floats(p, v->data, weights_piece_view(q, q->shard.g, k)));
    if (p->c.shape.input_major && (q->form == FORM_EXPERT_GATE_UP || q->form == FORM_EXPERT_DOWN))
        return turn_experts(q, v->data);
    return q->form == FORM_LORA_B ? turn_lora_b(q, v->data) : OK;
}

/* Gradients of shared experts of width 0: none, or zeros for their gate. */
static Status add_empty_shared(Parity *p)
{
    for (int i = 0; i < p->c.expected.count; i++) {
        const StTensor *want = &p->c.expected.tensor[i];
        ParityValue *v;
        if (!strncmp(want->name, "grad.", 5) && shape_is_empty_shared(&p->c.shape, want->name) &&
            want->rank <= PIECE_DIM)
            TRY(value_add(p, &v, want->name, want->rank, want->shape));
    }
    return OK;
}

Status parity_add_gradients(Parity *p)
{
    for (int i = 0; i < p->e.model.params.n; i++) {
        const Param *q = p->e.model.params.p[i];
        for (int k = 0; q->step.has_grad && k < q->pieces; k++) TRY(add_gradient(p, q, k));
    }
    return add_empty_shared(p);
}
