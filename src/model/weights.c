/* model/weights.c -- reads weights in HF form; see weights.h.
 *
 * A rank walks the ranges of elements that it holds (nn/param.h) and reads no other bytes of the mapped
 * files. */
#include "model/weights_private.h"

#include "base/thread_pool.h"
#include "model/code_stage.h"
#include "model/fp8_stage.h"
#include "model/sink.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* [E, out, in]; [E, in, out]; one tensor each; MXFP4 codes of [E, out, in] and their scales */
typedef enum { FUSED_OUT, FUSED_IN, PER_EXPERT, MXFP4 } ExpertForm;

typedef struct WeightLoader {
    Model             *m;
    Backend           *be;
    const SafeTensors *st;
    const char        *prefix;
    Fp8Stage          *stage;            /* of weights in 8 bits; NULL: there are none */
    CodeStage         *codes;            /* of weights in int8 or nf4; likewise */
    int64_t            read;             /* elements */
    Meter             *meter;            /* of their bytes; or NULL */
} WeightLoader;

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

static const StTensor *find_tensor(const WeightLoader *l, const char *name)
{
    char full[300];
    full_name(full, sizeof full, l, name);
    return st_find(l->st, full);
}

static Status get_tensor(const WeightLoader *l, const char *name, const StTensor **t)
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

static bool shape_is(const StTensor *t, int rank, const int64_t *shape)
{
    if (t->rank != rank) return false;
    for (int i = 0; i < rank; i++)
        if (t->shape[i] != shape[i]) return false;
    return true;
}

static Status wrong_shape(const StTensor *t, int rank, const int64_t *want)
{
    char a[ST_SHAPE_TEXT], b[ST_SHAPE_TEXT];
    return fail(E_DATA, "%s has shape %s in the file and %s by config.json", t->name,
                st_shape_text(a, t->rank, t->shape), st_shape_text(b, rank, want));
}

static const char *element(const StTensor *t, int64_t i)
{
    return (const char *)t->data + (size_t)i * dtype_size(t->dtype);
}

/* Codes with scales of blocks are decoded, a piece at a time. */
static void put_elements(Sink *out, const StTensor *t, int64_t from, int64_t n)
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

/* Writes the elements of range c from a tensor that starts at offset `base` of the whole parameter. */
static void put_range(Sink *out, const StTensor *t, const StridedRange *c, int64_t base)
{
    for (int64_t i = 0; i < c->count; i++)
        put_elements(out, t, c->at + i * c->stride - base, c->len);
}

static Status piece_tensor(const WeightLoader *l, const Piece *q, const StTensor **t)
{
    TRY(get_tensor(l, q->name, t));
    return shape_is(*t, q->rank, q->shape) ? OK : wrong_shape(*t, q->rank, q->shape);
}

static Status load_piece(WeightLoader *l, Sink *out, const Param *p, int i, const StridedRange *c)
{
    const StTensor *t;
    TRY(piece_tensor(l, &p->piece[i], &t));
    put_range(out, t, c, piece_at(p, i));
    return OK;
}

/* "….experts." of the name of a fused tensor. */
static void experts_prefix(char *out, size_t n, const Param *p)
{
    const char *dot = strrchr(p->piece[0].name, '.');
    snprintf(out, n, "%.*s", (int)(dot - p->piece[0].name) + 1, p->piece[0].name);
}

/* [E, out, in] or [E, in, out], by shape. If out == in for one of gate_up_proj and down_proj, the other
 * decides: gate_up_proj is twice as wide, so they cannot both be square. */
static Status fused_form(ExpertForm *form, WeightLoader *l, const Param *p)
{
    static const char *const names[2] = { "gate_up_proj", "down_proj" };
    int64_t E = p->shape[0], D = l->m->shape.text.D, F = l->m->shape.text.F;
    int64_t out[2][3] = { { E, 2 * F, D }, { E, D, F } }, in[2][3] = { { E, D, 2 * F }, { E, F, D } };
    char base[120], name[160];
    experts_prefix(base, sizeof base, p);
    int votes_out = 0, votes_in = 0;
    for (int k = 0; k < 2; k++) {
        snprintf(name, sizeof name, "%s%s", base, names[k]);
        const StTensor *t;
        TRY(get_tensor(l, name, &t));
        bool a = shape_is(t, 3, out[k]), b = shape_is(t, 3, in[k]);
        if (!a && !b) return wrong_shape(t, 3, out[k]);
        votes_out += a && !b, votes_in += b && !a;
    }
    if (votes_out && votes_in)
        return fail(E_DATA, "%s*: gate_up_proj and down_proj have different layouts in the file", base);
    *form = votes_in ? FUSED_IN : FUSED_OUT;
    return OK;
}

static Status expert_form(ExpertForm *form, WeightLoader *l, const Param *p)
{
    char base[120], one[160];
    experts_prefix(base, sizeof base, p);
    snprintf(one, sizeof one, "%s0.%s.weight", base, shape_names(&l->m->shape)->expert_part[2]);
    bool fused = find_tensor(l, p->piece[0].name), each = find_tensor(l, one);
    if (fused && each) return fail(E_DATA, "%s*: the file has experts both fused and one by one; keep one "
                                   "form", base);
    if (each) return *form = PER_EXPERT, OK;
    snprintf(one, sizeof one, "%s_blocks", p->piece[0].name);
    if (!fused && find_tensor(l, one)) return *form = MXFP4, OK;
    return fused_form(form, l, p);
}

static int64_t expert_parts(const Param *p) { return p->form == FORM_EXPERT_GATE_UP ? 2 : 1; }

/* Tensor u of the per-expert tensors in the order of the fused one: gate, up, gate… */
static Status expert_tensor(WeightLoader *l, const Param *p, int64_t u, const StTensor **t)
{
    int64_t parts = expert_parts(p), want[2] = { p->shape[1] / parts, p->shape[2] };
    char base[120], name[200];
    experts_prefix(base, sizeof base, p);
    snprintf(name, sizeof name, "%s%lld.%s.weight", base, (long long)(u / parts),
             shape_names(&l->m->shape)->expert_part[parts == 2 ? u % 2 : 2]);
    TRY(get_tensor(l, name, t));
    return shape_is(*t, 2, want) ? OK : wrong_shape(*t, 2, want);
}

static Status load_per_expert(WeightLoader *l, Sink *out, const Param *p, const StridedRange *c)
{
    int64_t block = p->shape[1] * p->shape[2] / expert_parts(p), at = -1;
    const StTensor *t = NULL;
    for (int64_t i = 0; i < c->count; i++)
        for (int64_t done = 0, n; done < c->len; done += n) {
            int64_t from = c->at + i * c->stride + done;
            if (from / block != at) TRY(expert_tensor(l, p, at = from / block, &t));
            n = block - from % block < c->len - done ? block - from % block : c->len - done;
            put_elements(out, t, from % block, n);
        }
    return OK;
}

/* In tiles, so that both sides stay in cache. */
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

/* The largest block of one expert that starts with element k of the i-th part of range c. */
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

/* From [E, in, out], whose rows are the columns of p. buf: for two experts. */
static void put_transposed(Sink *out, const Param *p, const StTensor *t, const Block *b, float *buf)
{
    int64_t n = b->rows * b->cols;
    for (int64_t j = 0; j < b->cols; j++) {
        int64_t row = b->expert * p->shape[2] + b->col + j;
        st_read(buf + j * b->rows, t, row * p->shape[1] + b->row, b->rows);
    }
    weights_transpose(buf + n, buf, b->cols, b->rows);
    sink_put(out, buf + n, F32, n);
}

static Status load_transposed(Sink *out, const Param *p, const StTensor *t, const StridedRange *c)
{
    float *buf = malloc((size_t)(p->shape[1] * p->shape[2]) * 2 * sizeof *buf);
    if (!buf) return fail(E_FIT, "%s: no host memory to transpose an expert", t->name);
    for (int64_t i = 0, k = 0; i < c->count;) {
        Block b = block_at(p, c, i, k);
        put_transposed(out, p, t, &b, buf);
        if (b.cols == c->len) i += b.rows;                            /* whole parts of the range */
        else k += b.rows * b.cols;
        if (k == c->len) i++, k = 0;
    }
    free(buf);
    return OK;
}

/* A byte of codes is two values, the low half first; 32 values in a row share a scale, a power of two. */
enum { MX_BLOCK = 32 };

static Status mxfp4_tensors(WeightLoader *l, const Param *p, const StTensor **codes, const StTensor **scales)
{
    int64_t R = p->shape[1], G = p->shape[2] / MX_BLOCK, want[4] = { p->shape[0], R, G, MX_BLOCK / 2 };
    char name[160];
    snprintf(name, sizeof name, "%s_blocks", p->piece[0].name);
    TRY(get_tensor(l, name, codes));
    snprintf(name, sizeof name, "%s_scales", p->piece[0].name);
    TRY(get_tensor(l, name, scales));
    if ((*codes)->dtype != U8 || !shape_is(*codes, 4, want)) return wrong_shape(*codes, 4, want);
    if ((*scales)->dtype != U8 || !shape_is(*scales, 3, want)) return wrong_shape(*scales, 3, want);
    return p->shape[2] % MX_BLOCK ? fail(E_DATA, "%s: rows are not whole blocks of %d", name, MX_BLOCK) : OK;
}

static float mxfp4_value(const StTensor *codes, const StTensor *scales, int64_t i)
{
    static const float value[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
    int code = ((const uint8_t *)codes->data)[i / 2] >> (i % 2 ? 4 : 0) & 15;
    float x = ldexpf(value[code & 7], ((const uint8_t *)scales->data)[i / MX_BLOCK] - 127);
    return code & 8 ? -x : x;
}

static Status load_mxfp4(WeightLoader *l, Sink *out, const Param *p, const StridedRange *c)
{
    enum { PIECE = 1024 };
    const StTensor *codes, *scales;
    float value[PIECE];
    TRY(mxfp4_tensors(l, p, &codes, &scales));
    for (int64_t i = 0; i < c->count; i++)
        for (int64_t done = 0, n; done < c->len; done += n) {
            n = c->len - done < PIECE ? c->len - done : PIECE;
            for (int64_t k = 0; k < n; k++)
                value[k] = mxfp4_value(codes, scales, c->at + i * c->stride + done + k);
            sink_put(out, value, F32, n);
        }
    return OK;
}

static Status load_experts(WeightLoader *l, Sink *out, const Param *p, const StridedRange *c)
{
    ExpertForm form = FUSED_OUT;
    TRY(expert_form(&form, l, p));
    if (form == PER_EXPERT) return load_per_expert(l, out, p, c);
    if (form == MXFP4) return load_mxfp4(l, out, p, c);
    const StTensor *t = find_tensor(l, p->piece[0].name);
    if (form == FUSED_IN) return load_transposed(out, p, t, c);
    put_range(out, t, c, 0);
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
    TRY(sink_open(&out, be, h.t));
    for (int i = 0; i < p->pieces && !st; i++) {
        const StridedRange *of = piece_ranges(p, i, &n);
        n = ranges_clip(c, of, n, h.at, h.n);
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

static Status put_view(Backend *be, const Param *p, int i, const StTensor *t, ShardView h)
{
    Sink out;
    StridedRange c[SHARD_VIEW_RANGES];
    int n;
    const StridedRange *of = piece_ranges(p, i, &n);
    if (!h.n) return OK;
    TRY(sink_open(&out, be, h.t));
    n = ranges_clip(c, of, n, h.at, h.n);
    for (int k = 0; k < n; k++) {
        sink_seek(&out, c[k].local);
        put_range(&out, t, &c[k], piece_at(p, i));
    }
    sink_zero_padding(&out, p, h);
    return sink_close(&out);
}

Status weights_put_piece(Backend *be, const Param *p, int i, const StTensor *t)
{
    TRY(put_view(be, p, i, t, param_load_view(p)));
    return put_view(be, p, i, t, param_weight_view(p));
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
    Status st =
        p->form == FORM_ROWS ? load_piece(l, &out, p, piece_of(p, at), &c) : load_experts(l, &out, p, &c);
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
    TRY(load_view(l, l->be, p, own, &read[0]));
    TRY(load_view(l, l->be, p, w, &read[1]));
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
    ExpertForm form;
    for (int k = 0; p->form == FORM_ROWS && k < p->pieces; k++) TRY(piece_tensor(&l, &p->piece[k], &t));
    if (p->form == FORM_ROWS) return OK;
    TRY(expert_form(&form, &l, p));
    for (int64_t u = 0; form == PER_EXPERT && u < p->shape[0] * expert_parts(p); u++)
        TRY(expert_tensor(&l, p, u, &t));
    return OK;
}

static bool ends_with(const char *s, const char *tail)
{
    size_t a = strlen(s), b = strlen(tail);
    return a >= b && !strcmp(s + a - b, tail);
}

static bool is_piece(const Model *m, const Piece *q, const char *name)
{
    char file[160];
    weights_file_name(file, sizeof file, &m->shape, q->name);
    return !strcmp(file, name);
}

/* Qwen's layers that predict further tokens, which no forward here has. */
static bool is_foreign_mtp(const ModelShape *s, const char *name)
{
    return s->text.gdn.every && !strncmp(name, "mtp.", 4);
}

/* Files repeat embedding and head beside the layer that predicts further tokens, which may be left out. */
static bool is_left_out(const ModelShape *s, const char *name)
{
    char at[80];
    if (is_foreign_mtp(s, name)) return true;
    int  n = snprintf(at, sizeof at, "%slayers.%lld.", s->text_prefix, (long long)s->text.L);
    if (!s->text.mtp_in_file || strncmp(name, at, (size_t)n)) return false;
    return !s->text.mtp || !strcmp(name + n, "embed_tokens.weight") ||
           !strcmp(name + n, "shared_head.head.weight");
}

static bool is_used(const Model *m, const char *name)
{
    if (st_is_scale(name) || is_left_out(&m->shape, name)) return true;
    char experts[64];
    weights_file_name(experts, sizeof experts, &m->shape, ".mlp.experts.");
    bool used = strstr(name, experts) || (m->shape.text.tied && ends_with(name, "lm_head.weight"));
    for (int k = 0; !used && k < m->params.n; k++)
        for (int j = 0; !used && j < m->params.p[k]->pieces; j++)
            used = is_piece(m, &m->params.p[k]->piece[j], name);
    return used;
}

Status weights_find_mtp(ModelShape *s, const char *folder)
{
    SafeTensors st;
    char name[120];
    if (!s->text.mtp) return OK;
    snprintf(name, sizeof name, "%slayers.%lld.eh_proj.weight", s->text_prefix, (long long)s->text.L);
    TRY(st_open(&st, folder));
    if (!st_find(&st, name)) s->text.mtp = 0;
    st_close(&st);
    return OK;
}

/* Such layers are neither trained nor written: a saved folder lacks them. */
static void report_mtp(const Model *m, const SafeTensors *st, const Log *log)
{
    int n = 0;
    for (int i = 0; i < st->count; i++) n += is_foreign_mtp(&m->shape, st->tensor[i].name);
    if (n)
        log_warn(log, "%d tensors mtp.* (layers that predict further tokens) of the files are ignored: they "
                 "do not train, and saved models are without them; copy them from these files to keep them",
                 n);
}

/* Warns of tensors that no parameter of the whole model uses: the file may be of another model than
 * config.json. */
static Status report_unused(const Model *m, const SafeTensors *st, const Log *log)
{
    Model whole;
    int unused = 0;
    const char *first = NULL;
    TRY(model_open_whole_of(&whole, m));
    for (int i = 0; i < st->count; i++)
        if (!is_used(&whole, st->tensor[i].name) && !unused++) first = st->tensor[i].name;
    model_close(&whole);
    if (unused)
        log_warn(log, "the model does not use %d tensors of the files, the first is %s; check that "
                 "config.json belongs to these weights", unused, first);
    return OK;
}

Status weights_check(const Model *m, const SafeTensors *st, const Log *log)
{
    TRY(st_check_scales(st));
    report_mtp(m, st, log);
    return report_unused(m, st, log);
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
