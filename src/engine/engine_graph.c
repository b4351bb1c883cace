/* engine/engine_graph.c -- which phases of an engine run as graphs, and their keys; see graph_cache.h. */
#include "engine/engine_private.h"

#include "base/dispatchers.h"

/* Device memory that graphs may take. A step of 2,400 kernels takes 14 MiB, for each shape and place in the
 * ring of batches. */
static const size_t GRAPH_MEMORY = (size_t)256 << 20;

static Status refuse(const char *what, const char *fix)
{
    return fail(E_CONFIG, "train.cuda_graph=full: %s; set %s, or train.cuda_graph=[attn, moe_router, "
                "moe_preprocess]", what, fix);
}

static bool is_full(const EngineConf *c) { return c->graphs & GRAPH_FULL; }

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
    if (!is_full(c)) return OK;
    if (offloads(c))
        return refuse("the host starts the copies of offloaded activations and optimizer state",
                      "memory.activation_offload=[] and memory.optimizer_offload=0");
    if (many && c->aux_over_step)
        return refuse("expert counts of all ranks are summed inside a forward",
                      "moe.aux_loss_type=micro_batch");
    return many ? check_ranks(&c->ranks) : OK;
}

/* A dispatcher that counts rows on the host waits for the device inside a layer, and its rows are others in
 * every step, unless they are padded. */
static Status check_dispatcher(const Engine *e)
{
    const char *name = e->dispatch.ops ? e->dispatch.row->name : NULL;
    if (!name || dispatcher_within_node(e->dispatch.row)) return OK;
    if (is_full(&e->conf))
        return fail(E_CONFIG, "train.cuda_graph=full: the dispatcher %s counts rows on the host; set "
                    "moe.dispatcher=peer, or train.cuda_graph=[attn, moe_router, moe_preprocess]", name);
    if ((e->conf.graphs & GRAPH_BIT(MOE)) && !e->conf.pad)
        return fail(E_CONFIG, "train.cuda_graph=moe: the dispatcher %s counts rows on the host; write "
                    "moe_router and moe_preprocess in place of moe, or set moe.dispatcher=peer", name);
    return OK;
}

/* Refuses scopes of parts that the model does not have. */
static Status check_scopes(const Engine *e)
{
    const ModelShape *s = &e->model.shape;
    unsigned graphs = e->conf.graphs;
    int64_t  sparse = shape_sparse_layers(&s->text);
    unsigned moe = GRAPH_BIT(MOE) | GRAPH_BIT(MOE_ROUTER) | GRAPH_BIT(MOE_PREPROCESS);
    const char *absent = graphs & GRAPH_BIT(VISION) && !s->vision.depth ? "vision: the model has no tower"
                       : graphs & moe && !sparse ? "moe: the model has no experts"
                       : graphs & GRAPH_BIT(MLP) && sparse == s->text.L
                             ? "mlp: every layer of the model has experts" : NULL;
    return absent ? fail(E_CONFIG, "train.cuda_graph=%s; leave it out", absent) : OK;
}

size_t engine_graph_bytes(const EngineConf *c) { return c->graphs && c->train ? GRAPH_MEMORY : 0; }

/* With full, scopes are graphs in the passes in which ranks communicate. */
static unsigned scopes_of(const Engine *e, unsigned graphs)
{
    const Comm *world = e->mesh.comm[GR_world];
    if (!(graphs & GRAPH_FULL)) return graphs;
    return world && world->size > 1 ? GRAPH_ALL_SCOPES : 0;
}

Status engine_use_graphs(Engine *e, unsigned graphs)
{
    unsigned scopes = scopes_of(e, graphs);
    backend_flush(&e->be);
    scope_cache_close(&e->scopes);
    if (e->graphs.be) graph_cache_close(&e->graphs);
    if (!graphs) return OK;
    TRY(graph_cache_open(&e->graphs, &e->be, &e->shard, GRAPH_MEMORY));
    e->graphs.phases = graphs & GRAPH_FULL;
    if (scopes) scope_cache_open(&e->scopes, &e->graphs, scopes);
    return OK;
}

Status engine_graph_open(Engine *e)
{
    if (!e->conf.graphs || !e->conf.train) return OK;
    TRY(check_scopes(e));
    TRY(check_dispatcher(e));
    if (!strcmp(e->be.device->name, "meta")) return OK;
    if (!e->be.device->graphs)
        return fail(E_CONFIG, "train.cuda_graph: the CPU backend has no CUDA graphs; set "
                    "device.backend=cuda, or train.cuda_graph=none");
    return engine_use_graphs(e, e->conf.graphs);
}

/* Phases in which ranks communicate are no graphs: the passes of the last micro-batch, which sum gradients
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

/* A phase that is no graph: a pass is counted by its scopes, any other phase as one that ran eagerly. */
static bool run_in_scopes(Engine *e, bool pass)
{
    if (e->scopes.be) e->scopes.queue.scopes = GRAPH_ALL_SCOPES;
    if (!e->scopes.be || !pass) e->graphs.counts.eager++;
    return false;
}

bool engine_graph_begin(Engine *e, GraphKey k)
{
    const Batch *b = k.phase == GRAPH_FORWARD ? e->forward.batch : e->backward.batch;
    bool pass = k.phase == GRAPH_FORWARD || k.phase == GRAPH_BACKWARD;
    if (!e->graphs.phases || e->be.preparing) return false;
    if (e->dispatch.host_counts || communicates(e, (GraphPhase)k.phase)) return run_in_scopes(e, pass);
    if (e->scopes.be) e->scopes.queue.scopes = 0;
    shard_wait_weights(&e->shard);                            /* no unit's weights are still on their way */
    if (pass) k.batch = b - e->batch, add_batch(&k, b);
    return graph_cache_begin(&e->graphs, &k);
}
