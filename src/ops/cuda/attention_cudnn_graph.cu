/* ops/cuda/attention_cudnn_graph.cu -- see attention_cudnn.h; without cuDNN's headers this file is empty. */
#include "ops/cuda/attention_cuda.h"

#if __has_include(<cudnn_backend.h>)
#include "ops/cuda/attention_cudnn.h"

#include <dlfcn.h>
#include <string.h>

bool library_load(Library *l)
{
    memset(l, 0, sizeof *l);
    l->file = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (!l->file) return false;
    const struct { void **to; const char *name; } all[] = {
        { (void **)&l->create, "cudnnCreate" },           { (void **)&l->destroy, "cudnnDestroy" },
        { (void **)&l->set_stream, "cudnnSetStream" },    { (void **)&l->get_version, "cudnnGetVersion" },
        { (void **)&l->make, "cudnnBackendCreateDescriptor" },
        { (void **)&l->drop, "cudnnBackendDestroyDescriptor" },
        { (void **)&l->finalize, "cudnnBackendFinalize" }, { (void **)&l->set, "cudnnBackendSetAttribute" },
        { (void **)&l->get, "cudnnBackendGetAttribute" },  { (void **)&l->execute, "cudnnBackendExecute" },
    };
    for (auto &f : all)
        if (!(*f.to = dlsym(l->file, f.name))) { library_close(l); return false; }
    l->version = l->get_version();
    return true;
}

bool library_open(Library *l, cudaStream_t s)
{
    if (!library_load(l)) return false;
    if (!l->create(&l->handle) && !l->set_stream(l->handle, s)) return true;
    library_close(l);
    return false;
}

void library_close(Library *l)
{
    if (l->handle) l->destroy(l->handle);
    if (l->file) dlclose(l->file);
    memset(l, 0, sizeof *l);
}

static Desc make(Graph *g, cudnnBackendDescriptorType_t type)
{
    Desc d = NULL;
    if (g->status == CUDNN_STATUS_SUCCESS && g->n == GRAPH_DESCS) g->status = CUDNN_STATUS_INTERNAL_ERROR;
    if (g->status == CUDNN_STATUS_SUCCESS) g->status = g->lib->make(type, &d);
    if (d) g->descs[g->n++] = d;
    return d;
}

static void set(Graph *g, Desc d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t count, const void *value)
{
    if (g->status == CUDNN_STATUS_SUCCESS) g->status = g->lib->set(d, name, type, count, value);
}

static void set_desc(Graph *g, Desc d, cudnnBackendAttributeName_t name, Desc value)
{
    if (value) set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finalize(Graph *g, Desc d)
{
    if (g->status == CUDNN_STATUS_SUCCESS) g->status = g->lib->finalize(d);
}

static void add_op(Graph *g, Desc op)
{
    finalize(g, op);
    if (g->status == CUDNN_STATUS_SUCCESS && g->n_ops == GRAPH_OPS) g->status = CUDNN_STATUS_INTERNAL_ERROR;
    if (g->status == CUDNN_STATUS_SUCCESS) g->ops[g->n_ops++] = op;
}

/* ---- tensors ---- */

static Desc tensor_make(Graph *g, int64_t id, cudnnDataType_t type, Shape shape)
{
    int64_t align = 16;
    Desc    d = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape.n);
    set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, shape.s);
    set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    return d;
}

Desc graph_tensor(Graph *g, int64_t id, cudnnDataType_t type, Shape shape, Desc ragged)
{
    Desc d = tensor_make(g, id, type, shape);
    set_desc(g, d, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, ragged);
    finalize(g, d);
    return d;
}

Desc graph_inner(Graph *g, cudnnDataType_t type, Shape shape, Desc ragged)
{
    bool yes = true;
    Desc d = tensor_make(g, g->next++, type, shape);
    set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
    set_desc(g, d, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, ragged);
    finalize(g, d);
    return d;
}

Desc graph_scalar(Graph *g, int64_t id)
{
    bool yes = true;
    Desc d = tensor_make(g, id, CUDNN_DATA_FLOAT, Shape{ { 1, 1, 1, 1 }, { 1, 1, 1, 1 } });
    set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
    finalize(g, d);
    return d;
}

/* ---- operations ---- */

static void pointwise(Graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t math, Desc y, Desc x, Desc b,
                      Desc t, int64_t axis)
{
    Desc how = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &math);
    if (axis >= 0) set(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    finalize(g, how);
    Desc op = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    add_op(g, op);
}

void graph_pointwise(Graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t math, Desc y, Desc x, Desc b,
                     Desc t)
{
    pointwise(g, mode, math, y, x, b, t, -1);
}

void graph_index(Graph *g, cudnnDataType_t math, Desc y, Desc x, int64_t axis)
{
    pointwise(g, CUDNN_POINTWISE_GEN_INDEX, math, y, x, NULL, NULL, axis);
}

void graph_matmul(Graph *g, Desc c, Desc a, Desc b, Desc rows, Desc cols, Desc depth)
{
    cudnnDataType_t math = CUDNN_DATA_FLOAT;
    Desc how = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &math);
    finalize(g, how);
    Desc op = make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, rows);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, cols);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, depth);
    add_op(g, op);
}

void graph_reduce(Graph *g, cudnnReduceTensorOp_t op_kind, Desc y, Desc x)
{
    cudnnDataType_t math = CUDNN_DATA_FLOAT;
    Desc how = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &math);
    set(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op_kind);
    finalize(g, how);
    Desc op = make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    add_op(g, op);
}

void graph_reshape(Graph *g, Desc y, Desc x)
{
    Desc op = make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_desc(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    add_op(g, op);
}

/* ---- plans ---- */

static bool plan_from(Graph *g, Desc config)
{
    Desc plan = make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set(g, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->lib->handle);
    set_desc(g, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (g->status != CUDNN_STATUS_SUCCESS || g->lib->finalize(plan) != CUDNN_STATUS_SUCCESS) return false;
    if (g->lib->get(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, NULL, &g->workspace))
        return false;
    g->plan = plan;
    return true;
}

bool graph_plan(Graph *g)
{
    enum { TRIES = 4 };
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    Desc    ops = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR), configs[TRIES];
    int64_t found = 0;
    set(g, ops, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_ops, g->ops);
    set(g, ops, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->lib->handle);
    finalize(g, ops);
    Desc heur = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_desc(g, heur, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, ops);
    set(g, heur, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finalize(g, heur);
    for (int i = 0; i < TRIES; i++) configs[i] = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->status = g->lib->get(heur, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, TRIES,
                                &found, configs);
    if (g->status != CUDNN_STATUS_SUCCESS) return false;
    for (int i = 0; i < found && i < TRIES; i++)
        if (plan_from(g, configs[i])) return true;
    return false;
}

void graph_close(Graph *g)
{
    while (g->n) g->lib->drop(g->descs[--g->n]);
    g->plan = NULL;
}

cudnnStatus_t graph_run(Graph *g, const Binding *b, int n, void *workspace)
{
    enum { MOST = 32 };
    Library      *l = g->lib;
    const void   *data[MOST];
    int64_t       ids[MOST];
    Desc          pack = NULL;
    cudnnStatus_t st;
    if (n > MOST) return CUDNN_STATUS_BAD_PARAM;
    if ((st = l->make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack))) return st;
    for (int i = 0; i < n; i++) data[i] = b[i].data, ids[i] = b[i].id;
    st = l->set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, data);
    if (!st) st = l->set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, ids);
    if (!st) st = l->set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (!st) st = l->finalize(pack);
    if (!st) st = l->execute(l->handle, g->plan, pack);
    l->drop(pack);
    return st;
}
#endif
