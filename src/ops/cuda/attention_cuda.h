/* ops/cuda/attention_cuda.h -- the interface between the CUDA attention files.
 *
 * attention.cu chooses; attention_plain.cu computes any case; attention_vision.cu, attention_vision_bwd.cu
 * and attention_vision_fused.cu compute vision heads (attention_vision.cuh) on Hopper; portable_attention*.cu
 * compute bf16 on every GPU; attention_cudnn.cu calls cuDNN (graphs and plans: attention_cudnn.h). */
#ifndef OPS_CUDA_ATTENTION_CUDA_H
#define OPS_CUDA_ATTENTION_CUDA_H

#include "ops/cuda/cuda.cuh"

/* All tensors of a call; forward has o and lse as outputs, the gradients are absent. */
typedef struct Attn {
    Tensor   q, k, v, o, lse, dq, dk, dv, delta, dout;
    Segments seg;
    float    scale;
} Attn;

/* delta of attention_bwd (attention.cu). */
void attention_delta(Backend *be, Tensor delta, Tensor dout, Tensor o);

/* Computes the rows inside segments; the caller zeroes the others. plain_bwd reads delta. */
void plain_fwd(Backend *be, const Attn *x);
void plain_bwd(Backend *be, const Attn *x);

/* The same for bf16 without causal mask or cache, as many key heads as query heads, head dim 64, 72 or 80,
 * rows aligned to 16 bytes. False: the call is another case and nothing was done. */
bool vision_takes(const Attn *x);
bool vision_fwd(Backend *be, const Attn *x);
bool vision_bwd(Backend *be, const Attn *x);

/* The fast way of vision_bwd for heads 72 wide: dq is summed in an order that differs from run to run. False
 * for other heads, and where Backend.repeat asks for equal bits. */
bool vision_bwd_fused(Backend *be, const Attn *x);

/* The same for bf16 with rows on 16 bytes, heads up to 256 wide, keys in the stream itself
 * (portable_attention.cu, portable_attention_bwd.cu). */
bool flash_takes(const Attn *x);
bool flash_fwd(Backend *be, const Attn *x);
bool flash_bwd(Backend *be, const Attn *x);

/* The same through cuDNN. False: cuDNN does not support the call and nothing was done. */
bool dnn_fwd(Backend *be, const Attn *x);
bool dnn_bwd(Backend *be, const Attn *x);

#endif
