/* comm/comm_threads.c -- ranks of one process: each is a thread, its buffers are everyone's to read.
 *
 * A call is a Meeting: every member leaves its CommCall there, whoever comes last does the whole work for all of
 * them (sums in the order of the members), and a join waits until it is done. So joins may come in any order,
 * nobody's buffers are touched after its join has returned, and a rank that waits sleeps. A meeting lasts
 * until everyone has left it, however many others come and go meanwhile. A send and its recv meet in the same
 * way, two at a time.
 *
 * Abort marks the hall that all groups belong to and wakes everyone who waits in it. A meeting whose work has
 * begun is still finished, since its buffers must outlive it; one that has not never will be. */
#include "comm/transport.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Seat {                 /* one member at one meeting */
    CommCall        call;
    int64_t    *rows;                 /* (4, size) copies of get and give, made when first wanted */
    void       *out;                  /* host gather */
    const void *in;
    size_t      bytes;
} Seat;

typedef struct Meeting {
    struct Meeting *next;
    int64_t number;                   /* which call of the group it is for */
    int     came, left;
    bool    works, done;
    Seat    seat[];                   /* (size) */
} Meeting;

/* A send or a recv: it waits in its rank's row until the other half is there. */
typedef struct Letter {
    bool    used, works, done;
    bool    sends;
    int     peer;
    int64_t number;                   /* among those between the two in this direction */
    void   *data;
    int64_t bytes;
} Letter;

typedef struct Hall Hall;

typedef struct Room {                 /* a group */
    Hall           *hall;
    struct Room    *next;
    int             size, group, entered, gone;
    int            *members;          /* (size) ranks of the world */
    bool           *is_in;            /* (size) */
    pthread_mutex_t lock;
    pthread_cond_t  news;
    Meeting        *open, *idle;      /* where some have come and not all have left; over, to be used again */
    Letter         *letter;           /* (size, COMM_TICKETS) */
} Room;

struct Hall {                         /* the world */
    pthread_mutex_t lock;             /* of the list of rooms and of why */
    Room           *rooms;
    int             open;             /* worlds not closed yet */
    atomic_bool     aborted;
    int             who;
    char            why[400];
};

typedef struct Rank {                 /* priv of a Comm: one member's view of its room */
    Room   *room;
    int64_t calls;                    /* meetings this member has come to */
    int64_t *sent, *got;              /* (size) letters to and from each member */
    Meeting *at[COMM_TICKETS];        /* where each ticket is waited for; NULL: in its letter */
} Rank;

/* ---- rooms ---- */

static void meetings_free(Meeting *m, int size)
{
    for (Meeting *next; m; m = next) {
        next = m->next;
        for (int i = 0; i < size; i++) free(m->seat[i].rows);
        free(m);
    }
}

static void room_free(Room *r)
{
    meetings_free(r->open, r->size);
    meetings_free(r->idle, r->size);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->news);
    free(r->members);
    free(r->is_in);
    free(r->letter);
    free(r);
}

static Room *room_new(Hall *h, const int *members, int n, int group)
{
    Room *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    *r = (Room){ .hall = h, .size = n, .group = group };
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->news, NULL);
    r->members = malloc((size_t)n * sizeof *r->members);
    r->is_in   = calloc((size_t)n, sizeof *r->is_in);
    r->letter  = calloc((size_t)n * COMM_TICKETS, sizeof *r->letter);
    if (!r->members || !r->is_in || !r->letter) return room_free(r), NULL;
    memcpy(r->members, members, (size_t)n * sizeof *members);
    r->next  = h->rooms;
    h->rooms = r;
    return r;
}

/* The oldest room of these members that `mine` has not entered: all enter theirs in the same order. */
static Room *room_find(Hall *h, const int *members, int n, int group, int mine)
{
    Room *found = NULL;
    for (Room *r = h->rooms; r; r = r->next)
        if (r->size == n && r->group == group && !r->is_in[mine] &&
            !memcmp(r->members, members, (size_t)n * sizeof *members)) found = r;
    return found;
}

static Status enter(Hall *h, Comm *c)
{
    Rank *me = calloc(1, sizeof *me);
    c->priv = me;
    if (!me) return fail(E_FIT, "no memory");
    me->sent = calloc((size_t)c->size, sizeof *me->sent);
    me->got  = calloc((size_t)c->size, sizeof *me->got);
    if (!me->sent || !me->got) return fail(E_FIT, "no memory");
    pthread_mutex_lock(&h->lock);
    Room *r = room_find(h, c->world, c->size, c->group, c->rank);
    if (!r) r = room_new(h, c->world, c->size, c->group);
    if (r) r->is_in[c->rank] = true, r->entered++;
    pthread_mutex_unlock(&h->lock);
    me->room = r;
    return r ? OK : fail(E_FIT, "no memory");
}

static void hall_free(Hall *h)
{
    for (Room *r = h->rooms, *next; r; r = next) next = r->next, room_free(r);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

static bool busy(const Room *r)
{
    for (const Meeting *m = r->open; m; m = m->next) if (m->works) return true;
    for (int i = 0; i < r->size * COMM_TICKETS; i++) if (r->letter[i].works) return true;
    return false;
}

/* A member that leaves with calls still out has failed; what reads its buffers right now must end first. */
static void threads_close(Comm *c)
{
    Rank *me = c->priv;
    if (!me) return;
    Room *r = me->room;
    if (r) {
        Hall *h = r->hall;
        pthread_mutex_lock(&r->lock);
        while (c->out && busy(r)) pthread_cond_wait(&r->news, &r->lock);
        pthread_mutex_unlock(&r->lock);
        bool last = false;
        pthread_mutex_lock(&h->lock);
        if (c->root == c) last = --h->open == 0;
        else if (++r->gone == r->size) {
            Room **at = &h->rooms;
            while (*at != r) at = &(*at)->next;
            *at = r->next;
            room_free(r);
        }
        pthread_mutex_unlock(&h->lock);
        if (last) hall_free(h);
    }
    free(me->sent);
    free(me->got);
    free(me);
    c->priv = NULL;
}

static Status threads_group(Comm *world, Comm *out) { return enter(((Rank *)world->priv)->room->hall, out); }

/* ---- abort ---- */

static void hall_abort(Hall *h, int who, const char *why)
{
    pthread_mutex_lock(&h->lock);
    if (!h->aborted) {
        h->who = who;
        snprintf(h->why, sizeof h->why, "%s", why);
        h->aborted = true;
    }
    for (Room *r = h->rooms; r; r = r->next) {
        pthread_mutex_lock(&r->lock);
        pthread_cond_broadcast(&r->news);
        pthread_mutex_unlock(&r->lock);
    }
    pthread_mutex_unlock(&h->lock);
}

static void threads_abort(Comm *world, const char *why)
{
    hall_abort(((Rank *)world->priv)->room->hall, world->rank, why);
}

static Status aborted(Hall *h)
{
    pthread_mutex_lock(&h->lock);
    Status st = fail(E_COMM, "rank %d has given up: %s", h->who, h->why);
    pthread_mutex_unlock(&h->lock);
    return st;
}

/* ---- the work of a meeting ---- */

static const char *differ(const Room *r, const Meeting *m, char *text, size_t n)
{
    const Seat *a = &m->seat[0];
    for (int i = 1; i < r->size; i++) {
        const Seat *b = &m->seat[i];
        bool same = a->call.kind == b->call.kind && a->call.reduce == b->call.reduce &&
                    a->call.out.dtype == b->call.out.dtype && a->bytes == b->bytes &&
                    (a->call.kind == CALL_ALL_TO_ALL || t_count(a->call.in) == t_count(b->call.in));
        if (!same) {
            snprintf(text, n, "call %lld of a group is %s %s on rank %d and %s %s on rank %d",
                     (long long)m->number, call_name(a->call.kind), t_fmt(a->call.in), r->members[0],
                     call_name(b->call.kind), t_fmt(b->call.in), r->members[i]);
            return text;
        }
    }
    for (int i = 0; i < r->size && a->call.kind == CALL_ALL_TO_ALL; i++)
        for (int j = 0; j < r->size; j++) {
            long long gives = m->seat[i].call.give.n[j], gets = m->seat[j].call.get.n[i];
            if (gives == gets) continue;
            snprintf(text, n, "all_to_all: rank %d gives %lld rows to rank %d, which expects %lld",
                     r->members[i], gives, r->members[j], gets);
            return text;
        }
    return NULL;
}

static void exchange(const Room *r, const Meeting *m)
{
    for (int i = 0; i < r->size; i++)
        for (int j = 0; j < r->size; j++) {
            const CommCall *from = &m->seat[i].call, *to = &m->seat[j].call;
            int64_t row = call_row(from->in);
            char   *at  = (char *)to->out.data + to->get.at[i] * row;
            if (from->give.n[j])
                memcpy(at, (char *)from->in.data + from->give.at[j] * row, (size_t)(from->give.n[j] * row));
        }
}

static void gather(const Room *r, const Meeting *m)
{
    size_t bytes = (size_t)t_bytes(m->seat[0].call.in);
    for (int i = 0; i < r->size; i++)
        for (int j = 0; j < r->size && bytes; j++) {
            char *to = (char *)m->seat[j].call.out.data + (size_t)i * bytes;
            if (to != m->seat[i].call.in.data) memcpy(to, m->seat[i].call.in.data, bytes);
        }
}

static bool reduce(const Room *r, const Meeting *m)
{
    const CommCall  *c    = &m->seat[0].call;
    bool         all  = c->kind == CALL_ALL_REDUCE;
    int64_t      n    = t_count(c->out);
    const void **part = malloc((size_t)r->size * sizeof *part);
    if (!part) return false;
    for (int i = 0; i < (all ? 1 : r->size); i++) {
        for (int j = 0; j < r->size; j++)
            part[j] = (char *)m->seat[j].call.in.data + i * t_bytes(c->out);
        sum_parts(m->seat[i].call.out.data, part, r->size, (DType)c->in.dtype, n, c->reduce);
    }
    for (int i = 1; i < r->size && all && n; i++)
        memcpy(m->seat[i].call.out.data, c->out.data, (size_t)t_bytes(c->out));
    free(part);
    return true;
}

static void host(const Room *r, const Meeting *m)
{
    for (int i = 0; i < r->size; i++)
        for (int j = 0; j < r->size; j++)
            memcpy((char *)m->seat[j].out + (size_t)i * m->seat[i].bytes, m->seat[i].in, m->seat[i].bytes);
}

/* Why it could not be done, or NULL. */
static const char *meet(const Room *r, const Meeting *m, char *text, size_t n)
{
    if (differ(r, m, text, n)) return text;
    switch (m->seat[0].call.kind) {
    case CALL_ALL_GATHER:   gather(r, m);   return NULL;
    case CALL_ALL_TO_ALL: exchange(r, m); return NULL;
    case CALL_HOST_GATHER:     host(r, m);     return NULL;
    default:            return reduce(r, m) ? NULL : "no memory";
    }
}

/* ---- coming and going ---- */

/* With the room's lock held; the last one in does the work without it. */
static void sit(Comm *c, Meeting *m, const Seat *seat)
{
    Rank *me = c->priv;
    Room *r  = me->room;
    char  text[400];
    int64_t *rows = m->seat[c->rank].rows;
    m->seat[c->rank] = *seat;
    m->seat[c->rank].rows = rows;
    if (++m->came < r->size || r->hall->aborted) return;
    m->works = true;
    pthread_mutex_unlock(&r->lock);
    const char *bad = meet(r, m, text, sizeof text);
    if (bad) hall_abort(r->hall, c->world[c->rank], bad);
    pthread_mutex_lock(&r->lock);
    m->works = false;
    m->done  = !bad;
    pthread_cond_broadcast(&r->news);
}

/* With the lock held: where the next call is, which the first one to come opens. A member is in no more of
 * them than it has tickets, so there are soon as many as will ever be open at a time. NULL: no memory. */
static Meeting *next_meeting(Comm *c)
{
    Rank    *me = c->priv;
    Room    *r  = me->room;
    Meeting *m  = r->open;
    while (m && m->number != me->calls) m = m->next;
    if (!m) {
        m = r->idle;
        if (m) r->idle = m->next;
        else if (!(m = calloc(1, sizeof *m + (size_t)r->size * sizeof *m->seat))) return NULL;
        m->number = me->calls, m->next = r->open;
        r->open = m;
    }
    me->calls++;
    return m;
}

/* Everyone has left it. */
static void meeting_end(Room *r, Meeting *m)
{
    Meeting **at = &r->open;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    m->came = m->left = 0;
    m->done = false;
    m->next = r->idle;
    r->idle = m;
}

/* With the lock held: is it done? */
static bool leave(Comm *c, Meeting *m)
{
    Room *r = ((Rank *)c->priv)->room;
    while (!m->done && (m->works || !r->hall->aborted)) pthread_cond_wait(&r->news, &r->lock);
    bool done = m->done;
    if (++m->left == r->size) meeting_end(r, m);
    return done;
}

/* The caller's arrays are free when start returns: the seat has its own. */
static bool keep_rows(Seat *s, CommCall *call, int n)
{
    size_t each = (size_t)n * sizeof(int64_t);
    if (!s->rows && !(s->rows = malloc(4 * each))) return false;
    const int64_t *from[4] = { call->get.at, call->get.n, call->give.at, call->give.n };
    for (int i = 0; i < 4; i++) memcpy(s->rows + i * n, from[i], each);
    call->get  = (RowRanges){ s->rows, s->rows + n };
    call->give = (RowRanges){ s->rows + 2 * n, s->rows + 3 * n };
    return true;
}

/* ---- letters ---- */

static Letter *other_half(Comm *c, const Letter *mine)
{
    Room   *r   = ((Rank *)c->priv)->room;
    Letter *row = r->letter + (size_t)mine->peer * COMM_TICKETS;
    for (int i = 0; i < COMM_TICKETS; i++)
        if (row[i].used && !row[i].done && row[i].peer == c->rank && row[i].sends != mine->sends &&
            row[i].number == mine->number) return &row[i];
    return NULL;
}

static void post(Comm *c, int slot, const CommCall *call)
{
    Rank   *me = c->priv;
    Room   *r  = me->room;
    bool    sends = call->kind == CALL_SEND;
    Tensor  t  = sends ? call->in : call->out;
    Letter *l  = &r->letter[c->rank * COMM_TICKETS + slot], *other;
    char    text[200];
    pthread_mutex_lock(&r->lock);
    *l = (Letter){ .used = true, .sends = sends, .peer = call->peer, .data = t.data, .bytes = t_bytes(t),
                   .number = sends ? me->sent[call->peer]++ : me->got[call->peer]++ };
    other = other_half(c, l);
    bool meets = other && !r->hall->aborted;
    if (meets) l->works = other->works = true;
    pthread_mutex_unlock(&r->lock);
    if (!meets) return;
    bool same = l->bytes == other->bytes;
    Letter *to = sends ? other : l, *from = sends ? l : other;
    if (same && l->bytes) memcpy(to->data, from->data, (size_t)l->bytes);
    if (!same) {
        snprintf(text, sizeof text, "rank %d sends %lld bytes, rank %d expects %lld", c->world[to->peer],
                 (long long)from->bytes, c->world[from->peer], (long long)to->bytes);
        hall_abort(r->hall, c->world[c->rank], text);
    }
    pthread_mutex_lock(&r->lock);
    l->works = other->works = false;
    l->done  = other->done  = same;
    pthread_cond_broadcast(&r->news);
    pthread_mutex_unlock(&r->lock);
}

static bool letter_end(Comm *c, int slot)
{
    Room   *r = ((Rank *)c->priv)->room;
    Letter *l = &r->letter[c->rank * COMM_TICKETS + slot];
    while (!l->done && (l->works || !r->hall->aborted)) pthread_cond_wait(&r->news, &r->lock);
    bool done = l->done;
    *l = (Letter){ 0 };
    return done;
}

/* ---- the transport ---- */

static void threads_bind(Comm *c)
{
    if (c->be && !c->be->device->host_memory && !c->be->sticky)
        c->be->sticky = fail(E_CONFIG, "comm.kind threads reads buffers in place; backend %s needs mpi",
                             c->be->device->name);
}

static void threads_start(Comm *c, int slot, const CommCall *call)
{
    Rank *me = c->priv;
    if (call->kind == CALL_SEND || call->kind == CALL_RECV) { post(c, slot, call); return; }
    Room *r = me->room;
    Seat  seat = { .call = *call };
    pthread_mutex_lock(&r->lock);
    Meeting *m = me->at[slot] = next_meeting(c);
    bool kept = m && (call->kind != CALL_ALL_TO_ALL || keep_rows(&m->seat[c->rank], &seat.call, c->size));
    if (kept) sit(c, m, &seat);
    pthread_mutex_unlock(&r->lock);
    if (!kept) hall_abort(r->hall, c->world[c->rank], "no memory");
}

static void threads_join(Comm *c, int slot)
{
    Rank *me = c->priv;
    Room *r  = me->room;
    pthread_mutex_lock(&r->lock);
    Meeting *m = me->at[slot];
    bool  done = m ? leave(c, m) : letter_end(c, slot);
    me->at[slot] = NULL;
    pthread_mutex_unlock(&r->lock);
    if (!done) comm_stick(c, aborted(r->hall));
}

static Status threads_gather(Comm *c, void *out, const void *in, size_t bytes)
{
    Rank *me = c->priv;
    Room *r  = me->room;
    pthread_mutex_lock(&r->lock);
    Meeting *m = next_meeting(c);
    bool done = false;
    if (m) {
        sit(c, m, &(Seat){ .call = { .kind = CALL_HOST_GATHER }, .out = out, .in = in, .bytes = bytes });
        done = leave(c, m);
    }
    pthread_mutex_unlock(&r->lock);
    if (!m) hall_abort(r->hall, c->world[c->rank], "no memory");
    return done ? OK : aborted(r->hall);
}

static Status threads_open(Comm **world, const CommConf *conf)
{
    return fail(E_CONFIG, "comm.kind = threads: ranks of one process are for tests; set self or mpi");
}

const Transport transport_threads = {
    .name = "threads", .open = threads_open, .group = threads_group, .close = threads_close, .bind = threads_bind,
    .start = threads_start, .join = threads_join, .host_gather = threads_gather,
    .abort = threads_abort,
};

Status comm_open_threads(Comm **world, int n, int per_node)
{
    Status st = OK;
    Hall  *h  = calloc(1, sizeof *h);
    memset(world, 0, (size_t)n * sizeof *world);
    if (!h) return fail(E_FIT, "no memory");
    pthread_mutex_init(&h->lock, NULL);
    for (int i = 0; i < n && !st; i++) {
        Comm *c = world[i] = comm_new(n > 1 ? &transport_threads : &transport_self, NULL, i, n);
        if (!c) { st = fail(E_FIT, "no memory"); break; }
        for (int j = 0; j < n; j++) c->node[j] = per_node > 0 ? j / per_node : 0;
        if (n > 1) st = enter(h, c);
        if (!st && n > 1) h->open++;
    }
    if (!h->open) hall_free(h);                    /* one rank needs none; else the last to leave frees it */
    for (int i = 0; st && i < n; i++) comm_close(world[i]), world[i] = NULL;
    return st;
}
