/* parallel/rules.c -- evaluates rules.def over the settings of a layout; see rules.h. */
#include "parallel/rules_fix.h"

#include "base/dispatchers.h"
#include "base/str.h"
#include "nn/context_batch.h"
#include "nn/stash.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_LAYOUT_CHUNKS = 1 << 16 };

/* Numbers that several rules need, derived from the settings. */
typedef struct RuleTerms {
    long long   dp, edp;              /* 0: the world is not a multiple of the other degrees */
    long long   expert_ranks;         /* ep x etp */
    long long   micros;               /* micro-batches of a step on a rank; 0: the tokens are no multiple */
    long long   chunks;           /* virtual pipeline chunks of a stage, by parallel.layout where it is set */
    long long   group;                /* micro-batches that pass a chunk before the next chunk begins */
    long long   token_unit;           /* parts of equal size that cp and tp cut a micro-batch into */
    long long   cp_inner;             /* ranks of cp that exchange heads; 1: none */
    long long   local_kv;             /* key/value heads of a tp rank */
    bool        hierarchical;         /* parallel.cp_comm = a2a+p2p */
    bool        full;                 /* memory.recompute names full */
    const char *nested, *outer;       /* a word of memory.recompute contained in another; that other */
    const DispatcherRow *dispatcher;  /* NULL: auto or local */
    int         layout_rule;          /* the rule that parallel.layout and the like break; 0: none */
    char        layout_why[400];
} RuleTerms;

static bool is(const char *a, const char *b) { return a && !strcmp(a, b); }

static bool within_node(const DispatcherRow *r) { return r && dispatcher_within_node(r); }
static bool forwards_by_kernels(const DispatcherRow *r) { return r && r->maps && r->two_level; }
static long long domain_ranks(const RuleInput *x) { return x->domain ? x->domain : x->per_node; }

static bool recomputes(const RuleInput *x, const char *label)
{
    for (int i = 0; i < x->recomputes; i++)
        if (is(x->recompute[i], label)) return true;
    return false;
}

/* The first word of memory.recompute that names a part the model does not have; NULL: none does. */
static const char *stray_label(const RuleInput *x, WordScope of)
{
    for (int i = 0; i < x->recomputes; i++)
        if (recompute_word_scope(x->recompute[i]) == of) return x->recompute[i];
    return NULL;
}

/* The first word of memory.recompute that another one, *other, contains; NULL: there is none. Of two words
 * that contain each other the later one is redundant. Full recompute by blocks leaves other layers to the
 * words. */
static const char *nested_label(const RuleInput *x, const char **other)
{
    for (int i = 0; i < x->recomputes; i++)
        for (int k = 0; k < x->recomputes; k++) {
            bool twice = i > k && is(x->recompute[i], x->recompute[k]);
            bool alike = i < k && recompute_word_within(x->recompute[k], x->recompute[i]);
            bool block = is(x->recompute[k], "full") && is(x->recompute_method, "block");
            *other = x->recompute[k];
            bool within = recompute_word_within(x->recompute[i], *other) && !alike;
            if (!block && (twice || within)) return x->recompute[i];
        }
    return NULL;
}

static const char *unknown_label(const RuleInput *x)
{
    uint8_t policy[LABEL_N];
    policy_default(policy);
    for (int i = 0; i < x->recomputes; i++)
        if (policy_drop(policy, x->recompute[i])) return x->recompute[i];
    return NULL;
}

/* The same for memory.activation_offload. */
static const char *stray_offload(const RuleInput *x, WordScope of)
{
    for (int i = 0; i < x->offloads; i++)
        if (offload_word_scope(x->offload[i]) == of) return x->offload[i];
    return NULL;
}

/* The first word of memory.activation_offload that is unknown or, with `after_recompute`, has nothing left to
 * offload once memory.recompute has dropped its values. Full recompute by blocks leaves the other layers. */
static const char *bad_offload(const RuleInput *x, bool after_recompute)
{
    uint8_t policy[LABEL_N];
    bool    by_blocks = is(x->recompute_method, "block");
    policy_default(policy);
    for (int i = 0; after_recompute && i < x->recomputes; i++)
        if (!by_blocks || !is(x->recompute[i], "full"))
            if (policy_drop(policy, x->recompute[i])) return NULL;                    /* rule 67 reports it */
    for (int i = 0; i < x->offloads; i++)
        if (policy_offload(policy, x->offload[i])) return x->offload[i];
    return NULL;
}

/* Ranks of cp that exchange heads. */
static int64_t cp_inner_of(const RuleInput *x)
{
    if (is(x->cp_comm, "a2a")) return x->cp;
    return is(x->cp_comm, "a2a+p2p") && x->cp_sizes == 2 ? x->cp_size[0] : 1;
}

long long rules_token_unit(const RuleInput *x) { return (x->cp > 1 ? 2 * x->cp : 1) * x->tp; }

/* The rule that the pipeline layout breaks, 0: none. *chunks: as parallel.layout makes them, else vpp. */
static int check_layout(const RuleInput *x, int *chunks, char *why, size_t size)
{
    PipeLayout l = { 0 };
    PipeLayoutSpec a = rules_pipe_layout(x);
    *chunks = (int)x->vpp, *why = 0;
    if (x->pp == 1 && !*a.string) a.chunks = 1;                   /* rule 23 reports it */
    if (x->pp * a.chunks > MAX_LAYOUT_CHUNKS) {
        snprintf(why, size, "parallel.pp = %lld x vpp = %d: more chunks than layers; lower one of them",
                 x->pp, a.chunks);
        return 25;
    }
    if (!pipe_layout_open(&l, &a)) {
        if (*a.string) *chunks = l.chunks;
        pipe_layout_close(&l);
        return 0;
    }
    snprintf(why, size, "%s", status_text());
    return l.rule;
}

static void derive_terms(RuleTerms *d, const RuleInput *x)
{
    long long dense = x->tp * x->cp * x->pp, sparse = x->ep * x->etp * x->pp;
    int chunks, found = dispatcher_find(x->dispatcher);
    *d = (RuleTerms){ .expert_ranks = x->ep * x->etp, .token_unit = rules_token_unit(x) };
    d->layout_rule = check_layout(x, &chunks, d->layout_why, sizeof d->layout_why);
    d->chunks = chunks;
    d->dp  = x->world % dense ? 0 : x->world / dense;
    d->edp = x->world % sparse ? 0 : x->world / sparse;
    long long step = x->micro_tokens * d->dp;
    if (step && x->global_tokens % step == 0) d->micros = x->global_tokens ? x->global_tokens / step : 1;
    d->group = x->group ? x->group : x->pp;
    d->cp_inner = cp_inner_of(x);
    d->local_kv = x->kv_heads > x->tp ? x->kv_heads / x->tp : 1;
    d->hierarchical = is(x->cp_comm, "a2a+p2p");
    d->full   = recomputes(x, "full");
    d->nested = nested_label(x, &d->outer);
    d->dispatcher = found < 0 ? NULL : &dispatcher_rows[found];
}

static void evaluate(RuleReport *r, const RuleInput *x, bool with_fixes)
{
    RuleTerms terms, *d = &terms;
    const RuleFix *fixes[RULE_VIOLATIONS];
    int            fix_count[RULE_VIOLATIONS];
    REQUIRE(x->world > 0 && x->tp > 0 && x->cp > 0 && x->pp > 0 && x->vpp > 0 && x->ep > 0 && x->etp > 0 &&
            x->replicas > 0 && x->micro_tokens > 0, "degrees and token budgets must be positive");
    derive_terms(d, x);
    *r = (RuleReport){ 0 };

#define E 'E'
#define W 'W'
#define WHY(...) snprintf(v->why, sizeof v->why, __VA_ARGS__)
#define RULE(nr, grade, when, message, ...)                                                       \
    if (when) {                                                                                   \
        static const RuleFix list[] = { __VA_ARGS__ };                                            \
        RuleViolation *v = &r->violation[r->n];                                                   \
        v->number = nr, v->severity = grade;                                                      \
        WHY message;                                                                              \
        fixes[r->n] = list, fix_count[r->n++] = sizeof list / sizeof *list;                       \
        r->errors += v->severity == 'E';                                                          \
    }
#include "parallel/rules.def"
#undef E
#undef W
#undef WHY
    for (int i = 0; i < r->n && with_fixes; i++)
        rule_find_fix(&r->violation[i], x, fixes[i], fix_count[i], r->errors);
}

void rules_find(RuleReport *r, const RuleInput *x) { evaluate(r, x, true); }
void rules_list(RuleReport *r, const RuleInput *x) { evaluate(r, x, false); }

bool rules_legal(const RuleInput *x)
{
    RuleReport r;
    evaluate(&r, x, false);
    return !r.errors;
}

void rule_text(char *text, size_t size, const RuleViolation *h)
{
    const char *world = "world=";
    size_t n = strlen(world);
    if (!*h->fix)                            snprintf(text, size, "%s (rule %d)", h->why, h->number);
    else if (!strncmp(h->fix, world, n))
        snprintf(text, size, "%s; start %s ranks (rule %d)", h->why, h->fix + n, h->number);
    else snprintf(text, size, "%s; set %s (rule %d)", h->why, h->fix, h->number);
}

Status rules_check(const RuleInput *x, const Log *log)
{
    RuleReport r;
    char text[640];
    const RuleViolation *first = NULL;
    rules_find(&r, x);
    for (int i = 0; i < r.n; i++) {
        const RuleViolation *v = &r.violation[i];
        rule_text(text, sizeof text, v);
        if (v->severity == 'E' && !first) first = v;
        else log_line(log, v->severity == 'E' ? LOG_ERROR : LOG_WARN, "%s", text);
    }
    if (!first) return OK;
    rule_text(text, sizeof text, first);
    return fail(E_CONFIG, "%s", text);
}

static void read_sizes(RuleInput *x, WordList sizes)
{
    x->cp_sizes = sizes.n;
    for (int i = 0; i < sizes.n; i++) {
        int64_t n;
        if (!str_whole(sizes.item[i], &n) || n < 1 || n > CONTEXT_RANKS) x->cp_sizes = -1;
        else if (i < 2) x->cp_size[i] = n;
    }
}

void rules_family(RuleInput *x, const TextShape *t)
{
    x->wide_norm = t->qk_norm_wide, x->expert_bias = t->expert_bias;
    x->linear_heads = t->gdn.every ? t->gdn.key_heads : 0;
    x->linear_conv = t->gdn.every ? t->gdn.conv : 0;
}

RuleInput rules_input(const Config *c, const ModelShape *s, int world, int per_node)
{
    const struct cfg_parallel *p = &c->parallel;
    const TextShape *t = &s->text;
    RuleInput x = {
        .world = world, .per_node = c->comm.ranks_per_node ? c->comm.ranks_per_node : per_node,
        .tp = p->tp, .cp = p->cp, .pp = p->pp, .vpp = p->vpp, .ep = p->ep, .etp = p->etp,
        .zero = p->zero, .replicas = p->replicas, .cp_comm = p->cp_comm, .layout = p->layout,
        .first_layers = p->first_layers, .last_layers = p->last_layers, .group = p->microbatch_group,
        .count_embedding = p->count_embedding, .count_loss = p->count_loss,
        .layers = t->L, .heads = t->H, .kv_heads = t->G, .ffn = shape_sparse_layers(t) < t->L ? t->I : 0,
        .experts = t->E, .per_token = t->K, .expert_ffn = t->F, .renorm = t->renorm,
        .shared = t->shared, .latent = t->mla.kv_rank > 0, .linear = t->gdn.every > 0,
        .micro_tokens = c->train.micro_tokens, .global_tokens = c->train.global_tokens,
        .dispatcher = c->moe.dispatcher, .capacity_factor = c->moe.capacity_factor,
        .domain = c->moe.ranks_per_domain, .pad_to_capacity = c->moe.pad_to_capacity,
        .overlap = c->moe.overlap, .force_balance = c->moe.force_balance,
        .recompute_method = c->memory.recompute_method, .recompute_layers = c->memory.recompute_layers,
        .tower = s->vision.depth > 0, .offload_share = c->memory.activation_offload_fraction,
    };
    rules_family(&x, t);
    x.tied = t->tied;
    for (int i = 0; i < c->train.fp8_products.n && strcmp(c->train.precision, "bf16"); i++)
        x.fp8_head |= !strcmp(c->train.fp8_products.item[i], "head");
    read_sizes(&x, p->cp_sizes);
    for (int i = 0; i < c->memory.recompute.n && i < RULE_LABELS; i++)
        x.recompute[x.recomputes++] = c->memory.recompute.item[i];
    for (int i = 0; i < c->memory.activation_offload.n && i < RULE_LABELS; i++)
        x.offload[x.offloads++] = c->memory.activation_offload.item[i];
    return x;
}

MeshLayout rules_layout(const RuleInput *x)
{
    return (MeshLayout){ .tp = (int)x->tp, .cp = (int)x->cp, .pp = (int)x->pp, .vpp = (int)x->vpp,
                         .ep = (int)x->ep, .etp = (int)x->etp, .replicas = (int)x->replicas,
                         .cp_inner = (int)cp_inner_of(x), .kv_heads = (int)x->kv_heads,
                         .domain = (int)x->domain };
}

PipeLayoutSpec rules_pipe_layout(const RuleInput *x)
{
    return (PipeLayoutSpec){ .layers = (int)x->layers, .stages = (int)x->pp, .chunks = (int)x->vpp,
                             .string = x->layout ? x->layout : "", .first = (int)x->first_layers,
                             .last = (int)x->last_layers, .count_embedding = x->count_embedding,
                             .count_loss = x->count_loss };
}

static PipeShape pipe_shape(const RuleInput *x, int chunks)
{
    int64_t step = x->micro_tokens * (x->world / (x->tp * x->cp * x->pp));
    return (PipeShape){ .stages = (int)x->pp, .chunks = chunks, .group = (int)x->group,
                        .extra_warmup = x->overlap,
                        .micros = x->global_tokens ? (int)(x->global_tokens / step) : 1 };
}

Status rules_print(FILE *out, const RuleInput *x, const Mesh *m)
{
    Mesh made;
    PipeLayout cut;
    PipeLayoutSpec ask = rules_pipe_layout(x);
    MeshLayout layout = rules_layout(x);
    if (!m) mesh_place(&made, 0, (int)x->world, &layout);
    mesh_print(out, m ? m : &made);
    if (x->pp == 1) return OK;
    TRY(pipe_layout_open(&cut, &ask));
    PipeShape shape = pipe_shape(x, cut.chunks);
    pipe_layout_print(out, &cut);
    pipe_layout_close(&cut);
    return pipe_print(out, &shape);
}
