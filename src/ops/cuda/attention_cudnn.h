/* ops/cuda/attention_cudnn.h -- cuDNN's backend API as far as attention needs it: the library, loaded while
 * running, and graphs of operations that become plans.
 *
 * The API has no attention call: an engine recognises the pattern of matmul, masks and softmax, down to the
 * order of operations. A Graph collects descriptors; it remembers the first failure and ignores later calls,
 * so that a pattern is one line per operation and graph_plan checks it once. */
#ifndef OPS_CUDA_ATTENTION_CUDNN_H
#define OPS_CUDA_ATTENTION_CUDNN_H

#include <cudnn_backend.h>
#include <stddef.h>
#include <stdint.h>

typedef cudnnBackendDescriptor_t Desc;

typedef struct Library {
    void          *file;
    cudnnHandle_t  handle;
    size_t         version;
    cudnnStatus_t (*create)(cudnnHandle_t *);
    cudnnStatus_t (*destroy)(cudnnHandle_t);
    cudnnStatus_t (*set_stream)(cudnnHandle_t, cudaStream_t);
    size_t        (*get_version)(void);
    cudnnStatus_t (*make)(cudnnBackendDescriptorType_t, Desc *);
    cudnnStatus_t (*drop)(Desc);
    cudnnStatus_t (*finalize)(Desc);
    cudnnStatus_t (*set)(Desc, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t,
                         const void *);
    cudnnStatus_t (*get)(Desc, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t, int64_t *,
                         void *);
    cudnnStatus_t (*execute)(cudnnHandle_t, Desc, Desc);
} Library;

bool library_load(Library *l);                    /* the functions alone; false: cuDNN is not installed */
bool library_open(Library *l, cudaStream_t s);    /* and a handle on the open GPU */
void library_close(Library *l);

enum { GRAPH_DESCS = 192, GRAPH_OPS = 48 };

typedef struct Graph {
    Library      *lib;
    Desc          descs[GRAPH_DESCS], ops[GRAPH_OPS];
    int           n, n_ops;
    int64_t       next;                           /* id for a tensor that exists only inside the graph */
    cudnnStatus_t status;
    Desc          plan;
    int64_t       workspace;
} Graph;

typedef struct Shape { int64_t n[4], s[4]; } Shape;

/* Tensors: with memory (id > 0; ragged: where each sequence starts, or NULL), inside the graph, one value. */
Desc graph_tensor(Graph *g, int64_t id, cudnnDataType_t type, Shape shape, Desc ragged);
Desc graph_inner(Graph *g, cudnnDataType_t type, Shape shape, Desc ragged);
Desc graph_scalar(Graph *g, int64_t id);

/* Operations; y is the output. Absent operands are NULL. */
void graph_pointwise(Graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t math, Desc y, Desc x, Desc b,
                     Desc t);
void graph_index(Graph *g, cudnnDataType_t math, Desc y, Desc x, int64_t axis);
void graph_matmul(Graph *g, Desc c, Desc a, Desc b, Desc rows, Desc cols, Desc depth);
void graph_reduce(Graph *g, cudnnReduceTensorOp_t op, Desc y, Desc x);
void graph_reshape(Graph *g, Desc y, Desc x);

bool graph_plan(Graph *g);                        /* the best engine's plan and its workspace */
void graph_close(Graph *g);

typedef struct Binding { int64_t id; const void *data; } Binding;

cudnnStatus_t graph_run(Graph *g, const Binding *b, int n, void *workspace);

/* ---- attention: attention_cudnn_plan.cu ---- */

/* Tensors with the rows of the stream; offsets give the start of each sequence. */
enum { N_Q, N_K, N_V, N_O, N_DOUT, N_DQ, N_DK, N_DV, N_STAT, N_RAGGED };

/* Ids of what has memory: ragged tensors, the offsets of each, then the others. */
enum {
    U_TENSOR = 1, U_OFFSET = 20, U_LEN_Q = 40, U_LEN_K, U_SCALE, U_LOW1, U_LOW2, U_LOW3, U_WINDOW, U_ONE,
    U_DELTA, U_DQ_SUM, U_DK_FULL, U_DV_FULL, U_INNER = 100
};

typedef struct HeadStrides { int64_t row, head; } HeadStrides;     /* strides of one ragged tensor */

typedef struct Key {
    int64_t H, G, C, Cv, causal, backward;
    int64_t windows;          /* a query sees some keys alone; how many is an argument */
    int64_t even;             /* no masks, no offsets: sequences of S rows */
    int64_t flat;             /* sums laid like the streams, not (B, H, S, C) */
    int64_t repeats;          /* backward: equal bits each time */
    HeadStrides  at[N_RAGGED];     /* unused ones 0 */
} Key;

typedef struct Plan {
    Key     key;
    int64_t B, S;
    Graph   graph;            /* without a plan: cuDNN does not support the key */
} Plan;

enum { PLANS = 256 };

typedef struct Dnn {
    Library lib;
    Plan   *plans[PLANS];
    int64_t built;            /* plans built so far; beyond PLANS the oldest is replaced */
} Dnn;

/* The plan for up to B sequences of up to S rows, built if there is none; without graph.plan cuDNN does not
 * support it. keep: no plan may be replaced, since CUDA graphs have kernels of them; NULL then means that
 * there are too many. */
Plan *plan_find(Dnn *d, const Key *key, int64_t B, int64_t S, cudaStream_t stream, bool keep);
void  plans_close(Dnn *d);

#endif
