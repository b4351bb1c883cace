/* cli/parity_case.c -- see parity_case.h. */
#include "cli/parity_case.h"
#include "model/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct Ints { int64_t *v, n; } Ints;                 /* an integer input, widened */

static Status read_ints(Ints *out, const ParityCase *c, const char *name, bool wanted)
{
    const StTensor *t = st_find(&c->inputs, name);
    *out = (Ints){ 0 };
    if (!t) return wanted ? fail(E_DATA, "inputs.safetensors: %s is missing", name) : OK;
    if (t->dtype != I64 && t->dtype != I32)
        return fail(E_DATA, "inputs.safetensors: %s must hold integers", name);
    int64_t n = (int64_t)(t->bytes / dtype_size(t->dtype));
    out->v = malloc((size_t)n * sizeof *out->v + 1);
    if (!out->v) return fail(E_FIT, "no memory for %s", name);
    for (int64_t i = 0; i < n; i++) {
        int32_t small;
        if (t->dtype == I64) memcpy(&out->v[i], (const char *)t->data + i * 8, 8);
        else memcpy(&small, (const char *)t->data + i * 4, 4), out->v[i] = small;
    }
    return out->n = n, OK;
}

/* One kind of media: its grids (t, h, w) and pixel rows, consumed slice by slice in order of occurrence. */
typedef struct Media { Ints grid; float *pixels; int64_t rows, next, slice, patch; } Media;

static Status media_open(Media *m, const ParityCase *c, const char *grid, const char *pixels,
                         int64_t patch_dim)
{
    const StTensor *t = st_find(&c->inputs, pixels);
    *m = (Media){ 0 };
    if (!t) return OK;
    TRY(read_ints(&m->grid, c, grid, true));
    if (t->rank != 2 || t->shape[1] != patch_dim)
        return fail(E_DATA, "%s: rows of %lld values are wanted", pixels, (long long)patch_dim);
    m->rows   = t->shape[0];
    m->pixels = malloc((size_t)(m->rows * patch_dim) * sizeof(float) + 1);
    if (!m->pixels) return fail(E_FIT, "no memory for %s", pixels);
    dtype_convert(m->pixels, F32, t->data, t->dtype, m->rows * patch_dim);
    return OK;
}

static void media_close(Media *m) { free(m->grid.v), free(m->pixels); }

static Status media_next(Media *m, VisualSlice *s, int64_t patch_dim, const char *kind)
{
    if (m->next * 3 + 2 >= m->grid.n)
        return fail(E_DATA, "more %s tokens than the %s grids make", kind, kind);
    const int64_t *g = m->grid.v + 3 * m->next;
    if (g[0] < 1 || g[1] < 1 || g[2] < 1 || g[1] > 1 << 20 || g[2] > 1 << 20 ||
        m->patch + g[1] * g[2] > m->rows)
        return fail(E_DATA, "%s %lld: its grid asks for more patches than there are pixels", kind,
                    (long long)m->next);
    *s = (VisualSlice){ g[1], g[2], m->pixels + m->patch * patch_dim };
    m->patch += g[1] * g[2];
    if (++m->slice == g[0]) m->slice = 0, m->next++;
    return OK;
}

typedef struct Reader {
    ParityCase *c;
    StreamShape shape;
    Ints        ids, labels, mask, positions;
    bool        packed;                  /* rows hold several documents: positions start again */
    Media       image, video;
    int32_t    *row_ids, *row_targets;
    VisualSlice      *slice;
} Reader;

static void reader_close(Reader *r)
{
    free(r->ids.v), free(r->labels.v), free(r->mask.v), free(r->positions.v);
    media_close(&r->image), media_close(&r->video);
    free(r->row_ids), free(r->row_targets), free(r->slice);
}

static Status reader_open(Reader *r, ParityCase *c)
{
    const StTensor *ids = st_find(&c->inputs, "input_ids");
    *r = (Reader){ .c = c, .shape = shape_stream(&c->shape) };
    if (!ids || ids->rank != 2) return fail(E_DATA, "inputs.safetensors: input_ids [B, S] is missing");
    c->B = ids->shape[0], c->S = ids->shape[1];
    TRY(read_ints(&r->ids, c, "input_ids", true));
    TRY(read_ints(&r->labels, c, "labels", true));
    TRY(read_ints(&r->mask, c, "attention_mask", false));
    TRY(read_ints(&r->positions, c, "position_ids", false));
    TRY(media_open(&r->image, c, "image_grid_thw", "pixel_values", r->shape.patch_dim));
    TRY(media_open(&r->video, c, "video_grid_thw", "pixel_values_videos", r->shape.patch_dim));
    if (r->labels.n != r->ids.n || (r->mask.v && r->mask.n != r->ids.n))
        return fail(E_DATA, "inputs.safetensors: input_ids, labels and attention_mask differ in size");
    r->row_ids     = malloc((size_t)c->S * 4 + 1);
    r->row_targets = malloc((size_t)c->S * 4 + 1);
    r->slice       = malloc((size_t)(c->S + 1) * sizeof *r->slice);
    c->at          = malloc((size_t)(c->B * c->S) * sizeof *c->at + 1);
    c->is_video    = malloc((size_t)(c->B * c->S) + 1);
    return r->row_ids && r->row_targets && r->slice && c->at && c->is_video
               ? OK
               : fail(E_FIT, "no memory for a batch");
}

static bool real(const Reader *r, int64_t i) { return !r->mask.v || r->mask.v[i]; }

/* As transformers finds the documents of a row, when there is no attention_mask. */
static bool starts_document(const Reader *r, int64_t i)
{
    return i % r->c->S == 0 || (r->packed && r->positions.v[i] != r->positions.v[i - 1] + 1);
}

static Status stream_open_for(Reader *r)
{
    ParityCase *c = r->c;
    Budget b = { .patches = r->image.rows + r->video.rows };
    r->packed = r->positions.n == r->ids.n && !r->mask.v;
    for (int64_t i = 0; i < r->ids.n; i++) {
        b.docs += starts_document(r, i);
        b.tokens += real(r, i);
        if (r->ids.v[i] < 0 || r->ids.v[i] >= c->shape.text.V || r->labels.v[i] >= c->shape.text.V)
            return fail(E_DATA, "inputs.safetensors: token %lld at place %lld is not in the vocabulary",
                        (long long)r->ids.v[i], (long long)i);
        b.supervised += r->labels.v[i] >= 0;
    }
    return stream_open(&c->stream, &r->shape, &b);
}

/* Slices of a row in the order in which its visual runs stand. */
static Status row_slices(Reader *r, int64_t n, int64_t *count)
{
    int64_t block = r->shape.merge * r->shape.merge, seen = r->c->stream.visual;
    *count = 0;
    for (int64_t i = 0; i < n;) {
        bool image = r->row_ids[i] == r->shape.image_token, video = r->row_ids[i] == r->shape.video_token;
        if (!image && !video) { i++; continue; }
        VisualSlice *s = &r->slice[(*count)++];
        TRY(media_next(image ? &r->image : &r->video, s, r->shape.patch_dim, image ? "image" : "video"));
        int64_t run = s->h * s->w / block;
        for (int64_t j = 0; j < run && seen < r->c->B * r->c->S; j++) r->c->is_video[seen++] = video;
        r->c->videos += video ? run : 0;
        i += run > 0 ? run : 1;
    }
    return OK;
}

/* Adds the document that starts at place `start`, and moves `start` to the next. Position i predicts the
 * label after it, though that is of another document; the last real one of a row predicts nothing. */
static Status add_document(Reader *r, int64_t *start)
{
    ParityCase *c = r->c;
    int64_t n = 0, slices, i = *start;
    for (bool first = true; i < r->ids.n && (first || !starts_document(r, i)); i++, first = false) {
        if (!real(r, i)) continue;
        c->at[c->stream.tokens + n] = (int32_t)i;
        r->row_ids[n]     = (int32_t)r->ids.v[i];
        r->row_targets[n] =
            (i + 1) % c->S && real(r, i + 1) && r->labels.v[i + 1] >= 0 ? (int32_t)r->labels.v[i + 1] : -1;
        n++;
    }
    int64_t row = *start / c->S;
    *start = i;
    if (!n) return OK;
    TRY(row_slices(r, n, &slices));
    Document d = { n, r->row_ids, r->row_targets, slices, r->slice };
    TRY_CTX(stream_add(&c->stream, &d), "row %lld", (long long)row);
    return OK;
}

static void check_positions(Reader *r)
{
    ParityCase *c = r->c;
    int64_t all = c->B * c->S, T = c->stream.budget.tokens;
    if (r->positions.n != 3 * all || !c->stream.patches) return;     /* text alone: only differences matter */
    for (int64_t t = 0; t < T; t++) {
        bool same = true;
        for (int axis = 0; axis < 3; axis++)
            same &= c->stream.pos[axis * T + t] == r->positions.v[axis * all + c->at[t]];
        c->wrong_positions += !same;
    }
}

static Status read_batch(ParityCase *c)
{
    Reader r;
    Status st = reader_open(&r, c);
    if (!st) st = stream_open_for(&r);
    for (int64_t i = 0; !st && i < r.ids.n;) st = add_document(&r, &i);
    if (!st && (r.image.patch != r.image.rows || r.video.patch != r.video.rows))
        st = fail(E_DATA, "inputs.safetensors: there are pixels that no token asks for");
    if (!st) check_positions(&r);
    reader_close(&r);
    return st;
}

/* The folder that holds inputs.safetensors: the case's own, or the parent of a variant of its weights. */
static Status data_dir(char *out, size_t n, const char *dir)
{
    static const char *const tries[2] = { "", "/.." };
    char file[4200];
    for (int i = 0; i < 2; i++) {
        snprintf(file, sizeof file, "%s%s/inputs.safetensors", dir, tries[i]);
        if (access(file, R_OK)) continue;
        snprintf(out, n, "%s%s", dir, tries[i]);
        return OK;
    }
    return fail(E_IO, "%s: no inputs.safetensors there or in its parent; is this a reference case?", dir);
}

/* What was recorded, from folder dir. */
static Status read_record(ParityCase *c, const char *dir)
{
    char file[4200];
    snprintf(file, sizeof file, "%s/expected.safetensors", dir);
    c->has_expected = !access(file, F_OK);
    if (c->has_expected) TRY(st_open(&c->expected, file));
    snprintf(file, sizeof file, "%s/info.json", dir);
    return access(file, F_OK) ? OK : json_load(&c->info, file);
}

static Status read_model(ParityCase *c, const char *dir, const char *data)
{
    char file[4200];
    TRY(shape_load(&c->shape, dir));
    TRY(st_open(&c->model, dir));
    snprintf(file, sizeof file, "%s/inputs.safetensors", data);
    return st_open(&c->inputs, file);
}

/* What was recorded, and the model and the batch of another case. */
static Status read_on_base(ParityCase *c, const char *dir)
{
    char base[4100];
    TRY(read_record(c, dir));
    const char *from = json_string_value(json_object_get(c->info, "base"));
    if (!from) return fail(E_DATA, "%s/info.json: base must name the folder of the case it is for", dir);
    snprintf(base, sizeof base, "%s/%s", dir, from);
    return read_model(c, base, base);
}

static Status read_adapter(ParityCase *c, const char *dir, const char *adapter)
{
    TRY(read_on_base(c, dir));
    TRY(peft_open(&c->adapter, adapter, &c->shape));
    return peft_check_base(&c->adapter, &c->model);
}

static bool has_file(const char *dir, const char *name)
{
    char file[4200];
    snprintf(file, sizeof file, "%s/%s", dir, name);
    return !access(file, F_OK);
}

static Status read_files(ParityCase *c, const char *dir)
{
    char data[4100], adapter[4200];
    snprintf(adapter, sizeof adapter, "%s/adapter", dir);
    if (peft_is(adapter)) {
        TRY(read_adapter(c, dir, adapter));
    } else if (!has_file(dir, "config.json") && has_file(dir, "info.json")) {
        TRY(read_on_base(c, dir));
    } else {
        TRY(data_dir(data, sizeof data, dir));
        TRY(read_model(c, dir, data));
        TRY(read_record(c, data));
    }
    TRY(json_num(c->info, "mtp_loss_weight", 0, &c->mtp_weight));
    if (!(c->mtp_weight > 0)) c->shape.text.mtp = 0;
    return json_num(c->info, "aux_coef", c->shape.text.aux_coef, &c->aux_coef);
}

Status parity_case_open(ParityCase *c, const char *dir)
{
    *c = (ParityCase){ 0 };
    Status st = read_files(c, dir);
    if (!st) st = read_batch(c);
    if (st) parity_case_close(c);
    return st;
}

void parity_case_close(ParityCase *c)
{
    peft_close(&c->adapter);
    st_close(&c->model), st_close(&c->inputs), st_close(&c->expected);
    json_decref(c->info);
    stream_close(&c->stream);
    free(c->at), free(c->is_video);
    *c = (ParityCase){ 0 };
}
