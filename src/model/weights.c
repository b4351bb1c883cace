/* model/weights.c -- reads weights in HF form; see weights.h.
 *
 * A rank walks the ranges of elements that it holds (nn/param.h) and reads no other bytes of the mapped
 * files. */
#include "model/weights_private.h"

#include "base/thread_pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void weights_file_name(char *out, size_t n, const ModelShape *s, const char *name)
{
    const ModelNames *names = shape_names(s);
    const char *at = names->in_memory ? strstr(name, names->in_memory) : NULL;
    if (!at) snprintf(out, n, "%s", name);
    else     snprintf(out, n, "%.*s%s%s", (int)(at - name), name, names->in_files,
                      at + strlen(names->in_memory));
}

/* Adapters' files have the names of memory, below a prefix of their own. */
static void full_name(char *out, size_t n, const WeightLoader *l, const char *name)
{
    if (*l->prefix) snprintf(out, n, "%s%s", l->prefix, name);
    else            weights_file_name(out, n, &l->m->shape, name);
}

const StTensor *weights_find_tensor(const WeightLoader *l, const char *name)
{
    char full[300];
    full_name(full, sizeof full, l, name);
    return st_find(l->st, full);
}

Status weights_get_tensor(const WeightLoader *l, const char *name, const StTensor **t)
{
    char full[300];
    full_name(full, sizeof full, l, name);
    return st_get(l->st, full, t);
}

Tensor weights_piece_view(const Param *p, Tensor t, int i)
{
    int64_t from = 0;
    if (p->form != FORM_ROWS || !t_has(t)) return t;
    for (int k = 0; k < i; k++) from += p->piece[k].rows;
    return p->ndim == 1 ? t_cols(t, from, p->piece[i].rows) : t_rows(t, from, p->piece[i].rows);
}

bool weights_shape_is(const StTensor *t, int rank, const int64_t *shape)
{
    if (t->rank != rank) return false;
    for (int i = 0; i < rank; i++)
        if (t->shape[i] != shape[i]) return false;
    return true;
}

Status weights_wrong_shape(const StTensor *t, int rank, const int64_t *want)
{
    char a[ST_SHAPE_TEXT], b[ST_SHAPE_TEXT];
    return fail(E_DATA, "%s has shape %s in the file and %s by config.json", t->name,
                st_shape_text(a, t->rank, t->shape), st_shape_text(b, rank, want));
}

static const char *element(const StTensor *t, int64_t i)
{
    return (const char *)t->data + (size_t)i * dtype_size(t->dtype);
}

void weights_put_elements(Sink *out, const StTensor *t, int64_t from, int64_t n)
{
    enum { PIECE = 4096 };
    float value[PIECE];
    if (!t->scale) {
        sink_put(out, element(t, from), t->dtype, n);
        return;
    }
    for (int64_t i = 0, k; i < n; i += k) {
        k = n - i < PIECE ? n - i : PIECE;
        st_read(value, t, from + i, k);
        sink_put(out, value, F32, k);
    }
}

void weights_put_range(Sink *out, const StTensor *t, const StridedRange *c, int64_t base)
{
    for (int64_t i = 0; i < c->count; i++)
        weights_put_elements(out, t, c->at + i * c->stride - base, c->len);
}

static Status piece_tensor(const WeightLoader *l, const Piece *q, const StTensor **t)
{
    TRY(weights_get_tensor(l, q->name, t));
    return weights_shape_is(*t, q->rank, q->shape) ? OK : weights_wrong_shape(*t, q->rank, q->shape);
}

/* Writes the elements of range c of p; i is the piece of a parameter of rows that has them. */
static Status load_range(WeightLoader *l, Sink *out, const Param *p, int i, const StridedRange *c)
{
    const StTensor *t;
    if (p->form != FORM_ROWS) return weights_load_experts(l, out, p, c);
    TRY(piece_tensor(l, &p->piece[i], &t));
    weights_put_range(out, t, c, piece_at(p, i));
    return OK;
}

/* Loads the elements of the parameter that h views; adds their number to *read. */
static Status load_view(WeightLoader *l, Backend *be, const Param *p, ShardView h, int64_t *read)
{
    Sink out;
    Status st = OK;
    StridedRange c[SHARD_VIEW_RANGES];
    int n;
    if (!h.n) return OK;
    TRY(sink_open_view(&out, be, h));
    for (int i = 0; i < p->pieces && !st; i++) {
        const StridedRange *of = piece_ranges(p, i, &n);
        n = ranges_clip(c, of, n, h.at, h.n);
        for (int k = 0; k < n && !st; k++) {
            sink_seek(&out, c[k].local);
            st = load_range(l, &out, p, i, &c[k]);
            *read += c[k].len * c[k].count;
        }
    }
    if (!st) sink_zero_padding(&out, p, h);
    Status done = sink_close(&out);
    return st ? st : done;
}

static Status put_view(Backend *be, const Param *p, int i, const StTensor *t, ShardView h)
{
    Sink out;
    StridedRange c[SHARD_VIEW_RANGES];
    int n;
    const StridedRange *of = piece_ranges(p, i, &n);
    if (!h.n) return OK;
    TRY(sink_open_view(&out, be, h));
    n = ranges_clip(c, of, n, h.at, h.n);
    for (int k = 0; k < n; k++) {
        sink_seek(&out, c[k].local);
        weights_put_range(&out, t, &c[k], piece_at(p, i));
    }
    sink_zero_padding(&out, p, h);
    return sink_close(&out);
}

Status weights_put_piece(Backend *be, const Param *p, int i, const StTensor *t)
{
    ShardView w = param_weight_view(p), own = param_load_view(p);
    if (!loads_weight(own, w)) TRY(put_view(be, p, i, t, w));
    return put_view(be, p, i, t, own);
}

static Status load_codes(WeightLoader *l, const Param *p)
{
    ShardView h;
    int64_t   read = 0;
    for (int64_t part = 0; part < fp8_stage_parts(l->stage, p); part++) {
        TRY(fp8_stage_view(l->stage, p, part, &h));
        TRY(fp8_stage_put(l->stage, p, part, h,
                          load_view(l, fp8_stage_backend(l->stage, p), p, h, &read)));
    }
    __atomic_add_fetch(&l->read, read, __ATOMIC_RELAXED);
    return OK;
}

/* The piece of a parameter of rows that element `at` of the whole lies in; 0 for experts. */
static int piece_of(const Param *p, int64_t at)
{
    int i = p->pieces - 1;
    while (i > 0 && piece_at(p, i) > at) i--;
    return i;
}

static Status fill_matrix(void *self, Backend *be, const Param *p, Tensor t, int64_t at)
{
    WeightLoader *l = self;
    Sink          out;
    StridedRange  c = { .at = at, .len = t.n[0], .count = 1 };
    TRY(sink_open(&out, be, t));
    Status st = load_range(l, &out, p, piece_of(p, at), &c);
    Status done = sink_close(&out);
    __atomic_add_fetch(&l->read, t.n[0], __ATOMIC_RELAXED);
    return st ? st : done;
}

/* What the progress of loading is counted in: the weight, or the master of one that has no other memory. */
static Tensor counted_tensor(const Param *p) { return t_has(p->shard.w) ? p->shard.w : p->shard.master; }

/* Master and weights mostly need the same bytes of the file, so the larger of the two counts as read. */
static Status load_param(void *arg, int64_t i)
{
    WeightLoader *l = arg;
    const Param *p = l->m->params.p[i];
    ShardView w = param_weight_view(p), own = param_load_view(p);
    int64_t read[2] = { 0 };
    if (p->adapter_of) return OK;                                        /* adapters are not in these files */
    if (l->stage && fp8_stage_takes(p)) return load_codes(l, p);
    if (l->codes && code_stage_takes(p)) return code_stage_put(l->codes, p, fill_matrix, l);
    if (!loads_weight(own, w)) TRY(load_view(l, l->be, p, w, &read[1]));
    TRY(load_view(l, l->be, p, own, &read[0]));
    __atomic_add_fetch(&l->read, read[read[1] > read[0]], __ATOMIC_RELAXED);
    meter_add(l->meter, read[read[1] > read[0]] * (int64_t)dtype_size((DType)counted_tensor(p).dtype));
    return OK;
}

Status weights_load_one(Model *m, Backend *be, const SafeTensors *st, const char *prefix, int i)
{
    WeightLoader l = { .m = m, .be = be, .st = st, .prefix = prefix };
    return load_param(&l, i);
}

Status weights_check_shapes(Model *m, const SafeTensors *st, const char *prefix, int i)
{
    WeightLoader l = { .m = m, .st = st, .prefix = prefix };
    const Param *p = m->params.p[i];
    const StTensor *t;
    for (int k = 0; p->form == FORM_ROWS && k < p->pieces; k++) TRY(piece_tensor(&l, &p->piece[k], &t));
    return p->form == FORM_ROWS ? OK : weights_check_experts(&l, p);
}

static Status read_all(WeightLoader *l, const Backend *be)
{
    ThreadPool pool;
    TRY(thread_pool_open(&pool, be->device->host_memory ? cpu_count() - 1 : 0));
    Status s = thread_pool_run(&pool, l->m->params.n, load_param, l);
    thread_pool_close(&pool);
    return s;
}

Status weights_read(Model *m, Backend *be, const SafeTensors *st, Meter *meter, int64_t *elements)
{
    WeightLoader l = { .m = m, .be = be, .st = st, .prefix = "", .meter = meter };
    Fp8Stage   stage;
    CodeStage  codes;
    TRY(fp8_stage_open(&stage, be, &m->params));
    Status s = code_stage_open(&codes, be, &m->params);
    l.stage = &stage, l.codes = &codes;
    if (!s) s = read_all(&l, be);
    code_stage_close(&codes);
    fp8_stage_close(&stage);
    *elements = l.read;
    return s;
}

Status weights_load(Model *m, Backend *be, const SafeTensors *st, const Log *log)
{
    int64_t elements;
    Meter   meter;
    double  bytes = 0;
    TRY(weights_check(m, st, log));
    for (int i = 0; i < m->params.n; i++)
        if (!m->params.p[i]->adapter_of) bytes += (double)t_bytes(counted_tensor(m->params.p[i]));
    if (log) meter_open(&meter, log, "loading weights", METER_BYTES, bytes);
    Status s = weights_read(m, be, st, log ? &meter : NULL, &elements);
    if (log) meter_close(&meter);
    return s;
}
