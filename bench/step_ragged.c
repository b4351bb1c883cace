/* bench/step_ragged.c -- documents of unequal lengths for a benchmark: as many tokens and documents as the
 * even ones, lengths spread as those of text on the web are (log-normal, a standard deviation of one). */
#include "bench/step.h"

#include "base/rng.h"

#include <math.h>
#include <stdlib.h>

enum { LEAST = 2, SEED = 17 };

static double weight(int64_t i)
{
    float x;
    rng_fill_normal(&x, 1, SEED, 0, (uint64_t)i, 0, 1);
    return exp((double)x);
}

/* Where document i ends when n documents share `tokens`, each with at least LEAST. */
static int64_t end_of(int64_t i, int64_t n, int64_t tokens)
{
    double upto = 0, all = 0;
    for (int64_t k = 0; k < n; k++) {
        double w = weight(k);
        all += w, upto += k <= i ? w : 0;
    }
    return LEAST * (i + 1) + (int64_t)(upto / all * (double)(tokens - LEAST * n) + 0.5);
}

static Status fill(StepBench *b, int32_t *ids, int32_t *targets)
{
    int64_t n = b->stream.docs, tokens = b->stream.tokens, from = 0, V = b->shape.text.V;
    stream_clear(&b->stream);
    b->longest = b->shortest = 0;
    for (int64_t d = 0; d < n; d++) {
        int64_t len = end_of(d, n, tokens) - from;
        for (int64_t i = 0; i < len; i++) {
            ids[i] = (int32_t)(rng_uniform(SEED, 1, (uint64_t)(from + i)) * (float)(V - 1));
            targets[i] = i + 1 < len ? (int32_t)((ids[i] * 31 + 7) % V) : -1;
        }
        if (len > b->longest) b->longest = len;
        if (!d || len < b->shortest) b->shortest = len;
        TRY(stream_add(&b->stream, &(Document){ len, ids, targets, 0, NULL }));
        from += len;
    }
    return OK;
}

Status step_fill_ragged(StepBench *b)
{
    int64_t  n = b->stream.tokens;
    int32_t *ids = malloc((size_t)n * 2 * sizeof *ids);
    Status   st = ids ? fill(b, ids, ids + n) : fail(E_FIT, "no host memory for %lld tokens", (long long)n);
    free(ids);
    return st;
}
