/* comm/peer_memory.c -- see peer_memory.h. */
#include "comm/peer_memory.h"

#include "comm/transport.h"

#include <stdlib.h>
#include <string.h>

/* What a member sends to the others about an arena. */
typedef struct RegionInfo { char *base; size_t bytes; MemoryHandle handle; } RegionInfo;

static bool plain_pointers(const PeerMemory *p) { return !peer_memory_shares(p->comm); }

bool peer_memory_shares(const Comm *c) { return !c->transport->one_process; }

bool peer_memory_aborted(const void *comm)
{
    const Comm *c = comm;
    return c->transport->aborted && c->transport->aborted(c);
}

const char *peer_memory_refusal(const Comm *c)
{
    for (int i = 1; i < c->size; i++)
        if (c->node[i] != c->node[0]) return "ranks of other nodes cannot map this memory";
    return NULL;
}

static Status describe_region(const PeerMemory *p, Arena *a, RegionInfo *out)
{
    Backend *be = p->comm->be;
    *out = (RegionInfo){ .base = a->base, .bytes = a->cap };
    if (plain_pointers(p)) return OK;
    if (!be->device->shared) return fail(E_COMM, "the backend %s cannot share memory", be->device->name);
    return be->device->shared->handle(be, a->base, a->cap, &out->handle);
}

/* The address in this process of region `region` of a member. */
static Status open_region(PeerMemory *p, int region, int member, const RegionInfo *info)
{
    int      at = region * p->comm->size + member;
    Backend *be = p->comm->be;
    void    *opened = info->base;
    if (!plain_pointers(p) && member != p->comm->rank) {
        TRY_CTX(be->device->shared->open(be, &info->handle, &opened), "memory of rank %d",
                p->comm->world[member]);
        p->handle[at] = info->handle;
    }
    p->at[at] = opened;
    return OK;
}

/* Every member takes part in every gather, so that one that failed does not leave the others waiting. */
static Status open_all(PeerMemory *p, Arena *const *arena, int n, RegionInfo *all, Status st)
{
    for (int i = 0; i < p->regions; i++) {
        Arena     *a = arena[i < n ? i : n - 1];
        RegionInfo own = { 0 };
        if (!st) st = describe_region(p, a, &own);
        p->region[i] = (PeerRegion){ a->base, a->cap };
        comm_host_gather(p->comm, all, &own, sizeof own);
        for (int m = 0; m < p->comm->size && !st; m++) st = open_region(p, i, m, &all[m]);
    }
    return comm_agree(p->comm, st);
}

static Status allocate(PeerMemory *p, RegionInfo **all)
{
    size_t n = (size_t)p->regions * (size_t)p->comm->size;
    *all      = calloc((size_t)p->comm->size, sizeof **all);
    p->region = calloc((size_t)p->regions, sizeof *p->region);
    p->at     = calloc(n, sizeof *p->at);
    p->handle = calloc(n, sizeof *p->handle);
    return *all && p->region && p->at && p->handle ? OK : fail(E_FIT, "no host memory for mapped memory");
}

Status peer_memory_open(PeerMemory *p, Comm *c, Arena *const *arena, int n)
{
    double      regions = n;
    RegionInfo *all = NULL;
    comm_host_max(c, &regions, 1);
    *p = (PeerMemory){ .comm = c, .regions = (int)regions };
    if (p->regions > PEER_REGIONS)
        return fail(E_FIT, "%d arenas to map, %d at most; lower parallel.pp", p->regions, PEER_REGIONS);
    Status st = allocate(p, &all);
    if (comm_agree(c, st)) return free(all), peer_memory_close(p, false), fail(E_FIT, "%s", status_text());
    st = open_all(p, arena, n, all, OK);
    free(all);
    if (st) peer_memory_close(p, true);
    return st;
}

void peer_memory_close(PeerMemory *p, bool agreed)
{
    Backend *be = p->comm ? p->comm->be : NULL;
    for (int i = 0; p->handle && i < p->regions * p->comm->size; i++)
        if (p->handle[i].bytes) be->device->shared->close(be, p->at[i], &p->handle[i]);
    if (p->comm && agreed && !plain_pointers(p)) comm_barrier(p->comm);
    free(p->region), free(p->at), free(p->handle);
    *p = (PeerMemory){ 0 };
}

void peer_memory_find(const PeerMemory *p, const PeerGroup *g, Tensor own, char **at)
{
    int64_t address = peer_address(g, own), *all = (int64_t *)(void *)at;         /* replaced one by one */
    _Static_assert(sizeof *at == sizeof *all, "an address is gathered where its pointer goes");
    comm_host_gather(p->comm, all, &address, sizeof address);
    for (int m = 0; m < p->comm->size; m++)
        at[m] = p->at[(all[m] >> PEER_OFFSET_BITS) * p->comm->size + m] +
                (all[m] & (((int64_t)1 << PEER_OFFSET_BITS) - 1));
}
