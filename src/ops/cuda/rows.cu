/* ops/cuda/rows.cu -- the ordered sum of block partials; see rows.cuh. */
#include "ops/cuda/rows.cuh"

enum { COLS = 32, LINES = 32 };

/* A block owns 32 columns. Line y adds parts y, y + 32, ... in order, then line 0 adds the lines in order. */
static __global__ void __launch_bounds__(COLS * LINES) add_parts(float *dst, const float *part,
                                                                 int64_t blocks, int64_t width, int64_t count)
{
    __shared__ float line[LINES][COLS];
    int     x = threadIdx.x % COLS, y = threadIdx.x / COLS;
    int64_t col = (int64_t)blockIdx.x * COLS + x;
    float   s = 0.0f;
    if (col < count) {
#pragma unroll 8
        for (int64_t b = y; b < blocks; b += LINES) s += part[b * width + col];
    }
    line[y][x] = s;
    __syncthreads();
    if (y || col >= count) return;
    for (int i = 1; i < LINES; i++) s += line[i][x];
    dst[col] += s;
}

void parts_add(Backend *be, const char *op, Tensor dst, const float *part, int64_t blocks, int64_t width)
{
    int64_t count = t_count(dst);
    LAUNCH(be, op, add_parts, ceil_div(count, COLS), COLS * LINES, 0, (float *)dst.data, part, blocks, width,
           count);
}
