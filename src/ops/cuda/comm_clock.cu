/* ops/cuda/comm_clock.cu -- see comm_clock.cuh. */
#include "ops/cuda/comm_clock.cuh"

#include <stdlib.h>

/* The host is at most about a thousand launches ahead of the GPU, so that more spans are seldom open. */
enum { SPANS = 2048, EMPTY_WAITS = 15 };

typedef struct Span { cudaEvent_t from, to; int group; bool wait, push; } Span;

struct CommClock {
    Span   span[SPANS];
    int    unused[SPANS], n_unused;
    int    ended[SPANS], n_ended;       /* queued to the end, not read yet */
    double empty_wait;                  /* seconds between the events of a wait for a call that is done */
};

static double seconds(Backend *be, const Span *s)
{
    float ms = 0;
    cuda_stick(be, cudaEventElapsedTime(&ms, s->from, s->to), "timing of communication");
    return ms * 1e-3;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median over waits for an event that is long past. */
static void measure_empty_wait(Backend *be, CommClock *k)
{
    cudaStream_t s = cuda_of(be)->stream;
    double took[EMPTY_WAITS];
    cuda_stick(be, cudaEventRecord(k->span[SPANS - 1].to, s), "timing of communication");
    cuda_stick(be, cudaStreamSynchronize(s), "timing of communication");
    for (int i = 0; i < EMPTY_WAITS; i++) {
        cuda_stick(be, cudaEventRecord(k->span[i].from, s), "timing of communication");
        cuda_stick(be, cudaStreamWaitEvent(s, k->span[SPANS - 1].to, 0), "timing of communication");
        cuda_stick(be, cudaEventRecord(k->span[i].to, s), "timing of communication");
    }
    cuda_stick(be, cudaStreamSynchronize(s), "timing of communication");
    for (int i = 0; i < EMPTY_WAITS; i++) took[i] = seconds(be, &k->span[i]);
    qsort(took, EMPTY_WAITS, sizeof *took, ascending);
    k->empty_wait = took[EMPTY_WAITS / 2];
}

Status comm_clock_open(Backend *be)
{
    Cuda *c = cuda_of(be);
    if (c->comm_clock) return OK;
    CommClock *k = c->comm_clock = (CommClock *)calloc(1, sizeof *k);
    if (!k) return fail(E_FIT, "no memory");
    for (int i = 0; i < SPANS; i++) {
        k->unused[k->n_unused++] = i;
        cuda_stick(be, cudaEventCreate(&k->span[i].from), "timing of communication");
        cuda_stick(be, cudaEventCreate(&k->span[i].to), "timing of communication");
    }
    measure_empty_wait(be, k);
    return be->sticky;
}

void comm_clock_close(Cuda *c)
{
    CommClock *k = c->comm_clock;
    for (int i = 0; k && i < SPANS; i++) {
        if (k->span[i].from) cudaEventDestroy(k->span[i].from);
        if (k->span[i].to)   cudaEventDestroy(k->span[i].to);
    }
    free(k);
    c->comm_clock = NULL;
}

int comm_clock_begin(Backend *be, cudaStream_t s)
{
    CommClock *k = cuda_of(be)->comm_clock;
    if (!k || be->sticky || be->capturing) return -1;
    if (!k->n_unused) comm_clock_read(be);
    if (!k->n_unused) return -1;
    int span = k->unused[--k->n_unused];
    cuda_stick(be, cudaEventRecord(k->span[span].from, s), "timing of communication");
    return span;
}

void comm_clock_end(Backend *be, int span, cudaStream_t s, int group)
{
    CommClock *k = cuda_of(be)->comm_clock;
    if (span < 0) return;
    k->span[span].group = group, k->span[span].wait = s == cuda_of(be)->stream, k->span[span].push = false;
    cuda_stick(be, cudaEventRecord(k->span[span].to, s), "timing of communication");
    k->ended[k->n_ended++] = span;
}

void comm_clock_end_push(Backend *be, int span, int group)
{
    comm_clock_end(be, span, cuda_of(be)->stream, group);
    if (span >= 0) cuda_of(be)->comm_clock->span[span].push = true;
}

static void add_to_ledger(Backend *be, const CommClock *k, const Span *s)
{
    LedgerComm *l = &be->ledger.comm[s->group];
    double took = seconds(be, s);
    if (!s->wait || s->push)       l->length += took;
    if (s->push)                   l->exposed += took;
    else if (s->wait && took > k->empty_wait) l->exposed += took - k->empty_wait;
}

void comm_clock_read(Backend *be)
{
    CommClock *k = cuda_of(be)->comm_clock;
    int left = 0;
    for (int i = 0; k && i < k->n_ended; i++) {
        const Span *s = &k->span[k->ended[i]];
        bool done = cudaEventQuery(s->to) == cudaSuccess;
        if (done) add_to_ledger(be, k, s), k->unused[k->n_unused++] = k->ended[i];
        else      k->ended[left++] = k->ended[i];
    }
    if (!k) return;
    k->n_ended = left;
    if (left) cudaGetLastError();                  /* "not ready" must not look like a failed launch */
}
