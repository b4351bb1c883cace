/* plan/search_space.c -- the layouts of a search, and whether they are legal.
 *
 * Degrees are divisors of what they divide, so that few are illegal; the trainer's own rules
 * (parallel/rules.h) alone decide. A fixed degree is tried as it is: then the violated rule is the answer. */
#include "model/model.h"
#include "plan/search.h"

#include <string.h>

enum { USUAL_LENGTH = 4096, SHORT = 8192, MOST_STAGES = 64 };

/* Divisors of n up to most, or the one that is fixed. */
static int divisors(int list[DEGREES], int fixed, int64_t n, int64_t most)
{
    int k = 0;
    if (fixed != ANY) return list[0] = fixed, 1;
    for (int64_t d = 1; d <= most && d <= n && k < DEGREES; d++)
        if (n % d == 0) list[k++] = (int)d;
    return k;
}

static int powers(int list[DEGREES], int fixed, int64_t from, int64_t most)
{
    int k = 0;
    if (fixed != ANY) return list[0] = fixed, 1;
    for (int64_t d = from; d <= most && k < DEGREES; d *= 2) list[k++] = (int)d;
    return k;
}

int space_mbs(const SearchAsk *a, int list[DEGREES])
{
    return powers(list, a->fix.mbs, 1, a->task.gbs < 16 ? a->task.gbs : 16);
}

/* The cp degree that gives a rank about USUAL_LENGTH tokens of a sequence. */
static int64_t usual_cp(int64_t seq)
{
    int64_t n = 1;
    if (seq <= SHORT) return 1;
    while (3 * n * USUAL_LENGTH / 2 < seq) n *= 2;                  /* the nearer of two powers */
    return n;
}

/* TP may replace a part of CP. If nothing fits that way, any split is tried. */
static bool cp_wanted(const Search *s, int tp, int cp)
{
    int64_t usual = usual_cp(s->ask.task.seq);
    if (s->ask.fix.cp != ANY) return true;
    if (s->wide) return cp <= 4 * usual;
    return cp <= 2 * usual && (usual == 1 ? cp == 1 : 2 * cp * tp >= usual);
}

/* The split of pipe_layout_suggest, which the analytic model uses, too, in its simplest notation. */
void space_split(LayerSplit *split, int layers, int pp, int vpp)
{
    int n = pp * vpp;
    bool both = (layers + 2) % n == 0, one = (layers + 1) % n == 0;
    *split = (LayerSplit){ 0 };
    if (layers % n == 0) return;
    split->loss = both, split->embedding = both || one;
    if (!both && !one) pipe_layout_suggest(split->string, sizeof split->string, layers, pp, vpp);
}

static bool splits_evenly(int layers, int n)
{
    return layers % n == 0 || (layers + 1) % n == 0 || (layers + 2) % n == 0;
}

/* Virtual pipeline chunks per stage: numbers that give chunks of equal length, but for the ends; a few others
 * if the layers never divide that way. */
static int chunk_counts(int list[DEGREES], const SearchAsk *a, int pp)
{
    int k = 0, L = (int)a->task.model->text.L;
    if (a->fix.vpp != ANY) return list[0] = a->fix.vpp, 1;
    list[k++] = 1;
    for (int v = 2; pp > 1 && v <= MAX_CHUNKS && v * pp <= L && k < DEGREES; v++)
        if (splits_evenly(L, pp * v)) list[k++] = v;
    for (int v = 2; pp > 1 && k < 3 && v <= 4 && v * pp <= L; v *= 2)
        if (!splits_evenly(L, pp * v)) list[k++] = v;
    return k;
}

/* What this trainer cannot cut yet holds for models that it builds: others may do it. */
void space_rules(RuleInput *x, const SearchAsk *a)
{
    const TextShape *m = &a->task.model->text;
    int per_node = a->task.hw.domain < a->task.gpus ? a->task.hw.domain : a->task.gpus;
    *x = (RuleInput){ .world = a->task.gpus, .per_node = per_node, .tp = 1, .cp = 1, .pp = 1, .vpp = 1,
                      .ep = 1, .etp = 1, .zero = 1, .replicas = 1, .cp_comm = "p2p", .layout = "",
                      .layers = m->L, .heads = m->H, .kv_heads = m->G,
                      .ffn = m->E && !m->dense_first ? 0 : m->I, .experts = m->E, .per_token = m->K,
                      .expert_ffn = m->F, .renorm = true, .shared = m->shared,
                      .latent = m->mla.kv_rank > 0, .linear = m->gdn.every > 0, .micro_tokens = a->task.seq,
                      .global_tokens = a->task.seq * a->task.gbs, .dispatcher = "auto",
                      .tower = a->task.model->vision.depth > 0 };
    if (model_builds(a->task.model) && !a->task.foreign) rules_family(x, m);
}

/* x comes from space_rules; split must outlive x. Recompute words of parts that no family of this trainer has
 * are not checked. */
void space_candidate(RuleInput *x, LayerSplit *split, const SearchAsk *a, const Candidate *c)
{
    unsigned ours = c->recompute & ~(model_builds(a->task.model) ? 0u : (unsigned)(RE_SHARED | RE_UP_PROJ));
    space_split(split, (int)a->task.model->text.L, c->pp, c->vpp);
    x->tp = c->tp, x->cp = c->cp, x->pp = c->pp, x->vpp = c->vpp, x->ep = c->ep, x->etp = c->etp;
    x->zero = c->zero, x->replicas = c->replicas > 1 ? c->replicas : 1;
    x->cp_comm = c->cp_inner > 1 ? "a2a+p2p" : "p2p", x->cp_sizes = c->cp_inner > 1 ? 2 : 0;
    if (c->cp_inner > 1) x->cp_size[0] = c->cp_inner, x->cp_size[1] = c->cp / c->cp_inner;
    x->count_embedding = c->pp > 1 && split->embedding, x->count_loss = c->pp > 1 && split->loss;
    x->layout = c->pp > 1 ? split->string : "";
    x->dispatcher = c->ep * c->etp == 1 ? "auto" : dispatch_word(c->dispatch);
    x->overlap = c->overlap;
    x->micro_tokens = a->task.seq * c->mbs;
    x->recomputes = search_words(x->recompute, ours);
}

/* Chunks without a layer, and rules of families that this trainer cannot build. Other trainers exchange heads
 * of linear attention over cp, this one passes states. */
static bool breaks_others(RuleViolation *h, const Task *t, const Candidate *c)
{
    const TextShape *m = &t->model->text;
    int split = c->tp * (t->foreign ? c->cp : 1);
    int64_t most = m->L / c->pp < MAX_CHUNKS ? m->L / c->pp : MAX_CHUNKS;
    *h = (RuleViolation){ .severity = 'E' };
    if (c->pp > 1 && c->vpp > most) {
        h->number = 25;
        snprintf(h->why, sizeof h->why, "vpp %d: %lld layers on %d stages make at most %lld chunks a stage",
                 c->vpp, (long long)m->L, c->pp, (long long)most);
    } else if (m->shared % c->tp) {
        h->number = 103;
        snprintf(h->why, sizeof h->why, "tp %d: the width %lld of the shared expert does not divide by it",
                 c->tp, (long long)m->shared);
    } else if (m->gdn.every && (m->gdn.key_heads % split || m->gdn.value_heads % split)) {
        h->number = 19;
        snprintf(h->why, sizeof h->why,
                 "tp %d x cp %d: the %lld and %lld heads of linear attention do not divide by %d", c->tp,
                 c->cp, (long long)m->gdn.key_heads, (long long)m->gdn.value_heads, split);
    }
    return h->number;
}

/* What this trainer captures as one graph (engine/engine_graph.c) communicates in layers only by kernels. */
static bool breaks_graphs(RuleViolation *h, const Task *t, const Candidate *c)
{
    bool inside = c->pp > 1 || c->tp > 1 || c->cp > 1 || c->overlap || c->zero > 1 || c->offload > 0;
    bool counts = c->ep * c->etp > 1 && !dispatcher_within_node(&dispatcher_rows[c->dispatch]);
    if (t->graphs != GRAPHS_FULL || t->foreign || !(inside || counts)) return false;
    *h = (RuleViolation){ .severity = 'E', .number = 71 };
    snprintf(h->why, sizeof h->why, "--graphs full: tp, cp, pp, zero 2 and 3, offload, overlap and "
             "dispatchers that count rows on the host are not captured");
    return true;
}

/* The first violated rule. */
bool space_breaks(RuleViolation *h, const RuleInput *x, const Task *t, const Candidate *c)
{
    RuleReport r;
    rules_list(&r, x);
    for (int i = 0; i < r.n; i++)
        if (r.violation[i].severity == 'E') return *h = r.violation[i], true;
    return breaks_graphs(h, t, c) || breaks_others(h, t, c);
}

/* The ladder of recompute words: each step saves more memory and costs more time. */
int space_rungs(unsigned list[RUNGS], const SearchAsk *a)
{
    const TextShape *m = &a->task.model->text;
    unsigned cheap = (m->E ? RE_MOE_ACT : 0) | RE_NORM, more = cheap;
    int n = 0;
    if (a->fix.recompute != ANY) return list[0] = (unsigned)a->fix.recompute, 1;
    list[n++] = 0;
    if (m->E) list[n++] = RE_MOE_ACT;
    list[n++] = cheap;
    if (m->mla.kv_rank)      list[n++] = more |= RE_UP_PROJ;
    if (a->task.patches) list[n++] = more |= RE_VISION;
    if (m->shared || m->dense_first || !m->E)
        list[n++] = more |= (m->dense_first || !m->E ? RE_MLP : 0) | (m->shared ? RE_SHARED : 0);
    if (m->E) list[n++] = (more & ~(unsigned)(RE_MOE_ACT | RE_SHARED)) | RE_MOE;
    list[n++] = RE_FULL;
    return n;
}

static Status walk_overlap(Search *s, Candidate c, SpaceFn *fn)
{
    int fixed = s->ask.fix.overlap;
    bool able = c.ep * c.etp > 1 && (c.pp == 1 || c.vpp > 1);
    for (int overlap = 0; overlap < 2; overlap++) {
        if (fixed != ANY ? fixed != overlap : overlap && !able) continue;
        c.overlap = overlap;
        TRY(fn(s, &c));
    }
    return OK;
}

/* If dispatch spans nodes, deepep is worth a try: it sends a token to a node once. */
static Status walk_chunks(Search *s, Candidate c, SpaceFn *fn)
{
    const SearchAsk *a = &s->ask;
    bool both = a->fix.dispatch == ANY && c.ep * c.etp > a->task.hw.domain;
    int list[DEGREES], n = chunk_counts(list, a, c.pp);
    for (int i = 0; i < n; i++) {
        c.vpp = list[i];
        c.dispatch = a->fix.dispatch == ANY ? dispatcher_auto(false, false) : (DispatcherId)a->fix.dispatch;
        TRY(walk_overlap(s, c, fn));
        c.dispatch = dispatcher_auto(true, false);
        if (both) TRY(walk_overlap(s, c, fn));
    }
    return OK;
}

static Status walk_experts(Search *s, Candidate c, SpaceFn *fn)
{
    const SearchAsk *a = &s->ask;
    int64_t share = a->task.gpus / c.pp;
    int ep[DEGREES], etp[DEGREES], E = a->task.model->text.E ? (int)a->task.model->text.E : 1;
    int n = divisors(ep, a->fix.ep, E, E);
    int k = powers(etp, a->fix.etp, 1, s->wide && a->task.model->text.E ? 16 : 1);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < k; j++) {
            bool asked = a->fix.ep != ANY || a->fix.etp != ANY;
            int64_t edp   = share / ((int64_t)ep[i] * etp[j]);
            if (!asked && share % ((int64_t)ep[i] * etp[j])) continue;
            if (a->fix.replicas == ANY && c.replicas > 1 && (edp % c.replicas || share / c.tp % c.replicas))
                continue;
            c.ep = ep[i], c.etp = etp[j];
            TRY(walk_chunks(s, c, fn));
        }
    return OK;
}

static Status walk_attention(Search *s, Candidate c, SpaceFn *fn)
{
    const SearchAsk *a = &s->ask;
    const Task *t = &a->task;
    int64_t share = t->gpus / c.pp, widest = s->wide ? 16 : t->hw.domain < 8 ? t->hw.domain : 8;
    int tp[DEGREES], cp[DEGREES];
    int n = divisors(tp, a->fix.tp, t->model->text.H, widest);
    int k = powers(cp, a->fix.cp, 1, 4 * usual_cp(t->seq));
    for (int i = 0; i < n; i++)
        for (int j = 0; j < k; j++) {
            bool asked = a->fix.tp != ANY || a->fix.cp != ANY;
            if (!cp_wanted(s, tp[i], cp[j]) || (!asked && share % ((int64_t)tp[i] * cp[j]))) continue;
            c.tp = tp[i], c.cp = cp[j], c.cp_inner = analytic_cp_inner(t, c.tp, c.cp);
            TRY(walk_experts(s, c, fn));
        }
    return OK;
}

/* Sets of shards: one, and with ZeRO-3 over several nodes as many as leave a node or more to each. */
static Status walk_replicas(Search *s, Candidate c, SpaceFn *fn)
{
    int fixed = s->ask.fix.replicas, most = s->ask.task.gpus / c.pp / s->ask.task.hw.domain;
    if (fixed != ANY) return c.replicas = fixed, walk_attention(s, c, fn);
    for (c.replicas = 1; c.replicas == 1 || (c.zero == 3 && c.replicas <= most); c.replicas *= 2)
        TRY(walk_attention(s, c, fn));
    return OK;
}

/* Two families: weights whole on a rank and cut by pipelines (zero 1), or sharded over all of dp (zero 3). */
Status space_walk(Search *s, SpaceFn *fn)
{
    static const int families[] = { 1, 3 };
    const Fixed *f = &s->ask.fix;
    int pp[DEGREES], L = (int)s->ask.task.model->text.L;
    int n = divisors(pp, f->pp, s->ask.task.gpus, L < MOST_STAGES ? L : MOST_STAGES);
    for (int z = 0; z < (f->zero == ANY ? 2 : 1); z++)
        for (int i = 0; i < n; i++) {
            Candidate c = { .pp = pp[i], .mbs = 1, .zero = f->zero == ANY ? families[z] : f->zero };
            if (f->zero == ANY && c.zero == 3 && (c.pp > 1 || s->ask.task.gpus == 1)) continue;
            TRY(walk_replicas(s, c, fn));
        }
    return OK;
}
