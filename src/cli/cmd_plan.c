/* cli/cmd_plan.c -- treb plan recipe.yaml: checks a layout and prints rank placement, memory and
 * communication of one rank of every stage, and with --hardware the time of a step, by a dry run of the
 * trainer's engine. With --gpus it searches for layouts instead. */
#include "cli/commands.h"
#include "cli/data_look.h"
#include "cli/plan_search.h"
#include "parallel/rules.h"
#include "plan/auto.h"
#include "report/plan_page.h"

#include <stdlib.h>
#include <string.h>

typedef struct PlanAsk {
    Config      recipe;
    const char *path, *html;             /* recipe; HTML page to write, or NULL */
    const char *hardware;                /* NULL: no times are asked for */
    int64_t     want_ranks, want_node;   /* 0: not given */
    int         ranks, per_node;
    double      network; /* Gb/s of each GPU; 0: the hardware's */
    bool        json, compare, timed;
    Hardware    hw;
} PlanAsk;

/* Peak bytes of the fullest stage for a changed recipe; for FitRequest.plan. */
static Status plan_changed(void *self, const Config *c, double *bytes)
{
    const PlanAsk *p = self;
    Config copy = *c;
    DryRun d;
    copy.device.backend = p->hw.backend;                 /* memory for that device; no times */
    TRY(dryrun_open(&d, &copy, p->ranks, p->per_node, NULL));
    *bytes = (double)dryrun_peak(&d, NULL);
    dryrun_close(&d);
    return OK;
}

static Status advise(FitAdvice *a, PlanAsk *p, const DryRun *d)
{
    FitRequest ask = { .recipe = &p->recipe, .shape = &d->shape, .ranks = d->ranks, .per_node = d->per_node,
                   .bytes = (double)dryrun_peak(d, NULL), .available = fit_limit(&p->hw),
                   .plan = plan_changed, .self = p };
    return fit_advise(a, &ask);
}

static Status print_plan(const PlanAsk *p, const PlanView *v)
{
    Json *o = NULL;
    if (p->html) TRY(plan_page_write(v, p->html));
    if (!p->json) return view_print(stdout, v);
    TRY(view_json(&o, v));
    json_dumpf(o, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9)), putchar('\n');
    json_decref(o);
    return OK;
}

static Status plan(PlanAsk *p, const DryRun *d)
{
    int       stage = 0;
    double    peak = (double)dryrun_peak(d, &stage), gib = 1 << 30;
    bool      unfit = p->timed && fit_of(peak, &p->hw) == FIT_NOT;
    Estimate  estimates[ESTIMATES];
    char      way[400] = "";
    FitAdvice *advice = unfit ? calloc(1, sizeof *advice) : NULL;
    PlanView v = { .dry = d, .title = p->path, .estimates = p->compare ? estimates : NULL, .advice = advice };
    if (unfit && !advice) return fail(E_FIT, "no host memory for advice");
    if (p->compare) estimates_of(estimates, d);
    Status st = unfit ? advise(advice, p, d) : OK;
    if (!st) st = print_plan(p, &v);
    if (advice && !st) fit_cheapest_text(way, sizeof way, advice);
    free(advice);
    if (st || !unfit) return st;
    return fail(E_FIT, "does not fit: stage %d needs %.1f GiB; of the %.1f GiB of %s a run may take %.1f "
                "(97 %%, less libraries). %s", stage, peak / gib, p->hw.capacity / gib, p->hw.id,
                fit_limit(&p->hw) / gib, way);
}

/* Rules come first, so that their warnings are printed once. */
static Status plan_recipe(PlanAsk *p)
{
    Log        log = { .world = 1, .least = LOG_WARN };
    DryRun     d;
    ModelShape shape;
    char       from[160];
    BatchContent content;
    TRY(dryrun_shape(&shape, from, sizeof from, &p->recipe.model));
    TRY(recipe_shape(&shape, &p->recipe));
    RuleInput x = rules_input(&p->recipe, &shape, p->ranks, p->per_node);
    TRY(rules_check(&x, &log));
    bool known = p->timed && data_content(&content, &p->recipe, &log);
    TRY(dryrun_open_conf(&d, &(DryConf){ .recipe = &p->recipe, .ranks = p->ranks, .per_node = p->per_node,
                                         .hw = p->timed ? &p->hw : NULL, .uneven = USUAL_UNEVEN,
                                         .content = known ? &content : NULL }));
    Status st = plan(p, &d);
    dryrun_close(&d);
    return st;
}

/* How many ranks, and how many of them a node has. */
static Status choose_ranks(PlanAsk *p)
{
    int64_t said = p->want_ranks ? p->want_ranks : p->recipe.parallel.ranks, per = 8;
    int64_t n = said ? said : dryrun_ranks(&p->recipe.parallel);
    p->timed = p->hardware;
    if (p->network > 0 && !p->timed)
        return fail(E_CONFIG, "--network: needs --hardware ID, whose network it replaces");
    if (p->timed) TRY(hardware_find(&p->hw, p->hardware));
    if (p->network > 0) p->hw.inter_bw = p->network / 8 * 1e9;
    hardware_limit(&p->hw, p->recipe.device.memory_limit);
    if (!said && !p->json)
        printf("%lld rank%s, the least number for this layout; --ranks sets another\n", (long long)n,
               n > 1 ? "s" : "");
    if (p->timed) per = hardware_node(&p->hw, n);
    if (p->timed && !p->want_node && !p->recipe.comm.ranks_per_node && !p->json && per < p->hw.domain &&
        per < n)
        printf("%lld rank%s per node of the %d in a domain, so that groups fill it; --per-node sets "
               "another number\n", (long long)per, per > 1 ? "s" : "", p->hw.domain);
    if (p->recipe.comm.ranks_per_node) per = p->recipe.comm.ranks_per_node;
    if (p->want_node) per = p->want_node;
    p->ranks = (int)n, p->per_node = (int)(per < n ? per : n);
    return OK;
}

/* What a run on this hardware would choose for sections that say `auto`. */
static Status choose_auto(PlanAsk *p)
{
    AutoAsk ask = { .recipe = &p->recipe, .ranks = p->ranks, .per_node = p->per_node, .hw = p->hw,
                    .available = fit_limit(&p->hw) };
    if (!p->timed || (!p->recipe.auto_parallel && !p->recipe.auto_memory)) return OK;
    AutoChoice *a = malloc(sizeof *a);
    Status st = a ? auto_find(a, &ask) : fail(E_FIT, "no memory for a search");
    if (!st) st = layout_keys_apply(&p->recipe, &a->keys);
    for (int i = 0; !st && !p->json && i < a->lines.n; i++) puts(a->lines.at[i]);
    free(a);
    return st;
}

static const Option options[] = { OPTION_INT(PlanAsk, want_ranks, "--ranks", "N", 1, 1 << 20,
                                             "ranks (default: parallel.ranks, or the least number for "
                                             "the layout)"),
                                  OPTION_INT(PlanAsk, want_node, "--per-node", "N", 1, 1 << 20,
                                             "ranks of a node (default: 8, or the hardware's)"),
                                  OPTION_TEXT(PlanAsk, hardware, "--hardware", "ID",
                                              "a GPU by name, or `this`: predicts the time of a step"),
                                  OPTION_REAL(PlanAsk, network, "--network", "GBITS", 0.1, 100000,
                                              "Gb/s of the network for each GPU (default: the hardware's)"),
                                  OPTION_TEXT(PlanAsk, html, "--html", "FILE", "write a page as well"),
                                  OPTION_FLAG(PlanAsk, json, "--json", "print the plan as JSON"),
                                  OPTION_FLAG(PlanAsk, compare, "--compare-estimators",
                                              "estimates of two public estimators for the same layout"),
                                  OPTION_END };

static Status plan_command(PlanAsk *p, const PlainArgs *plain)
{
    p->path = plain->value[0];
    for (int i = 1; i < plain->n; i++)
        if (!config_is_override(plain->value[i]))
            return fail(E_CONFIG, "plan: %s is not section.key=value", plain->value[i]);
    TRY(config_open(&p->recipe, p->path, plain->n - 1, (char **)plain->value + 1));
    Status st = choose_ranks(p);
    if (!st) st = choose_auto(p);
    if (!st) st = plan_recipe(p);
    config_close(&p->recipe);
    return st;
}

static Status cmd_plan(int argc, char **argv)
{
    PlanAsk   p = { 0 };
    PlainArgs plain = { .least = 1, .most = PLAIN_ANY, .what = "a recipe, or --gpus N --model NAME" };
    if (search_asked(argc, argv)) return search_command(argc, argv);
    TRY(options_parse(argc, argv, options, &p, &plain));
    Status st = plan_command(&p, &plain);
    plain_args_close(&plain);
    return st;
}

static const Usage usage = {
    .args    = "recipe.yaml [section.key=value ...]",
    .options = options,
    .notes   = "Reads the recipe and the model's config.json (or model.preset=NAME, or the preset that "
               "model.path is named after). Prints rules, rank placement, memory of a rank of every stage "
               "by arena and label, and the bytes it sends. With --hardware times are of documents and "
               "pictures as 400 samples of data.train have them, where it and the tokenizer are there, else "
               "of the longest that the recipe allows; the exit code is 3 when it does not fit, and the "
               "cheapest changes that would make it fit are listed.",
};

const Command command_plan = {
    .name     = "plan",
    .help     = "check whether a layout is legal and fits, what each rank holds, how long a step takes",
    .run      = cmd_plan,
    .usage    = USAGE(&usage, &usage_plan_search),
    .sections = "parallel,moe,memory,train,lora",
};
