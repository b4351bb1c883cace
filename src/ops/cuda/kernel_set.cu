/* ops/cuda/kernel_set.cu -- the table of kernel sets, and the choice of one. */
#include "ops/cuda/kernel_set.cuh"

#include <stdlib.h>
#include <string.h>

/* grouped_hopper.cu, narrow_hopper.cu, fused_hopper.cu, cross_entropy_hopper.cu, grouped_fp8.cu,
 * grouped_fused_fp8.cu, dw_fp8_hopper.cu */
void hopper_grouped(Backend *be, const GroupedCall &q);
void hopper_narrow(Backend *be, const NarrowCall &q);
void hopper_swiglu(Backend *be, const FusedCall &q);
void hopper_dswiglu(Backend *be, const FusedCall &q);
bool hopper_reads_codes(const WeightCodes &z, Tensor panel, int64_t terms, int64_t columns);
bool hopper_ce_grad(Backend *be, Tensor part, Tensor dlogits, Tensor logits, Tensor labels, Factor scale);
bool hopper_gemm_fp8(Backend *be, const char *what, Fp8Call x);
bool hopper_swiglu_fp8(Backend *be, const SwigluFp8Call &x);
bool hopper_dw_fp8(Backend *be, const DwFp8Call &x);

/* portable_grouped.cu, portable_narrow.cu, portable_fused.cu, portable_fp8.cu */
void portable_grouped(Backend *be, const GroupedCall &q);
void portable_narrow(Backend *be, const NarrowCall &q);
void portable_swiglu(Backend *be, const FusedCall &q);
void portable_dswiglu(Backend *be, const FusedCall &q);
bool portable_gemm_fp8(Backend *be, const char *what, Fp8Call x);
bool portable_dw_fp8(Backend *be, const DwFp8Call &x);

#define PORTABLE portable_grouped, portable_narrow, portable_swiglu, portable_dswiglu, NULL, 256

static const KernelSet sets[] = {
    { "hopper", "compute capability 9.0 (H100, H200, H20: wgmma and TMA)", NULL, 90, 90,
      hopper_grouped, hopper_narrow, hopper_swiglu, hopper_dswiglu, hopper_reads_codes, 256, vision_fwd,
      vision_bwd, hopper_ce_grad, hopper_gemm_fp8, hopper_swiglu_fp8, hopper_dw_fp8 },
    /* Blackwell's data-centre GPUs: cuDNN has attention for them, which goes first. */
    { "portable", "compute capability 8.0 or later (mma.sync and cp.async)",
      "correct, not fast: there are no kernels for this GPU's own instructions (tcgen05) yet", 100, 109,
      PORTABLE, NULL, NULL, NULL, portable_gemm_fp8, NULL, portable_dw_fp8 },
    { "portable", "compute capability 8.0 or later (mma.sync and cp.async)", NULL, OLDEST_GPU, 999,
      PORTABLE, flash_fwd, flash_bwd, NULL, portable_gemm_fp8, NULL, portable_dw_fp8 },
};

enum { SETS = sizeof sets / sizeof *sets };

static bool runs(const KernelSet *s, int major, int minor)
{
    int capability = 10 * major + minor;
    return capability >= s->oldest && capability <= s->newest;
}

static Status refuse(const char *name, const char *needs, const char *gpu, int major, int minor)
{
    if (needs)
        return fail(E_CONFIG, "device.kernels=%s: these kernels need %s, and %s has %d.%d; use auto", name,
                    needs, gpu, major, minor);
    return fail(E_CONFIG, "device.kernels=%s: there are auto, hopper and portable", name);
}

Status kernel_set_choose(const KernelSet **out, const char *name, const char *gpu, int major, int minor)
{
    const char *wish = getenv("TREB_KERNELS"), *needs = NULL;
    if (!strcmp(name, "auto") && wish && *wish) name = wish;
    bool any = !strcmp(name, "auto");
    for (int i = 0; i < SETS; i++) {
        if (!any && strcmp(name, sets[i].name)) continue;
        needs = sets[i].needs;
        if (runs(&sets[i], major, minor)) { *out = &sets[i]; return OK; }
    }
    if (!any) return refuse(name, needs, gpu, major, minor);
    return fail(E_DEVICE, "%s has compute capability %d.%d, this program needs 8.0 or later (A100, RTX 30 "
                "and newer); use --backend cpu", gpu, major, minor);
}
