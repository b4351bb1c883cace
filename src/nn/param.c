/* nn/param.c -- declaring parameters and sharding them over a mesh. parallel/rules.h decides which degrees
 * are legal. */
#include "nn/param.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static Param *param_add(ParamSet *s, Group g, Init init, Form form)
{
    if (s->n == s->cap) {
        int cap = s->cap ? 2 * s->cap : 64;
        Param **p = realloc(s->p, (size_t)cap * sizeof *p);
        REQUIRE(p, "no memory for %d parameter rows", cap);
        s->p = p, s->cap = cap;
    }
    Param *p = calloc(1, sizeof *p);
    REQUIRE(p, "no memory for parameter row %d", s->n);
    *p = (Param){ .group = g, .init = init, .form = form, .decay = true, .unit = s->unit,
                  .shard.is_writer = true, .grad_group = GR_tp_dp_cp };
    p->index = s->n;
    return s->p[s->n++] = p;
}

static int ranges_of_piece(const Piece *q) { return q->sections ? q->sections : 1; }

static int first_range(const Param *p, int piece)
{
    int n = 0;
    for (int i = 0; i < piece; i++) n += ranges_of_piece(&p->piece[i]);
    return n;
}

const StridedRange *piece_ranges(const Param *p, int i, int *n)
{
    *n = ranges_of_piece(&p->piece[i]);
    return &p->shard.range[first_range(p, i)];
}

/* Sets what follows from the pieces and their ranges. */
static void update_shard(Param *p, int64_t padding)
{
    int64_t at = 0, rows = 0;
    for (int i = 0; i < first_range(p, p->pieces); i++) {
        p->shard.range[i].local = at;
        at += p->shard.range[i].len * p->shard.range[i].count;
    }
    for (int i = 0; i < p->pieces; i++) rows += p->piece[i].rows;
    p->shard.shape[0] = rows + padding, p->shard.real_rows = rows;
    p->shard.offset = 0, p->shard.len = p->shard.unique = param_local(p);
}

/* The last piece on one rank: a single run behind the pieces above it. */
static void place_piece(Param *p)
{
    int64_t n = 1, before = 0;
    int     k = p->pieces - 1;
    for (int i = 0; i < p->piece[k].rank; i++) n *= p->piece[k].shape[i];
    for (int i = 0; i < first_range(p, k); i++) before += p->shard.range[i].len;
    p->shard.range[first_range(p, k)] = (StridedRange){ .at = before, .len = n, .stride = n, .count = 1 };
    p->piece[k].rows = p->piece[k].shape[0];
    for (int i = 1; i < p->ndim; i++) p->shard.shape[i] = p->shape[i];
    update_shard(p, 0);
}

static void name_piece(Param *p, const char *fmt, va_list ap)
{
    Piece *q = &p->piece[p->pieces++];
    int n = vsnprintf(q->name, sizeof q->name, fmt, ap);
    REQUIRE(n > 0 && (size_t)n < sizeof q->name, "parameter name too long: %s", q->name);
}

Param *param_matrix(ParamSet *s, Group g, int64_t rows, int64_t cols, const char *fmt, ...)
{
    va_list ap;
    Param *p = param_add(s, g, INIT_NORMAL, FORM_ROWS);
    va_start(ap, fmt);
    name_piece(p, fmt, ap);
    va_end(ap);
    p->ndim = 2, p->shape[0] = rows, p->shape[1] = cols;
    p->piece[0].rank = 2, p->piece[0].shape[0] = rows, p->piece[0].shape[1] = cols;
    place_piece(p);
    return p;
}

Param *param_vector(ParamSet *s, Group g, Init init, int64_t n, const char *fmt, ...)
{
    va_list ap;
    Param *p = param_add(s, g, init, FORM_ROWS);
    va_start(ap, fmt);
    name_piece(p, fmt, ap);
    va_end(ap);
    p->ndim = 1, p->shape[0] = n, p->decay = false;
    p->piece[0].rank = 1, p->piece[0].shape[0] = n;
    place_piece(p);
    return p;
}

Param *param_experts(ParamSet *s, Form form, int64_t E, int64_t rows, int64_t cols, const char *fmt, ...)
{
    va_list ap;
    Param *p = param_add(s, G_LLM, INIT_NORMAL, form);
    va_start(ap, fmt);
    name_piece(p, fmt, ap);
    va_end(ap);
    p->ndim = 3, p->shape[0] = E, p->shape[1] = rows, p->shape[2] = cols;
    p->piece[0].rank = 3;
    for (int i = 0; i < 3; i++) p->piece[0].shape[i] = p->shape[i];
    place_piece(p);
    return p;
}

void param_piece(Param *p, int64_t rows, const char *fmt, ...)
{
    va_list ap;
    REQUIRE(p->pieces < PARAM_PIECES, "parameter %s has %d pieces already", p->piece[0].name, p->pieces);
    va_start(ap, fmt);
    name_piece(p, fmt, ap);
    va_end(ap);
    Piece *q = &p->piece[p->pieces - 1];
    q->rank = p->ndim, q->shape[0] = rows, q->shape[1] = p->shape[1];
    p->shape[0] += rows;
    place_piece(p);
}

void param_sections(Param *p, int n, const int64_t *rows)
{
    Piece *q = &p->piece[p->pieces - 1];
    int    first = first_range(p, p->pieces - 1);
    REQUIRE(n <= PIECE_SECTIONS && first + n <= PARAM_RANGES, "%s: %d sections", q->name, n);
    StridedRange all = p->shard.range[first];
    int64_t      row = all.len / q->rows;
    for (int i = 0; i < n; i++) {
        q->section[i] = rows[i];
        p->shard.range[first + i] = (StridedRange){ .at = all.at, .len = rows[i] * row,
                                                    .stride = rows[i] * row, .count = 1 };
        all.at += rows[i] * row;
    }
    q->sections = n;
    update_shard(p, 0);
}

void params_unit(ParamSet *s) { s->unit = s->units++; }

/* The ranks that hold the same shard: those that differ on no axis that cuts the parameter. */
static GroupId grad_group_of(const ParamSet *s, const Param *p)
{
    bool by[AX_N] = { [AX_TP] = p->head_width > 0 }, slices = mesh_size(s->mesh, AX_ETP) > 1;
    for (int i = 0; i < p->cuts; i++) by[p->cut[i].axis] = true;
    if (by[AX_EP])  return by[AX_ETP] || !slices ? GR_edp : GR_etp_edp;
    if (by[AX_ETP]) return slices ? GR_ep_edp : GR_tp_dp_cp;
    return by[AX_TP] ? GR_dp_cp : GR_tp_dp_cp;
}

static int64_t row_elements(const Param *p) { return param_count(p) / p->shape[0]; }

/* Rows [from, from + rows) of a piece or section. */
static void take_rows(const Param *p, StridedRange *c, int64_t from, int64_t rows)
{
    int64_t n = rows * row_elements(p);
    *c = (StridedRange){ .at = c->at + from * row_elements(p), .len = n, .stride = n, .count = rows > 0 };
}

/* Equal parts for all ranks; rows of the last parts beyond the end are padding. */
static void cut_rows(Param *p, int64_t n, int64_t x)
{
    int64_t padding = 0;
    bool    pads = first_range(p, p->pieces) == 1 && p->form == FORM_ROWS;
    for (int i = 0, k = 0; i < p->pieces; i++) {
        Piece *q = &p->piece[i];
        q->rows = 0;
        for (int end = k + ranges_of_piece(q); k < end; k++) {
            int64_t all = p->shard.range[k].len / row_elements(p), part = (all + n - 1) / n, from = x * part;
            int64_t rows = from >= all ? 0 : all - from < part ? all - from : part;
            REQUIRE(all % n == 0 || pads, "%s: %lld rows in %lld parts", q->name, (long long)all,
                    (long long)n);
            take_rows(p, &p->shard.range[k], from, rows);
            q->rows += rows, padding += part - rows;
            if (!k) p->shard.first_row = from;
        }
    }
    update_shard(p, padding);
}

/* Part x of n of every block of `block` elements. */
static void cut_blocks(Param *p, int64_t block, int64_t n, int64_t x)
{
    for (int i = 0; i < first_range(p, p->pieces); i++) {
        StridedRange *c = &p->shard.range[i];
        REQUIRE(c->count == 1 && block % n == 0 && c->len % block == 0, "%s: %lld in %lld parts",
                p->piece[0].name, (long long)block, (long long)n);
        *c = (StridedRange){ .at = c->at + x * (block / n), .len = block / n, .stride = block,
                     .count = c->len / block };
    }
}

void param_cut(const ParamSet *s, Param *p, MeshAxis axis, int dim)
{
    int64_t n = mesh_size(s->mesh, axis), x = mesh_at(s->mesh, axis), block = 1;
    p->cut[p->cuts++] = (AxisCut){ axis, dim };
    p->grad_group = grad_group_of(s, p);
    if (n == 1) return;
    if (dim == 0) {
        cut_rows(p, n, x);
        return;
    }
    for (int i = dim; i < p->ndim; i++) block *= p->shape[i];
    if (dim == 1 && (p->form == FORM_EXPERT_GATE_UP || p->form == FORM_LORA_B)) block /= 2;
    cut_blocks(p, block, n, x);
    p->shard.shape[dim] /= n;
    update_shard(p, 0);
}

void param_cut_heads(const ParamSet *s, Param *p, int64_t width)
{
    int64_t n = mesh_size(s->mesh, AX_TP), x = mesh_at(s->mesh, AX_TP), mine = -1, above = 0;
    p->head_width = width;
    p->grad_group = grad_group_of(s, p);
    if (n == 1) return;
    for (int i = 0; i < p->pieces; i++) {
        int64_t heads = p->piece[i].rows / width, share = heads < n ? n / heads : 1, part = heads * share / n;
        REQUIRE(part * n == heads * share, "%s: %lld heads over %lld ranks", p->piece[i].name,
                (long long)heads, (long long)n);
        REQUIRE(!p->piece[i].sections, "%s: heads in sections", p->piece[i].name);
        take_rows(p, &p->shard.range[i], x / share * part * width, p->piece[i].rows = part * width);
        if (mine < 0 && x % share) mine = above;             /* the first neighbour's copy counts */
        above += p->shard.range[i].len;
    }
    update_shard(p, 0);
    if (mine >= 0) p->shard.unique = mine;
}

int param_ranges(const Param *p, StridedRange *out)
{
    int n = 0;
    for (int i = 0; i < first_range(p, p->pieces); i++)
        if (p->shard.range[i].count) out[n++] = p->shard.range[i];
    return n;
}

/* A clipped range is the end of one run, whole runs, and the beginning of another. */
static int range_clip(StridedRange *out, const StridedRange *c, int64_t at, int64_t end)
{
    int n = 0;
    int64_t from = at > c->local ? at - c->local : 0, to = end - c->local, all = c->len * c->count;
    if (to > all) to = all;
    while (from < to) {
        int64_t run = from / c->len, skip = from % c->len, left = to - from;
        int64_t len = left < c->len - skip ? left : c->len - skip, count = len == c->len ? left / len : 1;
        out[n++] = (StridedRange){ .local = c->local + from - at, .at = c->at + run * c->stride + skip,
                                   .len = len,
                           .stride = c->stride, .count = count };
        from += len * count;
    }
    return n;
}

int ranges_clip(StridedRange *out, const StridedRange *in, int n, int64_t at, int64_t len)
{
    int k = 0;
    for (int i = 0; i < n; i++) k += range_clip(out + k, &in[i], at, at + len);
    return k;
}

static Tensor flat(Tensor t)
{
    int64_t n = t_has(t) ? t_count(t) : 0;
    return t_has(t) ? t_wrap(t.data, (DType)t.dtype, 1, &n) : t;
}

ShardView param_weight_view(const Param *p)
{
    int64_t n = t_has(p->shard.w) ? t_count(p->shard.w) : 0, all = param_local(p);
    REQUIRE(!n || n == all || n == p->shard.len, "%s: %s", p->piece[0].name, t_fmt(p->shard.w));
    return (ShardView){ .t = flat(p->shard.w), .at = n == all ? 0 : p->shard.offset, .n = n };
}

ShardView param_state_view(const Param *p, Tensor t)
{
    REQUIRE(!t_has(t) || t_count(t) == p->shard.len, "%s: %s", p->piece[0].name, t_fmt(t));
    return (ShardView){ .t = flat(t), .at = p->shard.offset, .n = t_has(t) ? p->shard.len : 0 };
}

ShardView param_load_view(const Param *p)
{
    if (!t_has(p->shard.master) || p->shard.master.dtype == F32) return param_state_view(p, p->shard.master);
    Tensor w = flat(p->shard.w);
    return (ShardView){ t_count(w) == p->shard.len ? w : t_rows(w, p->shard.offset, p->shard.len),
                        p->shard.offset, p->shard.len, flat(p->shard.master) };
}

int shard_view_ranges(StridedRange *out, const Param *p, ShardView h)
{
    StridedRange c[PARAM_RANGES];
    return ranges_clip(out, c, param_ranges(p, c), h.at, h.n);
}

Tensor shard_view_rows(ShardView h, const StridedRange *c)
{
    return t_as2(t_rows(h.t, c->local, c->len * c->count), c->count, c->len);
}

void params_close(ParamSet *s)
{
    for (int i = 0; i < s->n; i++) free(s->p[i]);
    free(s->p);
    *s = (ParamSet){ 0 };
}

int64_t param_count(const Param *p)
{
    int64_t n = 1;
    for (int i = 0; i < p->ndim; i++) n *= p->shape[i];
    return n;
}

int64_t piece_at(const Param *p, int i)
{
    int64_t n = 0;
    for (int k = 0; k < i; k++) n += p->piece[k].shape[0];
    return n * row_elements(p);
}

int64_t param_local(const Param *p)
{
    int64_t n = 1;
    for (int i = 0; i < p->ndim; i++) n *= p->shard.shape[i];
    return n;
}

int64_t params_count(const ParamSet *s)
{
    int64_t n = 0;
    for (int i = 0; i < s->n; i++) n += param_count(s->p[i]);
    return n;
}

int params_tensors(const ParamSet *s)
{
    int n = 0;
    for (int i = 0; i < s->n; i++) n += s->p[i]->pieces;
    return n;
}

bool param_rounds_grad(const Param *p)
{
    bool linear = p->linear == LINEAR_ATTENTION || p->linear == LINEAR_FEED || p->linear == LINEAR_EXPERTS;
    return linear && !p->adapter_of && !p->frozen;
}

DType params_dtype(const ParamSet *s)
{
    for (int i = 0; i < s->n; i++)
        if (t_has(s->p[i]->shard.w)) return (DType)s->p[i]->shard.w.dtype;
    return F32;
}
