/* ops/cuda/attention_cudnn.cu -- attention of bf16 streams through cuDNN, where it is installed: which calls
 * it supports, their memory layout, the tensors of an execution. attention_cudnn_plan.cu builds the plans.
 *
 * Supported: bf16 throughout, head dims that are multiples of 8 up to 256, values narrower than keys (latent
 * attention: 192 and 128), windows, rows aligned to 16 bytes, keys in the stream itself, fewer than 2^31
 * elements a tensor. The segments are cuDNN's batch: up to B sequences of up to S rows per execution, each
 * with its length and the offset of its first element. Both are device data, so that one plan serves every
 * batch; missing sequences have length 0. S is rounded up to 2^i or 3 2^i, B to a power of two; more segments
 * than B take several executions. Building a plan takes 0.05 s, a deterministic one 0.7 s: while preparing
 * for the largest batch, in a step for a plan first needed there. Where all segments have the same length and
 * fill the stream (which the host knows from the number of pairs), the batch is a dense tensor without masks:
 * the fastest kind, called even.
 *
 * With shared key heads cuDNN sums full heads of dk and dv. The ragged kinds lay out all sums like the
 * gradients (full heads: like dk and dv with H heads), so the gradients must be dense: others pass through a
 * dense copy. Versions before 9.19 take a gradient's offsets from the tensor it belongs to: there both need
 * the same layout.
 *
 * Backward has two kinds. The deterministic one writes dq from a matrix dP of 2 H S S bytes a sequence. The
 * other adds into dq in the order in which blocks arrive: THE LAST BITS OF dq MAY DIFFER FROM RUN TO RUN. It
 * is faster (8 x 4096 tokens: 468 against 415 TFLOP/s) and taken unless Backend.repeat is set. The
 * deterministic kind runs as long as dP of one sequence is within MATRIX bytes (32 heads: segments up to 4096
 * rows), with as many sequences per execution as that allows; longer segments then run on our own kernels. */
#include "ops/cuda/attention_cuda.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if __has_include(<cudnn_backend.h>)
#include "ops/cuda/attention_cudnn.h"

namespace {

static const int64_t MATRIX = (int64_t)2 << 30;

/* Carves 256-aligned buffers out of the workspace; without a base it only counts bytes. */
typedef struct Cursor { char *base; size_t used; } Cursor;

static void *take(Cursor *r, int64_t bytes)
{
    void *p = r->base ? r->base + r->used : NULL;
    r->used += ((size_t)bytes + 255) / 256 * 256;
    return p;
}

typedef struct Call {
    Backend    *be;
    const Attn *x;
    Plan       *plan;
    Tensor      t[N_RAGGED];                                 /* as cuDNN gets them */
    bool        copied[N_RAGGED];                            /* t[i] is a dense copy of the caller's */
    int64_t     runs, places;                                /* executions; their sequences: runs x B */
    int32_t    *lens, *offsets;                              /* (places), (N_RAGGED, places + 1) */
    float      *delta, *dq_sum;
    bf16       *dk_full, *dv_full;
    void       *scratch;
} Call;

/* Lengths, and where each tensor's segments start, in elements. */
struct Starts { int64_t row[N_RAGGED]; };

__global__ static void starts_kernel(int32_t *lens, int32_t *offsets, const int32_t *starts, Starts s, int n,
                                     int places)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i > places) return;
    if (i < places) lens[i] = i < n ? starts[i + 1] - starts[i] : 0;
    for (int j = 0; j < N_RAGGED; j++)
        offsets[j * (int64_t)(places + 1) + i] = (int32_t)(starts[min(i, n)] * s.row[j]);
}

/* Rows of segments of one stat into another, (H, T) both. */
__global__ static void stat_kernel(float *y, int64_t y_row, const float *x, int64_t x_row,
                                   const int32_t *starts, int n)
{
    const float *from = x + blockIdx.y * x_row;
    float       *to = y + blockIdx.y * y_row;
    for (int64_t t = starts[0] + blockIdx.x * (int64_t)blockDim.x + threadIdx.x; t < starts[n];
         t += (int64_t)gridDim.x * blockDim.x)
        to[t] = from[t];
}

/* Rows of segments from one view to another, 16 bytes a thread. */
struct Strided { bf16 *p; int64_t row, head; };

__global__ static void rows_kernel(Strided y, Strided x, int G, int C, const int32_t *starts, int n)
{
    int64_t each = (int64_t)G * C / 8, end = starts[n] * each;
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = starts[0] * each + blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < end; i += step) {
        int64_t t = i / each, at = i % each * 8, h = at / C, c = at % C;
        Pack<bf16> few = pack_load((const bf16 *)x.p + t * x.row + h * x.head + c);
        pack_store(y.p + t * y.row + h * y.head + c, few);
    }
}

static Tensor caller_tensor(const Attn *x, int which)
{
    const Tensor all[] = { x->q, x->k, x->v, x->o, x->dout, x->dq, x->dk, x->dv };
    return all[which];
}

/* Backward of heads over 128 wide is wrong in 9.14 and right in 9.19. Windows are right in 9.14; 9.19 gives
 * NaN for them in long documents. */
static bool takes(Backend *be, const Attn *x)
{
    Dnn *d = (Dnn *)cuda_of(be)->dnn;
    if (!d || t_has(x->seg.kv_starts) || x->seg.longest < 1) return false;
    if (x->q.n[2] > (d->lib.version < 91900 ? 128 : 256)) return false;
    if (x->seg.window && d->lib.version >= 91500) return false;
    for (int i = 0; i < N_STAT; i++) {
        Tensor t = caller_tensor(x, i);
        if (t_has(t) && (t.dtype != BF16 || !packs(t) || t.n[0] * t.s[0] > INT32_MAX)) return false;
    }
    return true;
}

/* All segments have the longest's length and fill the stream; lengths off 128 need the mask in some
 * versions. */
static bool is_even(const Attn *x)
{
    int64_t n = x->seg.n, L = x->seg.longest;
    double  each = x->seg.causal ? (double)L * (double)(L + 1) / 2 : (double)L * (double)L;
    bool    lse_fits = (intptr_t)x->lse.data % 16 == 0 && x->lse.s[0] % 4 == 0;
    return n * L == x->q.n[0] && x->seg.pairs == (double)n * each && L % 128 == 0 && lse_fits;
}

static bool is_dense(Tensor t) { return t.s[0] == t.n[1] * t.n[2] && t.s[1] == t.n[2]; }

static Tensor dense_like(Tensor t)
{
    t.s[0] = t.n[1] * t.n[2], t.s[1] = t.n[2];
    return t;
}

static int64_t power_of_two(int64_t x, int64_t from)
{
    while (from < x) from *= 2;
    return from;
}

static int64_t round_length(int64_t x)
{
    int64_t whole = power_of_two(x, 128), three = whole / 4 * 3;
    return three >= x && three % 128 == 0 ? three : whole;
}

/* Sequences per execution: all, unless the workspace would exceed MATRIX or twice the stream, or their number
 * exceeds a grid dimension. */
static int64_t run_size(const Key *k, int64_t n, int64_t S, int64_t T)
{
    int64_t B = k->even ? n : power_of_two(n, 1), most = 16384;
    if (k->repeats)                   most = min_i64(most, MATRIX / (2 * k->H * S * S));
    else if (k->backward && !k->flat) most = min_i64(most, 2 * T / S);
    if (most < 1) most = 1;
    if (k->even) while (n % B || B > most) B--;
    else         while (B > most) B /= 2;
    return B;
}

static void copy_dense(Call *c, int which)
{
    if (is_dense(c->t[which])) return;
    c->t[which] = dense_like(c->t[which]), c->copied[which] = true;
}

/* Which tensors cuDNN needs as dense copies: see the top. */
static void choose_copies(Call *c, bool flat, bool shared, size_t version)
{
    const int pairs[][2] = { { N_Q, N_DQ }, { N_K, N_DK }, { N_V, N_DV }, { N_O, N_DOUT } };
    if (flat) copy_dense(c, N_DQ);
    if (flat && shared) copy_dense(c, N_DK), copy_dense(c, N_DV);
    if (version >= 91900) return;
    for (auto &p : pairs) {
        if (c->t[p[0]].s[0] == c->t[p[1]].s[0] && c->t[p[0]].s[1] == c->t[p[1]].s[1]) continue;
        copy_dense(c, p[0]), copy_dense(c, p[1]);
    }
}

/* The call in cuDNN's terms, and the plan for it; false: cuDNN has none. */
static bool call_open(Call *c, Backend *be, const Attn *x, bool backward, bool repeats)
{
    Dnn    *d = (Dnn *)cuda_of(be)->dnn;
    int64_t T = x->q.n[0], H = x->q.n[1], G = x->k.n[1], C = x->q.n[2], Cv = x->v.n[2];
    int64_t even = is_even(x), flat = !even && C % 16 == 0 && Cv % 16 == 0;
    int64_t S = even ? x->seg.longest : round_length(x->seg.longest);
    memset(c, 0, sizeof *c);
    if (repeats && 2 * H * S * S > MATRIX) return false;
    c->be = be, c->x = x;
    for (int i = 0; i < N_STAT; i++) c->t[i] = caller_tensor(x, i);
    c->t[N_STAT] = x->q, c->t[N_STAT].data = x->lse.data;    /* as (T, H, 1): stride 1 between rows */
    c->t[N_STAT].s[0] = 1, c->t[N_STAT].s[1] = x->lse.s[0];
    if (!even) c->t[N_STAT].s[1] = power_of_two(T, 256), c->copied[N_STAT] = true;
    if (backward && !even) choose_copies(c, flat, H != G, d->lib.version);
    Key key = { H, G, C, Cv, x->seg.causal, backward, x->seg.window > 0, even, flat, repeats };
    for (int i = 0; i < N_RAGGED; i++) key.at[i] = HeadStrides{ c->t[i].s[0], c->t[i].s[1] };
    c->plan = plan_find(d, &key, run_size(&key, x->seg.n, S, T), S, cuda_of(be)->stream,
                        cuda_of(be)->graphs > 0);
    if (!c->plan || !c->plan->graph.plan) return false;
    c->runs = ceil_div(x->seg.n, c->plan->B), c->places = c->runs * c->plan->B;
    return true;
}

static void call_workspace(Call *c, Cursor *r)
{
    const Plan *p = c->plan;
    const Key  *k = &p->key;
    int64_t T = c->x->q.n[0], rows = k->flat ? k->at[N_STAT].head : p->B * p->S;
    c->lens    = (int32_t *)take(r, c->places * 4);
    c->offsets = (int32_t *)take(r, N_RAGGED * (c->places + 1) * 4);
    if (c->copied[N_STAT]) c->t[N_STAT].data = take(r, k->at[N_STAT].head * k->H * 4);
    for (int i = 0; i < N_STAT; i++)
        if (c->copied[i]) c->t[i].data = take(r, T * c->t[i].s[0] * 2);
    if (k->backward) c->delta = (float *)take(r, rows * k->H * 4);
    if (k->backward && !k->repeats) c->dq_sum = (float *)take(r, (k->flat ? T : rows) * k->H * k->C * 4);
    if (k->backward && k->flat && k->H != k->G) {
        c->dk_full = (bf16 *)take(r, T * k->H * k->C * 2);
        c->dv_full = (bf16 *)take(r, T * k->H * k->Cv * 2);
    }
    c->scratch = take(r, p->graph.workspace);
}

/* The largest workspace that any batch of as many rows can need. It is reserved while preparing, because the
 * batch of the preparation is one long segment. */
static size_t most_workspace(const Attn *x, bool backward, bool repeats)
{
    int64_t T = x->q.n[0], H = x->q.n[1], C = x->q.n[2], rows = C % 16 ? 2 * T + 256 : T, copies = 0;
    int64_t small = 9 * 4 * (2 * T + 256) + (32 << 20), stats = 2 * (2 * T + 256) * H * 4;
    int64_t sums = rows * H * C * 4, heads = x->k.n[1] == H ? 0 : 2 * rows * H * C * 2;
    for (int i = 0; i < N_STAT; i++) {
        Tensor t = caller_tensor(x, i);
        if (t_has(t) && !is_dense(t)) copies += T * t.n[1] * t.n[2] * 2 + 256;
    }
    if (!backward) return (size_t)(small + stats);
    return (size_t)(small + stats + copies + heads + (repeats && sums < MATRIX ? MATRIX : sums));
}

static void call_starts(Call *c)
{
    const Segments *seg = &c->x->seg;
    Starts s;
    for (int i = 0; i < N_RAGGED; i++) s.row[i] = c->t[i].s[0];
    LAUNCH(c->be, "attention", starts_kernel, ceil_div(c->places + 1, 256), 256, 0, c->lens, c->offsets,
           (const int32_t *)seg->starts.data, s, (int)seg->n, (int)c->places);
}

static void call_stat(Call *c, bool out)
{
    Tensor  lse = c->x->lse, stat = c->t[N_STAT];
    float  *a = (float *)lse.data, *b = (float *)stat.data;
    int64_t blocks = min_i64(ceil_div(lse.n[1], 256), 64);
    if (!c->copied[N_STAT] || c->be->preparing) return;
    stat_kernel<<<dim3((unsigned)blocks, (unsigned)lse.n[0]), 256, 0, cuda_of(c->be)->stream>>>(
        out ? a : b, out ? lse.s[0] : stat.s[1], out ? b : a, out ? stat.s[1] : lse.s[0],
        (const int32_t *)c->x->seg.starts.data, (int)c->x->seg.n);
    cuda_stick(c->be, cudaGetLastError(), "attention");
}

/* Copies from the caller's tensors, or back to them. */
static void call_copies(Call *c, int from, int to, bool out)
{
    for (int i = from; i <= to; i++) {
        Tensor  t = caller_tensor(c->x, i), u = c->t[i];
        Strided a = { (bf16 *)t.data, t.s[0], t.s[1] }, b = { (bf16 *)u.data, u.s[0], u.s[1] };
        if (c->copied[i])
            LAUNCH(c->be, "attention", rows_kernel, cuda_blocks(c->be, t_count(t) / 8, 256, 8), 256, 0,
                   out ? a : b, out ? b : a, (int)t.n[1], (int)t.n[2], (const int32_t *)c->x->seg.starts.data,
                   (int)c->x->seg.n);
    }
}

/* Run i: sequences i B and on. */
static void call_run(Call *c, int64_t i)
{
    const float low = -INFINITY, one = 1.0f, window = (float)c->x->seg.window;
    const Plan *p = c->plan;
    const Key  *k = &p->key;
    Binding b[32];
    int     n = 0;
    for (int j = 0; j < N_RAGGED; j++) {
        int64_t size = j == N_STAT ? 4 : 2, skip = k->even ? i * p->B * p->S * k->at[j].row * size : 0;
        if (!t_has(c->t[j])) continue;
        b[n++] = Binding{ U_TENSOR + j, (char *)c->t[j].data + skip };
        if (!k->even) b[n++] = Binding{ U_OFFSET + j, c->offsets + j * (c->places + 1) + i * p->B };
    }
    if (!k->even) {
        b[n++] = Binding{ U_LEN_Q, c->lens + i * p->B }, b[n++] = Binding{ U_LEN_K, c->lens + i * p->B };
        b[n++] = Binding{ U_LOW1, &low };
    }
    b[n++] = Binding{ U_SCALE, &c->x->scale };
    if (k->causal) b[n++] = Binding{ U_LOW2, &low };
    if (k->windows) b[n++] = Binding{ U_LOW3, &low }, b[n++] = Binding{ U_WINDOW, &window };
    if (k->backward) b[n++] = Binding{ U_ONE, &one }, b[n++] = Binding{ U_DELTA, c->delta };
    if (c->dq_sum) b[n++] = Binding{ U_DQ_SUM, c->dq_sum };
    if (c->dk_full) b[n++] = Binding{ U_DK_FULL, c->dk_full }, b[n++] = Binding{ U_DV_FULL, c->dv_full };
    double from = clock_now();
    if (graph_run(&c->plan->graph, b, n, c->scratch) != CUDNN_STATUS_SUCCESS)
        cuda_stick(c->be, cudaErrorUnknown, "cuDNN attention");
    cuda_launched(c->be, from);
}

static void call_runs(Call *c)
{
    if (c->be->preparing) return;
    for (int64_t i = 0; i < c->runs && !c->be->sticky; i++) call_run(c, i);
}

/* False: no memory, and the backend says so. */
static bool call_ready(Call *c)
{
    Cursor count = {}, cursor = {};
    bool preparing = c->be->preparing;
    call_workspace(c, &count);
    if (preparing) cuda_workspace(c->be, most_workspace(c->x, c->plan->key.backward, c->be->repeat));
    cursor.base = (char *)cuda_workspace(c->be, count.used);
    call_workspace(c, &cursor);
    if (!cursor.base && !preparing) return false;
    if (!c->plan->key.even) call_starts(c);
    return true;
}

}

bool dnn_fwd(Backend *be, const Attn *x)
{
    Call c;
    if (!takes(be, x) || !call_open(&c, be, x, false, false)) return false;
    if (!call_ready(&c)) return true;
    call_runs(&c);
    call_stat(&c, true);
    return true;
}

bool dnn_bwd(Backend *be, const Attn *x)
{
    Call c;
    if (!takes(be, x)) return false;
    if (!call_open(&c, be, x, true, be->repeat)) return false;
    if (!call_ready(&c)) return true;
    call_stat(&c, false);
    call_copies(&c, N_Q, N_DOUT, false);
    call_runs(&c);
    call_copies(&c, N_DQ, N_DV, true);
    return true;
}

Status dnn_open(Cuda *c)
{
    Dnn *d = (Dnn *)calloc(1, sizeof *d);
    if (!d) return fail(E_FIT, "no memory");
    if (library_open(&d->lib, c->stream)) c->dnn = d;
    else                                  free(d);
    return OK;
}

void dnn_close(Cuda *c)
{
    Dnn *d = (Dnn *)c->dnn;
    if (!d) return;
    plans_close(d);
    library_close(&d->lib);
    free(d);
    c->dnn = NULL;
}

void dnn_describe(char *out, size_t n)
{
    Library l;
    if (!library_load(&l)) {
        snprintf(out, n, "not found (libcudnn.so.9): attention runs on our own kernels, slower");
        return;
    }
    snprintf(out, n, "%zu.%zu.%zu%s", l.version / 10000, l.version / 100 % 100, l.version % 100,
             l.version < 91900 ? " (from 9.19 on backward attention of equal documents is 8 % faster)" : "");
    library_close(&l);
}

#else

bool   dnn_fwd(Backend *, const Attn *) { return false; }
bool   dnn_bwd(Backend *, const Attn *) { return false; }
Status dnn_open(Cuda *) { return OK; }
void   dnn_close(Cuda *) {}
void   dnn_describe(char *out, size_t n)
{
    snprintf(out, n, "not built in (its headers were missing): attention runs on our own kernels, slower");
}

#endif
