/* model/peft_load.c -- loads adapters from PEFT files into parameters, in the layout of nn/lora.h; see
 * peft.h. */
#include "model/peft_private.h"
#include "model/weights_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Converts an adapter to A (E, r, in), B (E, out, r). row: scratch. */
typedef struct PeftConverter {
    const PeftFile    *f;
    const PeftAdapter *p;
    int64_t            r;
    float             *row;
} PeftConverter;

static const void *row_of(const StTensor *t, int64_t i)
{
    return (const char *)t->data + (size_t)(i * t->shape[1]) * dtype_size(t->dtype);
}

/* From t (n, r E), where column j E + e is element j of expert e, to (E, n, r), or (E, r,
 * n) if `transposed`. */
static void from_columns(const PeftConverter *k, float *out, const StTensor *t, bool transposed)
{
    int64_t E = k->p->E, r = k->r, n = t->shape[0];
    for (int64_t i = 0; i < n; i++) {
        dtype_convert(k->row, F32, row_of(t, i), t->dtype, r * E);
        for (int64_t e = 0; e < E; e++)
            for (int64_t j = 0; j < r; j++)
                out[transposed ? (e * r + j) * n + i : (e * n + i) * r + j] = k->row[j * E + e];
    }
}

/* From t (E r, n), where row e r + j is element j of expert e, to (E, r, n), or (E, n, r) if `transposed`. */
static void from_rows(const PeftConverter *k, float *out, const StTensor *t, bool transposed)
{
    int64_t n = t->shape[1];
    if (!transposed) dtype_convert(out, F32, t->data, t->dtype, t->shape[0] * n);
    for (int64_t row = 0; transposed && row < t->shape[0]; row++) {
        dtype_convert(k->row, F32, row_of(t, row), t->dtype, n);
        for (int64_t i = 0; i < n; i++) out[(row / k->r * n + i) * k->r + row % k->r] = k->row[i];
    }
}

/* From one tensor per expert and part. With different A of gate and up (split), these are stacked, and B is
 * block-diagonal. */
static Status from_experts(const PeftConverter *k, float *out, bool b)
{
    const PeftAdapter *p = k->p;
    bool split = p->form == PEFT_PER_EXPERT_SPLIT;
    int64_t r = k->r, own = split ? r / 2 : r, rows = p->out / peft_parts(p);
    for (int64_t e = 0; e < p->E; e++)
        for (int part = 0; part < peft_parts(p); part++) {
            const StTensor *t;
            TRY(peft_expert_tensor(k->f, p, e, part, b ? 'B' : 'A', &t));
            if (!b && (split || !part))
                dtype_convert(out + (e * r + part * own) * p->in, F32, t->data, t->dtype, own * p->in);
            for (int64_t i = 0; b && i < rows; i++) {
                float *row = out + (e * p->out + part * rows + i) * r;
                memset(row, 0, (size_t)r * sizeof *row);
                dtype_convert(row + (split ? part * own : 0), F32, row_of(t, i), t->dtype, own);
            }
        }
    return OK;
}

/* Writes all of A or B of an adapter to out. */
static Status convert_adapter(const PeftConverter *k, float *out, bool b)
{
    const PeftAdapter *p = k->p;
    switch (p->form) {
    case PEFT_PLAIN:
        from_rows(k, out, b ? p->b : p->a, false);
        return OK;
    case PEFT_FUSED:
        return b ? from_columns(k, out, p->b, false) : from_rows(k, out, p->a, false), OK;
    case PEFT_FUSED_TRANSPOSED:
        return b ? from_rows(k, out, p->a, true) : from_columns(k, out, p->b, true), OK;
    default:
        return from_experts(k, out, b);
    }
}

static int adapter_index(const PeftFile *f, const char *module)
{
    for (int i = 0; i < f->conf.exacts; i++)
        if (!strcmp(f->conf.exact[i].module, module)) return i;
    return -1;
}

/* If the experts of a layer share one A, all A of the file must be equal. */
static Status check_shared(const float *a, int64_t each, int64_t E, const char *module)
{
    for (int64_t e = 1; e < E; e++)
        if (memcmp(a, a + e * each, (size_t)each * sizeof *a))
            return fail(E_CONFIG, "%s: the A of its experts differ; set lora.expert_a=each", module);
    return OK;
}

/* Loads piece i of q, which is the A or B of the module's adapter. */
static Status load_piece(const PeftFile *f, Backend *be, const Param *q, int i, const char *module, bool b)
{
    int at = adapter_index(f, module);
    if (at < 0) return fail(E_CONFIG, "the adapter file has no tensors of %s", module);
    const PeftAdapter *p = &f->adapter[at];
    int64_t r = f->conf.exact[at].rank, each = r * (b ? p->out : p->in), widest = p->E * r;
    if (p->out > widest) widest = p->out;
    float *buf = malloc((size_t)(p->E * each) * sizeof *buf), *row = malloc((size_t)widest * sizeof *row);
    StTensor whole = { .name = module, .dtype = F32, .data = buf };
    PeftConverter k = { f, p, r, row };
    Status st = buf && row ? convert_adapter(&k, buf, b)
                           : fail(E_FIT, "%s: no host memory to read its adapter", module);
    if (!st && !b && q->shape[0] == 1 && p->E > 1) st = check_shared(buf, each, p->E, module);
    if (!st) st = weights_put_piece(be, q, i, &whole);
    free(buf), free(row);
    return st;
}

static Status load_adapter(const PeftFile *f, Backend *be, const Param *q)
{
    const Lora *l = q->adapter_of->lora;
    for (int k = 0; k < l->parts; k++) {
        char module[sizeof q->piece->name];
        bool b = l->part[k].b == q;
        lora_module_name(module, sizeof module, q->adapter_of, l->part[k].piece);
        if (b || l->a == q) TRY(load_piece(f, be, q, b ? 0 : k, module, b));
    }
    return OK;
}

static bool has_full_module(const PeftFile *f, const Param *p)
{
    char name[sizeof p->piece->name];
    lora_module_name(name, sizeof name, p, 0);
    for (int i = 0; i < f->save.n; i++)
        if (!strcmp(f->save.item[i], name)) return true;
    return false;
}

Status peft_fill(void *self, Model *m, Backend *be, int i)
{
    const PeftFile *f = self;
    const Param *p = m->params.p[i];
    if (p->adapter_of) return load_adapter(f, be, p);
    return weights_load_one(m, be, &f->st, PEFT_PREFIX, i);
}

Status peft_load(const PeftFile *f, Model *m, Backend *be)
{
    for (int i = 0; i < m->params.n; i++)
        if (m->params.p[i]->adapter_of || has_full_module(f, m->params.p[i]))
            TRY(peft_fill((PeftFile *)f, m, be, i));
    return OK;
}

/* ---- copies of base tensors ---- */

static Status compare_tensors(const StTensor *a, const StTensor *b)
{
    enum { BLOCK = 4096 };
    float   x[BLOCK], y[BLOCK];
    int64_t n = (int64_t)(a->bytes / dtype_size(a->dtype));
    bool    same = n == (int64_t)(b->bytes / dtype_size(b->dtype));
    for (int64_t at = 0; same && at < n; at += BLOCK) {
        int64_t k = n - at < BLOCK ? n - at : BLOCK;
        dtype_convert(x, F32, (const char *)a->data + (size_t)at * dtype_size(a->dtype), a->dtype, k);
        dtype_convert(y, F32, (const char *)b->data + (size_t)at * dtype_size(b->dtype), b->dtype, k);
        same = !memcmp(x, y, (size_t)k * sizeof *x);
    }
    if (same) return OK;
    return fail(E_DATA, "%s differs from the tensor of the base model; the adapter was made for another one",
                a->name);
}

Status peft_check_base(const PeftFile *f, const SafeTensors *base)
{
    for (int i = 0; i < f->copies; i++) {
        char name[400];
        const char *own = f->copy[i] + strlen(PEFT_PREFIX), *at = strstr(own, ".base_layer.");
        const StTensor *t;
        snprintf(name, sizeof name, "%.*s%s", (int)(at - own), own, at + strlen(".base_layer"));
        if (!base)
            return fail(E_CONFIG,
                        "%s: the adapter includes weights of its base model; set model.path to that base "
                        "model",
                        f->copy[i]);
        TRY(st_get(base, name, &t));
        TRY(compare_tensors(st_find(&f->st, f->copy[i]), t));
    }
    return OK;
}
