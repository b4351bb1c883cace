/* cli/cmd_plan.c -- treb plan recipe.yaml: whether a layout is legal, who sits where, what one rank of every
 * stage would hold and say, and by a row of hardware how long that takes. The trainer's own engine is run
 * with no data behind it and nobody at the other ends. With --gpus no recipe is wanted: layouts are searched
 * for. */
#include "cli/commands.h"
#include "cli/plan_search.h"
#include "parallel/rules.h"
#include "plan/published.h"
#include "plan/view.h"

#include <stdlib.h>
#include <string.h>

typedef struct PlanAsk {
    Config      recipe;
    const char *path, *html;             /* of the recipe; of the page, or NULL */
    const char *hardware;                /* NULL: no times are asked for */
    int64_t     want_ranks, want_node;   /* 0: not given */
    int         ranks, per_node;
    bool        json, compare, timed;
    Hardware    hw;
} PlanAsk;

/* The fullest stage by a recipe that was changed; for FitRequest.plan. */
static Status plan_changed(void *self, const Config *c, double *bytes)
{
    const PlanAsk *p = self;
    Config copy = *c;
    DryRun d;
    copy.device.backend = p->hw.backend;                 /* memory for that device; nobody asks for times */
    TRY(dryrun_open(&d, &copy, p->ranks, p->per_node, NULL));
    *bytes = (double)dryrun_peak(&d, NULL);
    dryrun_close(&d);
    return OK;
}

static Status advise(FitAdvice *a, PlanAsk *p, const DryRun *d)
{
    FitRequest ask = { .recipe = &p->recipe, .shape = &d->shape, .ranks = d->ranks, .per_node = d->per_node,
                   .bytes = (double)dryrun_peak(d, NULL), .room = 0.97 * p->hw.capacity - p->hw.fixed,
                   .plan = plan_changed, .self = p };
    return fit_advise(a, &ask);
}

static Status show(const PlanAsk *p, const PlanView *v)
{
    Json *o = NULL;
    if (p->html) TRY(view_page(v, p->html));
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
    FitAdvice *advice = unfit ? calloc(1, sizeof *advice) : NULL;
    PlanView v = { .dry = d, .title = p->path, .estimates = p->compare ? estimates : NULL, .advice = advice };
    if (unfit && !advice) return fail(E_FIT, "no host memory for advice");
    if (p->compare) estimates_of(estimates, d);
    Status st = unfit ? advise(advice, p, d) : OK;
    if (!st) st = show(p, &v);
    free(advice);
    if (st || !unfit) return st;
    return fail(E_FIT, "does not fit: a rank of stage %d wants %.1f GiB and %s has %.1f, of which libraries "
                "take %.1f", stage, peak / gib, p->hw.id, p->hw.capacity / gib, p->hw.fixed / gib);
}

/* Rules first: what they warn of is said once, whatever is planned after. */
static Status plan_recipe(PlanAsk *p)
{
    Log        log = { .world = 1, .least = LOG_WARN };
    DryRun     d;
    ModelShape shape;
    char       from[160];
    TRY(dryrun_shape(&shape, from, sizeof from, &p->recipe.model));
    RuleInput x = rules_input(&p->recipe, &shape, p->ranks, p->per_node);
    TRY(rules_check(&x, &log));
    TRY(dryrun_open(&d, &p->recipe, p->ranks, p->per_node, p->timed ? &p->hw : NULL));
    Status st = plan(p, &d);
    dryrun_close(&d);
    return st;
}

/* How many ranks, and how many of them a node has. */
static Status choose_ranks(PlanAsk *p)
{
    int64_t n = p->want_ranks ? p->want_ranks : dryrun_ranks(&p->recipe.parallel), per = 8;
    p->timed = p->hardware;
    if (p->timed) TRY(hardware_find(&p->hw, p->hardware));
    if (!p->want_ranks && !p->json)
        printf("%lld ranks, as many as the layout takes at least; --ranks asks for others\n", (long long)n);
    if (p->timed) per = hardware_node(&p->hw, n);
    if (p->timed && !p->want_node && !p->recipe.comm.ranks_per_node && !p->json && per < p->hw.domain &&
        per < n)
        printf("%lld ranks a node of the %d that fast links join, so that groups fill it; --per-node asks "
               "for others\n", (long long)per, p->hw.domain);
    if (p->recipe.comm.ranks_per_node) per = p->recipe.comm.ranks_per_node;
    if (p->want_node) per = p->want_node;
    p->ranks = (int)n, p->per_node = (int)(per < n ? per : n);
    return OK;
}

static const Option options[] = { OPTION_INT(PlanAsk, want_ranks, "--ranks", "N", 1, 1 << 20,
                                             "ranks; as many as the layout takes at least"),
                                  OPTION_INT(PlanAsk, want_node, "--per-node", "N", 1, 1 << 20,
                                             "ranks that a fast link joins; 8, or the hardware's"),
                                  OPTION_TEXT(PlanAsk, hardware, "--hardware", "ID",
                                              "a GPU by name, or `this`: predicts the time of a step"),
                                  OPTION_TEXT(PlanAsk, html, "--html", "FILE", "write a page as well"),
                                  OPTION_FLAG(PlanAsk, json, "--json", "print the plan as JSON"),
                                  OPTION_FLAG(PlanAsk, compare, "--compare-estimators",
                                              "what two public estimators say of the same layout"),
                                  OPTION_END };

static Status plan_command(PlanAsk *p, const PlainArgs *plain)
{
    p->path = plain->value[0];
    for (int i = 1; i < plain->n; i++)
        if (!is_override(plain->value[i]))
            return fail(E_CONFIG, "plan: %s is not section.key=value", plain->value[i]);
    TRY(config_open(&p->recipe, p->path, plain->n - 1, (char **)plain->value + 1));
    Status st = choose_ranks(p);
    if (!st) st = plan_recipe(p);
    config_close(&p->recipe);
    return st;
}

static Status cmd_plan(int argc, char **argv)
{
    PlanAsk   p = { 0 };
    PlainArgs plain = { .least = 1, .most = PLAIN_ANY };
    if (search_asked(argc, argv)) return search_command(argc, argv);
    if (argc == 2 && !strcmp(argv[1], "--validate")) return published_print(stdout);
    TRY(options_parse(argc, argv, options, &p, &plain));
    Status st = plan_command(&p, &plain);
    plain_args_close(&plain);
    return st;
}

static const Usage usage = {
    .args    = "recipe.yaml [section.key=value ...]",
    .options = options,
    .notes   = "Reads the recipe and the model's config.json alone (or model.preset=NAME, or the preset "
               "that model.path is named after). Prints rules, rank placement, memory of a rank of every "
               "stage by arena and label, and the bytes it sends. With --hardware the exit code is 3 when "
               "it does not fit, and the cheapest changes that would make it fit are listed.",
};

static const Usage usage_validate = {
    .args    = "--validate",
    .notes   = "Prints published measurements beside what the analytic model says of them.",
};

const Command command_plan = {
    .name     = "plan",
    .help     = "whether a layout is legal and fits, what each rank holds, how long a step takes",
    .run      = cmd_plan,
    .usage    = USAGE(&usage, &usage_plan_search, &usage_validate),
    .sections = "parallel,moe,memory,train,lora",
};
