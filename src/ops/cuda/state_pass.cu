/* ops/cuda/state_pass.cu -- kernel of state_pass.c: a block per head and COLS columns of its state, which it
 * has in shared memory; a thread per column takes every ROWS-th row. */
#include "ops/cuda/rows.cuh"

namespace {

enum { COLS = 32, ROWS = 8, MOST = 256 };

struct StatePass {
    float       *y;
    const float *a, *x, *b;
    int64_t      y_head, a_head, x_head, b_head;
    int          dk, dv;
    bool         back;
};

static __global__ void __launch_bounds__(COLS * ROWS) pass_states(StatePass s)
{
    __shared__ float x[MOST][COLS];
    int blocks = (s.dv + COLS - 1) / COLS, col = blockIdx.x % blocks * COLS + threadIdx.x % COLS;
    int64_t h = blockIdx.x / blocks;
    const float *a = s.a + h * s.a_head;
    bool in = col < s.dv;
    for (int j = threadIdx.x / COLS; j < s.dk; j += ROWS)
        x[j][threadIdx.x % COLS] = in && s.x ? s.x[h * s.x_head + (int64_t)j * s.dv + col] : 0.0f;
    __syncthreads();
    for (int i = threadIdx.x / COLS; in && i < s.dk; i += ROWS) {
        float sum = 0.0f;
        for (int j = 0; s.x && j < s.dk; j++)
            sum += (s.back ? a[j * s.dk + i] : a[i * s.dk + j]) * x[j][threadIdx.x % COLS];
        s.y[h * s.y_head + (int64_t)i * s.dv + col] = sum + s.b[h * s.b_head + (int64_t)i * s.dv + col];
    }
}

}

extern "C" void cuda_state_pass(Backend *be, Tensor y, Tensor a, Tensor x, Tensor b, bool back)
{
    int dk = 1;
    while (dk * dk < a.n[1]) dk++;
    int dv = (int)(y.n[1] / dk);
    REQUIRE(dk <= MOST, "state_pass: states of %d rows", dk);
    StatePass s = { (float *)y.data, (const float *)a.data, (const float *)x.data, (const float *)b.data,
                    y.s[0], a.s[0], x.s[0], b.s[0], dk, dv, back };
    if (y.n[0]) LAUNCH(be, "state_pass", pass_states, y.n[0] * ceil_div(dv, COLS), COLS * ROWS, 0, s);
}
