/* parallel/rules.c -- walks rules.def, and looks for the nearest layout that no rule forbids; see rules.h. */
#include "parallel/rules.h"

#include "base/str.h"
#include "nn/context_batch.h"
#include "nn/stash.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_CP = CONTEXT_RANKS, MOST_PIECES = 1 << 16, TRIES = 4096 };

/* What can be turned: a NUMBER in steps of its unit, a WORD to one of its alternatives, a SWITCH off, and
 * those that know their own answers. */
#define KNOBS(NUMBER, WORD, SWITCH, OTHER)                                                        \
    NUMBER(world,         "world",                     1)                                         \
    NUMBER(tp,            "parallel.tp",               1)                                         \
    NUMBER(cp,            "parallel.cp",               1)                                         \
    NUMBER(pp,            "parallel.pp",               1)                                         \
    NUMBER(vpp,           "parallel.vpp",              1)                                         \
    NUMBER(ep,            "parallel.ep",               1)                                         \
    NUMBER(etp,           "parallel.etp",              1)                                         \
    NUMBER(zero,          "parallel.zero",             0)                                         \
    NUMBER(replicas,      "parallel.replicas",         1)                                         \
    NUMBER(group,         "parallel.microbatch_group", 0)                                         \
    NUMBER(micro_tokens,  "train.micro_tokens",        16)                                        \
    NUMBER(global_tokens, "train.global_tokens",       1)                                         \
    NUMBER(domain,        "moe.ranks_per_domain",      1)                                         \
    WORD(cp_comm,         "parallel.cp_comm",          "p2p,all_gather")                          \
    WORD(dispatcher,      "moe.dispatcher",            "alltoall,hybridep,deepep,auto")           \
    SWITCH(overlap,         "moe.overlap")                                                        \
    SWITCH(pad_to_capacity, "moe.pad_to_capacity")                                                \
    SWITCH(force_balance,   "moe.force_balance")                                                  \
    OTHER(layout) OTHER(cp_sizes) OTHER(capacity_factor) OTHER(recompute)             \
    OTHER(recompute_method) OTHER(recompute_layers) OTHER(offload) OTHER(offload_share)

typedef enum {
#define NUMBER(knob, key, least) K_##knob,
#define WORD(knob, key, choices) K_##knob,
#define SWITCH(knob, key)        K_##knob,
#define OTHER(knob)              K_##knob,
    KNOBS(NUMBER, WORD, SWITCH, OTHER)
#undef NUMBER
#undef WORD
#undef SWITCH
#undef OTHER
    K_NOTHING
} Knob;

static bool is(const char *a, const char *b) { return a && !strcmp(a, b); }

static bool labelled(const RuleInput *x, const char *label)
{
    for (int i = 0; i < x->recomputes; i++)
        if (is(x->recompute[i], label)) return true;
    return false;
}

/* The first word that drops something of what the model lacks; NULL: there is none. */
static const char *stray_label(const RuleInput *x, WordScope of)
{
    for (int i = 0; i < x->recomputes; i++)
        if (recompute_word_scope(x->recompute[i]) == of) return x->recompute[i];
    return NULL;
}

/* A word that another one makes needless; *other: that one. */
static const char *nested_label(const RuleInput *x, const char **other)
{
    for (int i = 0; i < x->recomputes; i++)
        for (int k = 0; k < x->recomputes; k++) {
            bool twice = i > k && is(x->recompute[i], x->recompute[k]);
            bool alike = i < k && recompute_word_within(x->recompute[k], x->recompute[i]);      /* the later of two */
            bool block = is(x->recompute[k], "full") && is(x->recompute_method, "block");
            *other = x->recompute[k];
            if (!block && (twice || (recompute_word_within(x->recompute[i], *other) && !alike))) return x->recompute[i];
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

/* The first word of activation_offload that is of what the model lacks. */
static const char *stray_offload(const RuleInput *x, WordScope of)
{
    for (int i = 0; i < x->offloads; i++)
        if (offload_word_scope(x->offload[i]) == of) return x->offload[i];
    return NULL;
}

/* The first one that cannot be had: there is no such word, or with what is dropped nothing is left to park.
 * Full recompute of some layers alone leaves the others. */
static const char *bad_offload(const RuleInput *x, bool dropped)
{
    uint8_t policy[LABEL_N];
    bool    some = is(x->recompute_method, "block");
    policy_default(policy);
    for (int i = 0; dropped && i < x->recomputes; i++)
        if (!some || !is(x->recompute[i], "full"))
            if (policy_drop(policy, x->recompute[i])) return NULL;                    /* rule 67 says it */
    for (int i = 0; i < x->offloads; i++)
        if (policy_offload(policy, x->offload[i])) return x->offload[i];
    return NULL;
}

/* Ranks of cp that exchange heads. */
static int64_t exchangers(const RuleInput *x)
{
    if (is(x->cp_comm, "a2a")) return x->cp;
    return is(x->cp_comm, "a2a+p2p") && x->cp_sizes == 2 ? x->cp_size[0] : 1;
}

/* What a change goes by: parts of a micro-batch, micro-batches of a step. */
static int64_t unit_of(const RuleInput *x, Knob k)
{
    int64_t parts = (x->cp > 1 ? 2 * x->cp : 1) * x->tp, dp = x->world / (x->tp * x->cp * x->pp);
    if (k == K_micro_tokens) return parts;
    return k == K_global_tokens ? x->micro_tokens * (dp > 0 ? dp : 1) : 1;
}

/* The i-th nearest multiple of the unit, the lower of two first; false: it is none or out of bounds. */
static bool near_number(const RuleInput *x, Knob k, int64_t least, int i, int64_t *value)
{
    int64_t unit = unit_of(x, k), base = *value / unit * unit, now = *value;
    bool above = (i % 2 == 0) == (unit == 1);
    *value = base + (above ? 1 : -1) * (int64_t)((i + 1) / 2) * unit;
    return *value >= least && *value != now;
}

typedef struct Try { RuleInput x; char fix[160]; bool legal; } Try;

static bool cp_factors(Try *t, int i)
{
    if (i == 0 && !is(t->x.cp_comm, "a2a+p2p")) {
        t->x.cp_sizes = 0;
        snprintf(t->fix, sizeof t->fix, "parallel.cp_sizes=[]");
        return true;
    }
    int64_t near = i + 1;
    if (!is(t->x.cp_comm, "a2a+p2p") || near > t->x.cp) return false;
    t->x.cp_sizes = 2, t->x.cp_size[0] = near, t->x.cp_size[1] = t->x.cp / near;
    t->legal = near > 1 || t->x.cp == 1;             /* one that exchanges nothing is the plain ring */
    snprintf(t->fix, sizeof t->fix, "parallel.cp_sizes=[%lld, %lld]", (long long)near,
             (long long)t->x.cp_size[1]);
    return true;
}

/* Without the i-th label of a list; at last without any. */
static bool fewer_labels(Try *t, const char *key, const char **label, int *labels, int i)
{
    int n = *labels, at;
    if (i > n) return false;
    *labels = 0;
    for (int k = 0; k < n && i < n; k++)
        if (k != i) label[(*labels)++] = label[k];
    at = snprintf(t->fix, sizeof t->fix, "%s=[", key);
    for (int k = 0; k < *labels && at < (int)sizeof t->fix; k++)
        at += snprintf(t->fix + at, sizeof t->fix - (size_t)at, k ? ", %s" : "%s", label[k]);
    if (at < (int)sizeof t->fix) snprintf(t->fix + at, sizeof t->fix - (size_t)at, "]");
    return true;
}

/* What full has where it is not said: one layer at a time. */
static bool plain_full(Try *t, Knob k, int i)
{
    if (k == K_recompute_layers) t->x.recompute_layers = 1;
    else                         t->x.recompute_method = "uniform";
    snprintf(t->fix, sizeof t->fix,
             k == K_recompute_layers ? "memory.recompute_layers=1" : "memory.recompute_method=uniform");
    return i == 0;
}

static bool other_word(Try *t, const char **word, const char *key, const char *choices, int i)
{
    static const char *const known[] = { "p2p", "all_gather", "alltoall", "hybridep", "deepep", "auto" };
    size_t len = 0;
    const char *item = str_item(&choices, ',', &len);
    for (; item && i; i--) item = str_item(&choices, ',', &len);
    if (!item) return false;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
        if (strlen(known[k]) == len && !strncmp(known[k], item, len)) *word = known[k];
    snprintf(t->fix, sizeof t->fix, "%s=%s", key, *word);
    return true;
}

/* The i-th alternative that one knob has to offer; false: there are no more. t->legal is false where it is
 * none, but further ones may follow. */
static bool turn(Try *t, const RuleInput *x, Knob k, int i)
{
    t->x = *x, t->legal = true;
    switch (k) {
#define NUMBER(knob, key, least)                                                                  \
    case K_##knob:                                                                                \
        t->legal = near_number(x, k, least, i, &t->x.knob);                                       \
        snprintf(t->fix, sizeof t->fix, key "=%lld", (long long)t->x.knob);                       \
        return i < TRIES;
#define WORD(knob, key, choices) case K_##knob: return other_word(t, &t->x.knob, key, choices, i);
#define SWITCH(knob, key)                                                                         \
    case K_##knob:                                                                                \
        t->x.knob = false;                                                                        \
        snprintf(t->fix, sizeof t->fix, key "=false");                                            \
        return i == 0;
#define OTHER(knob)
    KNOBS(NUMBER, WORD, SWITCH, OTHER)
#undef NUMBER
#undef WORD
#undef SWITCH
#undef OTHER
    case K_cp_sizes:  return cp_factors(t, i);
    case K_recompute: return fewer_labels(t, "memory.recompute", t->x.recompute, &t->x.recomputes, i);
    case K_offload:   return fewer_labels(t, "memory.activation_offload", t->x.offload, &t->x.offloads, i);
    case K_offload_share:
        t->x.offload_share = 1;
        snprintf(t->fix, sizeof t->fix, "memory.activation_offload_fraction=1");
        return i == 0;
    case K_recompute_layers: case K_recompute_method: return plain_full(t, k, i);
    case K_layout:
        t->x.layout = "";
        snprintf(t->fix, sizeof t->fix, "parallel.layout=\"\"");
        return i == 0;
    case K_capacity_factor:
        t->x.capacity_factor = 1.25;
        snprintf(t->fix, sizeof t->fix, "moe.capacity_factor=1.25");
        return i == 0;
    case K_NOTHING: break;
    }
    return false;
}

static void walk(RuleReport *r, const RuleInput *x, bool fixes);

static bool breaks(const RuleReport *r, int number)
{
    for (int i = 0; i < r->n; i++)
        if (r->hit[i].number == number) return true;
    return false;
}

/* The first turn after which no error is left and this rule holds; else one after which it does and the rest
 * is no worse. */
static void find_fix(RuleViolation *h, const RuleInput *x, const Knob *knobs, int n, int errors)
{
    static const int64_t most = 1 << 20;
    RuleReport *r = malloc(sizeof *r);
    bool found = false;
    h->fix[0] = 0;
    for (int k = 0; k < n && r && !found; k++) {
        Try t;
        for (int i = 0; i < TRIES && !found && turn(&t, x, knobs[k], i); i++) {
            if (!t.legal || t.x.world > most) continue;
            walk(r, &t.x, false);
            if (breaks(r, h->number)) continue;
            found = !r->errors;
            if (found || (!*h->fix && r->errors < errors)) memcpy(h->fix, t.fix, sizeof h->fix);
        }
    }
    free(r);
}

/* Cuts the pipeline as asked. Which rule that breaks, 0: none; chunks as the string makes them. */
static int check_cut(const RuleInput *x, int *chunks, char *why, size_t size)
{
    PipeLayout l = { 0 };
    PipeLayoutSpec a = rules_pipe_layout(x);
    *chunks = (int)x->vpp, *why = 0;
    if (x->pp == 1 && !*a.string) a.chunks = 1;                   /* rule 23 says it */
    if (x->pp * a.chunks > MOST_PIECES) {
        snprintf(why, size, "parallel.pp = %lld x vpp = %d: more pieces than layers; set both lower",
                 (long long)x->pp, a.chunks);
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

static void walk(RuleReport *r, const RuleInput *x, bool fixes)
{
    REQUIRE(x->world > 0 && x->tp > 0 && x->cp > 0 && x->pp > 0 && x->vpp > 0 && x->ep > 0 && x->etp > 0 &&
            x->replicas > 0 && x->micro_tokens > 0, "degrees and budgets are numbers from 1 on");
    char cut_why[400];
    int derived, cut_rule = check_cut(x, &derived, cut_why, sizeof cut_why);
    const long long world = x->world, tp = x->tp, cp = x->cp, pp = x->pp, ep = x->ep, etp = x->etp;
    const long long heads = x->heads, kv_heads = x->kv_heads, experts = x->experts;
    const long long expert_ffn = x->expert_ffn, replicas = x->replicas, chunks = derived;
    const long long micro_tokens = x->micro_tokens, global_tokens = x->global_tokens;
    const long long token_unit = unit_of(x, K_micro_tokens), near = exchangers(x);
    const long long local_kv = kv_heads > tp ? kv_heads / tp : 1;
    const long long dp = world % (tp * cp * pp) ? 0 : world / (tp * cp * pp);
    const long long edp = world % (etp * ep * pp) ? 0 : world / (etp * ep * pp);
    const long long step = micro_tokens * dp;
    const long long micros = !dp || global_tokens % step ? 0 : global_tokens ? global_tokens / step : 1;
    const long long group = x->group ? x->group : pp;
    const char *outer = NULL, *nested = nested_label(x, &outer), *method = x->recompute_method;
    const long long full_layers = x->recompute_layers;
    const bool full = labelled(x, "full");
    const bool hierarchical = is(x->cp_comm, "a2a+p2p");
    const bool two_level = is(x->dispatcher, "deepep") || is(x->dispatcher, "hybridep");
    *r = (RuleReport){ 0 };
    const Knob *knobs[RULE_VIOLATIONS];
    int turns[RULE_VIOLATIONS];

#define E 'E'
#define W 'W'
#define WHY(...) snprintf(h->why, sizeof h->why, __VA_ARGS__)
#define RULE(nr, grade, when, message, ...)                                                       \
    if (when) {                                                                                   \
        static const Knob list[] = { __VA_ARGS__ };                                               \
        RuleViolation *h = &r->hit[r->n];                                                               \
        h->number = nr, h->severity = grade;                                                      \
        WHY message;                                                                              \
        knobs[r->n] = list, turns[r->n++] = sizeof list / sizeof *list;                           \
        r->errors += h->severity == 'E';                                                          \
    }
#include "parallel/rules.def"
#undef E
#undef W
#undef WHY
    for (int i = 0; i < r->n && fixes; i++) find_fix(&r->hit[i], x, knobs[i], turns[i], r->errors);
}

void rules_find(RuleReport *r, const RuleInput *x) { walk(r, x, true); }
void rules_list(RuleReport *r, const RuleInput *x) { walk(r, x, false); }

bool rules_legal(const RuleInput *x)
{
    RuleReport r;
    walk(&r, x, false);
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
        const RuleViolation *h = &r.hit[i];
        rule_text(text, sizeof text, h);
        if (h->severity == 'E' && !first) first = h;
        else log_line(log, h->severity == 'E' ? LOG_ERROR : LOG_WARN, "%s", text);
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
        if (!str_whole(sizes.item[i], &n) || n < 1 || n > MOST_CP) x->cp_sizes = -1;
        else if (i < 2) x->cp_size[i] = n;
    }
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
        .layers = t->L, .heads = t->H, .kv_heads = t->G, .ffn = shape_sparse_layers(t) < t->L ? t->F : 0,
        .experts = t->E, .per_token = t->K, .expert_ffn = t->I, .renorm = t->renorm,
        .micro_tokens = c->train.micro_tokens, .global_tokens = c->train.global_tokens,
        .dispatcher = c->moe.dispatcher, .capacity_factor = c->moe.capacity_factor,
        .domain = c->moe.ranks_per_domain, .pad_to_capacity = c->moe.pad_to_capacity,
        .overlap = c->moe.overlap, .force_balance = c->moe.force_balance,
        .recompute_method = c->memory.recompute_method, .recompute_layers = c->memory.recompute_layers,
        .tower = s->vision.depth > 0, .offload_share = c->memory.activation_offload_fraction,
    };
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
                     .cp_inner = (int)exchangers(x), .kv_heads = (int)x->kv_heads, .domain = (int)x->domain };
}

PipeLayoutSpec rules_pipe_layout(const RuleInput *x)
{
    return (PipeLayoutSpec){ .layers = (int)x->layers, .stages = (int)x->pp, .chunks = (int)x->vpp,
                        .string = x->layout ? x->layout : "", .first = (int)x->first_layers,
                        .last = (int)x->last_layers, .count_embedding = x->count_embedding,
                        .count_loss = x->count_loss };
}

PipeShape rules_pipe(const RuleInput *x, int chunks)
{
    int64_t step = x->micro_tokens * (x->world / (x->tp * x->cp * x->pp));
    return (PipeShape){ .stages = (int)x->pp, .chunks = chunks, .group = (int)x->group, .extra_warmup = x->overlap,
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
    PipeShape shape = rules_pipe(x, cut.chunks);
    pipe_layout_print(out, &cut);
    pipe_layout_close(&cut);
    return pipe_print(out, &shape);
}
