/* ops/cuda/attention_cuda.h -- between the files of attention on the card: attention.cu chooses,
 * attention_plain.cu computes anything, attention_vision.cu and attention_vision_bwd.cu the heads of images
 * (with attention_vision.cuh), attention_cudnn.cu what else cuDNN is good at (with the graphs and plans of
 * attention_cudnn.h); those headers only these files see. */
#ifndef OPS_CUDA_ATTENTION_CUDA_H
#define OPS_CUDA_ATTENTION_CUDA_H

#include "ops/cuda/cuda.cuh"

/* All tensors of a call; forward has o and lse as outputs, the gradients are absent. */
typedef struct Attn {
    Tensor   q, k, v, o, lse, dq, dk, dv, delta, dout;
    Segments seg;
    float    scale;
} Attn;

/* The inside of the segments; rows outside are the caller's. plain_bwd wants delta filled. */
void plain_fwd(Backend *be, const Attn *x);
void plain_bwd(Backend *be, const Attn *x);

/* The same for bf16 without a mask or a cache, a key head for each query head, 64, 72 or 80 wide, rows on 16
 * bytes; false: another case, nothing was done. */
bool vision_takes(const Attn *x);
bool vision_fwd(Backend *be, const Attn *x);
bool vision_bwd(Backend *be, const Attn *x);

/* The same through cuDNN; false: not a case for it, nothing was done. */
bool dnn_fwd(Backend *be, const Attn *x);
bool dnn_bwd(Backend *be, const Attn *x);

#endif
