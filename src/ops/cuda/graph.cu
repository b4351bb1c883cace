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

/* The upload makes the driver allocate now what the first launch would. */
static void instantiate(Backend *be, DeviceGraph *g, cudaGraph_t graph, size_t *bytes)
{
    size_t before = memory_left(), after;
    cuda_stick(be, cudaGraphInstantiate(&g->exec, graph, 0), "CUDA graph");
    if (!be->sticky) cuda_stick(be, cudaGraphUpload(g->exec, cuda_of(be)->stream), "CUDA graph");
    after = memory_left();
    *bytes = before > after ? before - after : 0;
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
