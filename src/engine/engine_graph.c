/* engine/engine_graph.c -- which phases of an engine run as graphs, and their keys; see graph_cache.h. */
#include "engine/engine_private.h"

#include "base/dispatchers.h"

/* Device memory that graphs may take. A step of 2,400 kernels takes 14 MiB, for each shape and place in the
 * ring of batches. */
static const size_t GRAPH_MEMORY = (size_t)256 << 20;

static Status refuse(const char *what, const char *fix)
{
    return fail(E_CONFIG, "train.cuda_graph=full: %s; set %s, or train.cuda_graph=none", what, fix);
}

static bool offloads(const EngineConf *c)
{
    bool any = c->store.offload_fraction > 0;
    for (int i = 0; i < LABEL_N; i++) any |= c->policy[i] == OFFLOAD;
    return any;
}

static Status check_ranks(const Ranks *r)
{
    const MeshLayout *l = &r->layout;
    if (l->pp > 1) return refuse("stages of a pipeline wait for each other on the host", "parallel.pp=1");
    if (l->tp > 1) return refuse("tensor parallelism communicates inside layers", "parallel.tp=1");
    if (l->cp > 1) return refuse("context parallelism communicates inside layers", "parallel.cp=1");
    if (r->overlap) return refuse("with moe.overlap the host alternates two passes", "moe.overlap=false");
    if (r->zero > 1) return refuse("ZeRO 2 and 3 communicate inside layers", "parallel.zero=1");
    return OK;
}

Status engine_graph_check(const EngineConf *c)
{
    bool many = c->ranks.world && c->ranks.world->size > 1;
    if (!c->graphs) return OK;
    if (offloads(c))
        return refuse("the host starts the copies of offloaded activations and optimizer state",
                      "memory.activation_offload=[] and memory.optimizer_offload=0");
    if (many && c->aux_over_step)
        return refuse("expert counts of all ranks are summed inside a forward",
                      "moe.aux_loss_type=micro_batch");
    return many ? check_ranks(&c->ranks) : OK;
}

/* A dispatcher that counts rows on the host waits for the device inside a layer. */
static Status check_dispatcher(const Engine *e)
{
    if (!e->dispatch.ops || dispatcher_within_node(e->dispatch.row)) return OK;
    return fail(E_CONFIG, "train.cuda_graph=full: the dispatcher %s counts rows on the host; set "
                "moe.dispatcher=peer, or train.cuda_graph=none", e->dispatch.row->name);
}

size_t engine_graph_bytes(const EngineConf *c) { return c->graphs && c->train ? GRAPH_MEMORY : 0; }

Status engine_graph_open(Engine *e)
{
    if (!e->conf.graphs || !e->conf.train) return OK;
    TRY(check_dispatcher(e));
    if (!strcmp(e->be.device->name, "meta")) return OK;
    if (!e->be.device->graphs)
        return refuse("the CPU backend has no CUDA graphs", "device.backend=cuda");
    return graph_cache_open(&e->graphs, &e->be, &e->shard, GRAPH_MEMORY);
}

/* Phases in which ranks communicate run eagerly: the passes of the last micro-batch, which sum gradients
 * (those of the head in the forward), the norm, and with ZeRO 1 the update, which starts to gather
 * weights. */
static bool communicates(const Engine *e, GraphPhase phase)
{
    const Comm *world = e->mesh.comm[GR_world];
    if (!world || world->size == 1) return false;
    if (phase == GRAPH_FORWARD || phase == GRAPH_BACKWARD) return e->backwards + 1 >= e->shard.micro;
    return phase == GRAPH_NORM || (phase == GRAPH_UPDATE && e->conf.ranks.zero);
}

static void add_batch(GraphKey *k, const Batch *b)
{
    k->supervised = b->supervised;
    k->docs = b->seg.n, k->longest = b->seg.longest, k->even = segments_even(&b->seg, b->Ta);
    k->media = b->media + 2 * b->has_media + 4 * b->pictures;
    if (!b->has_media) return;
    k->slices = b->vseg.n, k->vlongest = b->vseg.longest, k->veven = segments_even(&b->vseg, b->P);
}

bool engine_graph_begin(Engine *e, GraphKey k)
{
    const Batch *b = k.phase == GRAPH_FORWARD ? e->forward.batch : e->backward.batch;
    if (!e->graphs.be || e->be.preparing) return false;
    if (e->dispatch.host_counts || communicates(e, (GraphPhase)k.phase)) {
        e->graphs.counts.eager++;
        return false;
    }
    shard_wait_weights(&e->shard);                            /* no unit's weights are still on their way */
    if (k.phase == GRAPH_FORWARD || k.phase == GRAPH_BACKWARD) k.batch = b - e->batch, add_batch(&k, b);
    return graph_cache_begin(&e->graphs, &k);
}
