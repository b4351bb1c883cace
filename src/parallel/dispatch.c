/* parallel/dispatch.c -- opens a dispatcher, and what the dispatchers share; see dispatch.h. It moves no
 * rows. */
#include "parallel/dispatch.h"
#include "parallel/peer_hop.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const DispatchOps *const implementations[DISPATCHER_COUNT] = {
#define DISPATCHER(name, two_level, pads, pipelined, maps, help) &dispatch_##name,
    DISPATCHERS(DISPATCHER)
#undef DISPATCHER
};

void a2a_set_arrays(AllToAll *x, int64_t **memory, int members)
{
    int64_t **list[] = { &x->send_at, &x->send_n, &x->recv_at, &x->recv_n };
    for (int i = 0; i < 4; i++) *list[i] = *memory, *memory += members;
}

void a2a_set_offsets(AllToAll *x, int members)
{
    x->sent = x->received = 0;
    for (int i = 0; i < members; i++) {
        x->send_at[i] = x->sent,     x->sent     += x->send_n[i];
        x->recv_at[i] = x->received, x->received += x->recv_n[i];
    }
}

static RowRanges send_ranges(const AllToAll *x) { return (RowRanges){ x->send_at, x->send_n }; }
static RowRanges recv_ranges(const AllToAll *x) { return (RowRanges){ x->recv_at, x->recv_n }; }

Ticket a2a_dispatch_start(Comm *c, const AllToAll *x, Tensor in, Tensor out)
{
    return comm_all_to_all_start(c, t_rows(in, x->received_at, x->received), recv_ranges(x),
                                 t_rows(out, x->sent_at, x->sent), send_ranges(x));
}

Ticket a2a_combine_start(Comm *c, const AllToAll *x, Tensor out, Tensor in)
{
    return comm_all_to_all_start(c, t_rows(out, x->sent_at, x->sent), send_ranges(x),
                                 t_rows(in, x->received_at, x->received), recv_ranges(x));
}

/* The first word of each allocation links the list that dispatch_close frees. */
static void *table_new(Dispatcher *d)
{
    void **t = calloc(1, sizeof(void *) + d->ops->table(d));
    if (!t) return NULL;
    *t = d->host_tables, d->host_tables = t;
    return t + 1;
}

void *route_table(const Pass *c, Route *r)
{
    Dispatcher *d = c->env->dispatcher;
    if (!r->table) r->table = table_new(d);
    if (!r->table && !c->be->sticky)
        c->be->sticky = fail(E_FIT, "no host memory for the counts of a token dispatch");
    if (!r->table) r->table = d->spare_table;
    return r->table;
}

void dispatch_gather_counts(const Pass *c)
{
    Dispatcher *d = c->env->dispatcher;
    memset(d->all_counts, 0, (size_t)d->n * (size_t)d->counts_len * sizeof *d->all_counts);
    comm_host_gather(d->mesh->comm[GR_etp_ep], d->all_counts, d->own_counts,
                     (size_t)d->counts_len * sizeof *d->own_counts);
}

void counts_from_offsets(int32_t *count, const int32_t *offsets, int64_t n)
{
    for (int64_t i = 0; i < n; i++) count[i] = offsets[i + 1] - offsets[i];
}

bool pass_has_data(const Pass *c) { return c->be->device != &device_meta && !c->be->preparing; }

bool offsets_are_valid(const Pass *c, const int32_t *offsets, int64_t n, int64_t max_total)
{
    bool ascend = pass_has_data(c) && !c->be->sticky && offsets[0] == 0 && offsets[n] <= max_total;
    for (int64_t i = 0; i < n; i++) ascend &= offsets[i + 1] >= offsets[i];
    return ascend;
}

ArenaMark routing_scratch_mark(const Pass *c)
{
    c->env->dispatcher->scratch_start = c->scratch->used;
    return arena_mark(c->scratch);
}

void routing_scratch_note(const Pass *c)
{
    Dispatcher *d = c->env->dispatcher;
    size_t      used = c->scratch->used - d->scratch_start;
    if (used > d->routing_scratch) d->routing_scratch = used;
}

/* ---- opening ---- */

/* Rows that token chunks of one token of every member may make: the smallest chunks there are. */
static int64_t smallest_chunk_rows(const MoeShape *s, int members) { return members * s->K; }

/* Rows that a rank gets in the worst case: a token goes to at most K experts of one rank, or to all of its
 * experts. */
static int64_t most_rows(const DispatchConf *conf, int ep, int etp)
{
    const MoeShape *s = &conf->shape;
    int64_t local = s->E / ep, worst = (int64_t)ep * etp * s->T * (s->K < local ? s->K : local);
    if (!(s->capacity > 0)) return worst;
    int64_t full = (int64_t)ep * etp * local * moe_expert_capacity(s->capacity, s->T, s->K, s->E);
    return s->pad || full < worst ? full : worst;
}

int64_t dispatch_row_capacity(const DispatchConf *conf, int ep, int etp)
{
    static const double DEFAULT_SHARES = 2, SMALL_BUFFER = 64 << 20;              /* bytes */
    const MoeShape *s = &conf->shape;
    bool   is_set = conf->rank_capacity > 0;
    double worst = (double)most_rows(conf, ep, etp);
    double small = s->row ? SMALL_BUFFER / (double)s->row : worst;
    double rows = (is_set ? conf->rank_capacity : DEFAULT_SHARES) * (double)(s->T * s->K * etp);
    if (!is_set) rows = fmax(rows, fmax(small, (double)smallest_chunk_rows(s, ep * etp)));
    return (int64_t)(s->pad || rows >= worst ? worst : ceil(rows - 1e-6));
}

static void set_sizes(Dispatcher *d, const Mesh *mesh)
{
    const MoeShape *s = &d->conf.shape;
    d->mesh = mesh;
    d->n    = mesh->comm[GR_etp_ep]->size, d->me = mesh->comm[GR_etp_ep]->rank;
    d->etp  = mesh_size(mesh, AX_ETP);
    d->domain_size   = mesh->comm[GR_ep_intra_node]->size, d->domains = mesh->comm[GR_ep_inter_node]->size;
    d->local_experts = s->E / mesh_size(mesh, AX_EP);
    d->row_capacity  = dispatch_row_capacity(&d->conf, d->n / d->etp, d->etp);
    d->bounded = d->row_capacity < most_rows(&d->conf, d->n / d->etp, d->etp);
    int64_t chunk = d->conf.chunk > 0 ? d->conf.chunk : (s->T + 3) / 4;
    int64_t chunks = chunk && d->row->pipelined ? (s->T + chunk - 1) / chunk : 1;
    d->exchange_chunks = chunks < 1 ? 1 : chunks > DISPATCH_CHUNKS ? DISPATCH_CHUNKS : (int)chunks;
}

static Status refuse_padding(const DispatcherRow *row)
{
    char   others[200] = "";
    size_t at = 0;
    for (int i = 0; i < DISPATCHER_COUNT && at < sizeof others; i++)
        if (dispatcher_rows[i].pads)
            at += (size_t)snprintf(others + at, sizeof others - at, at ? " or %s" : "%s",
                                   dispatcher_rows[i].name);
    return fail(E_CONFIG, "moe.dispatcher = %s: does not support moe.pad_to_capacity; set %s", row->name,
                others);
}

static Status check_shape(const DispatcherRow *row, const Mesh *mesh, const DispatchConf *conf)
{
    const MoeShape *s = &conf->shape;
    int ep = mesh_size(mesh, AX_EP), etp = mesh_size(mesh, AX_ETP);
    if (ep * etp == 1)
        return fail(E_CONFIG, "moe.dispatcher = %s: ep and etp are 1, every rank has all experts; set local",
                    row->name);
    if (s->E % ep)
        return fail(E_CONFIG, "parallel.ep = %d: the %lld experts are not a multiple of it", ep,
                    (long long)s->E);
    if (s->pad && !(s->capacity > 0))
        return fail(E_CONFIG, "moe.pad_to_capacity needs moe.capacity_factor; set it, for example to 1.25");
    if (s->pad && !row->pads) return refuse_padding(row);
    if (conf->rank_capacity > 0 && conf->rank_capacity < 1)
        return fail(E_CONFIG, "moe.rank_capacity = %g: less than even routing needs; set 1 or more, or 0",
                    conf->rank_capacity);
    return OK;
}

/* Every one of the smallest token chunks must fit the buffers: otherwise no layer can run. */
static Status check_capacity(const Dispatcher *d)
{
    const MoeShape *s = &d->conf.shape;
    long long rows = smallest_chunk_rows(s, d->n);
    double    needed = ceil(100.0 * d->n / (double)(s->T * d->etp)) / 100;
    if (!d->bounded || d->row_capacity >= rows) return OK;
    return fail(E_CONFIG, "moe.rank_capacity = %g: buffers of %lld rows, but one token of each of %d ranks "
                "may make %lld; set %g or more, or 0", d->conf.rank_capacity, (long long)d->row_capacity,
                d->n, rows, needed);
}

static Status allocate(Dispatcher *d)
{
    size_t tokens = (size_t)d->conf.shape.T, choices = tokens * (size_t)d->conf.shape.K;
    d->counts_len   = d->ops->counts(d);
    d->own_counts   = calloc((size_t)d->counts_len, sizeof *d->own_counts);
    d->all_counts   = calloc((size_t)d->counts_len * (size_t)d->n, sizeof *d->all_counts);
    d->fetched      = calloc((size_t)d->counts_len * 3 + 3 + (size_t)(d->n * d->local_experts),
                             sizeof *d->fetched);
    d->spare_table  = calloc(1, d->ops->table(d));
    d->chosen       = calloc(choices + 1, sizeof *d->chosen);
    d->chunk_counts = calloc(chunk_counts_len(d) * (size_t)(d->n + 1), sizeof *d->chunk_counts);
    if (d->own_counts && d->all_counts && d->fetched && d->spare_table && d->chosen && d->chunk_counts)
        return OK;
    dispatch_close(d);
    return fail(E_FIT, "no host memory for a token dispatcher");
}

/* Why auto does not take a dispatcher that maps memory; NULL: it does. The backend of the run decides, not
 * that of a dry run. Rows that kernels in the compute stream write do not overlap with it; of two hops the
 * longer one does. */
static const char *refuse_mapping(const Mesh *mesh, const DispatchConf *conf, bool several)
{
    if (*conf->unmapped)  return conf->unmapped;
    if (!conf->on_gpu)    return "on CPUs messages are as fast as mapped memory";
    if (conf->shape.pad)  return "moe.pad_to_capacity";
    if (!several) return conf->overlap ? "with moe.overlap rows travel beside compute" : NULL;
    if (mesh->comm[GR_ep_intra_node]->size == 1) return "a node has one of them";
    return peer_hop_refusal(mesh, conf);
}

static int choose(const Mesh *mesh, const DispatchConf *conf, char *why, size_t n)
{
    bool several = mesh->comm[GR_ep_inter_node]->size > 1;
    const char *refusal = refuse_mapping(mesh, conf, several);
    snprintf(why, n, "auto: the expert ranks %s%s%s", several ? "are on several nodes" : "share a node",
             refusal ? "; " : several ? ", those of a node map each other's memory"
                                      : " and map each other's memory",
             refusal ? refusal : "");
    return (int)dispatcher_auto(several, !refusal);
}

static Status find_row(const DispatcherRow **row, const Mesh *mesh, const DispatchConf *conf, char *why,
                       size_t n)
{
    bool automatic = !conf->name || !strcmp(conf->name, "auto");
    int  id = automatic ? choose(mesh, conf, why, n) : dispatcher_find(conf->name);
    if (id < 0)
        return fail(E_CONFIG, "moe.dispatcher = %s: there are auto, %s", conf->name, dispatcher_names());
    *row = &dispatcher_rows[id];
    return OK;
}

Status dispatch_open(Dispatcher *d, const Mesh *mesh, const DispatchConf *conf)
{
    const DispatcherRow *row = NULL;
    char why[sizeof d->why] = "";
    *d = (Dispatcher){ 0 };
    TRY(find_row(&row, mesh, conf, why, sizeof why));
    *d = (Dispatcher){ .ops = implementations[row - dispatcher_rows], .row = row, .conf = *conf,
                       .automatic = *why };
    snprintf(d->why, sizeof d->why, "%s", *why ? why : "moe.dispatcher");
    TRY(check_shape(row, mesh, conf));
    if (d->ops->fits) TRY(d->ops->fits(mesh, conf));
    d->conf.name = row->name;
    set_sizes(d, mesh);
    TRY(check_capacity(d));
    return allocate(d);
}

Status dispatch_bind(Dispatcher *d, Backend *be, const DispatchArenas *arenas)
{
    return d->ops && d->ops->bind ? d->ops->bind(d, be, arenas) : OK;
}

void dispatch_unbind(Dispatcher *d, bool agreed)
{
    if (d->bound) d->ops->unbind(d, agreed);
    d->bound = NULL;
}

Status dispatch_overflowed(Dispatcher *d, bool *overflow)
{
    *overflow = false;
    return d->bound ? d->ops->overflowed(d, overflow) : OK;
}

void dispatch_close(Dispatcher *d)
{
    dispatch_unbind(d, false);
    for (void **t = d->host_tables, **next; t; t = next) next = *t, free(t);
    free(d->own_counts);
    free(d->all_counts);
    free(d->fetched);
    free(d->spare_table);
    free(d->chosen);
    free(d->chunk_counts);
    *d = (Dispatcher){ 0 };
}
