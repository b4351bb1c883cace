/* Generation: KV cache against full forward passes, batches against single documents, sampling, memory. */
#include "decodelab.h"

#include "infer/detokenize.h"

#include <stdatomic.h>

/* Counts every allocation of the program. */
static atomic_long allocations;
#ifndef TREB_SANITIZE
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t m);
void *__libc_realloc(void *p, size_t n);
void *malloc(size_t n)           { allocations++; return __libc_malloc(n); }
void *calloc(size_t n, size_t m) { allocations++; return __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { allocations++; return __libc_realloc(p, n); }
#endif

static void cache_equals_forward(void)
{
    ModelShape shape = small_shape(small_vl_moe);
    for (unsigned pictures = 0; pictures < 8; pictures += pictures == 0 ? 5 : 2)
        for (int d = 0; d < 2; d++) {
            EngineConf conf = decode_conf(d ? BF16 : F32);
            expect_cache_equals_forward(&shape, &conf, pictures, d ? 0.06 : 1e-5, NULL);
        }
}

static GenerateConf greedy(int64_t n) { return (GenerateConf){ .max_new = n, .vocab = 90 }; }

static void generate_all(Engine *e, const Stream *s, const GenerateConf *conf, Ids *out)
{
    Generator g;
    EXPECT_OK(generator_open(&g, e));
    EXPECT_OK(generate(&g, s, conf, out));
    generator_close(&g);
}

static bool same_ids(const Ids *a, const Ids *b)
{
    return a->n == b->n && !memcmp(a->v, b->v, (size_t)a->n * sizeof *a->v);
}

/* The tokens of a document, sampled ones included, do not depend on the other documents of the batch. */
static void batch_equals_single(void)
{
    ModelShape shape = small_shape(small_vl_moe);
    EngineConf conf = decode_conf(F32);
    for (int sampled = 0; sampled < 2; sampled++) {
        GenerateConf how = greedy(GROW + 1);
        Ids all[DOCS] = { 0 };
        Stream s;
        Engine e;
        if (sampled) how.temperature = 1.5, how.top_p = 0.9, how.seed = 7;
        small_stream(&s, &shape, decode_budget, 0, DOCS, 5);
        small_engine(&e, &shape, &conf, &s);
        generate_all(&e, &s, &how, all);
        if (all[1].n) how.stop[how.stops++] = all[1].v[2];           /* the second document ends early */
        for (int d = 0; d < DOCS; d++) {
            Ids one[1] = { 0 }, ended[DOCS] = { 0 };
            Stream alone;
            int64_t n = 0;
            while (n < all[d].n && all[d].v[n] != how.stop[0]) n++;
            EXPECT(all[d].n == GROW + 1, "document %d got %d tokens", d, (int)all[d].n);
            generate_all(&e, &s, &how, ended);
            all[d].n = n;
            EXPECT(same_ids(&ended[d], &all[d]), "document %d changed when another ended", d);
            small_stream(&alone, &shape, decode_budget, d, 1, 5);
            how.first = d;
            generate_all(&e, &alone, &how, one);
            how.first = 0;
            EXPECT(same_ids(&one[0], &all[d]), "document %d differs when generated alone", d);
            stream_close(&alone);
            ids_close(&one[0]);
            for (int i = 0; i < DOCS; i++) ids_close(&ended[i]);
        }
        for (int d = 0; d < DOCS; d++) ids_close(&all[d]);
        engine_close(&e);
        stream_close(&s);
    }
}

static void decoding_allocates_nothing(void)
{
#ifdef TREB_SANITIZE
    SKIP("a sanitizer owns malloc");
#endif
    ModelShape shape = small_shape(small_vl_moe);
    EngineConf conf = decode_conf(F32);
    int32_t doc[DOCS] = { 0, 1, 2 }, id[DOCS] = { 3, 4, 5 };
    Stream s;
    Engine e;
    Decode d;
    small_stream(&s, &shape, decode_budget, 0, DOCS, 7);
    small_engine(&e, &shape, &conf, &s);
    EXPECT_OK(decode_open(&d, &e));
    EXPECT_OK(decode_prompts(&d, &s, NULL));
    EXPECT_OK(decode_step(&d, DOCS, doc, id));
    long before = allocations;
    for (int i = 2; i < GROW; i++) EXPECT_OK(decode_step(&d, DOCS, doc, id));
    EXPECT_OK(decode_prompts(&d, &s, NULL));
    EXPECT(allocations == before, "%ld allocations", allocations - before);
    EXPECT(before > 0, "the counter counts nothing");
    decode_close(&d);
    engine_close(&e);
    stream_close(&s);
}

static size_t bytes_of(const Engine *e)
{
    size_t n = 0;
    for (int i = 0; i < ARENA_N; i++) n += e->plan.bytes[i];
    return n;
}

/* Evaluation in a training engine needs no memory beyond that of a step, whatever it recomputes, except for
 * the KV cache if a step keeps almost nothing; a step after an evaluation equals the step without it; and the
 * loss equals that of training. */
static void fits_in_a_training_plan(void)
{
    ModelShape shape = small_shape(small_vl_moe);
    const char *drop[] = { NULL, "moe", "full" };
    for (int i = 0; i < 3; i++) {
        EngineConf conf = small_conf(decode_budget), with = conf;
        Stream s;
        Engine e, other;
        Ids    out[DOCS] = { 0 };
        if (drop[i]) EXPECT_OK(policy_drop(conf.policy, drop[i]));
        memcpy(with.policy, conf.policy, sizeof conf.policy);
        with.evaluate = true, with.decode = (DecodeCapacity){ 4, GROW };
        small_stream(&s, &shape, decode_budget, 0, DOCS, 7);
        small_engine(&other, &shape, &conf, &s);
        small_engine(&e, &shape, &with, &s);
        size_t more = drop[i] && !strcmp(drop[i], "full") ? bytes_of(&other) / 50 : 0;
        EXPECT(bytes_of(&e) <= bytes_of(&other) + more,
               "recompute %s: %zu bytes with evaluation, %zu without",
               drop[i] ? drop[i] : "nothing", bytes_of(&e), bytes_of(&other));
        Losses want = small_step(&other, 0.5f), got;
        GenerateConf how = greedy(GROW);
        Decode d;
        double ce = 0;
        float  loss[100];
        generate_all(&e, &s, &how, out);
        EXPECT_OK(decode_open(&d, &e));
        EXPECT_OK(decode_prompts(&d, &s, (int32_t[]){ 5, 20, 21 }));
        EXPECT_OK(decode_row_losses(&d, loss));
        for (int64_t k = 0; k < s.supervised; k++) ce += (double)loss[k];
        EXPECT(fabs(ce - 2 * want.ce) < 1e-5 * ce, "loss %.9g, in training %.9g", ce, 2 * want.ce);
        engine_upload(&e, &s);
        engine_evaluate(&e, 1.0f);
        EXPECT_OK(engine_read_losses(&e, &got));
        EXPECT(fabs(ce - got.ce) < 1e-5 * ce, "loss %.9g, of the evaluation %.9g", ce, got.ce);
        for (int a = 0; a < ARENA_N; a++)
            EXPECT(e.arena[a].peak <= e.plan.bytes[a], "%s: %zu of %zu", e.arena[a].name, e.arena[a].peak,
                   e.plan.bytes[a]);
        engine_upload(&e, &s);
        got = small_step(&e, 0.5f);
        EXPECT(got.total == want.total, "step after: %.9g, not %.9g", got.total, want.total);
        EXPECT(!memcmp(e.arena[A_GRAD].base, other.arena[A_GRAD].base, e.arena[A_GRAD].used),
               "gradients differ");
        decode_close(&d);
        for (int k = 0; k < DOCS; k++) ids_close(&out[k]);
        engine_close(&e), engine_close(&other);
        stream_close(&s);
    }
}

/* A prompt that is the beginning of a longer document is continued as if the rest did not exist. */
static void prompts_inside_documents(void)
{
    ModelShape shape = small_shape(small_vl_moe);
    StreamShape ss = shape_stream(&shape);
    EngineConf conf = decode_conf(F32);
    static SmallDoc m[DOCS];
    static float want[2][DOCS * 97];                         /* after the prompts, after a step */
    int32_t tokens[DOCS] = { 8, 12, 20 }, doc[DOCS] = { 0, 1, 2 }, id[DOCS] = { 11, 22, 33 };
    Stream whole, cut;
    Engine e;
    Decode d;
    EXPECT_OK(stream_open(&cut, &ss, &decode_budget));
    for (int i = 0; i < DOCS; i++) {
        Document x = small_doc(&m[i], i, true, 42);
        x.n = tokens[i];
        EXPECT_OK(stream_add(&cut, &x));
    }
    small_stream(&whole, &shape, decode_budget, 0, DOCS, 7);
    small_engine(&e, &shape, &conf, &whole);
    EXPECT_OK(decode_open(&d, &e));
    EXPECT_OK(decode_prompts(&d, &cut, NULL));
    memcpy(want[0], d.logits, sizeof want[0]);
    EXPECT_OK(decode_step(&d, DOCS, doc, id));
    memcpy(want[1], d.logits, sizeof want[1]);
    EXPECT_OK(decode_prompts(&d, &whole, tokens));
    EXPECT(max_difference(d.logits, want[0], DOCS * 97) < 1e-5, "prompts: off by %g",
           max_difference(d.logits, want[0], DOCS * 97));
    EXPECT_OK(decode_step(&d, DOCS, doc, id));
    EXPECT(max_difference(d.logits, want[1], DOCS * 97) < 1e-5, "step: off by %g",
           max_difference(d.logits, want[1], DOCS * 97));
    decode_close(&d);
    engine_close(&e);
    stream_close(&whole), stream_close(&cut);
}

/* Logits of five tokens: 50 %, 25 %, 15 %, 8 %, 2 %. */
static void samples_by_probability(void)
{
    static const double p[5] = { 0.15, 0.5, 0.02, 0.25, 0.08 };
    enum { N = 20000 };
    float z[5];
    TokenCandidate choice[5];
    for (int i = 0; i < 5; i++) z[i] = (float)log(p[i]) + 3.0f;
    static const struct { double temperature, top_p, want[5]; } cases[] = {
        { 0,   1,    { 0, 1, 0, 0, 0 } },
        { 1,   1,    { 0.15, 0.5, 0.02, 0.25, 0.08 } },
        { 1,   0.7,  { 0, 2.0 / 3, 0, 1.0 / 3, 0 } },
        { 1,   0.76, { 0.15 / 0.9, 0.5 / 0.9, 0, 0.25 / 0.9, 0 } },
        { 1,   1e-6, { 0, 1, 0, 0, 0 } },
        { 0.5, 1,    { 0.0225 / 0.3418, 0.25 / 0.3418, 0.0004 / 0.3418, 0.0625 / 0.3418, 0.0064 / 0.3418 } },
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        GenerateConf how = { .temperature = cases[c].temperature, .top_p = cases[c].top_p, .seed = 3 };
        int count[5] = { 0 };
        for (int i = 0; i < N; i++) {
            int32_t id, again;
            EXPECT_OK(generate_pick_token(&how, choice, z, 5, i % 7, i / 7, &id));
            EXPECT_OK(generate_pick_token(&how, choice, z, 5, i % 7, i / 7, &again));
            EXPECT(id == again && id >= 0 && id < 5, "case %d: id %d, then %d", (int)c, id, again);
            count[id]++;
        }
        for (int i = 0; i < 5; i++)
            EXPECT(fabs((double)count[i] / N - cases[c].want[i]) < (cases[c].want[i] > 0 ? 0.015 : 1e-9),
                   "case %d: token %d %.3f of the time, not %.3f", (int)c, i, (double)count[i] / N,
                   cases[c].want[i]);
    }
    int32_t id;
    GenerateConf how = { .temperature = 1, .top_p = 1 };
    float bad[2] = { NAN, NAN }, tie[3] = { 1, 2, 2 };
    EXPECT_FAIL(generate_pick_token(&how, choice, bad, 2, 0, 0, &id), E_CHECK, "finite");
    how.temperature = 0;
    EXPECT_OK(generate_pick_token(&how, choice, tie, 3, 0, 0, &id));
    EXPECT(id == 1, "of equals the first is taken, not %d", id);
}

static void detokenizes_to_utf8(void)
{
    static const struct { const char *in, *out; size_t rest; } cases[] = {
        { "plain", "plain", 0 },
        { "gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f", 0 },
        { "a\xc3", "a", 1 },
        { "\xe2\x82", "", 2 },
        { "\xf0\x9f\x98", "", 3 },
        { "\xf0\x9f\x98\x80!", "\xf0\x9f\x98\x80!", 0 },
        { "\xff""b", "\xef\xbf\xbd""b", 0 },
        { "\xc3(", "\xef\xbf\xbd(", 0 },
        { "\xe0\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 0 },             /* overlong */
        { "\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 0 },             /* half a surrogate pair */
        { "\xf5\x80", "\xef\xbf\xbd\xef\xbf\xbd", 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Text t = { 0 };
        size_t rest, n = strlen(cases[i].in);
        EXPECT_OK(utf8_push(&t, cases[i].in, n, &rest));
        EXPECT(t.n == strlen(cases[i].out) && !memcmp(t.v ? t.v : "", cases[i].out, t.n) &&
                   rest == cases[i].rest,
               "case %d: %.*s, %d held back", (int)i, (int)t.n, t.v ? t.v : "", (int)rest);
        t.n = 0;
        EXPECT_OK(utf8_push(&t, cases[i].in, n, NULL));
        EXPECT(t.n >= strlen(cases[i].out) + 3 * cases[i].rest, "case %d: nothing is held back at the end",
               (int)i);
        text_close(&t);
    }
}

int main(void)
{
    RUN(cache_equals_forward);
    RUN(prompts_inside_documents);
    RUN(batch_equals_single);
    RUN(decoding_allocates_nothing);
    RUN(fits_in_a_training_plan);
    RUN(samples_by_probability);
    RUN(detokenizes_to_utf8);
    return lab_report();
}
