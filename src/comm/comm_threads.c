/* comm/comm_threads.c -- ranks of one process: each is a thread, and its buffers are read in place.
 *
 * Every member of a group leaves its CommCall in a Collective; the last one to arrive does the whole work for
 * all of them (sums in the order of the members), and a join waits until it is done. So joins may come in any
 * order, no buffer is touched after its member's join has returned, and a waiting rank sleeps. A Collective
 * lasts until every member has joined it, however many others start and end meanwhile. A send and its recv
 * are matched in the same way, two at a time.
 *
 * Abort marks the ThreadWorld and wakes every waiting rank. A Collective whose work has begun is still
 * finished, since its buffers must outlive it; others never are. */
#include "comm/comm_threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ThreadMember *member_of(const Comm *c) { return c->priv; }
static ThreadGroup  *group_of(const Comm *c)  { return member_of(c)->group; }

/* ---- groups ---- */

static void collectives_free(Collective *m, int size)
{
    for (Collective *next; m; m = next) {
        next = m->next;
        for (int i = 0; i < size; i++) free(m->member[i].rows);
        free(m);
    }
}

static void group_free(ThreadGroup *r)
{
    collectives_free(r->open, r->size);
    collectives_free(r->idle, r->size);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->changed);
    free(r->members);
    free(r->joined);
    free(r->message);
    free(r);
}

static ThreadGroup *group_new(ThreadWorld *h, const int *members, int n, int group)
{
    ThreadGroup *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    *r = (ThreadGroup){ .world = h, .size = n, .group = group };
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    r->members = malloc((size_t)n * sizeof *r->members);
    r->joined   = calloc((size_t)n, sizeof *r->joined);
    r->message  = calloc((size_t)n * COMM_TICKETS, sizeof *r->message);
    if (!r->members || !r->joined || !r->message) return group_free(r), NULL;
    memcpy(r->members, members, (size_t)n * sizeof *members);
    r->next  = h->groups;
    h->groups = r;
    return r;
}

/* The oldest group of these members that member `mine` has not joined: all join in the same order. */
static ThreadGroup *group_find(ThreadWorld *h, const int *members, int n, int group, int mine)
{
    ThreadGroup *found = NULL;
    for (ThreadGroup *r = h->groups; r; r = r->next)
        if (r->size == n && r->group == group && !r->joined[mine] &&
            !memcmp(r->members, members, (size_t)n * sizeof *members)) found = r;
    return found;
}

static Status join_group(ThreadWorld *h, Comm *c)
{
    ThreadMember *me = calloc(1, sizeof *me);
    c->priv = me;
    if (!me) return fail(E_FIT, "no memory");
    me->sent = calloc((size_t)c->size, sizeof *me->sent);
    me->got  = calloc((size_t)c->size, sizeof *me->got);
    if (!me->sent || !me->got) return fail(E_FIT, "no memory");
    pthread_mutex_lock(&h->lock);
    ThreadGroup *r = group_find(h, c->world, c->size, c->group, c->rank);
    if (!r) r = group_new(h, c->world, c->size, c->group);
    if (r) r->joined[c->rank] = true;
    pthread_mutex_unlock(&h->lock);
    me->group = r;
    return r ? OK : fail(E_FIT, "no memory");
}

static void world_free(ThreadWorld *h)
{
    for (ThreadGroup *r = h->groups, *next; r; r = next) next = r->next, group_free(r);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

static bool is_working(const ThreadGroup *r)
{
    for (const Collective *m = r->open; m; m = m->next) if (m->working) return true;
    for (int i = 0; i < r->size * COMM_TICKETS; i++) if (r->message[i].working) return true;
    return false;
}

/* A member that closes with pending calls has failed; work that reads its buffers must end first. */
static void threads_close(Comm *c)
{
    ThreadMember *me = c->priv;
    if (!me) return;
    ThreadGroup *r = me->group;
    if (r) {
        ThreadWorld *h = r->world;
        pthread_mutex_lock(&r->lock);
        while (c->pending && is_working(r)) pthread_cond_wait(&r->changed, &r->lock);
        pthread_mutex_unlock(&r->lock);
        bool last = false;
        pthread_mutex_lock(&h->lock);
        if (c->root == c) last = --h->open == 0;
        else if (++r->closed == r->size) {
            ThreadGroup **at = &h->groups;
            while (*at != r) at = &(*at)->next;
            *at = r->next;
            group_free(r);
        }
        pthread_mutex_unlock(&h->lock);
        if (last) world_free(h);
    }
    free(me->sent);
    free(me->got);
    free(me);
    c->priv = NULL;
}

static Status threads_group(Comm *world, Comm *out) { return join_group(group_of(world)->world, out); }

/* ---- abort ---- */

static void world_abort(ThreadWorld *h, int failed_rank, const char *why)
{
    pthread_mutex_lock(&h->lock);
    if (!h->aborted) {
        h->failed_rank = failed_rank;
        snprintf(h->why, sizeof h->why, "%s", why);
        h->aborted = true;
    }
    for (ThreadGroup *r = h->groups; r; r = r->next) {
        pthread_mutex_lock(&r->lock);
        pthread_cond_broadcast(&r->changed);
        pthread_mutex_unlock(&r->lock);
    }
    pthread_mutex_unlock(&h->lock);
}

static void threads_abort(Comm *world, const char *why)
{
    world_abort(group_of(world)->world, world->rank, why);
}

static bool threads_aborted(const Comm *c) { return group_of(c)->world->aborted; }

static Status aborted(ThreadWorld *h)
{
    pthread_mutex_lock(&h->lock);
    Status st = fail(E_COMM, "rank %d aborted: %s", h->failed_rank, h->why);
    pthread_mutex_unlock(&h->lock);
    return st;
}

/* ---- starting and joining ---- */

/* With the group's lock held; the last member to arrive does the work without it. */
static void arrive(Comm *c, Collective *m, const MemberCall *member)
{
    ThreadGroup *r = group_of(c);
    char  text[400];
    int64_t *rows = m->member[c->rank].rows;
    m->member[c->rank] = *member;
    m->member[c->rank].rows = rows;
    if (++m->arrived < r->size || r->world->aborted) return;
    m->working = true;
    pthread_mutex_unlock(&r->lock);
    const char *bad = threads_do_collective(r, m, text, sizeof text);
    if (bad) world_abort(r->world, c->world[c->rank], bad);
    pthread_mutex_lock(&r->lock);
    m->working = false;
    m->done  = !bad, m->ended = clock_now();
    pthread_cond_broadcast(&r->changed);
}

/* With the lock held: the collective of this member's next call, opened by the first member to get there. A
 * member has no more of them pending than tickets, so few are ever allocated. NULL: no memory. */
static Collective *next_collective(Comm *c)
{
    ThreadMember    *me = c->priv;
    ThreadGroup    *r  = me->group;
    Collective *m  = r->open;
    while (m && m->number != me->calls) m = m->next;
    if (!m) {
        m = r->idle;
        if (m) r->idle = m->next;
        else if (!(m = calloc(1, sizeof *m + (size_t)r->size * sizeof *m->member))) return NULL;
        m->number = me->calls, m->next = r->open;
        r->open = m;
    }
    me->calls++;
    return m;
}

/* All members have joined it. */
static void recycle_collective(ThreadGroup *r, Collective *m)
{
    Collective **at = &r->open;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    m->arrived = m->left = 0;
    m->done = false;
    m->next = r->idle;
    r->idle = m;
}

/* With the lock held; whether it is done. */
static bool wait_collective(Comm *c, Collective *m)
{
    ThreadGroup *r = group_of(c);
    while (!m->done && (m->working || !r->world->aborted)) pthread_cond_wait(&r->changed, &r->lock);
    bool done = m->done;
    if (++m->left == r->size) recycle_collective(r, m);
    return done;
}

/* The caller may reuse its arrays when start returns, so they are copied. */
static bool copy_ranges(MemberCall *s, CommCall *call, int n)
{
    size_t each = (size_t)n * sizeof(int64_t);
    if (!s->rows && !(s->rows = malloc(4 * each))) return false;
    const int64_t *from[4] = { call->get.at, call->get.n, call->give.at, call->give.n };
    for (int i = 0; i < 4; i++) memcpy(s->rows + i * n, from[i], each);
    call->get  = (RowRanges){ s->rows, s->rows + n };
    call->give = (RowRanges){ s->rows + 2 * n, s->rows + 3 * n };
    return true;
}

/* ---- messages ---- */

static P2pMessage *matching_message(Comm *c, const P2pMessage *mine)
{
    ThreadGroup   *r   = group_of(c);
    P2pMessage *row = r->message + (size_t)mine->peer * COMM_TICKETS;
    for (int i = 0; i < COMM_TICKETS; i++)
        if (row[i].used && !row[i].done && row[i].peer == c->rank && row[i].sends != mine->sends &&
            row[i].number == mine->number) return &row[i];
    return NULL;
}

static void post_message(Comm *c, int slot, const CommCall *call)
{
    ThreadMember *me = c->priv;
    ThreadGroup  *r = me->group;
    bool          sends = call->kind == CALL_SEND;
    Tensor        t = sends ? call->in : call->out;
    P2pMessage   *l = &r->message[c->rank * COMM_TICKETS + slot], *other;
    char          text[200];
    pthread_mutex_lock(&r->lock);
    *l = (P2pMessage){ .used = true, .sends = sends, .peer = call->peer, .data = t.data, .bytes = t_bytes(t),
                       .number = sends ? me->sent[call->peer]++ : me->got[call->peer]++ };
    other = matching_message(c, l);
    bool matches = other && !r->world->aborted;
    if (matches) l->working = other->working = true;
    pthread_mutex_unlock(&r->lock);
    if (!matches) return;
    bool same = l->bytes == other->bytes;
    P2pMessage *to = sends ? other : l, *from = sends ? l : other;
    if (same && l->bytes) memcpy(to->data, from->data, (size_t)l->bytes);
    if (!same) {
        snprintf(text, sizeof text, "rank %d sends %lld bytes, rank %d expects %lld", c->world[to->peer],
                 (long long)from->bytes, c->world[from->peer], (long long)to->bytes);
        world_abort(r->world, c->world[c->rank], text);
    }
    pthread_mutex_lock(&r->lock);
    l->working = other->working = false;
    l->done  = other->done  = same;
    l->ended = other->ended = clock_now();
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

static bool wait_message(Comm *c, int slot)
{
    ThreadGroup   *r = group_of(c);
    P2pMessage *l = &r->message[c->rank * COMM_TICKETS + slot];
    while (!l->done && (l->working || !r->world->aborted)) pthread_cond_wait(&r->changed, &r->lock);
    bool done = l->done;
    c->ended[slot] = l->ended;
    *l = (P2pMessage){ 0 };
    return done;
}

/* ---- the transport ---- */

static void threads_bind(Comm *c)
{
    if (c->be && !c->be->device->host_memory && !c->be->sticky)
        c->be->sticky = fail(E_CONFIG, "comm.kind = threads reads buffers in place; backend %s needs mpi",
                             c->be->device->name);
}

static void threads_start(Comm *c, int slot, const CommCall *call)
{
    ThreadMember *me = c->priv;
    if (call->kind == CALL_SEND || call->kind == CALL_RECV) { post_message(c, slot, call); return; }
    ThreadGroup *r = me->group;
    MemberCall  member = { .call = *call };
    pthread_mutex_lock(&r->lock);
    Collective *m = me->at[slot] = next_collective(c);
    bool ready = m && (call->kind != CALL_ALL_TO_ALL ||
                       copy_ranges(&m->member[c->rank], &member.call, c->size));
    if (ready) arrive(c, m, &member);
    pthread_mutex_unlock(&r->lock);
    if (!ready) world_abort(r->world, c->world[c->rank], "no memory");
}

static void threads_join(Comm *c, int slot)
{
    ThreadMember *me = c->priv;
    ThreadGroup *r  = me->group;
    pthread_mutex_lock(&r->lock);
    Collective *m = me->at[slot];
    bool  done = m ? wait_collective(c, m) : wait_message(c, slot);
    if (m) c->ended[slot] = m->ended;                           /* not reused before the lock is released */
    me->at[slot] = NULL;
    pthread_mutex_unlock(&r->lock);
    if (!done) comm_stick(c, aborted(r->world));
}

static Status threads_gather(Comm *c, void *out, const void *in, size_t bytes)
{
    ThreadGroup *r = group_of(c);
    pthread_mutex_lock(&r->lock);
    Collective *m = next_collective(c);
    bool done = false;
    if (m) {
        MemberCall member = { .call = { .kind = CALL_HOST_GATHER }, .out = out, .in = in, .bytes = bytes };
        arrive(c, m, &member);
        done = wait_collective(c, m);
    }
    pthread_mutex_unlock(&r->lock);
    if (!m) world_abort(r->world, c->world[c->rank], "no memory");
    return done ? OK : aborted(r->world);
}

static Status threads_open(Comm **world, const CommConf *conf)
{
    return fail(E_CONFIG, "comm.kind = threads: ranks of one process are for tests; set self or mpi");
}

const Transport transport_threads = {
    .name = "threads", .open = threads_open, .group = threads_group, .close = threads_close,
    .bind = threads_bind,
    .start = threads_start, .join = threads_join, .host_gather = threads_gather,
    .abort = threads_abort, .aborted = threads_aborted, .one_process = true,
};

Status comm_open_threads(Comm **world, int n, int per_node)
{
    Status st = OK;
    ThreadWorld  *h  = calloc(1, sizeof *h);
    memset(world, 0, (size_t)n * sizeof *world);
    if (!h) return fail(E_FIT, "no memory");
    pthread_mutex_init(&h->lock, NULL);
    for (int i = 0; i < n && !st; i++) {
        Comm *c = world[i] = comm_new(n > 1 ? &transport_threads : &transport_self, NULL, i, n);
        if (!c) { st = fail(E_FIT, "no memory"); break; }
        for (int j = 0; j < n; j++) c->node[j] = per_node > 0 ? j / per_node : 0;
        if (n > 1) st = join_group(h, c);
        if (!st && n > 1) h->open++;
    }
    if (!h->open) world_free(h);          /* one rank needs none; else the last to close frees it */
    for (int i = 0; st && i < n; i++) comm_close(world[i]), world[i] = NULL;
    return st;
}
