/* model/model.c -- opening a model, its constants, the per-layer rows of its activations. */
#include "model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

Status model_open_part(Model *m, const ModelShape *s, const bool *frozen, const LoraConf *lora,
                       const Mesh *mesh, const Chunk *chunk, int chunks)
{
    const Family *f;
    *m = (Model){ .shape = *s, .params.mesh = mesh, .chunks = chunks };
    REQUIRE(chunks >= 1 && chunks <= MAX_CHUNKS, "a model in %d pipeline chunks", chunks);
    memcpy(m->chunk, chunk, (size_t)chunks * sizeof *chunk);
    for (int g = 0; frozen && g < GROUP_N; g++) m->frozen[g] = frozen[g];
    m->first_trainable = m->frozen[G_LLM] ? s->text.L + 1 : -1;
    TRY(family_find(&f, s->family));
    TRY(layer_kinds_train(&s->text));
    f->build(m);
    for (int i = 0; i < m->params.n; i++) 
        m->params.p[i]->frozen = m->frozen[m->params.p[i]->group] || m->params.p[i]->buffer;
    Status st = lora && lora->rank > 0 ? lora_attach(m, lora) : OK;
    if (st) model_close(m);
    return st;
}

Status model_open_whole(Model *m, const ModelShape *s, const bool *frozen, const LoraConf *lora)
{
    Chunk whole = { 0, s->text.L, true, true };
    return model_open_part(m, s, frozen, lora, NULL, &whole, 1);
}

Status model_open(Model *m, const ModelShape *s, const bool *frozen)
{
    return model_open_whole(m, s, frozen, NULL);
}

Status model_open_whole_of(Model *m, const Model *part)
{
    return model_open_whole(m, &part->shape, part->frozen, part->lora);
}

void model_close(Model *m)
{
    lora_close(m);
    params_close(&m->params);
    for (int64_t l = 0; m->layer && l < shape_layers(&m->shape.text); l++)
        decoder_close(&m->layer[l]);
    free(m->vision.block), free(m->layer);
    *m = (Model){ 0 };
}

void model_tables(Model *m, Arena *param)
{
    m->inv  = t1(param, "rope", F32, shape_rotary(&m->shape.text) / 2);
    m->axis = t1(param, "rope", I32, shape_rotary(&m->shape.text) / 2);
    if (!m->vision.depth) return;
    m->vision.inv  = t1(param, "rope", F32, m->vision.D / m->vision.H / 2);
    m->vision.axis = t1(param, "rope", I32, m->vision.D / m->vision.H / 2);
}

/* Interleaved MRoPE: frequencies alternate time, row, column within the sections; the rest are time. */
static int32_t text_axis(const int64_t section[3], int64_t j)
{
    if (j % 3 == 1 && j < 3 * section[1]) return 1;
    if (j % 3 == 2 && j < 3 * section[2]) return 2;
    return 0;
}

/* Where the frequency that turns b times in the trained context is, as a real index. */
static double yarn_border(const YarnShape *y, double theta, double dim, double b)
{
    return dim * log(y->original / (2 * 3.14159265358979323846 * b)) / (2 * log(theta));
}

/* Fast frequencies stay, slow ones are divided by the factor, those between are mixed. */
static void yarn_frequencies(float *inv, const YarnShape *y, double theta, int64_t half)
{
    double dim = 2 * (double)half;
    double lo = yarn_border(y, theta, dim, y->fast), hi = yarn_border(y, theta, dim, y->slow);
    if (y->truncate) lo = floor(lo), hi = ceil(hi);
    lo = fmax(lo, 0), hi = fmin(hi, dim - 1);
    if (lo == hi) hi += 0.001;
    for (int64_t j = 0; j < half; j++) {
        double ramp = fmin(fmax(((double)j - lo) / (hi - lo), 0), 1), e = pow(theta, -2 * (double)j / dim);
        inv[j] = (float)(e * (1 - ramp) + e / y->factor * ramp);
    }
}

/* The mixture of Llama 3.1, by how often a frequency turns in the trained context. */
static void smooth_frequencies(float *inv, const SmoothShape *s, int64_t half)
{
    for (int64_t j = 0; j < half; j++) {
        double turns = s->original * (double)inv[j] / (2 * 3.14159265358979323846);
        double keep = fmin(fmax((turns - s->low) / (s->high - s->low), 0), 1);
        inv[j] = (float)((1 - keep) * (double)inv[j] / s->factor + keep * (double)inv[j]);
    }
}

void model_constants(Model *m, Backend *be)
{
    float   inv[512];
    int32_t axis[512];
    const TextShape *t = &m->shape.text;
    int64_t half = shape_rotary(t) / 2;
    for (int64_t j = 0; j < half; j++) {
        inv[j]  = 1.0f / powf((float)t->theta, (float)(2 * j) / (float)(2 * half));
        axis[j] = text_axis(t->mrope, j);
    }
    if (t->smooth.factor > 0) smooth_frequencies(inv, &t->smooth, half);
    if (t->yarn.factor > 0) yarn_frequencies(inv, &t->yarn, t->theta, half);
    backend_upload(be, m->inv, inv);
    backend_upload(be, m->axis, axis);
    if (!m->vision.depth) return;
    half = m->vision.D / m->vision.H / 2;                    /* one half row, the other column frequencies */
    for (int64_t j = 0; j < half; j++) {
        inv[j]  = 1.0f / powf(m->vision.theta, (float)(2 * (j % (half / 2))) / (float)half);
        axis[j] = j >= half / 2;
    }
    backend_upload(be, m->vision.inv, inv);
    backend_upload(be, m->vision.axis, axis);
}

static Status open_layers(ModelAct *a, const Model *m)
{
    for (int64_t l = 0; l < a->layers; l++)
        if (m->layer[l].norm) TRY(decoder_act_open(&a->layer[l], m->layer[l].kinds));
    return OK;
}

Status model_act_open(ModelAct *a, const Model *m)
{
    int64_t L = m->shape.text.L;
    *a = (ModelAct){ .layers = shape_layers(&m->shape.text) };
    a->layer = calloc((size_t)a->layers, sizeof *a->layer);
    a->x     = calloc((size_t)L + 1, sizeof *a->x);
    a->offload = calloc((size_t)L, sizeof *a->offload);
    a->vision.block  = calloc((size_t)m->vision.depth + 1, sizeof *a->vision.block);
    a->vision.offload = calloc((size_t)m->vision.depth + 1, sizeof *a->vision.offload);
    bool   there = a->layer && a->x && a->offload && a->vision.block && a->vision.offload;
    Status st = there ? open_layers(a, m) : fail(E_FIT, "no host memory for %lld layers", (long long)L);
    if (st) model_act_close(a);
    return st;
}

void model_act_close(ModelAct *a)
{
    for (int64_t l = 0; a->layer && l < a->layers; l++) decoder_act_close(&a->layer[l]);
    free(a->layer), free(a->x), free(a->offload), free(a->vision.block), free(a->vision.offload);
    *a = (ModelAct){ 0 };
}
