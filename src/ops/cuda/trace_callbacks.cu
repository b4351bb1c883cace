/* ops/cuda/trace_callbacks.cu -- what CUPTI calls back: the host's calls that launch work, and the nodes of
 * graphs; see trace.cuh.
 *
 * CUPTI reports every node that is made while a graph is captured, and every copy of it that instantiation
 * makes; a record of the kernel names the copy. Without these reports kernels of graphs have no tag. */
#include "ops/cuda/trace.cuh"

#if __has_include(<cupti.h>)
#include "base/grow.h"

#include <cupti.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

static struct {
    CUpti_SubscriberHandle         handle;              /* NULL: nothing is called back */
    decltype(&cuptiEnableCallback) enable;
    pthread_mutex_t                lock;                /* of the calls */
    LaunchCall *call;
    int64_t     n, cap;
} launches = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Calls of the host that launch work. */
static const CUpti_CallbackId runtime_calls[] = {
    CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000, CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_v11060,
    CUPTI_RUNTIME_TRACE_CBID___cudaLaunchKernel_v13000, CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy_v3020, CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy2DAsync_v3020, CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000,
};
static const CUpti_CallbackId driver_calls[] = {
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx,
};

static void on_call(const CUpti_CallbackData *d)
{
    LaunchCall c = { d->correlationId, clock_now() };
    if (d->callbackSite != CUPTI_API_ENTER) return;
    pthread_mutex_lock(&launches.lock);
    if (GROW(launches.call, launches.cap, launches.n + 1)) launches.call[launches.n++] = c;
    pthread_mutex_unlock(&launches.lock);
}

void cupti_follow_calls(bool on)
{
    if (!launches.handle) return;
    if (on) launches.n = 0;
    for (CUpti_CallbackId id : runtime_calls)
        launches.enable(on, launches.handle, CUPTI_CB_DOMAIN_RUNTIME_API, id);
    for (CUpti_CallbackId id : driver_calls)
        launches.enable(on, launches.handle, CUPTI_CB_DOMAIN_DRIVER_API, id);
}

const LaunchCall *cupti_calls(int64_t *n)
{
    *n = launches.n;
    return launches.call;
}

/* ---- nodes of graphs ---- */

/* Tags by node, an open hash table; key 0: free. */
typedef struct NodeTag { uint64_t node; uint32_t tag; } NodeTag;

static struct {
    decltype(&cuptiGetGraphNodeId) node_id;
    NodeTag *at;
    size_t   n, cap;                                    /* cap: a power of two */
    uint32_t tag;                                       /* of nodes that are made now */
} nodes;

static NodeTag *place_of(NodeTag *at, size_t cap, uint64_t node)
{
    size_t i = (size_t)(node * 0x9e3779b97f4a7c15u >> 20);
    while (at[i & (cap - 1)].node && at[i & (cap - 1)].node != node) i++;
    return &at[i & (cap - 1)];
}

static bool grow(void)
{
    size_t   cap = nodes.cap ? 2 * nodes.cap : 1 << 14;
    NodeTag *at = (NodeTag *)calloc(cap, sizeof *at);
    if (!at) return false;
    for (size_t i = 0; i < nodes.cap; i++)
        if (nodes.at[i].node) *place_of(at, cap, nodes.at[i].node) = nodes.at[i];
    free(nodes.at);
    nodes.at = at, nodes.cap = cap;
    return true;
}

static void set_tag(uint64_t node, uint32_t tag)
{
    if (2 * (nodes.n + 1) > nodes.cap && !grow()) return;
    NodeTag *p = place_of(nodes.at, nodes.cap, node);
    nodes.n += !p->node;
    p->node = node, p->tag = tag;
}

uint32_t cupti_tag_of(uint64_t node) { return nodes.cap ? place_of(nodes.at, nodes.cap, node)->tag : 0; }
void     cupti_tag(uint32_t tag)     { nodes.tag = tag; }

static void on_node(CUpti_CallbackId id, const CUpti_ResourceData *data)
{
    const CUpti_GraphData *g = (const CUpti_GraphData *)data->resourceDescriptor;
    uint64_t node = 0, from = 0;
    uint32_t tag = nodes.tag;
    if (nodes.node_id(g->node, &node) != CUPTI_SUCCESS) return;
    if (id == CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED)
        tag = nodes.node_id(g->originalNode, &from) == CUPTI_SUCCESS ? cupti_tag_of(from) : 0;
    if (tag) set_tag(node, tag);
}

/* Called by the thread that calls CUDA. */
static void CUPTIAPI on_callback(void *self, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                                 const void *data)
{
    if (domain == CUPTI_CB_DOMAIN_RESOURCE) on_node(id, (const CUpti_ResourceData *)data);
    else                                    on_call((const CUpti_CallbackData *)data);
}

bool cupti_subscribe(void *library)
{
    auto subscribe = (decltype(&cuptiSubscribe))dlsym(library, "cuptiSubscribe");
    launches.enable = (decltype(launches.enable))dlsym(library, "cuptiEnableCallback");
    nodes.node_id = (decltype(nodes.node_id))dlsym(library, "cuptiGetGraphNodeId");
    if (!subscribe || !launches.enable || !nodes.node_id) return false;
    if (subscribe(&launches.handle, on_callback, NULL) != CUPTI_SUCCESS) return launches.handle = NULL, false;
    const CUpti_CallbackId made[] = { CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED,
                                      CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED };
    bool ok = true;
    for (CUpti_CallbackId id : made)
        ok = launches.enable(1, launches.handle, CUPTI_CB_DOMAIN_RESOURCE, id) == CUPTI_SUCCESS && ok;
    return ok;
}

#endif
