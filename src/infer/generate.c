/* infer/generate.c -- see generate.h. */
#include "infer/generate.h"

#include "base/rng.h"

#include <math.h>
#include <stdlib.h>

Status generator_open(Generator *g, Engine *e)
{
    int64_t docs = e->conf.decode.docs;
    *g = (Generator){ 0 };
    TRY(decode_open(&g->decode, e));
    g->doc    = calloc((size_t)docs, sizeof *g->doc);
    g->id     = calloc((size_t)docs, sizeof *g->id);
    g->candidate = calloc((size_t)e->model.head.V, sizeof *g->candidate);
    if (g->doc && g->id && g->candidate) return OK;
    generator_close(g);
    return fail(E_FIT, "no host memory to generate for %lld documents", (long long)docs);
}

void generator_close(Generator *g)
{
    decode_close(&g->decode);
    free(g->doc), free(g->id), free(g->candidate);
    *g = (Generator){ 0 };
}

static int32_t argmax(const float *z, int64_t V)
{
    int32_t best = 0;
    for (int64_t i = 1; i < V; i++)
        if (z[i] > z[best]) best = (int32_t)i;
    return best;
}

static int by_probability(const void *a, const void *b)
{
    const TokenCandidate *x = a, *y = b;
    return x->p != y->p ? (x->p < y->p ? 1 : -1) : (x->id > y->id) - (x->id < y->id);
}

/* Nucleus sampling: fills c with the fewest most probable tokens whose probabilities sum to top_p, in that
 * order, and returns their number and unnormalized mass. A token below (1 - top_p) / V cannot be among them:
 * all such tokens together have less than 1 - top_p, so they are left out before sorting. */
static int64_t nucleus(TokenCandidate *c, const float *z, int64_t V, float top, const GenerateConf *conf,
                       double *mass)
{
    double  total = 0, sum = 0;
    int64_t n = 0, kept = 0;
    for (int64_t i = 0; i < V; i++) {
        c[i] = (TokenCandidate){ expf((z[i] - top) / (float)conf->temperature), (int32_t)i };
        total += c[i].p;
    }
    *mass = total;
    if (conf->top_p >= 1) return V;
    for (int64_t i = 0; i < V; i++)
        if (c[i].p >= (1 - conf->top_p) * total / (double)V) c[n++] = c[i];
    qsort(c, (size_t)n, sizeof *c, by_probability);
    while (kept < n && (kept == 0 || sum < conf->top_p * total)) sum += c[kept++].p;
    *mass = sum;
    return kept;
}

static Status not_finite(void)
{
    return fail(E_CHECK, "the logits are not finite; check the weights of the model");
}

Status generate_pick_token(const GenerateConf *conf, TokenCandidate *candidate, const float *z, int64_t V,
                           int64_t doc, int64_t at, int32_t *id)
{
    float top = z[*id = argmax(z, V)];
    double mass;
    if (!isfinite(top)) return not_finite();
    if (conf->temperature <= 0) return OK;
    int64_t n = nucleus(candidate, z, V, top, conf, &mass);
    double left = mass * rng_uniform(conf->seed, (uint64_t)doc, (uint64_t)at);
    for (int64_t i = 0; i < n; i++) {
        *id = candidate[i].id;
        if ((left -= candidate[i].p) < 0) break;
    }
    return OK;
}

static bool stops_at(const GenerateConf *conf, int32_t id)
{
    for (int i = 0; i < conf->stops; i++)
        if (conf->stop[i] == id) return true;
    return false;
}

/* Samples g->id of each of the n documents, on the rank that draws; -1: their logits are not finite. Rows of
 * logits are indexed by document after the prompts (at = 0), later by position in g->doc. */
static void draw_tokens(Generator *g, const GenerateConf *conf, int64_t at, int64_t n)
{
    int64_t V = g->decode.e->model.head.V;
    if (conf->vocab > 0 && conf->vocab < V) V = conf->vocab;
    for (int64_t i = 0; i < n; i++) {
        int32_t      doc = g->doc[i];
        const float *z = decode_logits(&g->decode, at ? i : doc);
        if (generate_pick_token(conf, g->candidate, z, V, conf->first + doc, at, &g->id[i])) g->id[i] = -1;
    }
}

/* Appends the tokens and moves unfinished documents to the front of g->doc. */
static Status append_tokens(Generator *g, const GenerateConf *conf, Ids *out, int64_t *n)
{
    int64_t on = 0;
    for (int64_t i = 0; i < *n; i++) {
        int32_t doc = g->doc[i], id = g->id[i];
        g->tokens += id >= 0, g->not_finite |= id < 0;
        if (id < 0 || stops_at(conf, id)) continue;
        TRY(ids_push(&out[doc], id));
        if (conf->on_token) conf->on_token(conf->self, doc, id);
        g->doc[on] = doc, g->id[on++] = id;
    }
    return *n = on, OK;
}

static Status sample_tokens(Generator *g, const GenerateConf *conf, Ids *out, int64_t at, int64_t *n)
{
    if (decode_draws(&g->decode)) draw_tokens(g, conf, at, *n);
    TRY(decode_share(&g->decode, g->id, (size_t)*n * sizeof *g->id));
    return append_tokens(g, conf, out, n);
}

/* Logits that are not finite end their documents and are an error at the end: other replicas may need this
 * rank until then. */
Status generate_answers(Generator *g, const GenerateConf *conf, int64_t n, const int32_t *doc, Ids *out)
{
    REQUIRE(conf->max_new <= g->decode.e->conf.decode.tokens + 1, "generate: %lld tokens, capacity for %lld",
            (long long)conf->max_new, (long long)g->decode.e->conf.decode.tokens);
    g->not_finite = false;
    for (int64_t i = 0; i < n; i++) g->doc[i] = doc ? doc[i] : (int32_t)i;
    for (int64_t at = 0; at < conf->max_new; at++) {
        if (at) TRY(decode_step(&g->decode, n, g->doc, g->id));
        if (g->decode.finished || (conf->stop_now && *conf->stop_now)) break;
        TRY(sample_tokens(g, conf, out, at, &n));
    }
    return g->not_finite ? not_finite() : OK;
}

Status generate(Generator *g, const Stream *prompts, const GenerateConf *conf, Ids *out)
{
    TRY(decode_prompts(&g->decode, prompts, NULL));
    return generate_answers(g, conf, prompts->docs, NULL, out);
}
