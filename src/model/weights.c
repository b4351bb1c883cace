/* model/weights.c -- reading checkpoints; see weights.h. */
#include "model/weights_private.h"

#include "base/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STAGE = 1 << 22 };                                    /* elements of a staging buffer */

typedef enum { FUSED_OUT, FUSED_IN, PER_EXPERT } ExpertForm; /* [E, out, in]; [E, in, out]; one tensor each */

typedef struct Loader { Model *m; Backend *be; const SafeTensors *st; } Loader;

Tensor piece_view(const Param *p, Tensor t, int i)
{
    int64_t from = 0;
    if (p->form != FORM_ROWS || !t_has(t)) return t;
    for (int k = 0; k < i; k++) from += p->piece[k].shape[0];
    return p->rank == 1 ? t_cols(t, from, p->piece[i].shape[0]) : t_rows(t, from, p->piece[i].shape[0]);
}

/* n elements of a file into a dense tensor: straight in where memory is the host's, staged elsewhere. */
static Status place(Backend *be, Tensor dst, const void *src, DType from)
{
    int64_t n = t_count(dst);
    if (!t_has(dst)) return OK;
    if (be->machine->host_memory) return dtype_convert(dst.data, (DType)dst.dtype, src, from, n), OK;
    size_t to_size = dtype_size((DType)dst.dtype), from_size = dtype_size(from);
    char *stage = malloc((size_t)(n < STAGE ? n : STAGE) * to_size + 1);
    if (!stage) return fail(E_FIT, "no host memory to stage a tensor");
    for (int64_t i = 0; i < n; i += STAGE) {
        int64_t k = n - i < STAGE ? n - i : STAGE;
        dtype_convert(stage, (DType)dst.dtype, (const char *)src + (size_t)i * from_size, from, k);
        backend_upload(be, t_wrap((char *)dst.data + (size_t)i * to_size, (DType)dst.dtype, 1, &k), stage);
    }
    free(stage);
    return backend_sync(be);
}

static Status place_both(Backend *be, Tensor w, Tensor master, const void *src, DType from)
{
    TRY(place(be, w, src, from));
    return place(be, master, src, from);
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

static Status load_piece(Loader *l, Param *p, int i)
{
    const Piece *q = &p->piece[i];
    const StTensor *t;
    TRY(st_get(l->st, q->name, &t));
    if (!shape_is(t, q->rank, q->shape)) return wrong_shape(t, q->rank, q->shape);
    return place_both(l->be, piece_view(p, p->w, i), piece_view(p, p->master, i), t->data, t->dtype);
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
    int64_t E = p->full[0], D = l->m->shape.text.D, I = l->m->shape.text.I;
    int64_t out[2][3] = { { E, 2 * I, D }, { E, D, I } }, in[2][3] = { { E, D, 2 * I }, { E, I, D } };
    char base[120], name[160];
    expert_base(base, sizeof base, p);
    int votes_out = 0, votes_in = 0;
    for (int k = 0; k < 2; k++) {
        snprintf(name, sizeof name, "%s%s", base, names[k]);
        const StTensor *t;
        TRY(st_get(l->st, name, &t));
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
    bool fused = st_find(l->st, p->piece[0].name), each = st_find(l->st, one);
    if (fused && each) return fail(E_DATA, "%s*: both fused and one per expert; keep one form", base);
    if (each) return *form = PER_EXPERT, OK;
    return fused_form(form, l, p);
}

/* Rows [from, from + rows) of expert e, out-major, from one tensor of [rows, cols]. */
static Status load_one_expert(Loader *l, Param *p, int64_t e, int64_t from, const char *which)
{
    char base[120], name[200];
    const StTensor *t;
    expert_base(base, sizeof base, p);
    snprintf(name, sizeof name, "%s%lld.%s.weight", base, (long long)e, which);
    TRY(st_get(l->st, name, &t));
    int64_t want[2] = { p->form == FORM_EXPERT_GATE_UP ? p->full[1] / 2 : p->full[1], p->full[2] };
    if (!shape_is(t, 2, want)) return wrong_shape(t, 2, want);
    Tensor w = t_rows(t_at(p->w, e), from, want[0]);
    Tensor master = t_has(p->master) ? t_rows(t_at(p->master, e), from, want[0]) : p->master;
    return place_both(l->be, w, master, t->data, t->dtype);
}

static Status load_each_expert(Loader *l, Param *p)
{
    for (int64_t e = 0; e < p->full[0]; e++) {
        if (p->form == FORM_EXPERT_DOWN) {
            TRY(load_one_expert(l, p, e, 0, "down_proj"));
            continue;
        }
        TRY(load_one_expert(l, p, e, 0, "gate_proj"));
        TRY(load_one_expert(l, p, e, p->full[1] / 2, "up_proj"));
    }
    return OK;
}

/* dst (cols, rows) = transposed src (rows, cols), in tiles so that both sides stay in cache. */
void transpose(float *dst, const float *src, int64_t rows, int64_t cols)
{
    enum { TILE = 32 };
    for (int64_t i = 0; i < rows; i += TILE)
        for (int64_t j = 0; j < cols; j += TILE)
            for (int64_t r = i; r < rows && r < i + TILE; r++)
                for (int64_t k = j; k < cols && k < j + TILE; k++) dst[k * rows + r] = src[r * cols + k];
}

static Status load_turned_experts(Loader *l, Param *p, const StTensor *t)
{
    int64_t rows = p->full[1], cols = p->full[2], n = rows * cols;
    float *a = malloc((size_t)n * 2 * sizeof *a);
    if (!a) return fail(E_FIT, "%s: no host memory to turn an expert", t->name);
    Status st = OK;
    for (int64_t e = 0; !st && e < p->full[0]; e++) {
        dtype_convert(a, F32, (const char *)t->data + (size_t)(e * n) * dtype_size(t->dtype), t->dtype, n);
        transpose(a + n, a, cols, rows);
        st = place_both(l->be, t_at(p->w, e), t_has(p->master) ? t_at(p->master, e) : p->master, a + n, F32);
    }
    free(a);
    return st;
}

static Status load_experts(Loader *l, Param *p)
{
    ExpertForm form;
    TRY(expert_form(&form, l, p));
    if (form == PER_EXPERT) return load_each_expert(l, p);
    const StTensor *t = st_find(l->st, p->piece[0].name);
    if (form == FUSED_IN) return load_turned_experts(l, p, t);
    return place_both(l->be, p->w, p->master, t->data, t->dtype);
}

static Status load_param(void *arg, int64_t i)
{
    Loader *l = arg;
    Param *p = l->m->params.p[i];
    if (p->form != FORM_ROWS) return load_experts(l, p);
    for (int k = 0; k < p->pieces; k++) TRY(load_piece(l, p, k));
    return OK;
}

Status weights_load_one(Model *m, Backend *be, const SafeTensors *st, int i)
{
    Loader l = { m, be, st };
    return load_param(&l, i);
}

static bool ends_with(const char *s, const char *tail)
{
    size_t a = strlen(s), b = strlen(tail);
    return a >= b && !strcmp(s + a - b, tail);
}

/* What the file holds and nobody asked for is said aloud: it may be a head that tying leaves out, or a
 * model that is not the one config.json describes. */
static void report_unused(const Model *m, const SafeTensors *st, const Log *log)
{
    int unused = 0;
    const char *first = NULL;
    for (int i = 0; i < st->count; i++) {
        const char *n = st->tensor[i].name;
        bool used = strstr(n, ".mlp.experts.") || (m->shape.text.tied && ends_with(n, "lm_head.weight"));
        for (int k = 0; !used && k < m->params.n; k++)
            for (int j = 0; !used && j < m->params.p[k]->pieces; j++)
                used = !strcmp(m->params.p[k]->piece[j].name, n);
        if (!used && !unused++) first = n;
    }
    if (unused)
        log_warn(log, "%d tensors of the checkpoint belong to no parameter of the model, the first is %s",
                 unused, first);
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
    report_unused(m, st, log);
    return OK;
}

Status weights_load(Model *m, Backend *be, const SafeTensors *st, const Log *log)
{
    Loader l = { m, be, st };
    Pool pool;
    TRY(weights_check(m, st, log));
    TRY(pool_open(&pool, be->machine->host_memory ? cpu_count() - 1 : 0));
    Status s = pool_run(&pool, m->params.n, load_param, &l);
    pool_close(&pool);
    return s;
}
