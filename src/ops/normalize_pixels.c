/* ops/normalize_pixels.c -- u8 pixels to the vision tower's input: contract, cost, CPU.
 *
 *   y[i] = (x[i] - 127.5) / 127.5        x u8, y f32 or bf16, both dense
 *
 * Images are uploaded as bytes, a quarter of the size of f32, and converted on the device. */
#include "ops/cpu/cpu_rows.h"

Cost normalize_pixels_cost(Backend *be, Tensor y, Tensor x)
{
    REQUIRE(x.dtype == U8 && is_float(y) && t_dense(x) && t_dense(y) && t_count(x) == t_count(y),
            "normalize_pixels: y%s x%s", t_fmt(y), t_fmt(x));
    return (Cost){ .flops = 2.0 * (double)t_count(x), .rd = t_bytes(x), .wr = t_bytes(y) };
}

void cpu_normalize_pixels(Backend *be, Tensor y, Tensor x)
{
    float    value[256];
    uint16_t narrow[256];
    int64_t  n = t_count(x);
    const uint8_t *in = x.data;
    for (int i = 0; i < 256; i++) value[i] = ((float)i - 127.5f) / 127.5f;
    cpu_narrow(narrow, value, 256);
    #pragma omp parallel for schedule(static) if(worth_threads(n))
    for (int64_t i = 0; i < n; i++) {
        if (y.dtype == F32) ((float *)y.data)[i] = value[in[i]];
        else                ((uint16_t *)y.data)[i] = narrow[in[i]];
    }
}
