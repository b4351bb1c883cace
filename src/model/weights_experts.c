/* model/weights_experts.c -- reads the weights of experts from each form that published files have: fused in
 * either layout, a tensor per expert, or MXFP4 codes. */
#include "model/weights_private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* [E, out, in]; [E, in, out]; one tensor each; MXFP4 codes of [E, out, in] and their scales */
typedef enum { FUSED_OUT, FUSED_IN, PER_EXPERT, MXFP4 } ExpertForm;

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
        TRY(weights_get_tensor(l, name, &t));
        bool a = weights_shape_is(t, 3, out[k]), b = weights_shape_is(t, 3, in[k]);
        if (!a && !b) return weights_wrong_shape(t, 3, out[k]);
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
    bool fused = weights_find_tensor(l, p->piece[0].name), each = weights_find_tensor(l, one);
    if (fused && each) return fail(E_DATA, "%s*: the file has experts both fused and one by one; keep one "
                                   "form", base);
    if (each) return *form = PER_EXPERT, OK;
    snprintf(one, sizeof one, "%s_blocks", p->piece[0].name);
    if (!fused && weights_find_tensor(l, one)) return *form = MXFP4, OK;
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
    TRY(weights_get_tensor(l, name, t));
    return weights_shape_is(*t, 2, want) ? OK : weights_wrong_shape(*t, 2, want);
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
            weights_put_elements(out, t, from % block, n);
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
    TRY(weights_get_tensor(l, name, codes));
    snprintf(name, sizeof name, "%s_scales", p->piece[0].name);
    TRY(weights_get_tensor(l, name, scales));
    bool good = (*codes)->dtype == U8 && weights_shape_is(*codes, 4, want);
    if (!good) return weights_wrong_shape(*codes, 4, want);
    good = (*scales)->dtype == U8 && weights_shape_is(*scales, 3, want);
    if (!good) return weights_wrong_shape(*scales, 3, want);
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

Status weights_load_experts(WeightLoader *l, Sink *out, const Param *p, const StridedRange *c)
{
    ExpertForm form = FUSED_OUT;
    TRY(expert_form(&form, l, p));
    if (form == PER_EXPERT) return load_per_expert(l, out, p, c);
    if (form == MXFP4) return load_mxfp4(l, out, p, c);
    const StTensor *t = weights_find_tensor(l, p->piece[0].name);
    if (form == FUSED_IN) return load_transposed(out, p, t, c);
    weights_put_range(out, t, c, 0);
    return OK;
}

Status weights_check_experts(WeightLoader *l, const Param *p)
{
    const StTensor *t;
    ExpertForm form;
    TRY(expert_form(&form, l, p));
    for (int64_t u = 0; form == PER_EXPERT && u < p->shape[0] * expert_parts(p); u++)
        TRY(expert_tensor(l, p, u, &t));
    return OK;
}
