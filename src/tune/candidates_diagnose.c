/* tune/candidates_diagnose.c -- changes that the diagnosis of the last run proposes. */
#include "diagnose/source.h"
#include "tune/tune.h"

#include <stdio.h>
#include <string.h>

enum { AT_ONCE = 2 };                    /* values of one key in a round */

/* Whether two sets change the same keys. */
static bool same_keys(const char *a, const char *b)
{
    char keep[2][AB_SET];
    const char *x[AB_KEYS], *y[AB_KEYS];
    int n = ab_keys(x, keep[0], a), k = ab_keys(y, keep[1], b);
    bool same = n == k;
    for (int i = 0; i < n && same; i++) same = !strcmp(x[i], y[i]);
    return same;
}

static void add_fixes(AbRound *r, Tune *t, const Diagnosis *d)
{
    for (int i = 0; i < d->fixes && r->n < AT_ONCE; i++) {
        const Fix   *f = &d->fix[i];
        AbCandidate *c = &r->candidate[r->n];
        if (f->kind != FIX_SAME || !f->fits || f->gain < t->noise || strlen(f->set) >= AB_SET) continue;
        if (strstr(f->set, "train.precision")) continue;     /* changes numbers: only with --set */
        if (r->n && !same_keys(f->set, r->candidate[0].set)) continue;
        if (tune_is_tried(t, f->set, false)) continue;
        *c = (AbCandidate){ .predicted = f->gain };
        snprintf(c->set, sizeof c->set, "%s", f->set);
        snprintf(c->why, sizeof c->why, "wall: %s. %.150s", wall_name(f->wall), d->wall[f->wall].evidence);
        r->n++;
    }
}

Status candidates_of_diagnose(AbRound *r, Tune *t)
{
    DiagnoseSource s;
    Diagnosis     *d = NULL;
    SourceAsk      ask = { .path = t->last.run, .ranks = t->ask->ranks, .per_node = t->ask->ranks };
    TRY(source_open(&s, &ask));
    s.ask.limit = t->machine.available;
    Status st = diagnose_open(&d, &s.ask);
    if (!st) add_fixes(r, t, d);
    diagnose_close(d);
    source_close(&s);
    return st;
}
