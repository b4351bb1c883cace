/* train/zero_grad.c -- see still.h. */
#include "train/zero_grad.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int learner_of(const ZeroGradCheck *s, const Param *p)
{
    int i = 0;
    while (i < s->n && s->learner[i].p != p) i++;
    REQUIRE(i < s->n, "%s: not of this model", p->piece[0].name);
    return i;
}

static void list(ZeroGradCheck *s, const Model *m)
{
    int n = 0;
    for (int i = 0; i < m->params.n; i++)
        for (int k = 0; k < m->params.p[i]->pieces; k++)
            s->learner[n++] = (ZeroGradTensor){ .p = m->params.p[i], .piece = k, .through = -1 };
}

/* Piece k of an A is what part k reads. */
static void find_pairs(ZeroGradCheck *s, const Model *m)
{
    for (int i = 0; i < m->params.n; i++) {
        const Lora *l = m->params.p[i]->lora;
        for (int k = 0; l && k < l->parts; k++)
            s->learner[learner_of(s, l->a) + k].through = learner_of(s, l->part[k].b);
    }
}

static Comm *sharers(const Mesh *m) { return m ? m->comm[GR_tp_dp_cp] : NULL; }     /* all of a stage */

Status zero_grad_open(ZeroGradCheck *s, const Model *m, int64_t limit)
{
    const Comm *c = sharers(m->params.mesh);
    int    n = params_tensors(&m->params), words = n / 64 + 1;
    size_t room = (size_t)n + 1, said = (size_t)(1 + (c ? c->size : 1)) * 2 * (size_t)words;
    *s = (ZeroGradCheck){ .limit = limit, .n = n, .words = words, .learner = calloc(room, sizeof *s->learner),
                  .square = calloc(room, sizeof *s->square), .said = calloc(said, sizeof *s->said) };
    if (!s->learner || !s->square || !s->said)
        return fail(E_FIT, "no host memory for the gradients of %d tensors", n);
    list(s, m);
    find_pairs(s, m);
    return OK;
}

void zero_grad_close(ZeroGradCheck *s)
{
    free(s->learner), free(s->square), free(s->said);
    *s = (ZeroGradCheck){ 0 };
}

static void set_bit(uint64_t *bits, int i, bool on) { bits[i / 64] |= (uint64_t)on << (i % 64); }
static bool bit(const uint64_t *bits, int i)        { return bits[i / 64] >> (i % 64) & 1; }

/* What all ranks of the stage say of its tensors, which are the same on all of them in the same order: the
 * first 2 words of s->said. */
static void tell(ZeroGradCheck *s, Comm *c)
{
    int       each = 2 * s->words;
    uint64_t *mine = s->said + (size_t)c->size * (size_t)each;
    memset(mine, 0, (size_t)each * sizeof *mine);
    for (int i = 0; i < s->n; i++) {
        bool counts = optim_owns_piece(s->learner[i].p, s->learner[i].piece);
        set_bit(mine, i, counts);
        set_bit(mine + s->words, i, counts && s->square[1 + i] > 0);
    }
    comm_host_gather(c, s->said, mine, (size_t)each * sizeof *mine);
    for (int r = 1; r < c->size; r++)
        for (int i = 0; i < each; i++) s->said[i] |= s->said[(size_t)r * (size_t)each + (size_t)i];
}

int zero_grad_count_step(ZeroGradCheck *s, const Mesh *mesh, const float *lr)
{
    const uint64_t *counts = s->said, *hears = s->said + s->words;
    int found = 0;
    if (!s->limit) return 0;
    tell(s, sharers(mesh));
    for (int i = 0; i < s->n; i++) {
        ZeroGradTensor *x = &s->learner[i];
        bool deaf = x->through >= 0 && !s->learner[x->through].moved;
        if (!bit(counts, i)) continue;                       /* not live: as if the step had not been */
        x->in_a_row = bit(hears, i) || deaf ? 0 : x->in_a_row + 1;
        found += x->in_a_row >= s->limit;
    }
    for (int i = 0; i < s->n; i++)
        s->learner[i].moved |= bit(hears, i) && lr[s->learner[i].p->group] > 0;
    return found;
}

Status zero_grad_error(const ZeroGradCheck *s)
{
    const ZeroGradTensor *first = NULL;
    char more[64] = "";
    int  n = 0;
    for (int i = 0; i < s->n; i++) {
        if (!s->limit || s->learner[i].in_a_row < s->limit) continue;
        if (!n++) first = &s->learner[i];
    }
    if (!n) return OK;
    if (n > 1) snprintf(more, sizeof more, " (so has that of %d other%s)", n - 1, n > 2 ? "s" : "");
    return fail(E_CHECK, "%s: its gradient has been exactly zero for %lld steps in a row%s, so it learns "
                "nothing; look at what the data supervises, leave it out (lora.exclude_modules, "
                "model.freeze_*), or raise train.max_zero_steps", first->p->piece[first->piece].name,
                (long long)s->limit, more);
}
