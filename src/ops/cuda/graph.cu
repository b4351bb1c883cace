/* ops/cuda/graph.cu -- recorded work as CUDA graphs: what the compute stream gets is captured, instantiated
 * once and launched as a whole. Kernel arguments are frozen in a graph; what changes from step to step is
 * read in device memory (Factor of ops.h). A workspace that has become too small is kept until the backend
 * closes, so that graphs which use it stay valid. */
#include "ops/cuda/cuda.cuh"

#include <stdlib.h>

struct DeviceGraph { cudaGraphExec_t exec; };

/* Relaxed: other threads may allocate and pin memory meanwhile. */
static void graph_begin(Backend *be)
{
    cuda_stick(be, cudaStreamBeginCapture(cuda_of(be)->stream, cudaStreamCaptureModeRelaxed), "CUDA graph");
}

static size_t memory_left(void)
{
    size_t left = 0, all = 0;
    return cudaMemGetInfo(&left, &all) == cudaSuccess ? left : 0;
}

/* What a graph took of the device's memory: the difference of what is left, unless another process that has
 * allocated meanwhile makes it more than a graph can have; then what graphs have by their nodes (6 KB each
 * were measured). */
enum { NODE_BYTES = 6 << 10, NODE_BYTES_MOST = 64 << 10, ALLOCATION = 2 << 20 };

static size_t graph_bytes(cudaGraph_t graph, size_t before, size_t after)
{
    size_t taken = before > after ? before - after : 0, nodes = 0;
    if (cudaGraphGetNodes(graph, NULL, &nodes) != cudaSuccess) return taken;
    return taken <= ALLOCATION + nodes * NODE_BYTES_MOST ? taken : nodes * NODE_BYTES;
}

/* The upload makes the driver allocate now what the first launch would. */
static void instantiate(Backend *be, DeviceGraph *g, cudaGraph_t graph, size_t *bytes)
{
    size_t before = memory_left();
    cuda_stick(be, cudaGraphInstantiate(&g->exec, graph, 0), "CUDA graph");
    if (!be->sticky) cuda_stick(be, cudaGraphUpload(g->exec, cuda_of(be)->stream), "CUDA graph");
    *bytes = graph_bytes(graph, before, memory_left());
}

static void graph_close(Backend *be, DeviceGraph *g)
{
    if (g->exec) cudaGraphExecDestroy(g->exec);
    free(g);
    cuda_of(be)->graphs--;
}

static DeviceGraph *graph_end(Backend *be, size_t *bytes)
{
    cudaGraph_t  graph = NULL;
    DeviceGraph *g = (DeviceGraph *)calloc(1, sizeof *g);
    cudaError_t  e = cudaStreamEndCapture(cuda_of(be)->stream, &graph);
    cuda_stick(be, e, "CUDA graph");
    if (!g && !be->sticky) be->sticky = fail(E_FIT, "no memory");
    if (g) cuda_of(be)->graphs++;
    if (!be->sticky) instantiate(be, g, graph, bytes);
    if (graph) cudaGraphDestroy(graph);
    if (!be->sticky) return g;
    if (g) graph_close(be, g);
    return NULL;
}

static void graph_launch(Backend *be, DeviceGraph *g)
{
    double from = clock_now();
    cuda_stick(be, cudaGraphLaunch(g->exec, cuda_of(be)->stream), "CUDA graph");
    cuda_launched(be, from);
}

const GraphOps cuda_graphs = { graph_begin, graph_end, graph_launch, graph_close };
