/* cli/cmd_plan.c -- treb plan recipe.yaml --ranks N: whether a layout is legal, who sits where, and what one
 * rank of every stage of the pipeline would hold and say. The trainer's own engine is run with no data behind
 * it and nobody at the other ends. */
#include "base/config.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "model/presets.h"
#include "parallel/rules.h"
#include "plan/published.h"
#include "train/recipe.h"

#include <string.h>

typedef struct PlanAsk {
    Config     *recipe;
    ModelShape  shape;
    DType       dtype;
    int         ranks, per_node;
} PlanAsk;

/* A preset by name, or the config.json of a folder; neither weights nor a tokenizer are wanted. */
static Status read_shape(PlanAsk *p)
{
    const struct cfg_model *c = &p->recipe->model;
    const char *from = *c->preset ? c->preset : c->path;
    Json *hf = NULL;
    if (preset_is(from)) {
        TRY(preset_config(&hf, from));
        Status st = shape_read(&p->shape, hf, from);
        json_decref(hf);
        TRY(st);
    } else TRY_CTX(shape_load(&p->shape, from), "model.%s", *c->preset ? "preset" : "path");
    p->dtype = p->shape.dtype;
    return strcmp(c->dtype, "auto") ? dtype_parse(&p->dtype, c->dtype) : OK;
}

static void print_memory(FILE *out, int stage, const EnginePlan *e)
{
    double gib = 1 << 30;
    fprintf(out, "  stage %-3d %8.2f GiB:", stage, (double)engine_device_bytes(e, "cuda") / gib);
    for (int i = 0; i < ARENA_N; i++)
        if (i != A_HOST || e->bytes[i])
            fprintf(out, "%s %s %.2f", i ? "," : "", engine_arena_word(i), (double)e->bytes[i] / gib);
    fprintf(out, "; %d in flight\n", e->slots);
}

static void print_messages(FILE *out, const Ledger *l)
{
    for (int g = 0; g < GR_N; g++) {
        const LedgerComm *c = &l->comm[g];
        if (c->near + c->far == 0) continue;
        fprintf(out, "            %-12s %6lld calls, %9.1f MB on the node, %9.1f MB beyond\n",
                group_name((GroupId)g), (long long)c->calls, (double)c->near / 1e6, (double)c->far / 1e6);
    }
}

/* One rank of a stage: the others of it are alike. */
static Status plan_stage(FILE *out, const PlanAsk *p, int stage)
{
    int         stages = (int)p->recipe->parallel.pp;
    CommConf    who = { .kind = "fake", .rank = p->ranks / stages * stage, .size = p->ranks,
                        .per_node = p->per_node };
    StreamShape ss = shape_stream(&p->shape);
    EngineConf  conf;
    EnginePlan  plan;
    Ranks       r;
    Mesh        place;
    Comm       *world = NULL;
    ss.bytes = true;
    TRY(comm_open(&world, &who));
    Status st = recipe_ranks(&r, &place, p->recipe, &p->shape, world, NULL);
    if (!st) st = recipe_engine(&conf, p->recipe, &p->shape, p->dtype, &r);
    if (!st) {
        Stream full = stream_full(&ss, &conf.budget);
        st = engine_plan(&plan, &p->shape, &conf, &full);
    }
    if (!st) {
        print_memory(out, stage, &plan);
        print_messages(out, &plan.ledger);
    }
    comm_close(world);
    return st ? wrap(st, "stage %d", stage) : OK;
}

static Status plan(PlanAsk *p)
{
    Log log = { .world = 1, .least = LOG_WARN };
    TRY(read_shape(p));
    RuleInput x = rules_input(p->recipe, &p->shape, p->ranks, p->per_node);
    TRY(rules_check(&x, &log));
    TRY(rules_print(stdout, &x, NULL));
    printf("\nmemory of a rank, and what it says in one micro-batch there and back\n");
    for (int stage = 0; stage < x.pp; stage++) TRY(plan_stage(stdout, p, stage));
    return OK;
}

static bool is_override(const char *arg) { return strchr(arg, '=') && strncmp(arg, "--", 2); }

Status cmd_plan(int argc, char **argv)
{
    const char *ranks = "1", *node = "8", *plain[64];
    Option      options[] = { { "--ranks", &ranks, NULL }, { "--per-node", &node, NULL }, { 0 } };
    Config      cfg;
    int64_t     n, per;
    int         k = 0;
    if (argc == 2 && !strcmp(argv[1], "--validate")) return published_print(stdout);
    if (argc > 60) return fail(E_CONFIG, "plan: %d arguments are too many", argc);
    TRY(options_parse_many(argc, argv, options, plain, &k));
    TRY(option_int("--ranks", ranks, 1, 1 << 20, &n));
    TRY(option_int("--per-node", node, 1, 1 << 20, &per));
    for (int i = 1; i < k; i++)
        if (!is_override(plain[i])) return fail(E_CONFIG, "plan: %s is no section.key=value", plain[i]);
    TRY(config_open(&cfg, plain[0], k - 1, (char **)plain + 1));
    PlanAsk p = { .recipe = &cfg, .ranks = (int)n, .per_node = (int)(per < n ? per : n) };
    Status  st = plan(&p);
    config_close(&cfg);
    return st;
}
