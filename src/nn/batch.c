/* nn/batch.c -- a stream onto the device; see batch.h. */
#include "nn/batch.h"

#include "base/num.h"

#include <stdlib.h>
#include <string.h>

static int sharers(const Mesh *m) { return mesh_size(m, AX_TP) * mesh_size(m, AX_CP); }
static int sharer(const Mesh *m)  { return mesh_at(m, AX_TP) + mesh_size(m, AX_TP) * mesh_at(m, AX_CP); }

static int64_t block_of(const StreamShape *s) { return s->merge * s->merge; }

/* Part [from, from + n) of the rows in `all`. */
static Spans spans_cut(Spans all, int64_t from, int64_t n)
{
    Spans out = { 0 };
    for (int i = 0; i < all.n; i++) {
        Span    s    = all.span[i];
        int64_t skip = min_i64(from, s.n), take = min_i64(s.n - skip, n);
        if (take > 0) out.span[out.n++] = (Span){ s.at + skip, take };
        from -= skip, n -= take;
    }
    return out;
}

Spans batch_rows(const Mesh *m, int64_t T, bool residual)
{
    int   cp = mesh_size(m, AX_CP), c = mesh_at(m, AX_CP), tp = mesh_size(m, AX_TP);
    Spans all = { { { 0, T } }, 1 };
    if (cp > 1) {
        int64_t n = T / (2 * cp);
        all = (Spans){ { { c * n, n }, { (2 * cp - 1 - c) * n, n } }, 2 };
    }
    int64_t rows = T / cp / tp;
    return residual && tp > 1 ? spans_cut(all, mesh_at(m, AX_TP) * rows, rows) : all;
}

void batch_slices(const Mesh *m, const Stream *s, int64_t *first, int64_t *last)
{
    stream_share(s, sharers(m), sharer(m), first, last);
}

/* Host arrays: supervised rows and labels, borders of images, routes of visual rows. */
static Status host_open(Batch *b, const Budget *bud)
{
    size_t n = (size_t)sharers(b->mesh);
    size_t ints = (size_t)(2 * bud->supervised + 2 * b->all + b->M + 2 + context_host(&b->context));
    b->host = malloc(ints * sizeof *b->host);
    b->routes.give_at = calloc(4 * n, sizeof *b->routes.give_at);
    if (!b->host || !b->routes.give_at) return fail(E_FIT, "no host memory for a batch");
    b->routes.give_n = b->routes.give_at + n, b->routes.get_at = b->routes.give_n + n;
    b->routes.get_n  = b->routes.get_at + n;
    return OK;
}

/* Tokens and targets shifted by one. */
static Status lay_out_further(Batch *b, Arena *a, const Budget *bud)
{
    b->next_ids   = t1(a, "ids", I32, b->Ta);
    b->next_row   = t1(a, "labels", I32, bud->supervised);
    b->next_label = t1(a, "labels", I32, bud->supervised);
    b->next_host  = malloc((size_t)(bud->tokens + 2 * bud->supervised) * sizeof *b->next_host);
    return b->next_host ? OK : fail(E_FIT, "no host memory for the shifted tokens of a batch");
}

static void lay_out_pictures(Batch *b, Arena *a, const StreamShape *shape)
{
    b->pixels  = t2(a, "pixels", shape->bytes ? U8 : F32, b->P, shape->patch_dim);
    b->cell    = t2(a, "cells", I32, b->P, 4);
    b->vpos    = t2(a, "positions", I32, 2, b->P);
    b->vstarts = t1(a, "segments", I32, b->N + 1);
    if (sharers(b->mesh) > 1) b->routes.order = t1(a, "rows", I32, b->N);
}

Status batch_open(Batch *b, Arena *a, const BatchConf *conf)
{
    const StreamShape *shape = &conf->shape;
    const Budget *bud = &conf->budget;
    int     n = sharers(conf->mesh);
    int64_t T = bud->tokens / n, visual = bud->patches / block_of(shape);
    *b = (Batch){ .T = T, .Ta = T * mesh_size(conf->mesh, AX_TP), .mesh = conf->mesh,
                  .groups = bud->by_document ? bud->docs : 1, .M = n == 1 ? visual : min_i64(visual, T),
                  .buckets = conf->buckets,
                  .P = conf->tower ? bud->patches : 0,       /* one picture may be all there is */
                  .all = visual };
    b->N = b->P / block_of(shape);
    b->ids        = t1(a, "ids", I32, b->Ta);
    b->pos        = t2(a, "positions", I32, 3, b->Ta);
    b->group      = t1(a, "groups", I32, b->T);
    b->group_len  = t1(a, "groups", F32, b->groups);
    b->sup_row    = t1(a, "labels", I32, bud->supervised);
    b->sup_label  = t1(a, "labels", I32, bud->supervised);
    b->starts     = t1(a, "segments", I32, bud->docs + 1);
    b->scalars    = t1(a, "scalars", U8, sizeof *b->scalars).data;
    context_layout(&b->context, a, bud, conf->mesh, conf->context);
    if (visual) b->visual_row = t1(a, "rows", I32, b->M);
    if (b->P)   lay_out_pictures(b, a, shape);
    if (conf->further) TRY(lay_out_further(b, a, bud));
    return host_open(b, bud);
}

void batch_close(Batch *b)
{
    free(b->host), free(b->next_host), free(b->routes.give_at);
    b->host = b->next_host = NULL, b->routes.give_at = NULL;
}

static Tensor head(Tensor t, int64_t n) { return t_rows(t, 0, n); }

/* Rows of an array of the stream, 4 bytes each; a plan has no arrays. */
static void upload_spans(Backend *be, Tensor dst, const int32_t *src, Spans s)
{
    int64_t at = 0;
    for (int i = 0; i < s.n; at += s.span[i++].n)
        backend_upload(be, t_rows(dst, at, s.span[i].n), src ? src + s.span[i].at : NULL);
}

static const int32_t *offset(const int32_t *p, int64_t n) { return p ? p + n : p; }

int64_t spans_find(Spans s, int64_t t)
{
    int64_t at = 0;
    for (int i = 0; i < s.n; at += s.span[i++].n)
        if (t >= s.span[i].at && t < s.span[i].at + s.span[i].n) return at + t - s.span[i].at;
    return -1;
}

int64_t bucket_rows(int64_t n, int64_t most)
{
    int64_t step = 64;
    while (16 * step <= n) step *= 2;
    return min_i64((n + step - 1) / step * step, most);
}

static int64_t power_of_two(int64_t n, int64_t from)
{
    while (from < n) from *= 2;
    return from;
}

bool segments_even(const Segments *s, int64_t rows)
{
    double L = (double)s->longest, each = s->causal ? L * (L + 1) / 2 : L * L;
    return s->n * s->longest == rows && s->pairs == (double)s->n * each;
}

Segments bucket_segments(Segments s, int64_t rows, int64_t most)
{
    if (!s.n || segments_even(&s, rows)) return s;
    int64_t whole = power_of_two(s.longest, 128), three = whole / 4 * 3;
    s.n = min_i64(power_of_two(s.n, 1), most);
    s.longest = min_i64(three % 128 == 0 && three >= s.longest ? three : whole, rows);
    return s;
}

/* The segments that rounding adds are empty: they begin at the end of the last one. */
static Segments round_segments(const Batch *b, Backend *be, Segments s, Tensor borders, int64_t rows,
                               int64_t end)
{
    int64_t n = s.n;
    if (!b->buckets) return s;
    s = bucket_segments(s, rows, borders.n[0] - 1);
    if (s.n > n) op_fill(be, t_rows(borders, n + 1, s.n - n), (float)end);
    s.starts = head(borders, s.n + 1);
    return s;
}

/* Uploads rows and labels, arrays of the budget's length or NULL in a dry run; the number of them. */
static int64_t upload_rows(const Batch *b, Backend *be, Tensor rows, Tensor labels, int64_t n,
                           const int32_t *row, const int32_t *label)
{
    if (b->buckets) n = bucket_rows(n, min_i64(rows.n[0], b->Ta));
    backend_upload(be, head(rows, n), row);
    backend_upload(be, head(labels, n), label);
    return n;
}

/* Which of the rows are this rank's: to r and l, of the budget's length; their number. A dry run has as many
 * as the budget allows. */
static int64_t rows_here(const Batch *b, const Stream *s, Spans spans, const int32_t *row,
                         const int32_t *label, int32_t *r, int32_t *l)
{
    int64_t n = 0;
    for (int64_t i = 0; row && i < s->supervised; i++) {
        int64_t here = row[i] < 0 ? -1 : spans_find(spans, row[i]);
        if (here >= 0) r[n] = (int32_t)here, l[n++] = label[i];
    }
    for (int64_t i = n; row && i < s->budget.supervised; i++) r[i] = l[i] = -1;
    return row ? n : min_i64(s->supervised, b->Ta);
}

/* Labels of this rank's rows. */
static void upload_labels(Batch *b, Backend *be, const Stream *s, Spans rows)
{
    const int32_t *row = s->sup_row, *label = s->sup_label;
    int64_t n = s->supervised;
    if (mesh_size(b->mesh, AX_CP) > 1) {
        int32_t *r = b->host, *l = r + s->budget.supervised;
        n = rows_here(b, s, rows, row, label, r, l);
        row = row ? r : NULL, label = label ? l : NULL;
    }
    b->supervised = upload_rows(b, be, b->sup_row, b->sup_label, n, row, label);
}

/* Without cp every supervised row has an entry, those at the start of a document an empty one. */
static void upload_further(Batch *b, Backend *be, const Stream *s, Spans all)
{
    int32_t *ids = b->next_host, *row = ids + s->budget.tokens, *label = row + s->budget.supervised;
    bool     dry = !s->ids;
    int64_t  n = s->supervised;
    if (!dry) stream_shift(s, ids, row, label);
    b->next_targets = stream_shifted_targets(s);
    upload_spans(be, b->next_ids, dry ? NULL : ids, all);
    if (mesh_size(b->mesh, AX_CP) > 1)
        n = rows_here(b, s, all, dry ? NULL : row, label, row, label);
    b->next_supervised = upload_rows(b, be, b->next_row, b->next_label, n, dry ? NULL : row,
                                     dry ? NULL : label);
}

/* The member of tp_cp that keeps row t of the stream, and which of its rows that is. */
static int owner_of(const Mesh *m, int64_t T, int64_t t, int64_t *row)
{
    int     cp = mesh_size(m, AX_CP), tp = mesh_size(m, AX_TP), c = 0;
    int64_t n = T / (2 * cp), chunk = t / n, rows = T / cp / tp;
    if (cp > 1) {
        c = (int)(chunk < cp ? chunk : 2 * cp - 1 - chunk);
        t = t - chunk * n + (chunk < cp ? 0 : n);
    }
    *row = t % rows;
    return (int)(t / rows) + tp * c;
}

/* Visual rows by the rank that encodes them and the rank that has their token: what this rank sends to each,
 * in which order, and what it receives. Rows that one member sends to another keep the order of the
 * stream. */
typedef struct Placing { int32_t *order, *rows; } Placing;

static void place_row(Batch *b, const Placing *to, int encoder, int owner, int64_t made, int64_t row)
{
    VisualRoutes *r = &b->routes;
    int me = sharer(b->mesh);
    if (encoder == me) {
        if (to) to->order[r->give_at[owner] + r->give_n[owner]] = (int32_t)made;
        r->give_n[owner]++;
    }
    if (owner == me) {
        if (to) to->rows[r->get_at[encoder] + r->get_n[encoder]] = (int32_t)row;
        r->get_n[encoder]++;
    }
}

static void walk_visual_rows(Batch *b, const Stream *s, const Placing *to)
{
    int     n = sharers(b->mesh);
    int64_t block = block_of(&s->shape);
    memset(b->routes.give_n, 0, (size_t)n * sizeof *b->routes.give_n);
    memset(b->routes.get_n, 0, (size_t)n * sizeof *b->routes.get_n);
    for (int encoder = 0; encoder < n; encoder++) {
        int64_t first, last;
        stream_share(s, n, encoder, &first, &last);
        for (int64_t from = s->vstart[first] / block, v = from; v < s->vstart[last] / block; v++) {
            int64_t row;
            int     owner = owner_of(b->mesh, s->budget.tokens, s->visual_row[v], &row);
            place_row(b, to, encoder, owner, v - from, row);
        }
    }
}

/* Counts the rows first, then places them. */
static void build_routes(Batch *b, const Stream *s, const Placing *to)
{
    VisualRoutes *r = &b->routes;
    walk_visual_rows(b, s, NULL);
    r->made = r->wanted = 0;
    for (int i = 0; i < sharers(b->mesh); i++) {
        r->give_at[i] = r->made,  r->made   += r->give_n[i];
        r->get_at[i] = r->wanted, r->wanted += r->get_n[i];
    }
    walk_visual_rows(b, s, to);
}

/* A dry run: as many rows as the budget allows, evenly; rows that stay on a rank count as sent and
 * received. */
static void build_even_routes(Batch *b)
{
    VisualRoutes *r = &b->routes;
    int n = sharers(b->mesh), me = sharer(b->mesh);
    r->made = b->N, r->wanted = b->M;
    for (int i = 0; i < n; i++) {
        r->give_n[i] = r->made / n, r->give_at[i] = i * r->give_n[i];
        r->get_n[i] = r->wanted / n, r->get_at[i] = i * r->get_n[i];
    }
    r->give_n[me] = r->get_n[me] = (b->N < b->M ? b->N : b->M) / n;
}

/* Uploads which rows of the batch the visual rows of this micro-batch are. */
static void upload_routes(Batch *b, Backend *be, const Stream *s)
{
    Placing to = { b->host + 2 * s->budget.supervised, b->host + 2 * s->budget.supervised + b->all };
    if (sharers(b->mesh) == 1) {
        b->routes.made = b->routes.wanted = b->M;
        backend_upload(be, b->visual_row, s->visual_row);
        return;
    }
    if (!s->visual_row) return build_even_routes(b);
    build_routes(b, s, &to);
    for (int64_t i = b->routes.wanted; i < b->M; i++) to.rows[i] = -1;
    if (b->routes.made && b->P) backend_upload(be, head(b->routes.order, b->routes.made), to.order);
    backend_upload(be, b->visual_row, to.rows);
}

/* Borders of slices first … last - 1, counted from the first patch of slice `first`. */
static const int32_t *own_borders(Batch *b, const Stream *s, int64_t first, int64_t last)
{
    int32_t *own = b->host + 2 * s->budget.supervised + b->all + b->M;
    b->vseg.pairs = 0, b->vseg.longest = 0;
    for (int64_t k = first; k <= last; k++) {
        int64_t n = k > first ? s->vstart[k] - s->vstart[k - 1] : 0;
        own[k - first] = s->vstart[k] - s->vstart[first];
        b->vseg.pairs += (double)n * (double)n;
        if (n > b->vseg.longest) b->vseg.longest = n;
    }
    return own;
}

/* The pictures of this rank: a run of the stream's patches. */
static void upload_pictures(Batch *b, Backend *be, const Stream *s)
{
    int64_t first, last, at = 0, n = b->P;
    batch_slices(b->mesh, s, &first, &last);
    b->has_media = b->P && last > first;
    if (!b->has_media) return;
    if (s->vstart) at = s->vstart[first], n = sharers(b->mesh) == 1 ? b->P : s->vstart[last] - at;
    backend_upload(be, head(b->pixels, n), s->pixels ? stream_patch(s, at) : NULL);
    backend_upload(be, head(b->cell, n), offset(s->cell, 4 * at));
    for (int axis = 0; axis < 2; axis++)
        backend_upload(be, head(t_at(b->vpos, axis), n), offset(s->vpos, axis * s->budget.patches + at));
    b->vseg = (Segments){ .starts = head(b->vstarts, last - first + 1), .n = last - first,
                          .longest = s->vlongest, .pairs = s->vpairs };
    bool whole = sharers(b->mesh) == 1 || !s->vstart;
    backend_upload(be, b->vseg.starts, whole ? s->vstart : own_borders(b, s, first, last));
    b->vseg = round_segments(b, be, b->vseg, b->vstarts, b->P, s->vstart ? s->vstart[last] - at : n);
}

void batch_upload(Batch *b, Backend *be, const Stream *s)
{
    int64_t T = s->budget.tokens;
    Spans   all = batch_rows(b->mesh, T, false), own = batch_rows(b->mesh, T, true);
    upload_spans(be, b->ids, s->ids, all);
    for (int axis = 0; axis < 3; axis++)
        upload_spans(be, t_at(b->pos, axis), offset(s->pos, axis * s->budget.tokens), all);
    upload_spans(be, b->group, s->group, own);
    backend_upload(be, b->group_len, s->group_len);
    upload_labels(b, be, s, all);
    if (b->next_host) upload_further(b, be, s, all);
    b->seg = (Segments){ .starts = head(b->starts, s->docs + 1), .n = s->docs, .longest = s->longest,
                         .pairs = s->pairs, .causal = true };
    backend_upload(be, b->seg.starts, s->start);
    b->seg = round_segments(b, be, b->seg, b->starts, b->Ta, s->tokens);
    if (mesh_size(b->mesh, AX_CP) > 1)
        context_upload(&b->context, be, b->host + 2 * s->budget.supervised + 2 * b->all + b->M + 2, s);
    b->real = s->tokens, b->media = b->pictures = s->patches > 0, b->has_media = false;
    if (!b->media) return;
    upload_routes(b, be, s);
    if (b->P) upload_pictures(b, be, s);
}

void batch_put_scalars(const Batch *b, Backend *be, const MicroScalars *s)
{
    backend_put(be, (void *)b->scalars, s, sizeof *s);
}

static void trim_pictures(Batch *b, const Stream *s)
{
    b->P = s->patches, b->N = s->visual;
    b->pixels = head(b->pixels, b->P);
    b->cell   = head(b->cell, b->P);
    b->vpos   = t_cols(b->vpos, 0, b->P);
}

Batch batch_trim(const Batch *full, const Stream *s, int64_t rows)
{
    Batch b = *full;
    if (sharers(b.mesh) > 1) return b;
    b.T = b.Ta = rows, b.M = s->visual;
    b.ids   = head(b.ids, b.T);
    b.pos   = t_cols(b.pos, 0, b.T);
    b.group = head(b.group, b.T);
    if (!b.media) return b;
    b.visual_row = head(b.visual_row, b.M);
    b.routes.made = b.routes.wanted = b.M;
    if (b.P) trim_pictures(&b, s);
    return b;
}
