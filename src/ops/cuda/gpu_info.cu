/* ops/cuda/gpu_info.cu -- see gpu_info.cuh. */
#include "ops/cuda/gpu_info.cuh"
#include "ops/cuda/kernel_set.cuh"

#include <stdio.h>
#include <string.h>

static __global__ void has_code(void) { }

static double gib(size_t bytes) { return (double)bytes / (1 << 30); }

Status gpu_has_code(const cudaDeviceProp *p)
{
    cudaFuncAttributes at;
    cudaError_t e = cudaFuncGetAttributes(&at, (const void *)has_code);
    if (e == cudaSuccess) return OK;
    cudaGetLastError();
    return fail(E_DEVICE, "%s: this program has no code for compute capability %d.%d; build it with "
                "CUDA_ARCHS=\"%d%d\", or use --backend cpu (%s)", p->name, p->major, p->minor, p->major,
                p->minor, cudaGetErrorString(e));
}

/* Zero for a GPU that cannot be opened, so that "auto" takes the CPU. */
void gpu_memory(double *left, double *all)
{
    size_t l = 0, a = 0;
    int    major = 0;
    int    gpu = cuda_own_gpu();
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu) != cudaSuccess) return;
    if (10 * major < OLDEST_GPU) return;
    if (cudaMemGetInfo(&l, &a) != cudaSuccess) return;
    *left = (double)l, *all = (double)a;
}

double gpu_memory_used(void)
{
    size_t left = 0, all = 0;
    return cudaMemGetInfo(&left, &all) == cudaSuccess ? (double)(all - left) : 0;
}

/* Dense products by the data sheet, without sparsity; f32 products run on the CUDA cores. */
double gpu_peak(DType dtype)
{
    static const struct { const char *name; double bf16, f32; } gpus[] = {
        { "GB300", 2500e12, 80e12 }, { "B300", 2250e12, 80e12 }, { "GB200", 2500e12, 80e12 },
        { "B200", 2250e12, 80e12 }, { "H200", 989.4e12, 66.9e12 }, { "H100 PCIe", 756.5e12, 51.2e12 },
        { "H100", 989.4e12, 66.9e12 }, { "H800", 989.4e12, 66.9e12 }, { "H20", 148e12, 44e12 },
        { "A100", 312e12, 19.5e12 }, { "A800", 312e12, 19.5e12 }, { "A10G", 70e12, 31.5e12 },
        { "A10", 125e12, 31.2e12 }, { "A40", 149.7e12, 37.4e12 }, { "A6000", 154.8e12, 38.7e12 },
        { "L40S", 362e12, 91.6e12 }, { "L40", 181e12, 90.5e12 }, { "L4", 121e12, 30.3e12 },
        { "RTX 3090", 71e12, 35.6e12 }, { "RTX 4090", 165.2e12, 82.6e12 },
        { "RTX 5090", 209.5e12, 104.8e12 }, { "RTX 6000 Ada", 364e12, 91.1e12 },
        { "RTX PRO 6000", 503.8e12, 126e12 },
    };
    cudaDeviceProp p;
    if (cudaGetDeviceProperties(&p, cuda_own_gpu()) != cudaSuccess) return 0;
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++)
        if (strstr(p.name, gpus[i].name)) return dtype == F32 ? gpus[i].f32 : gpus[i].bf16;
    return 0;
}

void gpu_describe(char *out, size_t n)
{
    cudaDeviceProp p;
    char lt[96] = "", dnn[96] = "";
    int  driver = 0;
    if (cudaGetDeviceProperties(&p, cuda_own_gpu()) != cudaSuccess) {
        snprintf(out, n, "built in, but no GPU is visible");
        return;
    }
    const KernelSet *set = NULL;
    if (kernel_set_choose(&set, "auto", p.name, p.major, p.minor) || gpu_has_code(&p)) {
        snprintf(out, n, "%s", status_text());
        return;
    }
    size_t left = 0, all = 0;
    cudaError_t e = cudaMemGetInfo(&left, &all);
    if (e != cudaSuccess) {
        snprintf(out, n, "%s cannot be opened: %s", p.name, cudaGetErrorString(e));
        return;
    }
    cudaDriverGetVersion(&driver);
    lt_describe(lt, sizeof lt);
    dnn_describe(dnn, sizeof dnn);
    snprintf(out, n, "%s, compute %d.%d, %d multiprocessors, %.1f GiB, driver CUDA %d.%d; %s; "
             "cuDNN %s", p.name, p.major, p.minor, p.multiProcessorCount, gib(p.totalGlobalMem),
             driver / 1000, driver % 1000 / 10, lt, dnn);
}

/* Which kernels run, and what is untested on this GPU: the tests of this program run on an H200. */
void gpu_describe_kernels(char *out, size_t n)
{
    cudaDeviceProp   p;
    const KernelSet *set = NULL;
    *out = 0;
    if (cudaGetDeviceProperties(&p, cuda_own_gpu()) != cudaSuccess ||
        kernel_set_choose(&set, "auto", p.name, p.major, p.minor)) return;
    int at = snprintf(out, n, "%s", set->name);
    if (10 * p.major + p.minor == TESTED_GPU)
        at += snprintf(out + at, n - (size_t)at, "; tested on an H200");
    else
        at += snprintf(out + at, n - (size_t)at, "; compute capability %d.%d is untested: what runs here was "
                       "tested on an H200 (device.kernels=portable)", p.major, p.minor);
    if (set->remark) at += snprintf(out + at, n - (size_t)at, "; %s", set->remark);
    if (!gpu_has_fp8(p.major, p.minor)) snprintf(out + at, n - (size_t)at, "; no FP8 (train.precision)");
}
