/* tests/gpu_clusters.c -- weight gradients that clusters of two blocks compute (grouped_hopper.cu), again and
 * again: every warp of both blocks must take the same tiles. Few experts have most rows and others none, so
 * the blocks pass tile numbers to each other as fast as they can.
 *
 * A warp that takes another tile than the rest of its block waits for ever, or leaves a sum of squares
 * unwritten: so these are poisoned before each call, and compared with those of the first.
 * TREB_GPU_CLUSTER_CALLS is the number of calls for each distribution of rows. */
#include "grouplab.h"

enum { MANY = 500, LIMIT_S = 200 };

typedef struct Case { Arena arena; Tensor a, b, c, squares, offsets; float *first, *now; } Case;

static Tensor drawn(Case *x, const char *label, int64_t rows, int64_t cols)
{
    Tensor t = t2(&x->arena, label, BF16, rows, cols), host = in2(BF16, rows, cols, DENSE);
    backend_upload(GPU, t, host.data);
    return t;
}

static void open_case(Case *x, Share share, int64_t most)
{
    int64_t E = gpu_size(32, 2), M = gpu_size(1024, 256), N = gpu_size(1024, 256), n[] = { E, M, N };
    fresh();
    Tensor  offsets = offsets_of(share, E, most), like_c = t_wrap(NULL, F32, 3, n);
    int64_t rows = rows_used(offsets), parts = grouped_squares_parts(n);
    size_t  bytes = (size_t)(rows * (M + N) * 2 + t_bytes(like_c) + parts * 4) + (1 << 20);
    *x = (Case){ 0 };
    if (backend_arena_open(GPU, &x->arena, "clusters", bytes)) printf("  %s\n", status_text()), exit(1);
    x->a = drawn(x, "a", rows, M), x->b = drawn(x, "b", rows, N);
    x->c = t3(&x->arena, "c", F32, E, M, N), x->squares = t1(&x->arena, "squares", F32, parts);
    x->offsets = t1(&x->arena, "offsets", I32, E + 1);
    backend_upload(GPU, x->offsets, offsets.data);
    x->first = malloc((size_t)t_bytes(x->squares)), x->now = malloc((size_t)t_bytes(x->squares));
    if (!x->first || !x->now) printf("  no memory\n"), exit(1);
}

static void close_case(Case *x)
{
    free(x->first), free(x->now);
    backend_arena_close(GPU, &x->arena);
}

static void call(Case *x, float *squares)
{
    op_fill(GPU, x->squares, NAN);
    op_grouped_squares(GPU, x->c, x->squares, x->a, x->b, x->offsets);
    backend_fetch(GPU, squares, x->squares);
}

/* `most` so that experts have more than 1,024 rows on average, which is when clusters are taken. */
static void again_and_again(Share share, int64_t most)
{
    const char *calls = getenv("TREB_GPU_CLUSTER_CALLS");
    int    n = calls ? atoi(calls) : (int)gpu_size(MANY, 2), bad = 0;
    Case   x;
    open_case(&x, share, most);
    call(&x, x.first);
    for (int i = 0; i < n; i++) {
        alarm(LIMIT_S);                         /* a kernel that stands still ends the program */
        call(&x, x.now);
        bad += memcmp(x.first, x.now, (size_t)t_bytes(x.squares)) != 0;
    }
    alarm(0);
    EXPECT_OK(backend_sync(GPU));
    EXPECT(!bad, "%d of %d calls differ from the first", bad, n);
    close_case(&x);
}

static void zipf(void)             { again_and_again(ZIPF, gpu_size(4300, 1030)); }
static void one_takes_all(void)    { again_and_again(ONE_TAKES_ALL, 1030); }
static void any(void)              { again_and_again(ANY, 2000); }

int main(void)
{
    gpulab_open();
    GPU_RUN(zipf);
    GPU_RUN(one_takes_all);
    GPU_RUN(any);
    return gpulab_report();
}
