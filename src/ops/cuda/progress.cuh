/* ops/cuda/progress.cuh -- words of pinned host memory that a stream writes when it comes to a place in its
 * work, so that the watchdog sees how far the device is without asking a library that may block it.
 *
 * cuda_mark writes Backend.progress from the compute stream, at each layer, or after a CUDA graph. */
#ifndef OPS_CUDA_PROGRESS_CUH
#define OPS_CUDA_PROGRESS_CUH

#include "ops/cuda/cuda.cuh"

Status progress_find_write(ProgressWrite *f);
Status progress_word_open(uint32_t **word);
void   progress_word_close(uint32_t *word);              /* NULL is fine */
Status progress_open(Backend *be);
void   cuda_mark(Backend *be);

#endif
