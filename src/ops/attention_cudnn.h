/* ops/attention_cudnn.h -- cuDNN's backend API as far as attention needs it: the library, loaded while running, and
 * graphs of operations that become plans.
 *
 * There is no attention call in that API: an engine recognises the pattern of matmul, masks and softmax, down to
 * the order of operations. A Graph collects descriptors; the first that fails is remembered and the rest does
 * nothing, so that a pattern reads as one line per operation and is checked once, by graph_plan. */
#ifndef OPS_ATTENTION_CUDNN_H
#define OPS_ATTENTION_CUDNN_H

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
    cudnnStatus_t (*set)(Desc, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t, const void *);
    cudnnStatus_t (*get)(Desc, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t, int64_t *, void *);
    cudnnStatus_t (*execute)(cudnnHandle_t, Desc, Desc);
} Library;

bool library_load(Library *l);                    /* the functions alone; false: there is none */
bool library_open(Library *l, cudaStream_t s);    /* and a handle on the open card */
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
void graph_pointwise(Graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t math, Desc y, Desc x, Desc b, Desc t);
void graph_index(Graph *g, cudnnDataType_t math, Desc y, Desc x, int64_t axis);
void graph_matmul(Graph *g, Desc c, Desc a, Desc b, Desc rows, Desc cols, Desc depth);
void graph_reduce(Graph *g, cudnnReduceTensorOp_t op, Desc y, Desc x);
void graph_reshape(Graph *g, Desc y, Desc x);

bool graph_plan(Graph *g);                        /* the best engine's plan and its workspace */
void graph_close(Graph *g);

typedef struct Binding { int64_t id; const void *data; } Binding;

cudnnStatus_t graph_run(Graph *g, const Binding *b, int n, void *workspace);

#endif
