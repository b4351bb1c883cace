/* tests/gpu_clusters.c -- products of experts that clusters of two blocks compute (grouped_hopper.cu), again
 * and again: every warp of both blocks must take the same tiles. Few experts have most rows and others none,
 * so the blocks pass tile numbers to each other as fast as they can.
 *
 * A warp that takes another tile than the rest of its block waits for ever, or leaves a part of the result
 * unwritten: so that is poisoned before each call, and compared with that of the first. Of a weight gradient
 * it is the sums of squares of its strips. TREB_GPU_CLUSTER_CALLS is the number of calls for each
 * distribution of rows and each kind of product. */
#include "grouplab.h"

enum { MANY = 300, LIMIT_S = 200 };

typedef struct Case { Arena arena; int mode; Tensor a, b, c, squares, offsets; char *first, *now; } Case;

static Tensor drawn(Case *x, const char *label, int64_t rows, int64_t cols)
{
    Tensor t = t2(&x->arena, label, BF16, rows, cols), host = in2(BF16, rows, cols, DENSE);
    backend_upload(GPU, t, host.data);
    return t;
}

static Tensor result(const Case *x) { return x->mode == GEMM_TN ? x->squares : x->c; }

/* Weight gradients of E x M x N, or products over M into N columns. */
static void open_case(Case *x, int mode, Share share, int64_t most)
{
    int64_t E = gpu_size(32, 2), M = gpu_size(1024, 256), N = mode == GEMM_TN ? M : 256, n[] = { E, M, N };
    fresh();
    Tensor  offsets = offsets_of(share, E, most);
    int64_t rows = rows_used(offsets), parts = grouped_squares_parts(n);
    size_t  bytes = (size_t)((rows * (M + N) + E * M * N) * 4 + parts * 4) + (1 << 20);
    *x = (Case){ .mode = mode };
    if (backend_arena_open(GPU, &x->arena, "clusters", bytes)) printf("  %s\n", status_text()), exit(1);
    x->a = drawn(x, "a", rows, M);
    if (mode == GEMM_TN) {
        x->b = drawn(x, "b", rows, N);
        x->c = t3(&x->arena, "c", F32, E, M, N), x->squares = t1(&x->arena, "squares", F32, parts);
    } else {
        Tensor b = mode == GEMM_NT ? drawn(x, "b", E * N, M) : drawn(x, "b", E * M, N);
        x->b = t_as3(b, E, b.n[0] / E, b.n[1]), x->c = t2(&x->arena, "c", BF16, rows, N);
    }
    x->offsets = t1(&x->arena, "offsets", I32, E + 1);
    backend_upload(GPU, x->offsets, offsets.data);
    x->first = malloc((size_t)t_bytes(result(x))), x->now = malloc((size_t)t_bytes(result(x)));
    if (!x->first || !x->now) printf("  no memory\n"), exit(1);
}

static void close_case(Case *x)
{
    free(x->first), free(x->now);
    backend_arena_close(GPU, &x->arena);
}

static void call(Case *x, char *to)
{
    op_fill(GPU, result(x), NAN);
    if (x->mode == GEMM_TN) op_grouped_squares(GPU, x->c, x->squares, x->a, x->b, x->offsets);
    else op_grouped_gemm(GPU, x->c, x->a, x->b, x->offsets, (LoraTerm){ 0 }, x->mode);
    backend_fetch(GPU, to, result(x));
}

/* `most` so that experts have more than 1,024 rows on average, which is when clusters are taken. */
static void again_and_again(int mode, Share share, int64_t most)
{
    const char *calls = getenv("TREB_GPU_CLUSTER_CALLS");
    int    n = calls ? atoi(calls) : (int)gpu_size(MANY, 2), bad = 0;
    Case   x;
    open_case(&x, mode, share, most);
    call(&x, x.first);
    for (int i = 0; i < n; i++) {
        alarm(LIMIT_S);                         /* a kernel that stands still ends the program */
        call(&x, x.now);
        bad += memcmp(x.first, x.now, (size_t)t_bytes(result(&x))) != 0;
    }
    alarm(0);
    EXPECT_OK(backend_sync(GPU));
    EXPECT(!bad, "%d of %d calls differ from the first", bad, n);
    close_case(&x);
}

static void all_shares(int mode)
{
    again_and_again(mode, ZIPF, gpu_size(4300, 1030));
    again_and_again(mode, ONE_TAKES_ALL, 1030);
    again_and_again(mode, ANY, 2000);
}

static void nt(void) { all_shares(GEMM_NT); }
static void nn(void) { all_shares(GEMM_NN); }
static void tn(void) { all_shares(GEMM_TN); }

int main(void)
{
    gpulab_open();
    GPU_RUN(nt);
    GPU_RUN(nn);
    GPU_RUN(tn);
    return gpulab_report();
}
