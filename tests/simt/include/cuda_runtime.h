/* tests/simt/include/cuda_runtime.h -- the part of CUDA's runtime interface that Trebuchet calls, for the
 * emulated GPU of tests/simt. */
#ifndef TESTS_SIMT_CUDA_RUNTIME_H
#define TESTS_SIMT_CUDA_RUNTIME_H

#include "simt/simt.h"

#define CUDART_CB
typedef enum cudaError_t {
    cudaSuccess, cudaErrorInvalidValue, cudaErrorMemoryAllocation, cudaErrorInvalidConfiguration,
    cudaErrorInvalidDevice, cudaErrorNotReady, cudaErrorNotSupported, cudaErrorUnknown
} cudaError_t;
typedef enum cudaMemcpyKind {
    cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
} cudaMemcpyKind;
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaIpcMemLazyEnablePeerAccess = 1 };
enum { cudaHostRegisterDefault = 0, cudaHostRegisterPortable = 1, cudaHostRegisterMapped = 2 };
enum { cudaHostAllocDefault = 0, cudaHostAllocMapped = 2 };
typedef enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize } cudaFuncAttribute;
typedef enum cudaDeviceAttr { cudaDevAttrComputeCapabilityMajor } cudaDeviceAttr;
typedef enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed } cudaStreamCaptureMode;
typedef enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess } cudaDriverEntryPointQueryResult;
enum { cudaEnableDefault = 0 };

typedef struct simt::Stream   *cudaStream_t;
typedef struct simt_event     *cudaEvent_t;
typedef struct simt_graph     *cudaGraph_t, *cudaGraphExec_t;
typedef struct simt_node      *cudaGraphNode_t;
typedef struct cudaIpcMemHandle_t { char reserved[64]; } cudaIpcMemHandle_t;
typedef struct cudaFuncAttributes { int numRegs; size_t sharedSizeBytes, localSizeBytes; } cudaFuncAttributes;
typedef struct cudaDeviceProp {
    char   name[256];
    int    major, minor, multiProcessorCount;
    size_t totalGlobalMem, sharedMemPerMultiprocessor, sharedMemPerBlockOptin;
} cudaDeviceProp;

const char *cudaGetErrorString(cudaError_t e);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaSetDevice(int gpu);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int gpu);
cudaError_t cudaDeviceGetAttribute(int *v, cudaDeviceAttr which, int gpu);
cudaError_t cudaDeviceGetPCIBusId(char *id, int n, int gpu);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult *found);

cudaError_t cudaMalloc(void **p, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaMemGetInfo(size_t *left, size_t *all);
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void *p);
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t s);
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s);
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *p);
cudaError_t cudaIpcOpenMemHandle(void **p, cudaIpcMemHandle_t handle, unsigned flags);
cudaError_t cudaIpcCloseMemHandle(void *p);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags = 0);
cudaError_t cudaEventCreate(cudaEvent_t *e);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s = NULL);
cudaError_t cudaEventQuery(cudaEvent_t e);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n);
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t s);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute which, int value);
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, const void *kernel);

#endif
