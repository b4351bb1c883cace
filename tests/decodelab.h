/* tests/decodelab.h -- decoding with a cache against full forward passes. */
#ifndef TESTS_DECODELAB_H
#define TESTS_DECODELAB_H

#include "small.h"

#include "infer/generate.h"

enum { DOCS = 3, GROW = 6, LONGEST = SMALL_DOC + GROW };
static const Budget decode_budget = { .tokens = 140, .patches = 64, .docs = 4, .supervised = 100 };

static inline EngineConf decode_conf(DType d)
{
    EngineConf c = small_conf(decode_budget);
    c.train = false, c.dtype = d, c.logits = true;
    c.decode.docs = 4, c.decode.tokens = GROW;
    return c;
}

/* A stream of documents with `more` generated tokens appended to each prompt. */
static inline void extended_stream(Stream *s, const ModelShape *shape, unsigned pictures, const Ids *extra,
                         int64_t more)
{
    StreamShape ss = shape_stream(shape);
    static SmallDoc doc[DOCS];
    static int32_t ids[DOCS][LONGEST], targets[DOCS][LONGEST];
    EXPECT_OK(stream_open(s, &ss, &decode_budget));
    for (int d = 0; d < DOCS; d++) {
        Document x = small_doc(&doc[d], d, pictures >> d & 1, 42);
        memcpy(ids[d], x.ids, (size_t)x.n * 4);
        for (int64_t i = 0; i < more; i++) ids[d][x.n + i] = extra[d].v[i];
        for (int i = 0; i < LONGEST; i++) targets[d][i] = -1;
        x.ids = ids[d], x.targets = targets[d], x.n += more;
        EXPECT_OK(stream_add(s, &x));
    }
}

static inline double max_difference(const float *a, const float *b, int64_t n)
{
    double m = 0;
    for (int64_t i = 0; i < n; i++) m = fmax(m, fabs(a[i] - b[i]));
    return m;
}

/* Logits after the last token of every document, by a full forward pass. */
static inline void whole_logits(Engine *e, const Stream *s, float *out)
{
    engine_upload(e, s);
    engine_forward(e, 1.0f);
    for (int64_t d = 0; d < s->docs; d++)
        engine_compute_logits(e, t_wrap(out + d * 97, F32, 2, (int64_t[]){ 1, 97 }), s->start[d + 1] - 1);
    EXPECT_OK(backend_sync(&e->be));
}

/* Likeliest tokens of three documents, appended to `extra`. */
static inline void pick_tokens(const float *logits, int64_t step, int32_t *id, Ids *extra)
{
    for (int i = 0; i < DOCS; i++) {
        GenerateConf likeliest = { 0 };
        EXPECT_OK(generate_pick_token(&likeliest, NULL, logits + i * 97, 90, i, step, &id[i]));
        EXPECT_OK(ids_push(&extra[i], id[i]));
    }
}

/* Greedy decoding of three documents of different lengths: after every token the logits equal those of a full
 * forward pass over the document so far. prepare: what to do with both engines first, or NULL. */
static inline void expect_cache_equals_forward(const ModelShape *shape, const EngineConf *conf,
                                               unsigned pictures, double most, void (*prepare)(Engine *e))
{
    Stream s, t;
    Engine e, ref;
    Decode dec;
    Ids    extra[DOCS] = { 0 };
    static float want[4 * 97];
    small_stream(&s, shape, decode_budget, 0, DOCS, pictures);
    small_engine(&e, shape, conf, &s);
    small_engine(&ref, shape, conf, &s);
    if (prepare) prepare(&e), prepare(&ref);
    EXPECT_OK(decode_open(&dec, &e));
    EXPECT_OK(decode_prompts(&dec, &s, NULL));
    for (int64_t step = 0;; step++) {
        int32_t doc[DOCS] = { 0, 1, 2 }, id[DOCS];
        extended_stream(&t, shape, pictures, extra, step);
        whole_logits(&ref, &t, want);
        stream_close(&t);
        double off = max_difference(dec.logits, want, DOCS * 97);
        EXPECT(off < most, "%s %s, pictures %u, step %d: off by %g", shape->family,
               dtype_name(conf->dtype), pictures, (int)step, off);
        if (step == GROW) break;
        pick_tokens(want, step, id, extra);
        EXPECT_OK(decode_step(&dec, DOCS, doc, id));
    }
    for (int i = 0; i < DOCS; i++) ids_close(&extra[i]);
    decode_close(&dec);
    engine_close(&e), engine_close(&ref);
    stream_close(&s);
}

#endif
