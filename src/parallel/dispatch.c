/* parallel/dispatch.c -- what the dispatchers share; see dispatch.h. It moves no rows itself. */
#include "parallel/dispatch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

size_t leg_bytes(int members) { return sizeof(Leg) + 4 * (size_t)members * sizeof(int64_t); }

void leg_place(Leg *l, int64_t **memory, int members)
{
    int64_t **list[] = { &l->give_at, &l->give_n, &l->get_at, &l->get_n };
    for (int i = 0; i < 4; i++) *list[i] = *memory, *memory += members;
}

void leg_sum(Leg *l, int members)
{
    l->sent = l->came = 0;
    for (int i = 0; i < members; i++) {
        l->give_at[i] = l->sent, l->sent += l->give_n[i];
        l->get_at[i]  = l->came, l->came += l->get_n[i];
    }
}

Ticket leg_start(Comm *c, const Leg *l, Tensor in, Tensor out)
{
    return comm_all_to_all_start(c, t_rows(in, l->at_came, l->came), (RowRanges){ l->get_at, l->get_n },
                                 t_rows(out, l->at_sent, l->sent), (RowRanges){ l->give_at, l->give_n });
}

Ticket leg_back(Comm *c, const Leg *l, Tensor out, Tensor in)
{
    return comm_all_to_all_start(c, t_rows(out, l->at_sent, l->sent), (RowRanges){ l->give_at, l->give_n },
                                 t_rows(in, l->at_came, l->came), (RowRanges){ l->get_at, l->get_n });
}

/* A list through the first word of each: they are never given back one by one. */
static void *table_new(Dispatcher *d)
{
    void **t = calloc(1, sizeof(void *) + d->ops->table(d));
    if (!t) return NULL;
    *t = d->host_tables, d->host_tables = t;
    return t + 1;
}

void *route_table(Ctx *c, Route *r)
{
    Dispatcher *d = c->dispatch;
    if (!r->table) r->table = table_new(d);
    if (!r->table && !c->be->sticky) c->be->sticky = fail(E_FIT, "no memory for the counts of a dispatch");
    if (!r->table) r->table = d->spare_table;
    return r->table;
}

void dispatch_tell(Ctx *c)
{
    Dispatcher *d = c->dispatch;
    memset(d->all_counts, 0, (size_t)d->n * (size_t)d->counts_len * sizeof *d->all_counts);
    comm_host_gather(d->mesh->comm[GR_etp_ep], d->all_counts, d->own_counts, (size_t)d->counts_len * sizeof *d->own_counts);
}

void counts_of(int32_t *count, const int32_t *borders, int64_t n)
{
    for (int64_t i = 0; i < n; i++) count[i] = borders[i + 1] - borders[i];
}

bool borders_real(const int32_t *borders, int64_t n, int64_t most)
{
    bool ascend = borders[0] == 0 && borders[n] > 0 && borders[n] <= most;
    for (int64_t i = 0; i < n; i++) ascend &= borders[i + 1] >= borders[i];
    return ascend;
}

ArenaMark brief_mark(Ctx *c)
{
    c->dispatch->scratch_start = c->scratch->used;
    return arena_mark(c->scratch);
}

void brief_note(Ctx *c)
{
    Dispatcher *d = c->dispatch;
    size_t    took = c->scratch->used - d->scratch_start;
    if (took > d->routing_scratch) d->routing_scratch = took;
}

/* ---- opening ---- */

/* Rows of one token of every member: the smallest slices. */
static int64_t least_of(const MoeShape *s, int members) { return members * s->K; }

/* Every source sends a token to at most K experts of one rank, or to as many as it has. */
int64_t dispatch_max_rows(const DispatchConf *conf, int ep, int etp)
{
    const MoeShape *s = &conf->shape;
    int64_t local = s->E / ep, worst = (int64_t)ep * etp * s->T * (s->K < local ? s->K : local);
    if (!(s->capacity > 0)) return worst;
    Moe m = { .E = s->E, .K = s->K, .capacity = s->capacity };
    int64_t full = (int64_t)ep * etp * local * moe_capacity(&m, s->T);
    return s->pad || full < worst ? full : worst;
}

int64_t dispatch_row_capacity(const DispatchConf *conf, int ep, int etp)
{
    static const double SHARES = 2, SMALL = 64 << 20;              /* bytes */
    const MoeShape *s = &conf->shape;
    bool   asked = conf->rank_capacity > 0;
    double worst = (double)dispatch_max_rows(conf, ep, etp), small = s->row ? SMALL / (double)s->row : worst;
    double rows = (asked ? conf->rank_capacity : SHARES) * (double)(s->T * s->K * etp);
    if (!asked) rows = fmax(rows, fmax(small, (double)least_of(s, ep * etp)));
    return (int64_t)(s->pad || rows >= worst ? worst : ceil(rows - 1e-6));
}

static void measure(Dispatcher *d, const Mesh *mesh)
{
    const MoeShape *s = &d->conf.shape;
    d->mesh  = mesh;
    d->n     = mesh->comm[GR_etp_ep]->size, d->me = mesh->comm[GR_etp_ep]->rank;
    d->etp   = mesh_size(mesh, AX_ETP);
    d->domain_size  = mesh->comm[GR_ep_intra_node]->size, d->domains = mesh->comm[GR_ep_inter_node]->size;
    d->local_experts = s->E / mesh_size(mesh, AX_EP);
    d->row_capacity  = dispatch_row_capacity(&d->conf, d->n / d->etp, d->etp);
    d->bounded = d->row_capacity < dispatch_max_rows(&d->conf, d->n / d->etp, d->etp);
    int64_t chunk = d->conf.chunk > 0 ? d->conf.chunk : (s->T + 3) / 4;
    int64_t chunks = chunk && d->ops->chunked ? (s->T + chunk - 1) / chunk : 1;
    d->exchange_chunks = chunks < 1 ? 1 : chunks > DISPATCH_CHUNKS ? DISPATCH_CHUNKS : (int)chunks;
}

static Status shape_fits(const Mesh *mesh, const DispatchConf *conf)
{
    const MoeShape *s = &conf->shape;
    int ep = mesh_size(mesh, AX_EP), etp = mesh_size(mesh, AX_ETP);
    if (ep * etp == 1)
        return fail(E_CONFIG, "moe.dispatcher = %s: ep and etp are 1, all experts are here; set local",
                    conf->name);
    if (s->E % ep)
        return fail(E_CONFIG, "ep = %d: %lld experts do not divide", ep, (long long)s->E);
    if (s->pad && !(s->capacity > 0))
        return fail(E_CONFIG, "moe.pad_to_capacity needs moe.capacity_factor; set it, to 1.25 say");
    if (conf->rank_capacity > 0 && conf->rank_capacity < 1)
        return fail(E_CONFIG, "moe.rank_capacity = %g: less than even routing needs; set 1 or more, or 0",
                    conf->rank_capacity);
    return OK;
}

static Status smallest_fits(const Dispatcher *d)
{
    const MoeShape *s = &d->conf.shape;
    long long least = least_of(s, d->n);
    double    set = ceil(100.0 * d->n / (double)(s->T * d->etp)) / 100;
    if (!d->bounded || d->row_capacity >= least) return OK;
    return fail(E_CONFIG, "moe.rank_capacity = %g: room for %lld rows, but one token of each of %d ranks may "
                "make %lld; set %g or more, or 0", d->conf.rank_capacity, (long long)d->row_capacity, d->n, least, set);
}

Status dispatch_init(Dispatcher *d, const DispatchOps *ops, const Mesh *mesh, const DispatchConf *conf)
{
    *d = (Dispatcher){ .ops = ops, .conf = *conf };
    TRY(shape_fits(mesh, conf));
    TRY(ops->fits(mesh, conf));
    d->conf.name = ops->name;
    measure(d, mesh);
    TRY(smallest_fits(d));
    d->counts_len  = ops->counts(d);
    d->own_counts  = calloc((size_t)d->counts_len, sizeof *d->own_counts);
    d->all_counts   = calloc((size_t)d->counts_len * (size_t)d->n, sizeof *d->all_counts);
    d->fetched = calloc((size_t)d->counts_len * 3 + 3 + (size_t)(d->n * d->local_experts), sizeof *d->fetched);
    d->spare_table = calloc(1, ops->table(d));
    d->chosen = calloc((size_t)(conf->shape.T * conf->shape.K) + 1, sizeof *d->chosen);
    d->chunk_counts  = calloc(slices_counted(d) * (size_t)(d->n + 1), sizeof *d->chunk_counts);
    if (d->own_counts && d->all_counts && d->fetched && d->spare_table && d->chosen && d->chunk_counts) return OK;
    dispatch_close(d);
    return fail(E_FIT, "no memory for a dispatcher");
}

void dispatch_close(Dispatcher *d)
{
    for (void **t = d->host_tables, **next; t; t = next) next = *t, free(t);
    free(d->own_counts);
    free(d->all_counts);
    free(d->fetched);
    free(d->spare_table);
    free(d->chosen);
    free(d->chunk_counts);
    *d = (Dispatcher){ 0 };
}
