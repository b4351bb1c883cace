/* ops/cuda/trace_cupti_graph.cu -- which op a kernel of a graph belongs to; see trace.cuh. CUPTI reports
 * every node that is made while a graph is captured, and every copy of it that instantiation makes; a record
 * of the kernel names the copy. Without these reports kernels of graphs have no tag. */
#include "ops/cuda/trace.cuh"

#if __has_include(<cupti.h>)
#include <cupti.h>
#include <dlfcn.h>
#include <stdlib.h>

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

/* Called by the thread that captures or instantiates. */
static void CUPTIAPI on_node(void *self, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *data)
{
    const CUpti_GraphData *g =
        (const CUpti_GraphData *)((const CUpti_ResourceData *)data)->resourceDescriptor;
    uint64_t node = 0, from = 0;
    uint32_t tag = nodes.tag;
    if (nodes.node_id(g->node, &node) != CUPTI_SUCCESS) return;
    if (id == CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED)
        tag = nodes.node_id(g->originalNode, &from) == CUPTI_SUCCESS ? cupti_tag_of(from) : 0;
    if (tag) set_tag(node, tag);
}

bool cupti_follow_graphs(void *library)
{
    auto subscribe = (decltype(&cuptiSubscribe))dlsym(library, "cuptiSubscribe");
    auto enable = (decltype(&cuptiEnableCallback))dlsym(library, "cuptiEnableCallback");
    CUpti_SubscriberHandle handle;
    nodes.node_id = (decltype(nodes.node_id))dlsym(library, "cuptiGetGraphNodeId");
    if (!subscribe || !enable || !nodes.node_id) return false;
    if (subscribe(&handle, on_node, NULL) != CUPTI_SUCCESS) return false;
    CUpti_CallbackDomain d = CUPTI_CB_DOMAIN_RESOURCE;
    return enable(1, handle, d, CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED) == CUPTI_SUCCESS &&
           enable(1, handle, d, CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED) == CUPTI_SUCCESS;
}

#endif
