/* train/zero_grad.c -- see zero_grad.h. */
#include "train/zero_grad.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int index_of(const ZeroGradCheck *s, const Param *p)
{
    int i = 0;
    while (i < s->n && s->tensor[i].p != p) i++;
    REQUIRE(i < s->n, "%s: not of this model", p->piece[0].name);
    return i;
}

static void list_tensors(ZeroGradCheck *s, const Model *m)
{
    int n = 0;
    for (int i = 0; i < m->params.n; i++)
        for (int k = 0; k < m->params.p[i]->pieces; k++)
            s->tensor[n++] = (ZeroGradTensor){ .p = m->params.p[i], .piece = k, .through = -1 };
}

/* Piece k of an A is the input of part k of its adapter. */
static void link_adapters(ZeroGradCheck *s, const Model *m)
{
    for (int i = 0; i < m->params.n; i++) {
        const Lora *l = m->params.p[i]->lora;
        for (int k = 0; l && k < l->parts; k++)
            s->tensor[index_of(s, l->a) + k].through = index_of(s, l->part[k].b);
    }
}

static Comm *stage_comm(const Mesh *m) { return m ? m->comm[GR_tp_dp_cp] : NULL; }

Status zero_grad_open(ZeroGradCheck *s, const Model *m, int64_t limit)
{
    const Comm *c = stage_comm(m->params.mesh);
    int    n = params_tensors(&m->params), words = n / 64 + 1;
    size_t cells = (size_t)n + 1, bits = (size_t)(1 + (c ? c->size : 1)) * 2 * (size_t)words;
    *s = (ZeroGradCheck){ .limit = limit, .n = n, .words = words, .tensor = calloc(cells, sizeof *s->tensor),
                  .bits = calloc(bits, sizeof *s->bits), .due = calloc(2 * (size_t)words, sizeof *s->due) };
    if (!s->tensor || !s->bits || !s->due)
        return fail(E_FIT, "no host memory for the gradients of %d tensors", n);
    list_tensors(s, m);
    link_adapters(s, m);
    return OK;
}

void zero_grad_close(ZeroGradCheck *s)
{
    free(s->tensor), free(s->bits), free(s->due);
    *s = (ZeroGradCheck){ 0 };
}

static void set_bit(uint64_t *bits, int i, bool on) { bits[i / 64] |= (uint64_t)on << (i % 64); }
static bool bit(const uint64_t *bits, int i)        { return bits[i / 64] >> (i % 64) & 1; }

/* Gathers the bits of all ranks of the stage, which have the same tensors in the same order, and ORs them
 * into the first rank's. */
static void gather_bits(ZeroGradCheck *s, Comm *c, const uint64_t *due, const double *squares)
{
    int       each = 2 * s->words;
    uint64_t *mine = s->bits + (size_t)c->size * (size_t)each;
    memset(mine, 0, (size_t)each * sizeof *mine);
    for (int i = 0; i < s->n; i++) {
        set_bit(mine, i, bit(due, i));
        set_bit(mine + s->words, i, bit(due, i) && squares[1 + i] > 0);
    }
    comm_host_gather(c, s->bits, mine, (size_t)each * sizeof *mine);
    for (int r = 1; r < c->size; r++)
        for (int i = 0; i < each; i++) s->bits[i] |= s->bits[(size_t)r * (size_t)each + (size_t)i];
}

void zero_grad_expect(ZeroGradCheck *s, int slot)
{
    uint64_t *due = s->due + slot * s->words;
    memset(due, 0, (size_t)s->words * sizeof *due);
    for (int i = 0; i < s->n; i++) set_bit(due, i, optim_owns_piece(s->tensor[i].p, s->tensor[i].piece));
}

int zero_grad_count_step(ZeroGradCheck *s, const Mesh *mesh, int slot, const double *squares, const float *lr)
{
    const uint64_t *counts = s->bits, *nonzero = s->bits + s->words;
    int found = 0;
    if (!s->limit) return 0;
    gather_bits(s, stage_comm(mesh), s->due + slot * s->words, squares);
    for (int i = 0; i < s->n; i++) {
        ZeroGradTensor *x = &s->tensor[i];
        bool waits = x->through >= 0 && !s->tensor[x->through].moved;
        if (!bit(counts, i)) continue;                       /* no gradient was due in this step */
        x->in_a_row = bit(nonzero, i) || waits ? 0 : x->in_a_row + 1;
        found += x->in_a_row >= s->limit;
    }
    for (int i = 0; i < s->n; i++)
        s->tensor[i].moved |= bit(nonzero, i) && lr[s->tensor[i].p->group] > 0;
    return found;
}

Status zero_grad_error(const ZeroGradCheck *s)
{
    const ZeroGradTensor *first = NULL;
    char more[64] = "";
    int  n = 0;
    for (int i = 0; i < s->n; i++) {
        if (!s->limit || s->tensor[i].in_a_row < s->limit) continue;
        if (!n++) first = &s->tensor[i];
    }
    if (!n) return OK;
    if (n > 1) snprintf(more, sizeof more, " (as has that of %d other tensor%s)", n - 1, n > 2 ? "s" : "");
    return fail(
        E_CHECK,
        "%s: its gradient has been exactly zero for %lld steps in a row%s, so it is not "
        "trained; check which tokens the data supervises, leave the tensor out (lora.exclude_modules, "
        "model.freeze_*), or raise train.max_zero_steps",
        first->p->piece[first->piece].name, (long long)s->limit, more);
}
