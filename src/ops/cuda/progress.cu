/* ops/cuda/progress.cu -- see progress.cuh. */
#include "ops/cuda/progress.cuh"

Status progress_find_write(ProgressWrite *f)
{
    cudaDriverEntryPointQueryResult found;
    cudaError_t e = cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", (void **)f, 12000,
                                                     cudaEnableDefault, &found);
    if (e == cudaSuccess && found == cudaDriverEntryPointSuccess) return OK;
    return fail(E_DEVICE, "the driver has no cuStreamWriteValue32; install one for CUDA 12 or newer");
}

Status progress_word_open(uint32_t **word)
{
    cudaError_t e = cudaHostAlloc((void **)word, sizeof **word, cudaHostAllocMapped);
    if (e != cudaSuccess) return fail(E_DEVICE, "a word of pinned memory: %s", cudaGetErrorString(e));
    **word = 0;
    return OK;
}

void progress_word_close(uint32_t *word)
{
    if (word) cudaFreeHost(word);
}

Status progress_open(Backend *be)
{
    Cuda *c = cuda_of(be);
    TRY(progress_find_write(&c->progress_write));
    TRY(progress_word_open(&c->progress));
    be->progress = c->progress;
    return OK;
}

void cuda_mark(Backend *be)
{
    Cuda *c = cuda_of(be);
    if (c->progress_write(c->stream, (CUdeviceptr)c->progress, ++c->progress_marks,
                          CU_STREAM_WRITE_VALUE_DEFAULT))
        cuda_stick(be, cudaErrorUnknown, "writing a mark of progress");
}
