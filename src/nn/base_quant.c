/* nn/base_quant.c -- see base_quant.h. */
#include "nn/base_quant.h"

#include "ops/weight_code.h"

#include <string.h>

static const char *const names[] = { [CODE_NONE] = "none", [CODE_FP8] = "fp8", [CODE_INT8] = "int8",
                                     [CODE_NF4] = "nf4" };

const char *base_quant_name(CodeFormat f) { return names[f]; }

static Status add_word(BaseQuant *b, const char *word)
{
    ProductPrecision p;
    if (!strcmp(word, "head"))
        return fail(E_CONFIG, "model.base_quant_weights: the head is never quantised; use some of experts, "
                    "attention, mlp, tower, mergers");
    if (precision_set(&p, PREC_FP8, &word, 1))
        return fail(E_CONFIG, "model.base_quant_weights: %s is none of experts, attention, mlp, tower, "
                    "mergers", word);
    for (int i = 0; i < SITES; i++) b->site[i] |= p.coded[i][PRODUCT_Y];
    return OK;
}

Status base_quant_read(BaseQuant *b, const char *format, const char *const *words, int n)
{
    *b = (BaseQuant){ 0 };
    for (int i = 0; i < n; i++) TRY(add_word(b, words[i]));
    for (CodeFormat f = CODE_NONE; f <= CODE_NF4; f++)
        if (!strcmp(names[f], format)) b->format = f;
    if (b->format && !n)
        return fail(E_CONFIG, "model.base_quant_weights is empty: no weight would be quantised; list some of "
                    "experts, attention, mlp, tower, mergers, or set model.base_quant=none");
    return OK;
}

/* Sections of a piece that tp has cut apart: such a weight stays as it is. */
static bool is_scattered(const Param *p)
{
    bool apart = false;
    for (int i = 0, n; i < p->pieces; i++) {
        const StridedRange *c = piece_ranges(p, i, &n);
        for (int k = 1; k < n; k++) apart |= c[k - 1].at + c[k - 1].len != c[k].at;
    }
    return apart;
}

bool base_quant_has(const BaseQuant *b, const Param *w)
{
    Site site = precision_site(w);
    return b->format && site < SITES && b->site[site] && w->frozen && !w->adapter_of && !is_scattered(w);
}

/* ---- matrices ---- */

static bool is_stack(const Param *p) { return p->ndim == 3; }

int64_t code_matrices(const Param *p) { return is_stack(p) ? p->shard.shape[0] : p->pieces; }

/* The runs of c that lie in elements [at, end) of the whole; a run may reach beyond them only where it is the
 * only one. */
static StridedRange clip_to_matrix(StridedRange c, int64_t at, int64_t end)
{
    if (c.count == 1) {
        int64_t from = c.at > at ? c.at : at, to = c.at + c.len < end ? c.at + c.len : end;
        return (StridedRange){ c.local + from - c.at, from - at, to > from ? to - from : 0, 0, to > from };
    }
    int64_t first = at > c.at ? (at - c.at + c.stride - 1) / c.stride : 0;
    int64_t last = end > c.at ? (end - c.at + c.stride - 1) / c.stride : 0;
    if (last > c.count) last = c.count;
    return (StridedRange){ c.local + first * c.len, c.at + first * c.stride - at, c.len, c.stride,
                           last > first ? last - first : 0 };
}

CodeMatrix code_matrix(const Param *p, int64_t i)
{
    CodeMatrix m = { .K = p->shape[p->ndim - 1], .rows = p->shape[p->ndim - 2] };
    if (is_stack(p)) {
        int64_t n = m.rows * m.K;
        m.at = (p->shard.range[0].at / n + i) * n, m.group = i * nf4_groups(n);
        m.range = clip_to_matrix(p->shard.range[0], m.at, m.at + n);
        return m;
    }
    m.rows = p->piece[i].shape[0], m.at = piece_at(p, (int)i);
    for (int64_t k = 0; k < i; k++) m.group += nf4_groups(p->piece[k].shape[0] * m.K);
    int n;
    const StridedRange *c = piece_ranges(p, (int)i, &n);
    m.range = c[0];
    for (int k = 1; k < n; k++) m.range.len += c[k].len, m.range.stride += c[k].len;
    m.range.at -= m.at;
    return m;
}

int64_t code_groups(const Param *p)
{
    CodeMatrix last = code_matrix(p, code_matrices(p) - 1);
    return last.group + nf4_groups(last.rows * last.K);
}

/* ---- cuts ---- */

static Status check_matrix(const Param *p, const CodeMatrix *m)
{
    const StridedRange *c = &m->range;
    int64_t cut = c->at % NF4_BLOCK | c->len % NF4_BLOCK | c->local % NF4_BLOCK;
    if (c->count > 1) cut |= c->stride % NF4_BLOCK;
    if (m->rows * m->K % NF4_BLOCK || m->K % 2)
        return fail(E_CONFIG, "model.base_quant = nf4: %s has %lld x %lld elements, not whole blocks of %d; "
                    "use int8, or leave its kind out of model.base_quant_weights", p->piece[0].name,
                    (long long)m->rows, (long long)m->K, NF4_BLOCK);
    if (c->count && cut)
        return fail(E_CONFIG, "model.base_quant = nf4: parallel.tp or parallel.etp cuts %s (%lld x %lld) "
                    "inside blocks of %d elements; lower it, or use int8", p->piece[0].name,
                    (long long)m->rows, (long long)m->K, NF4_BLOCK);
    return OK;
}

Status base_quant_check(const BaseQuant *b, const ParamSet *s)
{
    for (int i = 0; i < s->n && b->format == CODE_NF4; i++) {
        const Param *p = s->p[i];
        for (int64_t k = 0; base_quant_has(b, p) && k < code_matrices(p); k++) {
            CodeMatrix m = code_matrix(p, k);
            TRY(check_matrix(p, &m));
        }
    }
    return OK;
}
