/* data/index.c -- see index.h. */
#include "data/index.h"

#include "base/activity.h"
#include "base/thread_pool.h"

#include <math.h>
#include <stdlib.h>

Status index_open(Index *x, int64_t samples)
{
    *x = (Index){ calloc((size_t)samples + 1, sizeof *x->row), samples };
    return x->row ? OK : fail(E_FIT, "no memory for an index of %lld samples", (long long)samples);
}

void index_close(Index *x)
{
    free(x->row);
    *x = (Index){ 0 };
}

/* tokens is written last and read first: a reader that sees tokens sees the rest of the row. */
static void put(Index *x, int64_t id, SizeKind kind, const DocSize *size)
{
    IndexRow *r = &x->row[id];
    __atomic_store_n(&r->patches, (int32_t)size->patches, __ATOMIC_RELAXED);
    __atomic_store_n(&r->supervised, (int32_t)size->supervised, __ATOMIC_RELAXED);
    __atomic_store_n(&r->tokens, kind == SIZE_GOOD ? (int32_t)size->tokens : -(int32_t)kind,
                     __ATOMIC_RELEASE);
}

SizeKind index_get(const Index *x, int64_t id, DocSize *size)
{
    const IndexRow *r = &x->row[id];
    int32_t         tokens = __atomic_load_n(&r->tokens, __ATOMIC_ACQUIRE);
    if (tokens <= 0) return (SizeKind)-tokens;
    *size = (DocSize){ tokens, __atomic_load_n(&r->patches, __ATOMIC_RELAXED),
                       __atomic_load_n(&r->supervised, __ATOMIC_RELAXED) };
    return SIZE_GOOD;
}

/* Packed files store sizes. A sample whose stored size does not fit is loaded, so that the error says why. */
static bool known_and_fits(const SampleConf *c, int64_t id, DocSize *size)
{
    return dataset_size(c->data, id, size) && size->tokens > 0 && size->tokens <= c->max_length &&
           !pack_over_budget(&c->budget, size);
}

Status index_measure(Index *x, SampleScratch *t, const SampleConf *c, int64_t id, DocSize *size,
                     SizeKind *kind, Sample *loaded)
{
    Sample s = { 0 };
    *loaded = s;
    *kind = index_get(x, id, size);
    if (*kind == SIZE_GOOD || *kind == SIZE_DROP) return OK;
    *kind = SIZE_GOOD;
    if (!known_and_fits(c, id, size)) {
        Status st = sample_load(&s, t, c, id);
        if (st) return put(x, id, *kind = SIZE_BAD, &(DocSize){ 0 }), st;
        if (s.drop || s.size.tokens == 0) *kind = SIZE_DROP;
        *size = s.size, *loaded = s;
    }
    return put(x, id, *kind, size), OK;
}

enum { BLOCK = 32 };                  /* positions of one call, which share a scratch */

typedef struct Filling {
    Index            *x;
    const SampleConf *c;
    IndexRange        range;
    bool              tolerant;
    Meter            *meter;
    SampleScratch    *free;           /* stack of scratches not in use */
    int               frees;
    pthread_mutex_t   lock;
} Filling;

static SampleScratch scratch_take(Filling *f)
{
    SampleScratch t = { 0 };
    pthread_mutex_lock(&f->lock);
    if (f->frees) t = f->free[--f->frees];
    pthread_mutex_unlock(&f->lock);
    return t;
}

static void scratch_give(Filling *f, SampleScratch t)
{
    pthread_mutex_lock(&f->lock);
    f->free[f->frees++] = t;
    pthread_mutex_unlock(&f->lock);
}

static Status fill_block(void *arg, int64_t block)
{
    Filling      *f = arg;
    SampleScratch t = scratch_take(f);
    int64_t       end = (block + 1) * BLOCK < f->range.n ? (block + 1) * BLOCK : f->range.n;
    Status        st = OK;
    if (!t.token) st = sample_scratch_open(&t, f->c->chat.tokenizer);
    for (int64_t at = block * BLOCK; !st && at < end; at++) {
        DocSize  size;
        SizeKind kind;
        Sample   loaded;
        st = index_measure(f->x, &t, f->c, dataset_id(f->c->data, f->range.epoch, at), &size, &kind, &loaded);
        sample_close(&loaded);
        if (f->tolerant && sample_is_bad(st)) st = OK;
    }
    scratch_give(f, t);
    meter_add(f->meter, end - block * BLOCK);
    return st;
}

Status index_fill(Index *x, const SampleConf *c, const IndexRange *range, int workers, bool tolerant,
                  Meter *meter)
{
    ThreadPool    pool = { 0 };
    Filling       f    = { .x = x, .c = c, .range = *range, .tolerant = tolerant, .meter = meter };
    f.free = calloc((size_t)workers + 1, sizeof *f.free);
    pthread_mutex_init(&f.lock, NULL);
    Status st = f.free ? thread_pool_open(&pool, workers > 1 ? workers - 1 : 0)
                       : fail(E_FIT, "no memory for %d threads", workers);
    if (!st) st = thread_pool_run(&pool, (range->n + BLOCK - 1) / BLOCK, fill_block, &f);
    thread_pool_close(&pool);
    for (int i = 0; i < f.frees; i++) sample_scratch_close(&f.free[i]);
    pthread_mutex_destroy(&f.lock);
    free(f.free);
    return st;
}

static void totals_add(PassTotals *p, const PackBin *bins, int n)
{
    p->steps++, p->bins += n;
    for (int i = 0; i < n; i++) {
        p->docs       += bins[i].docs;
        p->tokens     += bins[i].used.tokens;
        p->patches    += bins[i].used.patches;
        p->supervised += bins[i].used.supervised;
    }
}

Status index_pack_pass(const Index *x, const SampleConf *c, int64_t epoch, int ranks, int micro,
                       PassTotals *out)
{
    StepPacker  p;
    int      n    = ranks * micro;
    PackBin *bins = calloc((size_t)n, sizeof *bins);
    Status   st   = bins ? OK : fail(E_FIT, "no memory for a step of %d micro-batches", n);
    *out = (PassTotals){ 0 };
    step_packer_open(&p, &c->budget, c->data->pass, ranks, micro);
    while (!st && p.epoch == 0) {
        activity_mark();
        if (step_packer_has_step(&p)) {
            st = step_packer_take(&p, bins);
            if (!st) totals_add(out, bins, n);
            for (int i = 0; i < n; i++) pack_bin_close(&bins[i]);
            continue;
        }
        DocSize size;
        bool    good = index_get(x, dataset_id(c->data, epoch, p.position), &size) == SIZE_GOOD;
        st = step_packer_put(&p, good ? &size : NULL);
    }
    step_packer_close(&p);
    free(bins);
    return st;
}

/* The share of an empty bin that a document takes. */
static double bin_share(const Budget *b, const DocSize *d)
{
    double tokens  = (double)d->tokens / (double)b->tokens;
    double patches = b->patches ? (double)d->patches / (double)b->patches : 0;
    return tokens > patches ? tokens : patches;
}

/* Sums over documents: of all, their shares of a bin and the squares; and those in closed bins. */
typedef struct HeadSums { double share, square, closed; int64_t bins; } HeadSums;

static Status head_add(HeadSums *sums, Packer *p, const PackDoc *d)
{
    PackBin bin;
    bool    full  = false;
    double  share = bin_share(&p->budget, &d->size);
    sums->share += share, sums->square += share * share;
    TRY(packer_add(p, d, &bin, &full));
    if (!full) return OK;
    for (int64_t i = 0; i < bin.docs; i++) sums->closed += bin_share(&p->budget, &bin.doc[i].size);
    sums->bins++;
    return pack_bin_close(&bin), OK;
}

/* Where no bin has closed the documents count by their shares. */
static void head_result(const HeadSums *s, int64_t n, PackedHead *out)
{
    double mean = s->share / (double)n, variance = s->square / (double)n - mean * mean;
    out->bins   = s->bins ? (double)s->bins * s->share / s->closed : s->share;
    out->error  = mean > 0 && variance > 0 ? sqrt(variance / (double)n) / mean : 0;
}

Status index_pack_head(const Index *x, const SampleConf *c, int64_t n, PackedHead *out)
{
    Packer   p;
    HeadSums sums = { 0 };
    Status   st   = OK;
    packer_open(&p, &c->budget);
    for (int64_t at = 0; !st && at < n; at++) {
        PackDoc doc = { .at = at };
        if (index_get(x, dataset_id(c->data, 0, at), &doc.size) == SIZE_GOOD) st = head_add(&sums, &p, &doc);
    }
    packer_close(&p);
    head_result(&sums, n, out);
    return st;
}
