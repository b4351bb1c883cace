/* ops/cuda/nvml.cu -- see nvml.cuh. */
#include "ops/cuda/nvml.cuh"

#include "ops/cuda/cuda.cuh"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

enum { CLOCK_SM = 1, SENSOR_GPU = 0 };

typedef int (*Fn)(...);

typedef struct Nvml { void *gpu; Fn clock, power, degrees, energy; } Nvml;

static Nvml nvml;                                      /* gpu NULL: not known */

/* By its place on the bus: NVML counts GPUs that CUDA_VISIBLE_DEVICES hides. */
static void open_nvml(void)
{
    char  bus[32];
    void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW), *gpu = NULL;
    if (!lib) return;
    Fn init = (Fn)dlsym(lib, "nvmlInit_v2"), find = (Fn)dlsym(lib, "nvmlDeviceGetHandleByPciBusId_v2");
    nvml.clock = (Fn)dlsym(lib, "nvmlDeviceGetClockInfo");
    nvml.power = (Fn)dlsym(lib, "nvmlDeviceGetPowerUsage");
    nvml.degrees = (Fn)dlsym(lib, "nvmlDeviceGetTemperature");
    nvml.energy = (Fn)dlsym(lib, "nvmlDeviceGetTotalEnergyConsumption");
    if (!init || !find || !nvml.clock || !nvml.power || !nvml.degrees || !nvml.energy || init()) return;
    if (cudaDeviceGetPCIBusId(bus, sizeof bus, cuda_own_gpu()) == cudaSuccess && !find(bus, &gpu))
        nvml.gpu = gpu;
}

static const Nvml *opened(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_nvml);
    return nvml.gpu ? &nvml : NULL;
}

void nvml_state(char *out, size_t n)
{
    const Nvml *m = opened();
    unsigned    mhz = 0, mw = 0, heat = 0;
    *out = 0;
    if (m && !m->clock(m->gpu, CLOCK_SM, &mhz) && !m->power(m->gpu, &mw) &&
        !m->degrees(m->gpu, SENSOR_GPU, &heat))
        snprintf(out, n, "%u MHz, %.0f W, %u C", mhz, mw / 1000.0, heat);
}

bool nvml_energy(double *joules, double *mhz)
{
    const Nvml        *m = opened();
    unsigned long long mj = 0;
    unsigned           now = 0;
    if (!m || m->energy(m->gpu, &mj) || m->clock(m->gpu, CLOCK_SM, &now)) return false;
    *joules = (double)mj / 1000.0, *mhz = now;
    return true;
}
