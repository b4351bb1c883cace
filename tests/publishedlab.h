/* tests/publishedlab.h -- rows of tests/published/ as tasks of the analytic model; README.md there has the
 * keys. */
#ifndef TESTS_PUBLISHEDLAB_H
#define TESTS_PUBLISHEDLAB_H

#include "base/json.h"
#include "lab.h"
#include "plan/search.h"

/* `task.model` points to `model`: do not copy. */
typedef struct PublishedRun { ModelRow model; Task task; Candidate c; } PublishedRun;

typedef struct PublishedRow {
    Json        *json;
    const char  *id, *what, *note;       /* note "": none */
    PublishedRun run, after;             /* `after`, and `run` as "before", in change.jsonl */
} PublishedRow;

static inline double published_number(const Json *o, const char *key, double absent)
{
    const Json *v = json_object_get(o, key);
    return v ? json_number_value(v) : absent;
}

static inline int published_int(const Json *o, const char *key, int absent)
{
    return (int)published_number(o, key, absent);
}

static inline bool published_flag(const Json *o, const char *key)
{
    return json_is_true(json_object_get(o, key));
}

/* The words of recompute (with those of a second list) and dispatcher are read by --fix. */
static inline void published_words(Candidate *c, const Json *o, const Json *more)
{
    SearchAsk   ask;
    char        text[256] = "recompute=none";
    const char *dispatcher = json_string_value(json_object_get(o, "dispatcher"));
    const Json *list[] = { json_object_get(o, "recompute"), more };
    size_t      at = strlen(text);
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < json_array_size(list[k]); i++)
            at += (size_t)snprintf(text + at, sizeof text - at, "+%s",
                                   json_string_value(json_array_get(list[k], i)));
    snprintf(text + at, sizeof text - at, ",dispatch=%s", dispatcher ? dispatcher : "alltoall");
    search_default(&ask);
    REQUIRE(!search_fix(&ask.fix, text), "%s", status_text());
    c->recompute = (unsigned)ask.fix.recompute, c->dispatch = (DispatcherId)ask.fix.dispatch;
}

static inline Precision published_precision(const Json *o)
{
    const char *word = json_string_value(json_object_get(o, "precision"));
    return !strcmp(word, "bf16") ? PREC_BF16 : !strcmp(word, "fp8") ? PREC_FP8 : PREC_MXFP8;
}

static inline Graphs published_graphs(const Json *o)
{
    const char *word = json_string_value(json_object_get(o, "execution"));
    if (!word || !strcmp(word, "eager")) return GRAPHS_NONE;
    REQUIRE(!strcmp(word, "partial graphs") || !strcmp(word, "full graphs"), "execution %s", word);
    return *word == 'p' ? GRAPHS_PARTIAL : GRAPHS_FULL;
}

static inline const EngineRow *published_engine(const Json *o)
{
    const char      *word = json_string_value(json_object_get(o, "engine"));
    const EngineRow *e    = engine_row(word ? word : "megatron");
    REQUIRE(e, "no engine %s", word);
    return e;
}

static inline void published_task(PublishedRun *r, const Json *o)
{
    const char *name = json_string_value(json_object_get(o, "model"));
    const ModelRow *m = model_row(name);
    REQUIRE(m, "no model %s", name);
    r->model = *m;
    r->model.text.mtp = published_int(o, "mtp", (int)m->text.mtp);
    r->task           = (Task){ .model         = &r->model,
                                .gpus          = published_int(o, "gpus", 0),
                                .seq           = published_int(o, "seq", 4096),
                                .gbs           = published_int(o, "gbs", 0),
                                .patches       = published_int(o, "patches", 0),
                                .frozen_vision = published_flag(o, "frozen_vision"),
                                .precision     = published_precision(o),
                                .grad_bytes    = published_int(o, "grad_bytes", 2),
                                .moment_bytes  = published_int(o, "moment_bytes", 4),
                                .master_bytes  = 4,
                                .imbalance     = published_number(o, "imbalance", 1),
                                .graphs        = published_graphs(o),
                                .keep_fc2      = published_flag(o, "keep_fc2"),
                                .keep_master   = published_flag(o, "keep_master"),
                                .fp8_stash     = published_flag(o, "fp8_activations") };
    task_set_engine(&r->task, published_engine(o));
    r->task.unfused_logits = !published_flag(o, "fused_logits");
    REQUIRE(!hardware_find(&r->task.hw, json_string_value(json_object_get(o, "hardware"))), "%s",
            status_text());
}

static inline void published_run(PublishedRun *r, const Json *o)
{
    published_task(r, o);
    r->c = (Candidate){ .tp = published_int(o, "tp", 1), .cp = published_int(o, "cp", 1),
                        .cp_inner = published_int(o, "cp_inner", 0), .pp = published_int(o, "pp", 1),
                        .vpp = published_int(o, "vpp", 1), .ep = published_int(o, "ep", 1),
                        .etp = published_int(o, "etp", 1), .mbs = published_int(o, "mbs", 1),
                        .zero = published_int(o, "zero", 1), .offload = published_number(o, "offload", 0),
                        .overlap = published_flag(o, "overlap") };
    published_words(&r->c, o, NULL);
}

static inline void published_row(PublishedRow *row, const char *line, const char *path)
{
    const Json *before, *after;
    REQUIRE(!json_parse(&row->json, line, strlen(line), path), "%s", status_text());
    const Json *note = json_object_get(row->json, "note");
    row->id = json_string_value(json_object_get(row->json, "id"));
    row->what = json_string_value(json_object_get(row->json, "what"));
    row->note = note ? json_string_value(note) : "";
    before = json_object_get(row->json, "before"), after = json_object_get(row->json, "after");
    published_run(&row->run, before ? before : json_object_get(row->json, "run"));
    if (after) published_run(&row->after, after);
}

enum { PUBLISHED_ROWS = 256 };

typedef struct Published { PublishedRow row[PUBLISHED_ROWS]; int n; } Published;

/* Rows of tests/published/KIND.jsonl. The memory is the process's. */
static inline const Published *published_open(const char *kind)
{
    char path[64], line[4096];
    Published *p = calloc(1, sizeof *p);
    snprintf(path, sizeof path, "tests/published/%s.jsonl", kind);
    FILE *f = fopen(path, "r");
    REQUIRE(f && p, "%s: not found; run from the root of the tree", path);
    while (p->n < PUBLISHED_ROWS && fgets(line, sizeof line, f)) published_row(&p->row[p->n++], line, path);
    REQUIRE(feof(f), "%s: more than %d rows", path, PUBLISHED_ROWS);
    fclose(f);
    return p;
}

static inline double published_gb(const PublishedRow *row, int end)
{
    return json_number_value(json_array_get(json_object_get(row->json, "gb"), (size_t)end));
}

/* Ranks that the layout takes at least. */
static inline int published_least(const Candidate *c)
{
    int attention = c->tp * c->cp, experts = c->ep * c->etp;
    return c->pp * (attention > experts ? attention : experts);
}

static inline double predicted_gb(const PublishedRow *row, int *stage)
{
    const PublishedRun *r = &row->run;
    bool   state = !strcmp(json_string_value(json_object_get(row->json, "scope")), "state");
    double gb = 0;
    *stage = 0;
    for (int i = 0; i < r->c.pp; i++) {
        StageMemory s;
        analytic_memory(&s, &r->task, &r->c, i);
        double bytes = state ? s.weights + s.grads + s.optimizer : s.total - s.fixed;
        if (bytes / 1e9 > gb) gb = bytes / 1e9, *stage = i;
    }
    return gb;
}

/* Without what modules keep that are in CUDA graphs: it lies in pools that are not counted as allocated. */
static inline double predicted_least_gb(const PublishedRow *row)
{
    PublishedRow beside = *row;
    int          stage;
    published_words(&beside.run.c, json_object_get(row->json, "run"), json_object_get(row->json, "captured"));
    return predicted_gb(&beside, &stage);
}

static inline StepTime predicted_time(const PublishedRun *r)
{
    StepTime s;
    analytic_time(&s, &r->task, &r->c);
    return s;
}

static inline double predicted_tokens(const PublishedRun *r)
{
    return predicted_time(r).tokens_s / r->task.gpus;
}

static inline double predicted_ratio(const PublishedRow *row)
{
    return predicted_tokens(&row->run) / predicted_tokens(&row->after);
}

/* Tokens/s per GPU, where need be from TFLOP/s by our count of FLOPs. */
static inline double measured_tokens(const PublishedRow *row)
{
    double tflops = published_number(row->json, "tflops", 0);
    return published_number(row->json, "tokens_s",
                            tflops * 1e12 / analytic_flops_token(&row->run.model, row->run.task.seq));
}

/* Predicted over measured. */
static inline double speed_ratio(const PublishedRow *row)
{
    return predicted_tokens(&row->run) / measured_tokens(row);
}

/* TFLOP/s by our count of FLOPs and the published tokens/s. */
static inline double counted_tflops(const PublishedRow *row)
{
    return measured_tokens(row) * analytic_flops_token(&row->run.model, row->run.task.seq) / 1e12;
}

#endif
