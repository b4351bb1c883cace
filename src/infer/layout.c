/* infer/layout.c -- see layout.h. */
#include "infer/layout.h"

#include "engine/recipe.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double GIB = 1 << 30;

/* A layout that may be taken. */
typedef struct Candidate { int tp, pp, ep, zero; } Candidate;

typedef struct Choice {
    const LayoutAsk *ask;
    EngineConf      *conf;
    Candidate        least;              /* of those that do not fit, the one that lacks least */
    double           lack, need;         /* of its fullest rank: bytes missing, in all; lack < 0: none yet */
    bool             found;
} Choice;

static bool is_given(const struct cfg_parallel *p)
{
    return p->tp * p->cp * p->pp * p->vpp * p->ep * p->etp > 1 || p->zero == 3 || *p->layout;
}

/* The recipe without what is about training alone, which the rules would check. With vpp they want as many
 * micro-batches as stages. */
static Config without_training(const LayoutAsk *ask)
{
    Config c = *ask->recipe;
    long long replicas = ask->world->size / (c.parallel.tp * c.parallel.cp * c.parallel.pp);
    c.train.global_tokens = c.train.micro_tokens * c.parallel.pp * (replicas > 0 ? replicas : 1);
    c.parallel.microbatch_group = 0;
    c.moe.overlap = c.moe.pad_to_capacity = c.moe.force_balance = false, c.moe.capacity_factor = 0;
    c.memory.recompute.n = c.memory.activation_offload.n = 0;
    c.memory.recompute_method = "uniform", c.memory.recompute_layers = 1;
    c.memory.activation_offload_fraction = 1;
    if (c.parallel.ep * c.parallel.etp == 1) c.moe.dispatcher = "auto", c.moe.ranks_per_domain = 0;
    return c;
}

static Status ranks_of(Ranks *r, const LayoutAsk *ask, const Config *c)
{
    Mesh place;
    TRY(recipe_ranks(r, &place, c, ask->shape, ask->world, NULL));
    r->micro = 1, r->group = 0;
    return OK;
}

static void print_layout(const LayoutAsk *ask, const Ranks *r, const char *why)
{
    const MeshLayout *l = &r->layout;
    int dp = ask->world->size / (l->tp * l->pp);
    char text[160] = "";
    const struct { const char *name; int n; } axis[] = {
        { "tp", l->tp }, { "pp", l->pp }, { "vpp", l->vpp }, { "ep", l->ep }, { "etp", l->etp }, { "dp", dp },
    };
    for (size_t i = 0; i < sizeof axis / sizeof *axis; i++) {
        size_t at = strlen(text);
        if (axis[i].n > 1) snprintf(text + at, sizeof text - at, " %s %d", axis[i].name, axis[i].n);
    }
    log_info(ask->log, "layout       %d ranks over %s:%s%s, %s", ask->world->size, comm_name(ask->world),
             text, r->zero == 3 ? ", weights sharded (zero 3)" : "", why);
    if (*comm_reason(ask->world)) log_info(ask->log, "transport    %s", comm_reason(ask->world));
}

/* ---- choosing ---- */

static Config with_candidate(const LayoutAsk *ask, Candidate k)
{
    Config c = *ask->recipe;
    c.parallel.tp = k.tp, c.parallel.pp = k.pp, c.parallel.ep = k.ep, c.parallel.zero = k.zero;
    c.parallel.vpp = c.parallel.etp = c.parallel.cp = c.parallel.replicas = 1;
    c.parallel.first_layers = c.parallel.last_layers = 0;
    c.parallel.count_embedding = c.parallel.count_loss = false;
    LayoutAsk own = *ask;
    own.recipe = &c;
    return without_training(&own);
}

/* Bytes that this rank needs, and lacks; on a CPU the ranks of a node share its memory. */
static Status plan_bytes(const Choice *x, const EngineConf *conf, double *need, double *lack)
{
    EnginePlan  plan;
    StreamShape ss = shape_stream(x->ask->shape);
    double      left, all, sharers = strcmp(conf->backend, "cpu") ? 1 : comm_ranks_on_node(x->ask->world);
    ss.bytes = true;
    Stream full = stream_full(&ss, &conf->budget);
    TRY(engine_plan(&plan, x->ask->shape, conf, &full));
    backend_memory(conf->backend, &left, &all);
    *need = (double)engine_device_bytes(&plan, conf->backend);
    double most = x->ask->recipe->device.memory_limit * 0x1p30;
    left = most > 0 ? fmin(left / sharers, most) : left / sharers;
    *lack = fmax(0, *need - left);
    return OK;
}

/* Takes a candidate that is legal and fits every rank. */
static void consider(Choice *x, Candidate k)
{
    EngineConf conf = *x->conf;
    Config     c = with_candidate(x->ask, k);
    double     bytes[2] = { 0, 0 };
    if (x->found || ranks_of(&conf.ranks, x->ask, &c)) return;
    if (plan_bytes(x, &conf, &bytes[0], &bytes[1])) bytes[1] = INFINITY;
    comm_host_max(x->ask->world, bytes, 2);
    x->found = !(bytes[1] > 0);
    if (x->found) x->conf->ranks = conf.ranks;
    else if (x->lack < 0 || bytes[1] < x->lack) x->least = k, x->need = bytes[0], x->lack = bytes[1];
}

/* The most expert ranks: a divisor of the ranks of a stage and of the experts. */
static int most_expert_ranks(const LayoutAsk *ask, int stage_ranks)
{
    int n = stage_ranks;
    while (n > 1 && (stage_ranks % n || ask->shape->text.E % n)) n--;
    return ask->shape->text.E ? n : 1;
}

/* Replicas of few ranks before replicas of many; within a stage all experts on each rank, then spread. */
static void consider_many(Choice *x, int zero)
{
    int n = x->ask->world->size;
    for (int pp = 1; pp <= n; pp++)
        for (int tp = 1; n % pp == 0 && tp <= n / pp; tp++) {
            if (n / pp % tp) continue;
            int ep = most_expert_ranks(x->ask, n / pp);
            consider(x, (Candidate){ tp, pp, 1, zero });
            if (ep > 1) consider(x, (Candidate){ tp, pp, ep, zero });
        }
}

/* One replica of all ranks before several, and few stages before many. */
static void consider_one(Choice *x, int zero)
{
    int n = x->ask->world->size;
    for (int dp = 1; dp <= n; dp++)
        for (int pp = 1; n % dp == 0 && pp <= n / dp; pp++) {
            if (n / dp % pp) continue;
            int tp = n / dp / pp, ep = most_expert_ranks(x->ask, n / pp);
            if (ep > 1) consider(x, (Candidate){ tp, pp, ep, zero });
            consider(x, (Candidate){ tp, pp, 1, zero });
        }
}

static Status choose(Choice *x)
{
    for (int zero = 0; zero <= 3; zero += 3) {
        if (x->ask->one_document) consider_one(x, zero);
        else                      consider_many(x, zero);
    }
    if (x->found) return print_layout(x->ask, &x->conf->ranks, "chosen; parallel.* sets another"), OK;
    if (x->lack < 0)
        return fail(E_CONFIG, "no layout of %d ranks is legal for this model; start another number of ranks",
                    x->ask->world->size);
    return fail(E_FIT, "does not fit: with tp %d, pp %d, ep %d, zero %d, which takes least, a rank needs "
                "%.3f GiB and lacks %.3f; start more ranks", x->least.tp, x->least.pp, x->least.ep,
                x->least.zero, x->need / GIB, x->lack / GIB);
}

Status layout_set_ranks(EngineConf *conf, const LayoutAsk *ask)
{
    Choice x = { .ask = ask, .conf = conf, .lack = -1 };
    if (!is_given(&ask->recipe->parallel)) return choose(&x);
    if (ask->recipe->parallel.cp > 1)
        return fail(E_CONFIG, "parallel.cp = %lld: cuts sequences, which decoding cannot; set parallel.cp=1",
                    (long long)ask->recipe->parallel.cp);
    Config c = without_training(ask);
    TRY(ranks_of(&conf->ranks, ask, &c));
    print_layout(ask, &conf->ranks, "from section parallel");
    return OK;
}
