/* tensor/stream.c -- packs documents into flat streams: tokens, positions, segment starts, supervised rows,
 * patches. */
#include "tensor/stream.h"

#include "base/rng.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int64_t block_of(const StreamShape *s) { return s->merge * s->merge; }
static size_t  pixel_size(const StreamShape *s) { return s->bytes ? 1 : sizeof(float); }

/* The next array of a block, on a border of its own; base NULL: only its size is counted. */
static void *take_array(char *base, size_t *used, int64_t n, size_t size)
{
    enum { BORDER = 64 };
    void *at = base ? base + *used : NULL;
    *used += ((size_t)(n + 1) * size + BORDER - 1) / BORDER * BORDER;
    return at;
}

static size_t lay_out(Stream *s, char *base)
{
    const Budget *b = &s->budget;
    int64_t T = b->tokens, P = b->patches, N = P / block_of(&s->shape);
    size_t  used = 0;
    s->ids        = take_array(base, &used, T, 4);
    s->pos        = take_array(base, &used, 3 * T, 4);
    s->group      = take_array(base, &used, T, 4);
    s->start      = take_array(base, &used, b->docs, 4);
    s->group_len  = take_array(base, &used, b->docs, 4);
    s->sup_row    = take_array(base, &used, b->supervised, 4);
    s->sup_label  = take_array(base, &used, b->supervised, 4);
    s->pixels     = take_array(base, &used, P * s->shape.patch_dim, pixel_size(&s->shape));
    s->cell       = take_array(base, &used, 4 * P, 4);
    s->vpos       = take_array(base, &used, 2 * P, 4);
    s->vstart     = take_array(base, &used, N, 4);
    s->visual_row = take_array(base, &used, N, 4);
    return used;
}

Status stream_open(Stream *s, const StreamShape *shape, const Budget *b)
{
    *s = (Stream){ .shape = *shape, .budget = *b };
    s->bytes  = lay_out(s, NULL);
    s->memory = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s->memory == MAP_FAILED) {
        *s = (Stream){ 0 };
        return fail(E_FIT, "no host memory for a stream of %lld tokens and %lld patches",
                    (long long)b->tokens, (long long)b->patches);
    }
    lay_out(s, s->memory);
    stream_clear(s);
    return OK;
}

Stream stream_full(const StreamShape *shape, const Budget *b)
{
    int64_t P = b->patches / block_of(shape) * block_of(shape);
    return (Stream){ .shape = *shape, .budget = *b, .tokens = b->tokens, .patches = P, .docs = 1,
                     .slices = P > 0, .visual = P / block_of(shape), .supervised = b->supervised,
                     .longest = b->tokens, .vlongest = P,
                     .pairs = (double)b->tokens * (double)(b->tokens + 1) / 2,
                     .vpairs = (double)P * (double)P };
}

void stream_close(Stream *s)
{
    if (s->memory) munmap(s->memory, s->bytes);
    *s = (Stream){ 0 };
}

void stream_clear(Stream *s)
{
    const Budget *b = &s->budget;
    int64_t N = b->patches / block_of(&s->shape);
    s->tokens = s->patches = s->docs = s->slices = s->visual = s->supervised = s->longest = s->vlongest = 0;
    s->pairs = s->vpairs = 0, s->fills++;
    for (int64_t t = 0; t < b->tokens; t++) s->ids[t] = s->group[t] = -1;
    for (int64_t i = 0; i < b->supervised; i++) s->sup_row[i] = s->sup_label[i] = -1;
    for (int64_t i = 0; i < N; i++) s->visual_row[i] = -1;
    memset(s->pos, 0, (size_t)b->tokens * 12);
    memset(s->cell, 0, (size_t)b->patches * 16);
    memset(s->vpos, 0, (size_t)b->patches * 8);
    memset(s->group_len, 0, (size_t)b->docs * 4);
    if (!s->shape.bytes)                             /* any byte is a valid pixel; a stale float may be NaN */
        memset(s->pixels, 0, (size_t)(b->patches * s->shape.patch_dim) * sizeof(float));
}

void *stream_patch(const Stream *s, int64_t patch)
{
    return (char *)s->pixels + (size_t)(patch * s->shape.patch_dim) * pixel_size(&s->shape);
}

/* The slice start nearest to part / parts of all patches. A stream without arrays (stream_full) has none. */
static int64_t share_border(const Stream *s, int parts, int part)
{
    int64_t lo = 0, hi = s->slices;
    double  want = (double)s->patches * part / parts;
    while (lo < hi) {                                        /* the first that is not below the target */
        int64_t mid = (lo + hi) / 2;
        if (s->vstart[mid] < want) lo = mid + 1;
        else hi = mid;
    }
    bool before = lo > 0 && want - s->vstart[lo - 1] < s->vstart[lo] - want;
    return before ? lo - 1 : lo;
}

void stream_share(const Stream *s, int parts, int part, int64_t *first, int64_t *last)
{
    bool all = !s->vstart || !s->slices;
    *first = all ? 0 : share_border(s, parts, part);
    *last  = all || part == parts - 1 ? s->slices : share_border(s, parts, part + 1);
}

/* Row and column of every patch of a slice in merge-block order: m x m blocks in raster order, and raster
 * order inside a block, so that a merged token is a plain reshape of consecutive patches. */
static void slice_cells(Stream *s, int64_t h, int64_t w)
{
    int64_t m = s->shape.merge, P = s->budget.patches, at = s->patches;
    for (int64_t k = 0; k < h * w; k++, at++) {
        int32_t row = (int32_t)(k / (m * m * (w / m)) * m + k / m % m);
        int32_t col = (int32_t)(k / (m * m) % (w / m) * m + k % m);
        int32_t *c = s->cell + 4 * at;
        c[0] = row, c[1] = col, c[2] = (int32_t)h, c[3] = (int32_t)w;
        s->vpos[at] = row, s->vpos[P + at] = col;
    }
}

/* One visual run of document d: pixels and cells into the patch stream, rows and positions into the token
 * stream. Positions of cell (r, c): T = pos, H = pos + r, W = pos + c; time inside a video is in its text. */
static void add_slice(Stream *s, const VisualSlice *v, int64_t row, int32_t *pos)
{
    int64_t m = s->shape.merge, T = s->budget.tokens, n = v->h * v->w / (m * m);
    slice_cells(s, v->h, v->w);
    if (v->pixels)
        memcpy(stream_patch(s, s->patches), v->pixels,
               (size_t)(v->h * v->w * s->shape.patch_dim) * pixel_size(&s->shape));
    for (int64_t i = 0; i < n; i++) {
        s->pos[row + i]         = *pos;
        s->pos[T + row + i]     = *pos + (int32_t)(i / (v->w / m));
        s->pos[2 * T + row + i] = *pos + (int32_t)(i % (v->w / m));
        s->ids[row + i]         = -1;                      /* replaced by the visual embedding */
        s->visual_row[s->visual++] = (int32_t)(row + i);
    }
    *pos += (int32_t)((v->h > v->w ? v->h : v->w) / m);
    s->vstart[s->slices++] = (int32_t)s->patches;
    s->patches += v->h * v->w;
    s->vstart[s->slices] = (int32_t)s->patches;
    s->vpairs += (double)(v->h * v->w) * (double)(v->h * v->w);
    if (v->h * v->w > s->vlongest) s->vlongest = v->h * v->w;
}

static bool is_visual(const Stream *s, int32_t id)
{
    return (s->shape.image_token >= 0 && id == s->shape.image_token) ||
           (s->shape.video_token >= 0 && id == s->shape.video_token);
}

/* Checks the whole document before the stream is changed. */
static Status document_check(const Stream *s, const Document *d)
{
    int64_t m = s->shape.merge, visual = 0, promised = 0, patches = 0, sup = 0;
    for (int64_t i = 0; i < d->n; i++) visual += is_visual(s, d->ids[i]), sup += d->targets[i] >= 0;
    for (int64_t i = 0; i < d->slices; i++) {
        const VisualSlice *v = &d->slice[i];
        if (v->h < m || v->w < m || v->h % m || v->w % m)
            return fail(E_DATA, "image %lld: a grid of %lld x %lld patches is not a multiple of %lld",
                        (long long)i, (long long)v->h, (long long)v->w, (long long)m);
        patches += v->h * v->w, promised += v->h * v->w / (m * m);
    }
    if (visual != promised)
        return fail(E_DATA, "%lld image and video tokens in the text, but the images make %lld",
                    (long long)visual, (long long)promised);
    if (s->tokens + d->n > s->budget.tokens || s->patches + patches > s->budget.patches ||
        s->docs + 1 > s->budget.docs || s->supervised + sup > s->budget.supervised)
        return fail(E_FIT,
                    "document of %lld tokens and %lld patches does not fit: %lld tokens, %lld patches, "
                    "%lld documents are left",
                    (long long)d->n, (long long)patches, (long long)(s->budget.tokens - s->tokens),
                    (long long)(s->budget.patches - s->patches), (long long)(s->budget.docs - s->docs));
    return OK;
}

/* Text positions increase by one on all three axes; a run of visual tokens is cut into slices by their
 * sizes. */
static Status add_tokens(Stream *s, const Document *d)
{
    int64_t T = s->budget.tokens, m = s->shape.merge, next = 0;
    int32_t pos = 0;
    for (int64_t i = 0; i < d->n;) {
        int64_t row = s->tokens + i;
        if (!is_visual(s, d->ids[i])) {
            s->ids[row] = d->ids[i++];
            s->pos[row] = s->pos[T + row] = s->pos[2 * T + row] = pos++;
            continue;
        }
        const VisualSlice *v = &d->slice[next++];
        int64_t run = v->h * v->w / (m * m);
        for (int64_t j = 1; j < run; j++)
            if (i + j >= d->n || d->ids[i + j] != d->ids[i])
                return fail(E_DATA, "image %lld makes %lld tokens, the text has %lld placeholders for it",
                            (long long)(next - 1), (long long)run, (long long)j);
        add_slice(s, v, row, &pos);
        i += run;
    }
    return OK;
}

Status stream_add(Stream *s, const Document *d)
{
    TRY(document_check(s, d));
    Stream before = *s;
    Status st = add_tokens(s, d);
    if (st) return *s = before, st;                        /* arrays past the counters are never read */
    int64_t g = s->budget.by_document ? s->docs : 0;
    for (int64_t i = 0; i < d->n; i++) {
        int64_t row = s->tokens + i;
        s->group[row] = (int32_t)g;
        if (d->targets[i] < 0) continue;
        s->sup_row[s->supervised]     = (int32_t)row;
        s->sup_label[s->supervised++] = d->targets[i];
    }
    s->group_len[g] += (float)d->n;
    s->start[s->docs++] = (int32_t)s->tokens;
    s->tokens += d->n;
    s->start[s->docs] = (int32_t)s->tokens;
    s->pairs += (double)d->n * (double)(d->n + 1) / 2;
    if (d->n > s->longest) s->longest = d->n;
    return OK;
}

/* Random pixels for so many patches. */
static void *synthetic_pixels(const StreamShape *shape, int64_t patches, uint64_t seed)
{
    int64_t  n = patches * shape->patch_dim;
    void    *out = malloc((size_t)(n + 4) * pixel_size(shape));
    if (!out) return NULL;
    if (!shape->bytes) rng_fill_normal(out, n, seed, 1, 0, 0.0f, 1.0f);
    for (int64_t i = 0; shape->bytes && i < n; i += 4) {
        Rng4 b = rng_block(seed, 1, (uint64_t)i / 4);
        memcpy((char *)out + i, b.v, 4);
    }
    return out;
}

Status stream_synthetic(Stream *s, int64_t doc_tokens, int64_t slices, int64_t h, int64_t w, int64_t vocab,
                        uint64_t seed)
{
    int64_t docs = s->budget.tokens / doc_tokens, run = slices ? h * w / block_of(&s->shape) : 0;
    int32_t *ids = calloc((size_t)doc_tokens * 2, sizeof *ids), *targets = ids + doc_tokens;
    void *pixels = synthetic_pixels(&s->shape, h * w, seed);
    VisualSlice *slice = calloc((size_t)slices + 1, sizeof *slice);
    Status st = ids && pixels && slice ? OK : fail(E_FIT, "no host memory for a synthetic stream");
    stream_clear(s);
    for (int64_t d = 0; !st && d < docs; d++) {
        int64_t mine = slices * (d + 1) / docs - slices * d / docs;
        for (int64_t i = 0; i < doc_tokens; i++) {
            ids[i]     = (int32_t)(rng_uniform(seed, 2, (uint64_t)(d * doc_tokens + i)) * (float)(vocab - 1));
            targets[i] = i + 1 < doc_tokens ? (int32_t)((ids[i] * 31 + 7) % vocab) : -1;
            if (is_visual(s, ids[i])) ids[i] = 0;
        }
        for (int64_t i = 0; i < mine; i++) {
            slice[i] = (VisualSlice){ h, w, pixels };
            for (int64_t j = i * (run + 1); j < i * (run + 1) + run; j++)
                ids[j] = (int32_t)s->shape.image_token, targets[j] = -1;
        }
        Document doc = { doc_tokens, ids, targets, mine, slice };
        st           = mine * (run + 1) > doc_tokens ? fail(E_DATA, "the images do not fit into a document")
                                                     : stream_add(s, &doc);
    }
    free(ids), free(pixels), free(slice);
    return st;
}

typedef struct Photo { int64_t h, w, before, after; } Photo;       /* patches; tokens around them */

static Photo photo(const StreamShape *shape, uint64_t seed, int64_t i)
{
    int64_t m = shape->merge;
    Photo p = { .before = 5 };
    p.h     = (22 + (int64_t)(rng_uniform(seed, 3, (uint64_t)i) * 20)) / m * m;
    p.w     = (26 + (int64_t)(rng_uniform(seed, 4, (uint64_t)i) * 16)) / m * m;
    p.after = 11 + (int64_t)(rng_uniform(seed, 5, (uint64_t)i) * 16);
    return p;
}
static int64_t photo_tokens(const StreamShape *shape, Photo p)
{
    return p.before + p.h * p.w / block_of(shape) + p.after;
}

Budget stream_photos_budget(const StreamShape *shape, int64_t n, uint64_t seed)
{
    Budget b = { .docs = n };
    for (int64_t i = 0; i < n; i++) {
        Photo p = photo(shape, seed, i);
        b.tokens += photo_tokens(shape, p), b.patches += p.h * p.w, b.supervised += p.before + p.after - 2;
    }
    return b;
}

/* A document of one image and its text; ids holds the tokens, then as many targets. */
static Document photo_document(const Stream *s, Photo p, int32_t *ids, const VisualSlice *slice,
                               int64_t vocab, uint64_t seed)
{
    int64_t  n = photo_tokens(&s->shape, p), end = n - p.after;
    int32_t *targets = ids + n;
    for (int64_t i = 0; i < n; i++) {
        ids[i] = (int32_t)(rng_uniform(seed, 6, (uint64_t)i) * (float)(vocab - 1));
        if (is_visual(s, ids[i])) ids[i] = 0;
        bool seen = i >= p.before && i < end;
        targets[i] = seen || i == p.before - 1 || i + 1 == n ? -1 : (int32_t)((ids[i] * 31 + 7) % vocab);
        if (seen) ids[i] = (int32_t)s->shape.image_token;
    }
    return (Document){ n, ids, targets, 1, slice };
}

Status stream_photos(Stream *s, int64_t n, int64_t vocab, uint64_t seed)
{
    Status st = OK;
    stream_clear(s);
    for (int64_t i = 0; !st && i < n; i++) {
        Photo    p = photo(&s->shape, seed, i);
        int32_t *ids = calloc((size_t)photo_tokens(&s->shape, p) * 2, sizeof *ids);
        void    *px = synthetic_pixels(&s->shape, p.h * p.w, seed + (uint64_t)i);
        VisualSlice    slice = { p.h, p.w, px };
        if (!ids || !px) st = fail(E_FIT, "no host memory for a synthetic photograph");
        Document d = st ? (Document){ 0 } : photo_document(s, p, ids, &slice, vocab, seed + (uint64_t)i);
        if (!st) st = stream_add(s, &d);
        free(ids), free(px);
    }
    return st;
}
