/* train/still.c -- see still.h. */
#include "train/still.h"

#include <stdio.h>
#include <stdlib.h>

static int learner_of(const Still *s, const Param *p)
{
    int i = 0;
    while (i < s->n && s->learner[i].p != p) i++;
    REQUIRE(i < s->n, "%s: not of this model", p->piece[0].name);
    return i;
}

static void list(Still *s, const Model *m)
{
    int n = 0;
    for (int i = 0; i < m->params.n; i++)
        for (int k = 0; k < m->params.p[i]->pieces; k++)
            s->learner[n++] = (Learner){ .p = m->params.p[i], .piece = k, .through = -1 };
}

/* Piece k of an A is what part k reads. */
static void find_pairs(Still *s, const Model *m)
{
    for (int i = 0; i < m->params.n; i++) {
        const Lora *l = m->params.p[i]->lora;
        for (int k = 0; l && k < l->parts; k++)
            s->learner[learner_of(s, l->a) + k].through = learner_of(s, l->part[k].b);
    }
}

Status still_open(Still *s, const Model *m, int64_t limit)
{
    int    n = params_tensors(&m->params);
    size_t room = (size_t)n + 1;
    *s = (Still){ .limit = limit, .n = n, .learner = calloc(room, sizeof *s->learner),
                  .square = calloc(room, sizeof *s->square), .most = calloc(room, sizeof *s->most) };
    if (!s->learner || !s->square || !s->most)
        return fail(E_FIT, "no host memory for the gradients of %d tensors", n);
    list(s, m);
    find_pairs(s, m);
    return OK;
}

void still_close(Still *s)
{
    free(s->learner), free(s->square), free(s->most);
    *s = (Still){ 0 };
}

int still_note(Still *s, const Mesh *mesh, const float *lr)
{
    int found = 0;
    if (!s->limit) return 0;
    for (int i = 0; i < s->n; i++)
        s->most[i] = optim_counts(s->learner[i].p, s->learner[i].piece) ? s->square[1 + i] : -1;
    comm_host_max(mesh->comm[GR_tp_dp_cp], s->most, s->n);
    for (int i = 0; i < s->n; i++) {
        Learner *x = &s->learner[i];
        bool deaf = x->through >= 0 && !s->learner[x->through].moved;
        if (s->most[i] < 0) continue;                        /* not live: as if the step had not been */
        x->in_a_row = s->most[i] > 0 || deaf ? 0 : x->in_a_row + 1;
        found += x->in_a_row >= s->limit;
    }
    for (int i = 0; i < s->n; i++)
        s->learner[i].moved |= s->most[i] > 0 && lr[s->learner[i].p->group] > 0;
    return found;
}

Status still_fail(const Still *s)
{
    const Learner *first = NULL;
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
