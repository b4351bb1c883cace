/* model/weights.c -- reading checkpoints; see weights.h.
 *
 * A rank walks the combs of what it holds (nn/param.h) and touches those bytes of the mapped files alone. */
#include "model/weights_private.h"

#include "base/thread.h"
#include "model/sink.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum { FUSED_OUT, FUSED_IN, PER_EXPERT } ExpertForm; /* [E, out, in]; [E, in, out]; one tensor each */

typedef struct Loader {
    Model             *m;
    Backend           *be;
    const SafeTensors *st;
    const char        *prefix;
    int64_t            read;
} Loader;

static const StTensor *look(const Loader *l, const char *name)
{
    char full[300];
    snprintf(full, sizeof full, "%s%s", l->prefix, name);
    return st_find(l->st, full);
}

static Status get(const Loader *l, const char *name, const StTensor **t)
{
    char full[300];
    snprintf(full, sizeof full, "%s%s", l->prefix, name);
    return st_get(l->st, full, t);
}

Tensor weights_piece_view(const Param *p, Tensor t, int i)
{
    int64_t from = 0;
    if (p->form != FORM_ROWS || !t_has(t)) return t;
    for (int k = 0; k < i; k++) from += p->piece[k].rows;
    return p->ndim == 1 ? t_cols(t, from, p->piece[i].rows) : t_rows(t, from, p->piece[i].rows);
}

static bool shape_is(const StTensor *t, int rank, const int64_t *shape)
{
    if (t->rank != rank) return false;
    for (int i = 0; i < rank; i++)
        if (t->shape[i] != shape[i]) return false;
    return true;
}

static const char *shape_text(char *buf, size_t n, int rank, const int64_t *shape)
{
    size_t at = (size_t)snprintf(buf, n, "[");
    for (int i = 0; i < rank && at < n; i++)
        at += (size_t)snprintf(buf + at, n - at, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (at < n) snprintf(buf + at, n - at, "]");
    return buf;
}

static Status wrong_shape(const StTensor *t, int rank, const int64_t *want)
{
    char a[128], b[128];
    return fail(E_DATA, "%s: shape %s in the file, %s by config.json", t->name,
                shape_text(a, sizeof a, t->rank, t->shape), shape_text(b, sizeof b, rank, want));
}

static const char *element(const StTensor *t, int64_t i)
{
    return (const char *)t->data + (size_t)i * dtype_size(t->dtype);
}

/* Runs of a comb from a tensor that begins at `base` of the whole parameter. */
static void put_runs(Sink *out, const StTensor *t, const StridedRange *c, int64_t base)
{
    for (int64_t i = 0; i < c->count; i++)
        sink_put(out, element(t, c->at + i * c->stride - base), t->dtype, c->len);
}

static Status piece_tensor(const Loader *l, const Piece *q, const StTensor **t)
{
    TRY(get(l, q->name, t));
    return shape_is(*t, q->rank, q->shape) ? OK : wrong_shape(*t, q->rank, q->shape);
}

static Status load_piece(Loader *l, Sink *out, const Param *p, int i, const StridedRange *c)
{
    const StTensor *t;
    TRY(piece_tensor(l, &p->piece[i], &t));
    put_runs(out, t, c, piece_at(p, i));
    return OK;
}

/* "….experts." of a fused expert name. */
static void expert_base(char *out, size_t n, const Param *p)
{
    const char *dot = strrchr(p->piece[0].name, '.');
    snprintf(out, n, "%.*s", (int)(dot - p->piece[0].name) + 1, p->piece[0].name);
}

/* [E, out, in] or [E, in, out] under one name. Where out == in the shape cannot tell; the sibling tensor
 * can, since gate_up has twice the width of down and so both cannot be square. */
static Status fused_form(ExpertForm *form, Loader *l, const Param *p)
{
    static const char *const names[2] = { "gate_up_proj", "down_proj" };
    int64_t E = p->shape[0], D = l->m->shape.text.D, I = l->m->shape.text.I;
    int64_t out[2][3] = { { E, 2 * I, D }, { E, D, I } }, in[2][3] = { { E, D, 2 * I }, { E, I, D } };
    char base[120], name[160];
    expert_base(base, sizeof base, p);
    int votes_out = 0, votes_in = 0;
    for (int k = 0; k < 2; k++) {
        snprintf(name, sizeof name, "%s%s", base, names[k]);
        const StTensor *t;
        TRY(get(l, name, &t));
        bool a = shape_is(t, 3, out[k]), b = shape_is(t, 3, in[k]);
        if (!a && !b) return wrong_shape(t, 3, out[k]);
        votes_out += a && !b, votes_in += b && !a;
    }
    if (votes_out && votes_in)
        return fail(E_DATA, "%s*: gate_up_proj and down_proj are in different layouts", base);
    *form = votes_in ? FUSED_IN : FUSED_OUT;
    return OK;
}

static Status expert_form(ExpertForm *form, Loader *l, const Param *p)
{
    char base[120], one[160];
    expert_base(base, sizeof base, p);
    snprintf(one, sizeof one, "%s0.down_proj.weight", base);
    bool fused = look(l, p->piece[0].name), each = look(l, one);
    if (fused && each) return fail(E_DATA, "%s*: both fused and one per expert; keep one form", base);
    if (each) return *form = PER_EXPERT, OK;
    return fused_form(form, l, p);
}

static int64_t expert_parts(const Param *p) { return p->form == FORM_EXPERT_GATE_UP ? 2 : 1; }

/* Tensor u of those that hold one expert's weights each, in the order of the fused one: gate, up, gate… */
static Status one_expert(Loader *l, const Param *p, int64_t u, const StTensor **t)
{
    static const char *const halves[2] = { "gate_proj", "up_proj" };
    int64_t parts = expert_parts(p), want[2] = { p->shape[1] / parts, p->shape[2] };
    char base[120], name[200];
    expert_base(base, sizeof base, p);
    snprintf(name, sizeof name, "%s%lld.%s.weight", base, (long long)(u / parts),
             parts == 2 ? halves[u % 2] : "down_proj");
    TRY(get(l, name, t));
    return shape_is(*t, 2, want) ? OK : wrong_shape(*t, 2, want);
}

static Status load_each_expert(Loader *l, Sink *out, const Param *p, const StridedRange *c)
{
    int64_t block = p->shape[1] * p->shape[2] / expert_parts(p), at = -1;
    const StTensor *t = NULL;
    for (int64_t i = 0; i < c->count; i++)
        for (int64_t done = 0, n; done < c->len; done += n) {
            int64_t from = c->at + i * c->stride + done;
            if (from / block != at) TRY(one_expert(l, p, at = from / block, &t));
            n = block - from % block < c->len - done ? block - from % block : c->len - done;
            sink_put(out, element(t, from % block), t->dtype, n);
        }
    return OK;
}

/* dst (cols, rows) = transposed src (rows, cols), in tiles so that both sides stay in cache. */
void weights_transpose(float *dst, const float *src, int64_t rows, int64_t cols)
{
    enum { TILE = 32 };
    for (int64_t i = 0; i < rows; i += TILE)
        for (int64_t j = 0; j < cols; j += TILE)
            for (int64_t r = i; r < rows && r < i + TILE; r++)
                for (int64_t k = j; k < cols && k < j + TILE; k++) dst[k * rows + r] = src[r * cols + k];
}

/* A block of one expert: rows [row, row + rows) by columns [col, col + cols) of its (full[1], full[2]). */
typedef struct Block { int64_t expert, row, rows, col, cols; } Block;

/* The block that the elements of a comb from run i, element k on begin with, as large as an expert allows. */
static Block block_at(const Param *p, const StridedRange *c, int64_t i, int64_t k)
{
    int64_t R = p->shape[1], W = p->shape[2], from = c->at + i * c->stride + k, left = c->len - k;
    Block b = { .expert = from / (R * W), .row = from / W % R, .rows = 1, .col = from % W };
    int64_t below = R - b.row;
    b.cols = left < W - b.col ? left : W - b.col;
    if (!k && c->len < W && c->len == b.cols && c->stride == W)
        b.rows = c->count - i < below ? c->count - i : below;         /* the same columns of row after row */
    else if (b.cols == W)
        b.rows = left / W < below ? left / W : below;
    return b;
}

/* From [E, in, out]: columns of ours are its rows. `room` has place for an expert twice. */
static void put_turned(Sink *out, const Param *p, const StTensor *t, const Block *b, float *room)
{
    int64_t n = b->rows * b->cols;
    for (int64_t j = 0; j < b->cols; j++) {
        int64_t row = b->expert * p->shape[2] + b->col + j;
        dtype_convert(room + j * b->rows, F32, element(t, row * p->shape[1] + b->row), t->dtype, b->rows);
    }
    weights_transpose(room + n, room, b->cols, b->rows);
    sink_put(out, room + n, F32, n);
}

static Status load_turned_experts(Sink *out, const Param *p, const StTensor *t, const StridedRange *c)
{
    float *room = malloc((size_t)(p->shape[1] * p->shape[2]) * 2 * sizeof *room);
    if (!room) return fail(E_FIT, "%s: no host memory to turn an expert", t->name);
    for (int64_t i = 0, k = 0; i < c->count;) {
        Block b = block_at(p, c, i, k);
        put_turned(out, p, t, &b, room);
        if (b.cols == c->len) i += b.rows;                            /* whole runs */
        else k += b.rows * b.cols;
        if (k == c->len) i++, k = 0;
    }
    free(room);
    return OK;
}

static Status load_experts(Loader *l, Sink *out, const Param *p, const StridedRange *c)
{
    ExpertForm form = FUSED_OUT;
    TRY(expert_form(&form, l, p));
    if (form == PER_EXPERT) return load_each_expert(l, out, p, c);
    const StTensor *t = look(l, p->piece[0].name);
    if (form == FUSED_IN) return load_turned_experts(out, p, t, c);
    put_runs(out, t, c, 0);
    return OK;
}

/* What h holds of the parameter; the bytes that were looked at are added to *read. */
static Status load_held(Loader *l, const Param *p, ShardView h, int64_t *read)
{
    Sink out;
    Status st = OK;
    StridedRange c[3];
    if (!h.n) return OK;
    TRY(sink_open(&out, l->be, h.t));
    for (int i = 0; i < p->pieces && !st; i++) {
        int n = ranges_clip(c, &p->shard.range[i], 1, h.at, h.n);
        for (int k = 0; k < n && !st; k++) {
            sink_seek(&out, c[k].local);
            st = p->form == FORM_ROWS ? load_piece(l, &out, p, i, &c[k]) : load_experts(l, &out, p, &c[k]);
            *read += c[k].len * c[k].count;
        }
    }
    if (!st) sink_zero_padding(&out, p, h);
    Status done = sink_close(&out);
    return st ? st : done;
}

static Status put_held(Backend *be, const Param *p, int i, const StTensor *t, ShardView h)
{
    Sink out;
    StridedRange c[3];
    if (!h.n) return OK;
    TRY(sink_open(&out, be, h.t));
    int n = ranges_clip(c, &p->shard.range[i], 1, h.at, h.n);
    for (int k = 0; k < n; k++) {
        sink_seek(&out, c[k].local);
        put_runs(&out, t, &c[k], piece_at(p, i));
    }
    sink_zero_padding(&out, p, h);
    return sink_close(&out);
}

Status weights_put_piece(Backend *be, const Param *p, int i, const StTensor *t)
{
    TRY(put_held(be, p, i, t, param_load_view(p)));
    return put_held(be, p, i, t, param_weight_view(p));
}

/* The master first: the weights are mostly the same bytes of the file again, or hold them all. */
static Status load_param(void *arg, int64_t i)
{
    Loader *l = arg;
    const Param *p = l->m->params.p[i];
    ShardView w = param_weight_view(p), own = param_load_view(p);
    int64_t read[2] = { 0 };
    if (p->adapter_of) return OK;                                        /* adapters are in files of their own */
    TRY(load_held(l, p, own, &read[0]));
    TRY(load_held(l, p, w, &read[1]));
    __atomic_add_fetch(&l->read, read[read[1] > read[0]], __ATOMIC_RELAXED);
    return OK;
}

Status weights_load_one(Model *m, Backend *be, const SafeTensors *st, const char *prefix, int i)
{
    Loader l = { .m = m, .be = be, .st = st, .prefix = prefix };
    return load_param(&l, i);
}

Status weights_check_shapes(Model *m, const SafeTensors *st, const char *prefix, int i)
{
    Loader l = { .m = m, .st = st, .prefix = prefix };
    const Param *p = m->params.p[i];
    const StTensor *t;
    ExpertForm form;
    for (int k = 0; p->form == FORM_ROWS && k < p->pieces; k++) TRY(piece_tensor(&l, &p->piece[k], &t));
    if (p->form == FORM_ROWS) return OK;
    TRY(expert_form(&form, &l, p));
    for (int64_t u = 0; form == PER_EXPERT && u < p->shape[0] * expert_parts(p); u++)
        TRY(one_expert(&l, p, u, &t));
    return OK;
}

static bool ends_with(const char *s, const char *tail)
{
    size_t a = strlen(s), b = strlen(tail);
    return a >= b && !strcmp(s + a - b, tail);
}

static bool is_used(const Model *m, const char *name)
{
    bool used = strstr(name, ".mlp.experts.") || (m->shape.text.tied && ends_with(name, "lm_head.weight"));
    for (int k = 0; !used && k < m->params.n; k++)
        for (int j = 0; !used && j < m->params.p[k]->pieces; j++)
            used = !strcmp(m->params.p[k]->piece[j].name, name);
    return used;
}

/* What the file holds and nobody asked for is said aloud: it may be a head that tying leaves out, or a
 * model that is not the one config.json describes. Other stages of a pipeline ask too. */
static Status report_unused(const Model *m, const SafeTensors *st, const Log *log)
{
    Model whole;
    int unused = 0;
    const char *first = NULL;
    TRY(model_open_whole(&whole, m));
    for (int i = 0; i < st->count; i++)
        if (!is_used(&whole, st->tensor[i].name) && !unused++) first = st->tensor[i].name;
    model_close(&whole);
    if (unused)
        log_warn(log, "%d tensors of the checkpoint belong to no parameter of the model, the first is %s",
                 unused, first);
    return OK;
}

/* Quantised files carry scales beside their weights; read as plain numbers they would train nonsense. */
static Status refuse_scaled(const SafeTensors *st)
{
    for (int i = 0; i < st->count; i++) {
        const char *n = st->tensor[i].name;
        size_t k = strlen(n);
        if (k > 10 && !strcmp(n + k - 10, "_scale_inv"))
            return fail(E_DATA,
                        "%s: this is an FP8 checkpoint with block scales; convert it to bfloat16 first", n);
    }
    return OK;
}

Status weights_check(const Model *m, const SafeTensors *st, const Log *log)
{
    TRY(refuse_scaled(st));
    return report_unused(m, st, log);
}

Status weights_read(Model *m, Backend *be, const SafeTensors *st, int64_t *elements)
{
    Loader l = { .m = m, .be = be, .st = st, .prefix = "" };
    Pool pool;
    TRY(pool_open(&pool, be->device->host_memory ? cpu_count() - 1 : 0));
    Status s = pool_run(&pool, m->params.n, load_param, &l);
    pool_close(&pool);
    *elements = l.read;
    return s;
}

Status weights_load(Model *m, Backend *be, const SafeTensors *st, const Log *log)
{
    int64_t elements;
    TRY(weights_check(m, st, log));
    return weights_read(m, be, st, &elements);
}
