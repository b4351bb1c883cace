/* plan/search_rank.c -- the order of candidates that fit. */
#include "plan/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double CLOSE = 0.05;        /* times within this share count as equal */
static const double PREMIUM = 0.045;       /* of a concession, see priced */

/* 0: exact states, 1: rounded ones, 2: offloaded ones. */
static int concession(const FoundLayout *f)
{
    return f->c.offload > 0 ? 2 : !states_at(f->states)->exact;
}

static bool is_full(const FoundLayout *f) { return f->c.recompute & RE_FULL; }

static int order(double a, double b) { return (a > b) - (a < b); }

int search_class(const FoundLayout *a, const FoundLayout *b)
{
    int o = order(a->tight, b->tight);
    return o ? o : order(concession(a), concession(b));
}

/* Seconds of a step with a premium for each concession: memory to spare, exact states, no offload and
 * selective recompute may cost that much. With CLOSE a concession is refused at a price of at most a tenth.
 * Layouts that no known run has used count twice. */
static double priced(const FoundLayout *f)
{
    return f->step * pow(1 + PREMIUM, f->tight + concession(f) + is_full(f) + 2 * f->unproven);
}

static double bucket(double seconds) { return floor(log(seconds) / log(1 + CLOSE)); }

/* See search.h. Of equals the faster, then the one with more free memory, then the simpler. */
static int by_preference(const void *x, const void *y)
{
    const FoundLayout *a = x, *b = y;
    const double key[][2] = {
        { a->leaves, b->leaves },
        { is_full(a), is_full(b) },
        { found_parallel(&a->c), found_parallel(&b->c) },
        { a->c.etp, b->c.etp },
        { a->rung + a->states, b->rung + b->states },
        { a->c.ep, b->c.ep },
        { bucket(a->step), bucket(b->step) },
        { a->c.vpp, b->c.vpp },
        { a->peak, b->peak },
        { a->step, b->step },
    };
    int o = search_class(a, b);
    for (size_t i = 0; !o && i < sizeof key / sizeof *key; i++) o = order(key[i][0], key[i][1]);
    return o;
}

static int by_time(const void *x, const void *y)
{
    int o = order(priced(x), priced(y));
    return o ? o : by_preference(x, y);
}

/* Ranks the n candidates of a family. Within bands of close times preference decides. */
static void rank_family(FoundLayout *f, int n, Objective o)
{
    if (n > 1) qsort(f, (size_t)n, sizeof *f, o == FOR_FIT ? by_preference : by_time);
    for (int from = 0, to; from < n && o == FOR_THROUGHPUT; from = to) {
        for (to = from; to < n; to++)
            if (priced(&f[to]) > (1 + CLOSE) * priced(&f[from])) break;
        qsort(f + from, (size_t)(to - from), sizeof *f, by_preference);
    }
}

/* Merges the two families by time: the faster first, unless it is close and recomputes everything or is
 * unproven. */
static bool goes_first(const FoundLayout *a, const FoundLayout *b, Objective o)
{
    double x = priced(a), y = priced(b), limit = (1 + CLOSE) * fmin(x, y);
    int    first = o == FOR_FIT ? search_class(a, b) : 0;
    if (!first && x <= limit && y <= limit) first = order(is_full(a) + a->unproven, is_full(b) + b->unproven);
    return first ? first < 0 : x <= y;
}

Status search_rank(Search *s, int first)
{
    FoundLayout *f = s->found + first, *sharded;
    int n = s->n - first, a = 0, b = 0, k = 0;
    if (n < 2) return OK;
    if (!(sharded = malloc((size_t)n * sizeof *f))) return fail(E_FIT, "no memory to rank %d layouts", n);
    for (int i = 0; i < n; i++)
        if (f[i].c.zero == 3) sharded[b++] = f[i];
        else f[a++] = f[i];
    rank_family(f, a, s->ask.objective);
    rank_family(sharded, b, s->ask.objective);
    memmove(f + b, f, (size_t)a * sizeof *f);           /* merged from the front: no entry is overwritten */
    for (int i = 0, j = b; i < b || j < n;)
        f[k++] =
            j == n || (i < b && goes_first(&sharded[i], &f[j], s->ask.objective)) ? sharded[i++] : f[j++];
    free(sharded);
    return OK;
}

int search_fastest(const Search *s)
{
    int best = 0;
    for (int i = 1; i < s->n; i++)
        if (s->found[i].step < s->found[best].step) best = i;
    return best;
}
