/* parallel/dispatch_hierarchical_layout.c -- counts of a hierarchical dispatch, and from them the layout of
 * every all-to-all; see dispatch_hierarchical.h. */
#include "parallel/dispatch_hierarchical.h"

/* ---- counts that members exchange ----
 * For each chunk: tokens for each domain (inter-node step), tokens for each member (intra-node step). Then
 * assignments for each expert. */

static int64_t domain_counts(const Dispatcher *d) { return d->domains > 1 ? d->domains : 0; }
static int64_t member_counts(const Dispatcher *d) { return d->domain_size > 1 ? d->n : 0; }
static int64_t chunk_counts(const Dispatcher *d)  { return domain_counts(d) + member_counts(d); }
int64_t hier_counts(const Dispatcher *d) { return d->exchange_chunks * chunk_counts(d) + d->conf.shape.E; }

static int64_t tokens_for_domain(const Dispatcher *d, int from, int k, int domain)
{
    return counts_of_member(d, from)[k * chunk_counts(d) + domain];
}

static int64_t tokens_for_member(const Dispatcher *d, int from, int k, int to)
{
    return counts_of_member(d, from)[k * chunk_counts(d) + domain_counts(d) + to];
}

int64_t hier_rows_for_experts(const Dispatcher *d, int from, int to)
{
    const int32_t *experts = counts_of_member(d, from) + d->exchange_chunks * chunk_counts(d);
    int64_t sum = 0;
    for (int64_t e = 0; e < d->local_experts; e++) sum += experts[to / d->etp * d->local_experts + e];
    return sum;
}

static int64_t chunk_start(const Dispatcher *d, int64_t T, int k) { return T * k / d->exchange_chunks; }

int32_t hier_expected_tokens(const Dispatcher *d, int64_t T, int64_t experts)
{
    double none = 1;
    const MoeShape *s = &d->conf.shape;
    for (int64_t i = 0; i < s->K; i++) {
        double left = (double)(s->E - experts - i);
        none *= left > 0 ? left / (double)(s->E - i) : 0;
    }
    return (int32_t)((double)T * (1 - none));
}

/* Counts of uniform routing, for a backend that has no data. */
static void set_uniform_counts(Dispatcher *d, int64_t T)
{
    int32_t *to = d->own_counts;
    int64_t  in_domain = d->local_experts * (d->domain_size > d->etp ? d->domain_size / d->etp : 1);
    for (int k = 0; k < d->exchange_chunks; k++) {
        int64_t n = chunk_start(d, T, k + 1) - chunk_start(d, T, k);
        for (int64_t g = 0; g < domain_counts(d); g++) *to++ = hier_expected_tokens(d, n, in_domain);
        for (int64_t m = 0; m < member_counts(d); m++) *to++ = hier_expected_tokens(d, n, d->local_experts);
    }
    for (int64_t e = 0; e < d->conf.shape.E; e++) *to++ = (int32_t)(T * d->conf.shape.K / d->conf.shape.E);
}

/* ---- indices ---- */

void hier_sort_by_destination(const Pass *c, Tensor offsets, Tensor rows, Tensor key, int64_t max_rows,
                              Destinations to)
{
    int64_t   A = key.n[0], G = rows.n[1];
    ArenaMark mark = arena_mark(c->scratch);
    Tensor    mask = t_rows(scratch2(c, I32, max_rows, G), 0, A);
    Tensor    src = t_rows(scratch2(c, I32, max_rows * G, 1), 0, A * G);
    op_expert_owner_mask(c->be, mask, key, to.experts, c->env->dispatcher->etp, to.first, to.size);
    op_sort_by_expert(c->be, offsets, rows, src, mask);
    routing_scratch_note(c);
    arena_reset(c->scratch, mark);
}

/* Sorts each chunk's tokens by domain and by member. The first step's sort goes into `index`; where there are
 * two steps the members' is needed for its offsets alone. Returns how many offsets were written. */
static int64_t sort_chunks(const Pass *c, Tensor offsets, Tensor index, Tensor member_rows, Tensor kept)
{
    const Dispatcher *d = c->env->dispatcher;
    int64_t T = kept.n[0], at = 0;
    for (int k = 0; k < d->exchange_chunks; k++) {
        int64_t from = chunk_start(d, T, k), n = chunk_start(d, T, k + 1) - from;
        Tensor  key = t_rows(kept, from, n), rows = t_rows(index, from, n);
        if (d->domains > 1) {
            hier_sort_by_destination(c, t_rows(offsets, at, d->domains + 1), rows, key, n,
                                     (Destinations){ d->local_experts, 0, d->domain_size });
            at += d->domains + 1;
        }
        if (d->domain_size > 1) {
            if (t_has(member_rows)) rows = t_rows(member_rows, from, n);
            hier_sort_by_destination(c, t_rows(offsets, at, d->n + 1), rows, key, n,
                                     (Destinations){ d->local_experts, 0, 1 });
            at += d->n + 1;
        }
    }
    return at;
}

/* own_counts from the fetched offsets of sort_chunks and of the experts. */
static void set_counts(const Pass *c, Dispatcher *d, int64_t T, int64_t K)
{
    const int32_t *offsets = d->fetched;
    int32_t       *to = d->own_counts;
    int64_t        E = d->conf.shape.E;
    for (int k = 0; k < d->exchange_chunks; k++) {
        if (d->domains > 1)
            counts_from_offsets(to, offsets, d->domains), to += d->domains, offsets += d->domains + 1;
        if (d->domain_size > 1) counts_from_offsets(to, offsets, d->n), to += d->n, offsets += d->n + 1;
    }
    counts_from_offsets(to, offsets, E);
    if (!offsets_are_valid(c, offsets, E, T * K)) set_uniform_counts(d, T);
}

void hier_exchange_counts(const Pass *c, Tensor index, Tensor kept)
{
    Dispatcher *d = c->env->dispatcher;
    int64_t T = kept.n[0], K = kept.n[1], E = d->conf.shape.E, lists = d->exchange_chunks * steps(d);
    Tensor  offsets = scratch2(c, I32, d->counts_len + lists + 1, 1), none = { 0 };
    Tensor  member_rows = steps(d) == 2 ? scratch2(c, I32, T, d->n) : none;
    int64_t at = sort_chunks(c, offsets, index, member_rows, kept);
    Tensor  rows = scratch2(c, I32, T, K), src = scratch2(c, I32, T * K, 1);
    op_sort_by_expert(c->be, t_rows(offsets, at, E + 1), rows, src, kept);
    backend_fetch(c->be, d->fetched, offsets);
    set_counts(c, d, T, K);
    dispatch_gather_counts(c);
}

/* ---- the layout of every all-to-all ---- */

size_t hier_table_bytes(const Dispatcher *d)
{
    size_t arrays = 4 * (size_t)(d->domains + d->domain_size);
    return sizeof(HierTable) + (size_t)d->exchange_chunks * arrays * sizeof(int64_t);
}

/* Rows of chunk k that the member with local index `by` forwards to member `to` of its domain: the tokens of
 * all members with that local index. */
static int64_t forwarded(const Dispatcher *d, int k, int by, int to)
{
    int64_t sum = 0;
    for (int g = 0; g < d->domains; g++) sum += tokens_for_member(d, member_at(d, g, by), k, to);
    return sum;
}

/* Rows that `member` receives in the inter-node step or sends in the intra-node step, the larger. */
static int64_t forwarding_rows(const Dispatcher *d, int member)
{
    int     domain = domain_of(d, member), local = local_index(d, member);
    int64_t received = 0, sent = 0;
    for (int k = 0; k < d->exchange_chunks; k++) {
        for (int g = 0; g < d->domains; g++)
            received += tokens_for_domain(d, member_at(d, g, local), k, domain);
        for (int i = 0; i < d->domain_size; i++) sent += forwarded(d, k, local, member_at(d, domain, i));
    }
    return received > sent ? received : sent;
}

bool hier_all_fit(Dispatcher *d)
{
    d->max_rows = 0;
    for (int to = 0; to < d->n && !d->conf.shape.pad; to += d->etp) {
        int64_t rows = 0;
        for (int from = 0; from < d->n; from++) rows += hier_rows_for_experts(d, from, to);
        if (rows > d->max_rows) d->max_rows = rows;
    }
    for (int m = 0; m < d->n && steps(d) == 2 && d->bounded; m++) {
        int64_t rows = forwarding_rows(d, m);
        if (rows > d->max_rows) d->max_rows = rows;
    }
    return d->max_rows <= d->row_capacity;
}

static void set_exchange(const Dispatcher *d, AllToAll *x, int s, int k)
{
    int domain = domain_of(d, d->me), local = local_index(d, d->me);
    for (int i = 0; i < peers(d, s); i++) {
        if (is_inter_node(d, s)) {
            x->send_n[i] = tokens_for_domain(d, d->me, k, i);
            x->recv_n[i] = tokens_for_domain(d, member_at(d, i, local), k, domain);
        } else {
            x->send_n[i] = forwarded(d, k, local, member_at(d, domain, i));
            x->recv_n[i] = forwarded(d, k, i, d->me);
        }
    }
    a2a_set_offsets(x, peers(d, s));
}

void hier_set_layout(const Pass *c, Route *r, int64_t T)
{
    const Dispatcher *d = c->env->dispatcher;
    HierTable   *t = route_table(c, r);
    int64_t *memory = (int64_t *)(t + 1);
    for (int k = 0; k < d->exchange_chunks; k++)
        for (int s = 0; s < steps(d); s++) {
            AllToAll *x = &t->exchange[k][s], *before = k ? &t->exchange[k - 1][s] : NULL;
            *x = (AllToAll){ 0 };
            a2a_set_arrays(x, &memory, peers(d, s));
            set_exchange(d, x, s, k);
            x->in = s ? t->exchange[k][s - 1].received : chunk_start(d, T, k + 1) - chunk_start(d, T, k);
            x->in_at       = before ? before->in_at + before->in : 0;
            x->sent_at     = before ? before->sent_at + before->sent : 0;
            x->received_at = before ? before->received_at + before->received : 0;
        }
}
