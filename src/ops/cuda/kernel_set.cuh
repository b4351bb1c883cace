/* ops/cuda/kernel_set.cuh -- which kernels run on a GPU: sets of them, one row each in kernel_set.cu.
 *
 * A set has an entry for every product and attention that has more than one kernel. The set is chosen once,
 * when the GPU is opened: "auto" takes the set that TREB_KERNELS names (for tests), else the first one that
 * runs on the GPU; device.kernels may name another that does. A NULL entry takes the kernels that every GPU
 * has; the comment names them. */
#ifndef OPS_CUDA_KERNEL_SET_CUH
#define OPS_CUDA_KERNEL_SET_CUH

#include "ops/cuda/attention_cuda.h"
#include "ops/cuda/grouped_call.cuh"
#include "ops/cuda/product_fp8.h"

struct KernelSet {
    const char *name, *needs;
    const char *remark;                     /* for `treb doctor`; NULL: none */
    int         oldest, newest;             /* compute capability that it runs on, 10 major + minor */
    void (*grouped)(Backend *be, const GroupedCall &q);
    void (*narrow)(Backend *be, const NarrowCall &q);
    void (*swiglu)(Backend *be, const FusedCall &q);
    void (*dswiglu)(Backend *be, const FusedCall &q);
    bool (*reads_codes)(const WeightCodes &z, Tensor panel, int64_t terms, int64_t columns);
                                            /* whether these three take a weight in codes, to be decoded in
                                               panel, for sums of so many terms and a c of so many columns;
                                               NULL: never */
    int    dgate_cols;                      /* columns of one sum of FusedCall.part */
    bool (*attention_fwd)(Backend *be, const Attn *x);  /* NULL or false: cuDNN or others (attention.cu) */
    bool (*attention_bwd)(Backend *be, const Attn *x);
    bool (*ce_grad)(Backend *be, Tensor part, Tensor dlogits, Tensor logits, Tensor labels,
                    Factor scale);          /* NULL or false: in two passes (cross_entropy.cu) */
    bool (*gemm_fp8)(Backend *be, const char *what, Fp8Call x);         /* NULL or false: gemm_fp8.cu */
    bool (*swiglu_fp8)(Backend *be, const SwigluFp8Call &x);            /* NULL or false: separate ops */
    bool (*dw_fp8)(Backend *be, const DwFp8Call &x);                    /* NULL or false: grouped_dw_fp8.cu */
};

/* The least compute capability that this program has kernels for, and that of its tests. */
enum { OLDEST_GPU = 80, TESTED_GPU = 90 };

/* The set of this name, if it runs on the GPU. */
Status kernel_set_choose(const KernelSet **out, const char *name, const char *gpu, int major, int minor);

#endif
