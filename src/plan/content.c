/* plan/content.c -- see content.h. */
#include "plan/content.h"

#include "base/num.h"
#include "plan/hardware.h"

#include <math.h>
#include <stdio.h>

BatchContent content_of(const Load *sum, double token_budget, ContentSource source)
{
    BatchContent c      = { .source = source };
    double       tokens = (double)sum->tokens;
    if (token_budget > 0) c.fill = tokens / token_budget;
    if (tokens > 0) {
        c.document   = 2 * sum->pairs / tokens - 1;
        c.supervised = (double)sum->supervised / tokens, c.patches = (double)sum->patches / tokens;
    }
    if (sum->patches) c.picture = sum->vpairs / (double)sum->patches;
    return c;
}

/* Attention pairs of `all` rows in segments of `each`, the last one shorter. */
static double pairs_of(int64_t all, int64_t each, bool causal)
{
    double n = (double)(all / each), len = (double)each, rest = (double)(all % each);
    return causal ? (n * len * (len + 1) + rest * (rest + 1)) / 2 : n * len * len + rest * rest;
}

BatchContent content_assumed(const Config *recipe, const ModelShape *s, const Stream *full)
{
    Load    load    = load_of(full);
    int64_t side    = s->vision.depth ? s->vision.patch : 1;
    int64_t picture = min_i64(max_i64(recipe->image.max_pixels / (side * side), 1), USUAL_PICTURE);
    load.pairs      = pairs_of(full->tokens, recipe->data.max_length, true);
    load.vpairs     = pairs_of(full->patches, picture, false);
    return content_of(&load, (double)full->tokens, CONTENT_ASSUMED);
}

static int64_t rounded_share(double share, int64_t all, int64_t most)
{
    return max_i64(0, min_i64(llround(share * (double)all), most));
}

Stream content_stream(const Stream *full, const BatchContent *c)
{
    Stream  s     = *full;
    int64_t block = s.shape.merge * s.shape.merge;
    s.longest = s.tokens = max_i64(rounded_share(c->fill, full->tokens, full->tokens), 1);
    s.supervised         = rounded_share(c->supervised, s.tokens, full->supervised);
    s.vlongest = s.patches = rounded_share(c->patches, s.tokens, full->patches) / block * block;
    s.visual = s.patches / block, s.slices = s.patches > 0;
    s.pairs  = round((double)s.tokens * (fmin(c->document, (double)s.tokens) + 1) / 2);
    s.vpairs = round((double)s.patches * fmin(c->picture, (double)s.patches));
    return s;
}

static const char *source_text(ContentSource s)
{
    static const char *const words[] = { "data assumed by data.max_length and image.max_pixels",
                                         "data as sampled", "data as profiled" };
    return words[s];
}

void content_text(char *out, size_t n, const BatchContent *c)
{
    int at = snprintf(out, n, "%s: micro-batches %.0f %% full; documents of %.0f tokens, %.0f %% of them "
                      "supervised", source_text(c->source), 100 * c->fill, c->document, 100 * c->supervised);
    if (c->picture > 0 && at < (int)n)
        snprintf(out + at, n - (size_t)at, "; pictures of %.0f patches, %.2f patches a token", c->picture,
                 c->patches);
}

Json *content_json(const BatchContent *c)
{
    static const char *const names[] = { "assumed", "sampled", "measured" };
    return json_pack("{s:s, s:f, s:f, s:f, s:f, s:f}", "source", names[c->source], "fill", c->fill,
                     "document", c->document, "supervised", c->supervised, "patches_per_token", c->patches,
                     "picture", c->picture);
}
