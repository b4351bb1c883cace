/* comm/comm_mpi_calls.c -- calls over MPI as rounds of point-to-point messages; see comm_mpi.h. Only the
 * thread that opened the world makes MPI calls. */
#ifdef TREB_MPI
#include "comm/comm_mpi.h"

#include "base/num.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { STAGING_BYTES = 8 << 20, DIRECT_BYTES = 64 << 20, SMALL_BYTES = 32 << 10, TAGS = 4096 };

/* ---- byte ranges of a job ---- */

/* Where part i begins when n bytes are cut into `size` parts of whole elements; the last may be short. */
static int64_t part_start(int64_t n, int64_t elem, int size, int i)
{
    int64_t each = (n / elem + size - 1) / size * elem;
    return min_i64(each * i, n);
}

static void set_sum_everywhere(MpiJob *j)                      /* every member receives and sums everything */
{
    for (int i = 0; i < j->comm->size; i++)
        j->send_at[i] = 0, j->send_n[i] = j->recv_n[i] = t_bytes(j->call.in);
    j->sums = true, j->to = j->call.out.data;
}

static void set_sum_parts(MpiJob *j)                             /* member i receives and sums part i of in */
{
    Comm   *c    = j->comm;
    int64_t n    = t_bytes(j->call.in), elem = (int64_t)dtype_size((DType)j->call.in.dtype);
    int64_t mine = part_start(n, elem, c->size, c->rank);
    for (int i = 0; i < c->size; i++) {
        j->send_at[i] = part_start(n, elem, c->size, i);
        j->send_n[i]  = part_start(n, elem, c->size, i + 1) - j->send_at[i];
        j->recv_n[i] = part_start(n, elem, c->size, c->rank + 1) - mine;
    }
    j->sums = true;
    j->to = (char *)j->call.out.data + (j->call.kind == CALL_ALL_REDUCE ? mine : 0);
}

/* Every member receives all parts of out: from `in`, or for all_reduce from out itself. */
static void set_gather(MpiJob *j)
{
    Comm   *c    = j->comm;
    int64_t n    = t_bytes(j->call.out), elem = (int64_t)dtype_size((DType)j->call.out.dtype);
    int64_t mine = part_start(n, elem, c->size, c->rank);
    int64_t own  = part_start(n, elem, c->size, c->rank + 1) - mine;
    for (int i = 0; i < c->size; i++) {
        j->send_at[i] = j->call.kind == CALL_ALL_REDUCE ? mine : 0;
        j->send_n[i]  = own;
        j->recv_at[i] = part_start(n, elem, c->size, i);
        j->recv_n[i] = part_start(n, elem, c->size, i + 1) - j->recv_at[i];
    }
    j->sums = false;
}

static void set_all_to_all(MpiJob *j)
{
    int64_t row = call_row(j->call.in), out_row = call_row(j->call.out);
    for (int i = 0; i < j->comm->size; i++) {
        j->send_at[i] = j->call.give.at[i] * row,    j->send_n[i] = j->call.give.n[i] * row;
        j->recv_at[i] = j->call.get.at[i] * out_row, j->recv_n[i] = j->call.get.n[i] * out_row;
    }
    j->call.give = j->call.get = (RowRanges){ 0 };             /* the caller may reuse its arrays */
}

static void set_message(MpiJob *j)
{
    size_t bytes = (size_t)j->comm->size * sizeof *j->send_at;
    memset(j->send_n, 0, bytes), memset(j->recv_n, 0, bytes);
    j->send_at[j->call.peer] = j->recv_at[j->call.peer] = 0;
    if (j->call.kind == CALL_SEND) j->send_n[j->call.peer] = t_bytes(j->call.in);
    else                           j->recv_n[j->call.peer]  = t_bytes(j->call.out);
}

/* Sets the ranges and rounds of the phase. A large all_reduce has two phases, every other call has one. */
static void start_phase(MpiJob *j)
{
    Comm *c = j->comm;
    bool  host = c->be->device->host_memory;
    j->sums = false;
    switch (j->call.kind) {
    case CALL_ALL_REDUCE:
        if (j->phase)                          set_gather(j);
        else if (t_bytes(j->call.in) <= SMALL_BYTES) set_sum_everywhere(j);
        else                                   set_sum_parts(j);
        break;
    case CALL_REDUCE_SCATTER:  set_sum_parts(j); break;
    case CALL_ALL_GATHER:   set_gather(j);    break;
    case CALL_ALL_TO_ALL: set_all_to_all(j);  break;
    default:            set_message(j);     break;
    }
    int64_t most = 0, each = STAGING_BYTES / (j->call.kind >= CALL_SEND ? 1 : c->size) / 64 * 64;
    j->chunk = host && !j->sums ? DIRECT_BYTES : each < 64 ? 64 : each;
    for (int i = 0; i < c->size; i++) {
        if (j->send_n[i] > most) most = j->send_n[i];
        if (j->recv_n[i]  > most) most = j->recv_n[i];
    }
    j->round  = 0;
    j->rounds = most ? (int)((most + j->chunk - 1) / j->chunk) : 1;      /* an empty job takes its turn too */
    j->posted = false;
}

static bool last_phase(const MpiJob *j)
{
    return j->phase == 1 || j->call.kind != CALL_ALL_REDUCE || t_bytes(j->call.in) <= SMALL_BYTES;
}

/* ---- rounds ---- */

/* Bytes of this round for a member with n bytes in all. */
static int64_t round_bytes(const MpiJob *j, int64_t n)
{
    int64_t left = n - j->round * j->chunk;
    return left < 0 ? 0 : min_i64(left, j->chunk);
}

static char *staging_at(const MpiJob *j, char *side, int i)
{
    return side + (j->call.kind >= CALL_SEND ? 0 : i * j->chunk);
}

static bool is_direct(const MpiJob *j) { return j->comm->be->device->host_memory; }   /* MPI can read it */

static Tensor bytes_of(const void *p, int64_t n) { return t_wrap((void *)p, U8, 1, &n); }

/* The address of this round's bytes for member i; device memory is fetched to the staging buffer first. */
static const char *send_address(MpiJob *j, int i, int64_t n)
{
    const char *p = (const char *)j->call.in.data + j->send_at[i] + j->round * j->chunk;
    if (is_direct(j)) return p;
    if (i && j->send_n[i] == j->send_n[i - 1] && j->send_at[i] == j->send_at[i - 1])
        return j->part[i - 1];                              /* the same bytes for all: fetched once */
    backend_fetch(j->comm->be, staging_at(j, j->staging->send, i), bytes_of(p, n));
    return staging_at(j, j->staging->send, i);
}

static void post_round(MpiJob *j)
{
    Comm    *c = j->comm;
    MPI_Comm over = mpi_of(c)->comm;
    const MpiLibrary *l = &mpi_of(c)->mpi->lib;
    int      bad = MPI_SUCCESS;
    j->reqs = 0;
    for (int i = 0; i < c->size && !bad; i++) {
        int64_t n = i == c->rank ? 0 : round_bytes(j, j->recv_n[i]);
        char   *p = j->sums || !is_direct(j) ? (j->staging ? staging_at(j, j->staging->recv, i) : NULL)
                                            : (char *)j->call.out.data + j->recv_at[i] + j->round * j->chunk;
        if (n) bad = l->Irecv(p, (int)n, l->byte, i, j->tag, over, &j->req[j->reqs++]);
    }
    for (int i = 0; i < c->size && !bad; i++) {
        int64_t n = round_bytes(j, j->send_n[i]);
        if (!n) continue;
        j->part[i] = send_address(j, i, n);
        if (i != c->rank) bad = l->Isend(j->part[i], (int)n, l->byte, i, j->tag, over, &j->req[j->reqs++]);
    }
    j->posted = true;
    Status st = mpi_check(l, bad, call_name(j->call.kind));
    if (st) comm_stick(c, st);
}

static void sum_parts_of_round(MpiJob *j)
{
    Comm   *c = j->comm;
    DType   d = (DType)j->call.in.dtype;
    int64_t n = round_bytes(j, j->recv_n[c->rank]);
    char   *to = j->to + j->round * j->chunk;
    if (!n) return;
    for (int i = 0; i < c->size; i++)
        if (i != c->rank) j->part[i] = staging_at(j, j->staging->recv, i);
    char *sum = is_direct(j) ? to : staging_at(j, j->staging->recv, c->rank);
    sum_parts(sum, j->part, c->size, d, n / (int64_t)dtype_size(d), j->call.reduce);
    if (sum != to) backend_upload(c->be, bytes_of(to, n), sum);
}

static void upload_round(MpiJob *j)                               /* staging buffer to device, own part too */
{
    Comm *c = j->comm;
    for (int i = 0; i < c->size; i++) {
        int64_t     n = round_bytes(j, j->recv_n[i]);
        char       *to = (char *)j->call.out.data + j->recv_at[i] + j->round * j->chunk;
        const void *from = i == c->rank ? j->part[i] : staging_at(j, j->staging->recv, i);
        if (n && !(i == c->rank && j->call.kind == CALL_ALL_REDUCE))
            backend_upload(c->be, bytes_of(to, n), from);
    }
}

/* All messages of the round have arrived. */
static void finish_round(MpiJob *j)
{
    Comm *c = j->comm;
    if (j->sums)           sum_parts_of_round(j);
    else if (!is_direct(j)) upload_round(j);
    if (!is_direct(j)) c->be->device->sync(c->be);        /* the staging buffer is reused; a failure sticks */
    j->posted = false;
    if (++j->round < j->rounds) return;
    if (last_phase(j)) {
        j->done = true;
        c->ended[j - mpi_of(c)->job] = clock_now();
        if (j->staging) j->staging->served++;
    } else {
        j->phase++;
        start_phase(j);
    }
}

static bool progress_job(MpiJob *j)
{
    const MpiLibrary *l = &mpi_of(j->comm)->mpi->lib;
    int all = 1;
    if (j->comm->root->sticky) { j->done = true; return true; }
    if (j->staging && j->turn != j->staging->served) return false;
    if (!j->posted) { post_round(j); return true; }
    Status st = mpi_check(l, l->Testall(j->reqs, j->req, &all, MPI_STATUSES_IGNORE), call_name(j->call.kind));
    if (st) comm_stick(j->comm, st);
    if (all && !st) finish_round(j);
    return all;
}

bool mpi_progress(Mpi *m)
{
    bool moved = false;
    activity_poll();
    for (MpiJob **at = &m->jobs; *at;) {
        MpiJob *j = *at;
        moved |= progress_job(j);
        if (j->done) *at = j->next;
        else         at = &j->next;
    }
    if (moved) activity_mark();
    return moved;
}

/* Ranks may outnumber cores: after a few polls a waiting rank sleeps, a little longer each time. */
void mpi_idle(int *idle)
{
    if (++*idle < 50) { sched_yield(); return; }
    nanosleep(&(struct timespec){ .tv_nsec = 1000 * min_i64(5 * (*idle - 49), 200) }, NULL);
}

/* ---- starting and joining ---- */

static bool staging_open(MpiStaging *l, Backend *be)
{
    for (int i = 0; i < 2; i++) {
        char **side = i ? &l->recv : &l->send;
        if (*side || (!i && be->device->host_memory)) continue;         /* sent from the caller's buffer */
        void *p = mmap(NULL, STAGING_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) return false;
        if (be->device->pin) be->device->pin(p, STAGING_BYTES, true);
        *side = p;
    }
    return true;
}

static void staging_close(MpiStaging *l, Backend *be)
{
    for (int i = 0; i < 2; i++) {
        char *side = i ? l->recv : l->send;
        if (!side) continue;
        if (be && be->device && be->device->pin) be->device->pin(side, STAGING_BYTES, false);
        munmap(side, STAGING_BYTES);
    }
}

static bool job_open(MpiJob *j, int size)
{
    size_t n = (size_t)size;
    if (j->req) return true;
    j->send_at = calloc(4 * n, sizeof *j->send_at);
    j->part    = calloc(n, sizeof *j->part);
    j->req     = calloc(2 * n, sizeof *j->req);
    if (!j->send_at || !j->part || !j->req) return false;
    j->send_n = j->send_at + n, j->recv_at = j->send_n + n, j->recv_n = j->recv_at + n;
    return true;
}

void mpi_group_free(MpiGroup *g, Comm *c)
{
    for (int i = 0; i < COMM_TICKETS; i++) {
        free(g->job[i].send_at);
        free(g->job[i].part);
        free(g->job[i].req);
    }
    staging_close(&g->staging, c->be);
    for (int i = 0; i < c->size; i++) {
        if (g->send_staging) staging_close(&g->send_staging[i], c->be);
        if (g->recv_staging) staging_close(&g->recv_staging[i], c->be);
    }
    free(g->send_staging), free(g->recv_staging), free(g->sent), free(g->got);
    free(g);
}

/* Returns the staging memory that a job needs and sets the tag of its messages: the number of the collective,
 * which is the same on all members, or of the message between the two ranks. */
static MpiStaging *pick_staging(MpiGroup *g, MpiJob *j)
{
    bool host = is_direct(j);
    int  kind = j->call.kind, peer = j->call.peer;
    if (kind == CALL_SEND) j->tag = TAGS + (int)(g->sent[peer]++ % TAGS);
    else if (kind == CALL_RECV) j->tag = TAGS + (int)(g->got[peer]++ % TAGS);
    else j->tag = (int)(g->calls++ % TAGS);
    if (kind == CALL_SEND) return host ? NULL : &g->send_staging[peer];
    if (kind == CALL_RECV) return host ? NULL : &g->recv_staging[peer];
    return host && kind != CALL_ALL_REDUCE && kind != CALL_REDUCE_SCATTER ? NULL : &g->staging;
}

/* Tags repeat after TAGS calls. Messages with the same tag are distinguished by their order alone, so an
 * earlier call with this tag, whose ticket may be held for any time, must finish first. */
static void wait_for_tag(MpiGroup *g, const MpiJob *mine)
{
    int idle = 0;
    activity_poll_begin();
    for (int i = 0; i < COMM_TICKETS; i++) {
        const MpiJob *j = &g->job[i];
        while (j != mine && j->comm && !j->done && j->tag == mine->tag)
            if (mpi_progress(g->mpi)) idle = 0;
            else                  mpi_idle(&idle);
    }
    activity_poll_end();
}

void mpi_start(Comm *c, int slot, const CommCall *call)
{
    MpiGroup *g = mpi_of(c);
    MpiJob      *j = &g->job[slot], **end = &g->mpi->jobs;
    bool      opened = job_open(j, c->size);
    j->comm = c, j->call = *call, j->phase = 0, j->done = false, j->next = NULL;
    j->staging = pick_staging(g, j);
    if (j->tag < TAGS) wait_for_tag(g, j);
    if (!opened || (j->staging && !staging_open(j->staging, c->be))) {
        comm_stick(c, fail(E_FIT, "no memory for messages of %d ranks", c->size));
        comm_abort(c, status_text());
        j->done = true;
        return;
    }
    if (j->staging) j->turn = j->staging->turns++;
    if (is_direct(j) && !j->staging) local_part(c, call);
    start_phase(j);
    while (*end) end = &(*end)->next;
    *end = j;
    mpi_progress(g->mpi);
}

void mpi_join(Comm *c, int slot)
{
    MpiGroup *g = mpi_of(c);
    int idle = 0;
    activity_poll_begin();
    while (!g->job[slot].done)
        if (mpi_progress(g->mpi)) idle = 0;
        else                  mpi_idle(&idle);
    activity_poll_end();
}
#endif
