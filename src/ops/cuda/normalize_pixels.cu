/* ops/cuda/normalize_pixels.cu -- kernel of normalize_pixels.c: 16 pixels a thread where the addresses are
 * aligned. */
#include "ops/cuda/cuda.cuh"

__device__ inline float pixel(uint8_t x) { return ((float)x - 127.5f) / 127.5f; }

template <class T> static __global__ void normalize(T *y, const uint8_t *x, int64_t n, bool wide)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x * 16;
    for (int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * 16; i < n; i += step) {
        if (wide && i + 16 <= n) {
            Pack<uint8_t> in = pack_load(x + i);
            for (int k = 0; k < 16; k += Pack<T>::N) {
                Pack<T> out;
                for (int j = 0; j < Pack<T>::N; j++) out.v[j] = from_f32<T>(pixel(in.v[k + j]));
                pack_store(y + i + k, out);
            }
        } else {
            for (int64_t k = i; k < n && k < i + 16; k++) y[k] = from_f32<T>(pixel(x[k]));
        }
    }
}

extern "C" void cuda_normalize_pixels(Backend *be, Tensor y, Tensor x)
{
    int64_t n = t_count(x);
    bool    wide = ((intptr_t)y.data | (intptr_t)x.data) % 16 == 0;
    BY_DTYPE(y.dtype, T,
             LAUNCH(be, "normalize_pixels", normalize<T>, cuda_blocks(be, n, 256 * 16, 8), 256, 0,
                    (T *)y.data, (const uint8_t *)x.data, n, wide));
}
