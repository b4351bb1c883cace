/* comm/comm_mpi_calls.c -- calls over MPI as rounds of messages between pairs; see comm_mpi.h. Only the
 * thread that opened the world makes MPI calls. */
#ifdef TREB_MPI
#include "comm/comm_mpi.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { LANE_BYTES = 8 << 20, STRAIGHT = 1 << 30, SMALL = 32 << 10, TAGS = 4096 };

/* ---- what a job moves ---- */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Part i of n bytes cut for `size` members in whole elements: the last ones may be short or empty. */
static int64_t cut(int64_t n, int64_t elem, int size, int i)
{
    int64_t each = (n / elem + size - 1) / size * elem;
    return least(each * i, n);
}

static void sums_small(Job *j)                              /* everyone gets everything and sums it */
{
    for (int i = 0; i < j->comm->size; i++)
        j->send_at[i] = 0, j->send_n[i] = j->get_n[i] = t_bytes(j->call.in);
    j->sums = true, j->to = j->call.out.data;
}

static void sums_parts(Job *j)                              /* member i gets part i of in and sums it */
{
    Comm   *c    = j->comm;
    int64_t n    = t_bytes(j->call.in), elem = (int64_t)dtype_size((DType)j->call.in.dtype);
    int64_t mine = cut(n, elem, c->size, c->rank);
    for (int i = 0; i < c->size; i++) {
        j->send_at[i] = cut(n, elem, c->size, i);
        j->send_n[i]  = cut(n, elem, c->size, i + 1) - j->send_at[i];
        j->get_n[i]   = cut(n, elem, c->size, c->rank + 1) - mine;
    }
    j->sums = true;
    j->to = (char *)j->call.out.data + (j->call.kind == CALL_ALL_REDUCE ? mine : 0);
}

/* Parts of out, each at its owner, come to all: from `in`, or where they are already in place. */
static void gathers(Job *j)
{
    Comm   *c    = j->comm;
    int64_t n    = t_bytes(j->call.out), elem = (int64_t)dtype_size((DType)j->call.out.dtype);
    int64_t mine = cut(n, elem, c->size, c->rank), own = cut(n, elem, c->size, c->rank + 1) - mine;
    for (int i = 0; i < c->size; i++) {
        j->send_at[i] = j->call.kind == CALL_ALL_REDUCE ? mine : 0;
        j->send_n[i]  = own;
        j->get_at[i]  = cut(n, elem, c->size, i);
        j->get_n[i]   = cut(n, elem, c->size, i + 1) - j->get_at[i];
    }
    j->sums = false;
}

static void exchanges(Job *j)
{
    int64_t row = call_row(j->call.in), wide = call_row(j->call.out);
    for (int i = 0; i < j->comm->size; i++) {
        j->send_at[i] = j->call.give.at[i] * row,  j->send_n[i] = j->call.give.n[i] * row;
        j->get_at[i]  = j->call.get.at[i] * wide,  j->get_n[i]  = j->call.get.n[i] * wide;
    }
    j->call.give = j->call.get = (RowRanges){ 0 };               /* the caller's arrays are free from here on */
}

static void letter(Job *j)
{
    size_t bytes = (size_t)j->comm->size * sizeof *j->send_at;
    memset(j->send_n, 0, bytes), memset(j->get_n, 0, bytes);
    j->send_at[j->call.peer] = j->get_at[j->call.peer] = 0;
    if (j->call.kind == CALL_SEND) j->send_n[j->call.peer] = t_bytes(j->call.in);
    else                           j->get_n[j->call.peer]  = t_bytes(j->call.out);
}

/* Lay out the phase: a large all_reduce has two, all else has one. */
static void plan(Job *j)
{
    Comm *c = j->comm;
    bool  host = c->be->device->host_memory;
    j->sums = false;
    switch (j->call.kind) {
    case CALL_ALL_REDUCE:
        if (j->phase)                          gathers(j);
        else if (t_bytes(j->call.in) <= SMALL) sums_small(j);
        else                                   sums_parts(j);
        break;
    case CALL_REDUCE_SCATTER:  sums_parts(j); break;
    case CALL_ALL_GATHER:   gathers(j);    break;
    case CALL_ALL_TO_ALL: exchanges(j);  break;
    default:            letter(j);     break;
    }
    int64_t most = 0, each = LANE_BYTES / (j->call.kind >= CALL_SEND ? 1 : c->size) / 64 * 64;
    j->chunk = host && !j->sums ? STRAIGHT : each < 64 ? 64 : each;
    for (int i = 0; i < c->size; i++) {
        if (j->send_n[i] > most) most = j->send_n[i];
        if (j->get_n[i]  > most) most = j->get_n[i];
    }
    j->round  = 0;
    j->rounds = most ? (int)((most + j->chunk - 1) / j->chunk) : 1;      /* an empty one takes its turn too */
    j->posted = false;
}

static bool last_phase(const Job *j)
{
    return j->phase == 1 || j->call.kind != CALL_ALL_REDUCE || t_bytes(j->call.in) <= SMALL;
}

/* ---- rounds ---- */

/* Bytes of this round for a member that has n in all, and its place in a lane. */
static int64_t slice(const Job *j, int64_t n)
{
    int64_t left = n - j->round * j->chunk;
    return left < 0 ? 0 : least(left, j->chunk);
}

static char *lane_at(const Job *j, char *side, int i)
{
    return side + (j->call.kind >= CALL_SEND ? 0 : i * j->chunk);
}

static bool straight(const Job *j) { return j->comm->be->device->host_memory; }   /* memory MPI can read */

static Tensor bytes_of(const void *p, int64_t n) { return t_wrap((void *)p, U8, 1, &n); }

/* Where this round's bytes for member i are; device memory is brought to the lane first. */
static const char *source(Job *j, int i, int64_t n)
{
    const char *p = (const char *)j->call.in.data + j->send_at[i] + j->round * j->chunk;
    if (straight(j)) return p;
    if (i && j->send_n[i] == j->send_n[i - 1] && j->send_at[i] == j->send_at[i - 1])
        return j->part[i - 1];                              /* the same bytes to all are fetched once */
    backend_fetch(j->comm->be, lane_at(j, j->lane->send, i), bytes_of(p, n));
    return lane_at(j, j->lane->send, i);
}

static void post(Job *j)
{
    Comm    *c = j->comm;
    MPI_Comm over = mpi_of(c)->comm;
    const MpiLibrary *l = &mpi_of(c)->mpi->lib;
    int      bad = MPI_SUCCESS;
    j->reqs = 0;
    for (int i = 0; i < c->size && !bad; i++) {
        int64_t n = i == c->rank ? 0 : slice(j, j->get_n[i]);
        char   *p = j->sums || !straight(j) ? (j->lane ? lane_at(j, j->lane->recv, i) : NULL)
                                            : (char *)j->call.out.data + j->get_at[i] + j->round * j->chunk;
        if (n) bad = l->Irecv(p, (int)n, l->byte, i, j->tag, over, &j->req[j->reqs++]);
    }
    for (int i = 0; i < c->size && !bad; i++) {
        int64_t n = slice(j, j->send_n[i]);
        if (!n) continue;
        j->part[i] = source(j, i, n);
        if (i != c->rank) bad = l->Isend(j->part[i], (int)n, l->byte, i, j->tag, over, &j->req[j->reqs++]);
    }
    j->posted = true;
    Status st = mpi_check(l, bad, call_name(j->call.kind));
    if (st) comm_stick(c, st);
}

static void add_up(Job *j)
{
    Comm   *c = j->comm;
    DType   d = (DType)j->call.in.dtype;
    int64_t n = slice(j, j->get_n[c->rank]);
    char   *to = j->to + j->round * j->chunk;
    if (!n) return;
    for (int i = 0; i < c->size; i++)
        if (i != c->rank) j->part[i] = lane_at(j, j->lane->recv, i);
    char *sum = straight(j) ? to : lane_at(j, j->lane->recv, c->rank);
    sum_parts(sum, j->part, c->size, d, n / (int64_t)dtype_size(d), j->call.reduce);
    if (sum != to) backend_upload(c->be, bytes_of(to, n), sum);
}

static void take_in(Job *j)                                 /* from the lane to the device, own part too */
{
    Comm *c = j->comm;
    for (int i = 0; i < c->size; i++) {
        int64_t     n = slice(j, j->get_n[i]);
        char       *to = (char *)j->call.out.data + j->get_at[i] + j->round * j->chunk;
        const void *from = i == c->rank ? j->part[i] : lane_at(j, j->lane->recv, i);
        if (n && !(i == c->rank && j->call.kind == CALL_ALL_REDUCE)) backend_upload(c->be, bytes_of(to, n), from);
    }
}

/* All messages of the round are here. */
static void finish_round(Job *j)
{
    Comm *c = j->comm;
    if (j->sums)           add_up(j);
    else if (!straight(j)) take_in(j);
    if (!straight(j)) c->be->device->sync(c->be);          /* the lane is used again; a failure sticks */
    j->posted = false;
    if (++j->round < j->rounds) return;
    if (last_phase(j)) {
        j->done = true;
        if (j->lane) j->lane->served++;
    } else {
        j->phase++;
        plan(j);
    }
}

static bool move(Job *j)
{
    const MpiLibrary *l = &mpi_of(j->comm)->mpi->lib;
    int all = 1;
    if (j->comm->root->sticky) { j->done = true; return true; }
    if (j->lane && j->turn != j->lane->served) return false;
    if (!j->posted) { post(j); return true; }
    Status st = mpi_check(l, l->Testall(j->reqs, j->req, &all, MPI_STATUSES_IGNORE), call_name(j->call.kind));
    if (st) comm_stick(j->comm, st);
    if (all && !st) finish_round(j);
    return all;
}

bool mpi_work(Mpi *m)
{
    bool moved = false;
    for (Job **at = &m->jobs; *at;) {
        Job *j = *at;
        moved |= move(j);
        if (j->done) *at = j->next;
        else         at = &j->next;
    }
    return moved;
}

/* Ranks may outnumber cores: after a few looks a waiting one sleeps, a little longer each time. */
void mpi_rest(int *idle)
{
    if (++*idle < 50) { sched_yield(); return; }
    nanosleep(&(struct timespec){ .tv_nsec = 1000 * least(5 * (*idle - 49), 200) }, NULL);
}

/* ---- starting and joining ---- */

static bool lane_open(Lane *l, Backend *be)
{
    for (int i = 0; i < 2; i++) {
        char **side = i ? &l->recv : &l->send;
        if (*side || (!i && be->device->host_memory)) continue;         /* sent from where it is */
        void *p = mmap(NULL, LANE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) return false;
        if (be->device->pin) be->device->pin(p, LANE_BYTES, true);
        *side = p;
    }
    return true;
}

static void lane_close(Lane *l, Backend *be)
{
    for (int i = 0; i < 2; i++) {
        char *side = i ? l->recv : l->send;
        if (!side) continue;
        if (be && be->device && be->device->pin) be->device->pin(side, LANE_BYTES, false);
        munmap(side, LANE_BYTES);
    }
}

static bool job_open(Job *j, int size)
{
    size_t n = (size_t)size;
    if (j->req) return true;
    j->send_at = calloc(4 * n, sizeof *j->send_at);
    j->part    = calloc(n, sizeof *j->part);
    j->req     = calloc(2 * n, sizeof *j->req);
    if (!j->send_at || !j->part || !j->req) return false;
    j->send_n = j->send_at + n, j->get_at = j->send_n + n, j->get_n = j->get_at + n;
    return true;
}

void mpi_group_free(MpiGroup *g, Comm *c)
{
    for (int i = 0; i < COMM_TICKETS; i++) {
        free(g->job[i].send_at);
        free(g->job[i].part);
        free(g->job[i].req);
    }
    lane_close(&g->lane, c->be);
    for (int i = 0; i < c->size; i++) {
        if (g->sends) lane_close(&g->sends[i], c->be);
        if (g->recvs) lane_close(&g->recvs[i], c->be);
    }
    free(g->sends), free(g->recvs), free(g->sent), free(g->got);
    free(g);
}

/* Which lane a job needs, and the tag its messages carry: the number of the call, which is the same on all
 * members, or of the letter between the two. */
static Lane *pick(MpiGroup *g, Job *j)
{
    bool host = straight(j);
    int  kind = j->call.kind, peer = j->call.peer;
    if (kind == CALL_SEND) j->tag = TAGS + (int)(g->sent[peer]++ % TAGS);
    else if (kind == CALL_RECV) j->tag = TAGS + (int)(g->got[peer]++ % TAGS);
    else j->tag = (int)(g->calls++ % TAGS);
    if (kind == CALL_SEND) return host ? NULL : &g->sends[peer];
    if (kind == CALL_RECV) return host ? NULL : &g->recvs[peer];
    return host && kind != CALL_ALL_REDUCE && kind != CALL_REDUCE_SCATTER ? NULL : &g->lane;
}

/* Numbers come round. Messages of two calls that have the same one are told apart by their order alone, so
 * the earlier one, which may be held for as long as its caller likes, must have said all it has to say. */
static void wait_for_tag(MpiGroup *g, const Job *mine)
{
    int idle = 0;
    for (int i = 0; i < COMM_TICKETS; i++) {
        const Job *j = &g->job[i];
        while (j != mine && j->comm && !j->done && j->tag == mine->tag)
            if (mpi_work(g->mpi)) idle = 0;
            else                  mpi_rest(&idle);
    }
}

void mpi_start(Comm *c, int slot, const CommCall *call)
{
    MpiGroup *g = mpi_of(c);
    Job      *j = &g->job[slot], **end = &g->mpi->jobs;
    bool      room = job_open(j, c->size);
    j->comm = c, j->call = *call, j->phase = 0, j->done = false, j->next = NULL;
    j->lane = pick(g, j);
    if (j->tag < TAGS) wait_for_tag(g, j);
    if (!room || (j->lane && !lane_open(j->lane, c->be))) {
        comm_stick(c, fail(E_FIT, "no memory for messages of %d ranks", c->size));
        comm_abort(c, status_text());
        j->done = true;
        return;
    }
    if (j->lane) j->turn = j->lane->turns++;
    if (straight(j) && !j->lane) local_part(c, call);
    plan(j);
    while (*end) end = &(*end)->next;
    *end = j;
    mpi_work(g->mpi);
}

void mpi_join(Comm *c, int slot)
{
    MpiGroup *g = mpi_of(c);
    int idle = 0;
    while (!g->job[slot].done)
        if (mpi_work(g->mpi)) idle = 0;
        else                  mpi_rest(&idle);
}
#endif
