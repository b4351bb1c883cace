/* data/pack.c -- see pack.h. */
#include "data/pack.h"

#include "base/grow.h"
#include <stdlib.h>
#include <string.h>

void packer_open(Packer *p, const Budget *b) { *p = (Packer){ .budget = *b }; }

void packer_close(Packer *p)
{
    for (int i = 0; i < p->opens; i++) pack_bin_close(&p->open[i]);
    p->opens = 0;
}

void pack_bin_close(PackBin *b)
{
    free(b->doc);
    *b = (PackBin){ 0 };
}

Status pack_bin_push(PackBin *b, const PackDoc *d)
{
    if (!GROW(b->doc, b->cap, b->docs + 1))
        return fail(E_FIT, "no memory for a bin of %lld documents", (long long)b->docs);
    b->doc[b->docs++] = *d;
    b->used.tokens     += d->size.tokens;
    b->used.patches    += d->size.patches;
    b->used.supervised += d->size.supervised;
    return OK;
}

const char *pack_over_budget(const Budget *b, const DocSize *d)
{
    if (d->tokens > b->tokens)         return "tokens";
    if (d->patches > b->patches)       return "patches";
    if (d->supervised > b->supervised) return "supervised tokens";
    return b->docs < 1 ? "documents" : NULL;
}

static bool fits_bin(const PackBin *bin, const Budget *b, const DocSize *d)
{
    return bin->docs < b->docs && d->tokens <= b->tokens - bin->used.tokens &&
           d->patches <= b->patches - bin->used.patches &&
           d->supervised <= b->supervised - bin->used.supervised;
}

static double share(int64_t used, int64_t of) { return of > 0 ? (double)used / (double)of : 0; }

/* The larger used share of the budgets of tokens and patches. */
static double fullness(const PackBin *bin, const Budget *b)
{
    double t = share(bin->used.tokens, b->tokens), p = share(bin->used.patches, b->patches);
    return t > p ? t : p;
}

static PackBin remove_bin(Packer *p, int i)
{
    PackBin bin = p->open[i];
    p->opens--;
    memmove(&p->open[i], &p->open[i + 1], (size_t)(p->opens - i) * sizeof bin);
    p->open[p->opens] = (PackBin){ 0 };
    return bin;
}

Status packer_add(Packer *p, const PackDoc *d, PackBin *out, bool *full)
{
    *full = false;
    REQUIRE(!pack_over_budget(&p->budget, &d->size), "document %lld is over budget", (long long)d->at);
    for (int i = 0; i < p->opens; i++)
        if (fits_bin(&p->open[i], &p->budget, &d->size)) return pack_bin_push(&p->open[i], d);
    if (p->opens == PACK_OPEN) {
        int fullest = 0;
        for (int i = 1; i < p->opens; i++)
            if (fullness(&p->open[i], &p->budget) > fullness(&p->open[fullest], &p->budget)) fullest = i;
        *out = remove_bin(p, fullest), *full = true;
    }
    return pack_bin_push(&p->open[p->opens++], d);
}

bool packer_flush(Packer *p, PackBin *out)
{
    if (p->opens == 0) return false;
    *out = remove_bin(p, 0);
    return true;
}

/* A patch passes the vision encoder and its merger, which cost about a quarter of a token in a decoder of
 * usual proportions. The quadratic part of attention counts from a few thousand tokens or patches on. */
static double doc_cost(const DocSize *d)
{
    double t = (double)d->tokens, p = (double)d->patches;
    return t * (1 + t / 16384) + 0.25 * p * (1 + p / 16384);
}

double pack_bin_cost(const PackBin *b)
{
    double cost = 0;
    for (int64_t i = 0; i < b->docs; i++) cost += doc_cost(&b->doc[i].size);
    return cost;
}

typedef struct Ranked { double cost; int64_t order; PackDoc doc; } Ranked;

static int costly_first(const void *a, const void *b)
{
    const Ranked *x = a, *y = b;
    if (x->cost != y->cost) return x->cost < y->cost ? 1 : -1;
    return (x->order > y->order) - (x->order < y->order);
}

static Status spread_docs(PackBin *to, double *cost, int n, const Ranked *doc, int64_t docs, const Budget *b,
                     bool *done)
{
    *done = true;
    for (int64_t i = 0; i < docs && *done; i++) {
        int best = -1;
        for (int k = 0; k < n; k++)
            if (fits_bin(&to[k], b, &doc[i].doc.size) && (best < 0 || cost[k] < cost[best])) best = k;
        if (best < 0) *done = false;
        else TRY(pack_bin_push(&to[best], &doc[i].doc));
        if (best >= 0) cost[best] += doc[i].cost;
    }
    return OK;
}

Status pack_bins_spread(PackBin *to, int n, const PackBin *from, int bins, const Budget *b, bool *done)
{
    int64_t docs = 0;
    for (int i = 0; i < bins; i++) docs += from[i].docs;
    Ranked *doc  = calloc((size_t)docs + 1, sizeof *doc);
    double *cost = calloc((size_t)n + 1, sizeof *cost);
    Status  st   = doc && cost ? OK : fail(E_FIT, "no memory to spread %lld documents", (long long)docs);
    docs = 0;
    for (int i = 0; !st && i < bins; i++)
        for (int64_t k = 0; k < from[i].docs; k++, docs++)
            doc[docs] = (Ranked){ doc_cost(&from[i].doc[k].size), docs, from[i].doc[k] };
    if (!st) qsort(doc, (size_t)docs, sizeof *doc, costly_first);
    if (!st) st = spread_docs(to, cost, n, doc, docs, b, done);
    if (st || !*done)
        for (int k = 0; k < n; k++) pack_bin_close(&to[k]);
    free(doc), free(cost);
    return st;
}

Status pack_bins_assign(int *place, const PackBin *bin, int ranks, int micro)
{
    int     n    = ranks * micro;
    Ranked *sort = calloc((size_t)n + 1, sizeof *sort);
    double *sum  = calloc((size_t)ranks + 1, sizeof *sum);
    bool   *took = calloc((size_t)ranks + 1, sizeof *took);
    Status  st   = sort && sum && took ? OK : fail(E_FIT, "no memory to assign %d micro-batches", n);
    for (int i = 0; !st && i < n; i++) sort[i] = (Ranked){ pack_bin_cost(&bin[i]), i, { 0 } };
    if (!st) qsort(sort, (size_t)n, sizeof *sort, costly_first);
    for (int k = 0; !st && k < micro; k++) {
        memset(took, 0, (size_t)ranks * sizeof *took);
        for (int i = 0; i < ranks; i++) {
            int least = -1;
            for (int r = 0; r < ranks; r++)
                if (!took[r] && (least < 0 || sum[r] < sum[least])) least = r;
            const Ranked *s = &sort[k * ranks + i];
            place[least * micro + k] = (int)s->order;
            sum[least] += s->cost, took[least] = true;
        }
    }
    free(sort), free(sum), free(took);
    return st;
}
