/* parallel/dispatch_hierarchical.c -- deepep and hybridep: a token crosses to a domain once and is handed on there.
 *
 * Members of etp_ep are cut in domains of `near`. A token that any expert of a domain wants goes once over
 * the slow link, to the member of its own place there (far hop), which hands it to the members that want it,
 * each once (near hop). What arrived is spread to the rows of the experts by its tag (ops/exchange.c), whose
 * key sorts by expert, source and token: the rows that alltoall would have made. A group of one domain has
 * the near hop alone, domains of one rank the far hop.
 *
 * On the way back a rank sums a token's rows of its experts in the order of the slots, the forwarder sums its
 * ranks' rows in the order of the members, the source its domains' in theirs: three sums, each in f32 and
 * rounded to the dtype, where alltoall has one. In f32 they differ in order alone; in bf16 each hop rounds.
 * Both repeat to the bit.
 *
 * deepep sends all of a hop at once. hybridep cuts the tokens in chunks: while a chunk is on the near hop the
 * next is on the far one and the one after is being packed. */
#include "parallel/dispatch.h"

enum { FINAL = 2 };             /* Route.index: [h] (rows before hop h, places); [FINAL] (rows arrived, K) */

typedef struct Table { Leg leg[DISPATCH_CHUNKS][2]; } Table;

static int hops(const Dispatcher *d)             { return (d->domains > 1) + (d->domain_size > 1); }
static bool is_far(const Dispatcher *d, int h)   { return d->domains > 1 && h == 0; }
static int places(const Dispatcher *d, int h)    { return is_far(d, h) ? d->domains : d->domain_size; }
static Comm *hop_comm(const Dispatcher *d, int h)
{
    return d->mesh->comm[is_far(d, h) ? GR_ep_inter_node : GR_ep_intra_node];
}

static Status fits_deepep(const Mesh *m, const DispatchConf *conf)
{
    if (conf->shape.pad)
        return fail(E_CONFIG, "moe.dispatcher = deepep with moe.pad_to_capacity: its sizes follow the "
                    "routing; use alltoall or hybridep");
    return OK;
}
static Status fits_hybridep(const Mesh *m, const DispatchConf *conf)
{
    if (conf->chunk > 0 && conf->shape.T > conf->chunk * DISPATCH_CHUNKS)
        return fail(E_CONFIG, "chunks of %lld of %lld tokens: more than %d are not sent; set %lld or more",
                    (long long)conf->chunk, (long long)conf->shape.T, DISPATCH_CHUNKS,
                    (long long)((conf->shape.T + DISPATCH_CHUNKS - 1) / DISPATCH_CHUNKS));
    return OK;
}

/* ---- rows at most ---- */

/* Of a hop: those that arrive, those that are sent. Where there is a bound none is more than the experts'. */
static int64_t capped(const Dispatcher *d, int64_t rows)
{
    return d->bounded && rows > d->row_capacity ? d->row_capacity : rows;
}
static int64_t came_room(const Dispatcher *d, int h)
{
    int64_t T = d->conf.shape.T, all = d->n * T;
    if (h + 1 == hops(d)) return all < d->row_capacity ? all : d->row_capacity;    /* each is a row of an expert at least */
    return capped(d, d->domains * T);
}
static int64_t sent_room(const Dispatcher *d, int h)
{
    int64_t before = h ? came_room(d, h - 1) : d->conf.shape.T, wide = d->conf.shape.K * d->etp;
    int64_t rows = before * (places(d, h) < wide ? places(d, h) : wide);
    return h ? capped(d, rows) : rows;
}

/* ---- what members tell each other: per chunk tokens for domains and ranks; slots for experts ---- */

static int64_t domains_told(const Dispatcher *d) { return d->domains > 1 ? d->domains : 0; }
static int64_t ranks_told(const Dispatcher *d)   { return d->domain_size > 1 ? d->n : 0; }
static int64_t chunk_told(const Dispatcher *d)   { return domains_told(d) + ranks_told(d); }
static int64_t counts(const Dispatcher *d)       { return d->exchange_chunks * chunk_told(d) + d->conf.shape.E; }

static int64_t for_domain(const Dispatcher *d, int member, int k, int domain)
{
    return dispatch_of(d, member)[k * chunk_told(d) + domain];
}
static int64_t for_rank(const Dispatcher *d, int member, int k, int rank)
{
    return dispatch_of(d, member)[k * chunk_told(d) + domains_told(d) + rank];
}
static int64_t for_experts(const Dispatcher *d, int member, int rank)
{
    const int32_t *n = dispatch_of(d, member) + d->exchange_chunks * chunk_told(d) + rank / d->etp * d->local_experts;
    int64_t sum = 0;
    for (int64_t e = 0; e < d->local_experts; e++) sum += n[e];
    return sum;
}

static int64_t chunk_at(const Dispatcher *d, int64_t T, int k) { return T * k / d->exchange_chunks; }

/* Tokens of T that want one of `experts`, if all sets of K are as likely. */
static int32_t likely(const Dispatcher *d, int64_t T, int64_t experts)
{
    double none = 1;
    const MoeShape *s = &d->conf.shape;
    for (int64_t i = 0; i < s->K; i++) {
        double left = (double)(s->E - experts - i);
        none *= left > 0 ? left / (double)(s->E - i) : 0;
    }
    return (int32_t)((double)T * (1 - none));
}

static void deal_evenly(Dispatcher *d, int64_t T)
{
    int32_t *to = d->own_counts;
    int64_t  in_domain = d->local_experts * (d->domain_size > d->etp ? d->domain_size / d->etp : 1);
    for (int k = 0; k < d->exchange_chunks; k++) {
        int64_t n = chunk_at(d, T, k + 1) - chunk_at(d, T, k);
        for (int64_t g = 0; g < domains_told(d); g++) *to++ = likely(d, n, in_domain);
        for (int64_t g = 0; g < ranks_told(d); g++)   *to++ = likely(d, n, d->local_experts);
    }
    for (int64_t e = 0; e < d->conf.shape.E; e++) *to++ = (int32_t)(T * d->conf.shape.K / d->conf.shape.E);
}

/* ---- indices ---- */

/* Rows by the places that want them: rows (A, G), borders (G + 1). Scratch is that of `room` rows. */
static void sort_by_place(Ctx *c, Tensor borders, Tensor rows, Tensor key, int64_t room, int64_t unit,
                          int64_t from, int64_t block)
{
    int64_t   A = key.n[0], G = rows.n[1];
    ArenaMark mark = arena_mark(c->scratch);
    Tensor    hit = t_rows(scratch2(c, I32, room, G), 0, A);
    Tensor    src = t_rows(scratch2(c, I32, room * G, 1), 0, A * G);
    op_expert_owner_mask(c->be, hit, key, unit, c->dispatch->etp, from, block);
    op_sort_by_expert(c->be, borders, rows, src, hit);
    brief_note(c);
    arena_reset(c->scratch, mark);
}

/* The first hop's index, and all that the group must know of this rank's tokens: one fetch, one word. */
static void tell(Ctx *c, Tensor index, Tensor kept)
{
    Dispatcher *d = c->dispatch;
    int64_t   T = kept.n[0], K = kept.n[1], E = d->conf.shape.E, lists = d->exchange_chunks * (hops(d)), at = 0;
    Tensor    borders = scratch2(c, I32, d->counts_len + lists + 1, 1), none = { 0 };
    Tensor    rank_rows = hops(d) == 2 ? scratch2(c, I32, T, d->n) : none;
    for (int k = 0; k < d->exchange_chunks; k++) {
        int64_t from = chunk_at(d, T, k), n = chunk_at(d, T, k + 1) - from;
        Tensor  key = t_rows(kept, from, n), rows = t_rows(index, from, n);
        if (d->domains > 1) {
            sort_by_place(c, t_rows(borders, at, d->domains + 1), rows, key, n, d->local_experts, 0, d->domain_size);
            at += d->domains + 1;
        }
        if (d->domain_size > 1) {
            if (t_has(rank_rows)) rows = t_rows(rank_rows, from, n);
            sort_by_place(c, t_rows(borders, at, d->n + 1), rows, key, n, d->local_experts, 0, 1);
            at += d->n + 1;
        }
    }
    Tensor rows = scratch2(c, I32, T, K), src = scratch2(c, I32, T * K, 1);
    op_sort_by_expert(c->be, t_rows(borders, at, E + 1), rows, src, kept);
    backend_fetch(c->be, d->fetched, borders);
    const int32_t *got = d->fetched;
    int32_t       *to = d->own_counts;
    for (int k = 0; k < d->exchange_chunks; k++) {
        if (d->domains > 1) counts_of(to, got, d->domains), to += d->domains, got += d->domains + 1;
        if (d->domain_size > 1)  counts_of(to, got, d->n), to += d->n, got += d->n + 1;
    }
    counts_of(to, got, E);
    if (c->be->sticky || !borders_real(got, E, T * K)) deal_evenly(d, T);
    dispatch_tell(c);
}

/* ---- the table ---- */

static size_t table_bytes(const Dispatcher *d)
{
    return sizeof(Table) + (size_t)d->exchange_chunks * 4 * (size_t)(d->domains + d->domain_size) * sizeof(int64_t);
}

/* Rows that member `to` has from all of a place `by` in its domain, or that `by` hands to it: the same. */
static int64_t handed(const Dispatcher *d, int k, int by, int to)
{
    int64_t sum = 0;
    for (int s = 0; s < d->domains; s++) sum += for_rank(d, s * d->domain_size + by, k, to);
    return sum;
}

static bool room_for_all(Dispatcher *d)
{
    d->max_rows = 0;
    for (int to = 0; to < d->n && !d->conf.shape.pad; to += d->etp) {
        int64_t rows = 0;
        for (int from = 0; from < d->n; from++) rows += for_experts(d, from, to);
        if (rows > d->max_rows) d->max_rows = rows;
    }
    for (int me = 0; me < d->n && hops(d) == 2 && d->bounded; me++) {
        int64_t first = me / d->domain_size * d->domain_size, came = 0, sent = 0;
        for (int k = 0; k < d->exchange_chunks; k++) {
            for (int s = 0; s < d->domains; s++)
                came += for_domain(d, s * d->domain_size + me % d->domain_size, k, me / d->domain_size);
            for (int q = 0; q < d->domain_size; q++) sent += handed(d, k, me % d->domain_size, (int)first + q);
        }
        if (came > d->max_rows) d->max_rows = came;
        if (sent > d->max_rows) d->max_rows = sent;
    }
    return d->max_rows <= d->row_capacity;
}

static void fill_leg(const Dispatcher *d, Leg *l, int h, int k)
{
    int domain = d->me / d->domain_size, place = d->me % d->domain_size;
    for (int i = 0; i < places(d, h); i++) {
        l->give_n[i] = is_far(d, h) ? for_domain(d, d->me, k, i) : handed(d, k, place, domain * d->domain_size + i);
        l->get_n[i]  = is_far(d, h) ? for_domain(d, i * d->domain_size + place, k, domain) : handed(d, k, i, d->me);
    }
    leg_sum(l, places(d, h));
}

static void lay_out(Ctx *c, Route *r, int64_t T)
{
    const Dispatcher *d = c->dispatch;
    Table   *t = route_table(c, r);
    int64_t *memory = (int64_t *)(t + 1);
    for (int k = 0; k < d->exchange_chunks; k++)
        for (int h = 0; h < hops(d); h++) {
            Leg *l = &t->leg[k][h], *before = k ? &t->leg[k - 1][h] : NULL;
            *l = (Leg){ 0 };
            leg_place(l, &memory, places(d, h));
            fill_leg(d, l, h, k);
            l->in      = h ? t->leg[k][h - 1].came : chunk_at(d, T, k + 1) - chunk_at(d, T, k);
            l->at_in   = before ? before->at_in + before->in : 0;
            l->at_sent = before ? before->at_sent + before->sent : 0;
            l->at_came = before ? before->at_came + before->came : 0;
        }
}

static const Leg *leg_of(const Route *r, int k, int h) { return &((const Table *)r->table)->leg[k][h]; }
static int64_t arrived(const Dispatcher *d, const Route *r)
{
    const Leg *l = leg_of(r, d->exchange_chunks - 1, hops(d) - 1);
    return l->at_came + l->came;
}

/* ---- there ---- */

static Tensor of_in(Tensor t, const Leg *l)   { return t_rows(t, l->at_in, l->in); }
static Tensor of_sent(Tensor t, const Leg *l) { return t_rows(t, l->at_sent, l->sent); }
static Tensor of_came(Tensor t, const Leg *l) { return t_rows(t, l->at_came, l->came); }

static void buffers(Ctx *c, Exchange *w, DType dtype, int64_t width)
{
    const Dispatcher *d = c->dispatch;
    for (int h = 0; h < hops(d); h++) {
        w->out[h] = scratch2(c, dtype, sent_room(d, h), width);
        w->in[h]  = scratch2(c, dtype, came_room(d, h), width);
    }
}

/* A chunk's rows before hop h to those that want them. */
static void set_out(Ctx *c, const Route *r, Exchange *w, Tensor from, int h, int k)
{
    const Leg *l = leg_of(r, k, h);
    op_expand_rows(c->be, of_sent(w->out[h], l), of_in(from, l), of_in(r->index[h], l));
    w->ticket[k] = leg_start(hop_comm(c->dispatch, h), l, w->in[h], w->out[h]);
}

static void dispatch_start(Ctx *c, const Route *r, Exchange *w, Tensor x)
{
    buffers(c, w, (DType)x.dtype, x.n[1]);
    for (int k = 0; k < c->dispatch->exchange_chunks; k++) set_out(c, r, w, x, 0, k);
}

static void dispatch_finish(Ctx *c, const Route *r, Exchange *w, Tensor rows)
{
    const Dispatcher *d = c->dispatch;
    int last = hops(d) - 1;
    if (d->conf.shape.pad) op_fill(c->be, rows, 0.0f);
    for (int k = 0; k < d->exchange_chunks && last; k++) {
        comm_join(w->ticket[k]);
        set_out(c, r, w, w->in[0], last, k);
    }
    for (int k = 0; k < d->exchange_chunks; k++) {
        const Leg *l = leg_of(r, k, last);
        comm_join(w->ticket[k]);
        c->be->ledger.shares = d->exchange_chunks;
        op_expand_rows(c->be, rows, of_came(w->in[last], l), of_came(r->index[FINAL], l));
        c->be->ledger.shares = 0;
    }
}

/* ---- the plan ---- */

/* Tags take the road first: the second hop's index is made of them where they arrive. */
static void send_tags(Ctx *c, const Route *r, Exchange *w, Tensor kept, Tensor weight)
{
    const Dispatcher *d = c->dispatch;
    int64_t T = kept.n[0], K = kept.n[1], domain = d->me / d->domain_size;
    Tensor  meta = scratch2(c, I32, T, 2 * K), none = { 0 };
    op_moe_pack(c->be, meta, kept, weight, d->n, d->me);
    dispatch_start(c, r, w, meta);
    if (hops(d) == 2) {
        Tensor key = scratch2(c, I32, came_room(d, 0), K), borders = scratch2(c, I32, d->domain_size + 1, 1);
        for (int k = 0; k < d->exchange_chunks; k++) {
            const Leg *l = leg_of(r, k, 1);
            Tensor own = of_in(key, l);
            comm_join(w->ticket[k]);
            op_moe_unpack(c->be, own, none, of_in(w->in[0], l), 0);
            sort_by_place(c, borders, of_in(r->index[1], l), own, came_room(d, 0), d->local_experts * d->n,
                          domain * d->domain_size, 1);
            set_out(c, r, w, w->in[0], 1, k);
        }
    }
    for (int k = 0; k < d->exchange_chunks; k++) comm_join(w->ticket[k]);
}

/* Rows that arrived to rows of experts, by their tags. */
static void sort_by_expert(Ctx *c, const Moe *m, MoeAct *a, Tensor meta)
{
    const Dispatcher *d = c->dispatch;
    Tensor  index = a->route.index[FINAL];
    int64_t A = index.n[0], K = index.n[1], lists = d->local_experts * d->n, room = meta.n[0];
    Tensor key = t_rows(scratch2(c, I32, room, K), 0, A), gate = t_rows(scratch2(c, F32, room, K), 0, A);
    Tensor src = t_rows(scratch2(c, I32, room * K, 1), 0, A * K), borders = scratch2(c, I32, lists + 1, 1);
    op_moe_unpack(c->be, key, gate, t_rows(meta, 0, A), d->me / d->etp * lists);
    op_sort_by_expert(c->be, borders, index, src, key);
    if (m->pad) {
        int64_t capacity = moe_capacity(m, d->conf.shape.T);
        Tensor  wide = scratch2(c, I32, lists + 1, 1), to = scratch2(c, I32, lists * capacity, 1);
        op_moe_pad(c->be, wide, index, to, borders, src, capacity);
        op_fill(c->be, a->gate, 0.0f);
        borders = wide;
    }
    Tensor every = a->offsets;                      /* the first of each expert's n lists, and the end */
    every.data = borders.data, every.s[0] = d->n;
    op_copy(c->be, a->offsets, every);
    op_scatter_rows(c->be, a->gate, t_as2(gate, A * K, 1), t_as2(index, A * K, 1), false);
}

static void reserve(Ctx *c, const Moe *m, MoeAct *a, int64_t T)
{
    const Dispatcher *d = c->dispatch;
    Route  *r = &a->route;
    int64_t last = hops(d) - 1;
    route_table(c, r);
    need(c, L_ROUTE, &r->index[0], I32, T, places(d, 0));
    if (last) need(c, L_ROUTE, &r->index[1], I32, came_room(d, 0), places(d, 1));
    need(c, L_ROUTE, &r->index[FINAL], I32, came_room(d, (int)last), m->K);
    need(c, L_ROUTE, &a->offsets, I32, d->local_experts + 1, 1);
    need(c, L_ROUTE, &a->gate, F32, d->row_capacity, 1);
}

/* What the experts here get, and its gates. */
static void expect(Ctx *c, const Moe *m, MoeAct *a, Tensor kept)
{
    const Dispatcher *d = c->dispatch;
    Route *r = &a->route;
    Exchange   exchange = { 0 };
    lay_out(c, r, kept.n[0]);
    a->R = m->pad ? d->row_capacity : 0;
    for (int s = 0; s < d->n && !m->pad; s++) a->R += for_experts(d, s, d->me);
    a->gate = t_rows(a->gate, 0, a->R);
    r->index[FINAL] = t_rows(r->index[FINAL], 0, arrived(d, r));
    send_tags(c, r, &exchange, kept, a->weight);
    sort_by_expert(c, m, a, exchange.in[hops(d) - 1]);
}

static bool build_routing(Ctx *c, const Moe *m, MoeAct *a, Tensor kept)
{
    Route    *r = &a->route;
    ArenaMark mark = brief_mark(c);
    r->index[0] = t_rows(r->index[0], 0, kept.n[0]);
    tell(c, r->index[0], kept);
    bool fits = room_for_all(c->dispatch);
    if (fits) expect(c, m, a, kept);
    brief_note(c);
    arena_reset(c->scratch, mark);
    return fits;
}

/* ---- and back ---- */

static void combine_start(Ctx *c, const Route *r, Exchange *w, Tensor rows)
{
    const Dispatcher *d = c->dispatch;
    int last = hops(d) - 1;
    buffers(c, w, (DType)rows.dtype, rows.n[1]);
    for (int k = 0; k < d->exchange_chunks; k++) {
        const Leg *l = leg_of(r, k, last);
        c->be->ledger.shares = d->exchange_chunks;
        op_combine(c->be, of_came(w->in[last], l), rows, of_came(r->index[FINAL], l), (Tensor){ 0 });
        c->be->ledger.shares = 0;
        w->ticket[k] = leg_back(hop_comm(d, last), l, w->out[last], w->in[last]);
    }
}

/* The second of two hops, which is the far one, sets out. */
static void go_on(Ctx *c, const Route *r, Exchange *w)
{
    const Dispatcher *d = c->dispatch;
    for (int k = 0; k < d->exchange_chunks && hops(d) == 2; k++) {
        const Leg *l = leg_of(r, k, 1);
        comm_join(w->ticket[k]);
        op_combine(c->be, of_in(w->in[0], l), of_sent(w->out[1], l), of_in(r->index[1], l), (Tensor){ 0 });
        w->ticket[k] = leg_back(hop_comm(d, 0), leg_of(r, k, 0), w->out[0], w->in[0]);
    }
}

static void arrive(Ctx *c, const Route *r, Exchange *w, Tensor y, Tensor res)
{
    const Dispatcher *d = c->dispatch;
    Tensor none = { 0 };
    for (int k = 0; k < d->exchange_chunks; k++) {
        const Leg *l = leg_of(r, k, 0);
        comm_join(w->ticket[k]);
        op_combine(c->be, of_in(y, l), of_sent(w->out[0], l), of_in(r->index[0], l),
                   t_has(res) ? of_in(res, l) : none);
    }
}

static void combine_finish(Ctx *c, const Route *r, Exchange *w, Tensor y, Tensor res)
{
    go_on(c, r, w);
    pass_yield(c);
    arrive(c, r, w, y, res);
}

/* A token's gates travel together, (rows, K): zero where the slot is another's, so that sums leave it. */
static void gate_grad_start(Ctx *c, const Route *r, Exchange *w, Tensor dgate)
{
    const Dispatcher *d = c->dispatch;
    int     last = hops(d) - 1;
    int64_t A = arrived(d, r), K = d->conf.shape.K;
    buffers(c, w, F32, K);
    op_gather_rows(c->be, t_as2(t_rows(w->in[last], 0, A), A * K, 1), dgate, r->index[FINAL], 1);
    for (int k = 0; k < d->exchange_chunks; k++)
        w->ticket[k] = leg_back(hop_comm(d, last), leg_of(r, k, last), w->out[last], w->in[last]);
}

static void gate_grad_finish(Ctx *c, const Route *r, Exchange *w, Tensor dweight)
{
    go_on(c, r, w);
    arrive(c, r, w, dweight, (Tensor){ 0 });
}

const DispatchOps dispatch_deepep = {
    .name = "deepep", .forwards = true, .fits = fits_deepep, .table = table_bytes, .counts = counts,
    .reserve = reserve, .build_routing = build_routing, .count_token_chunks = dispatch_token_chunks, .dispatch_start = dispatch_start, .dispatch_finish = dispatch_finish,
    .combine_start = combine_start, .combine_finish = combine_finish, .gate_grad_start = gate_grad_start, .gate_grad_finish = gate_grad_finish,
};

const DispatchOps dispatch_hybridep = {
    .name = "hybridep", .chunked = true, .forwards = true, .fits = fits_hybridep, .table = table_bytes,
    .counts = counts, .reserve = reserve, .build_routing = build_routing, .count_token_chunks = dispatch_token_chunks, .dispatch_start = dispatch_start, .dispatch_finish = dispatch_finish,
    .combine_start = combine_start, .combine_finish = combine_finish, .gate_grad_start = gate_grad_start, .gate_grad_finish = gate_grad_finish,
};
