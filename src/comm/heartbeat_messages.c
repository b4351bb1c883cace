/* comm/heartbeat_messages.c -- messages between the heartbeat threads. All others connect to the
 * thread of rank 0, which forwards every message. */
#define _GNU_SOURCE
#include "base/clock.h"
#include "comm/heartbeat_private.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(RankState) <= MESSAGE_TEXT, "the state of a rank is one message");

void heartbeat_identity(char *out, size_t n)
{
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    snprintf(out, n, "host %s, process %ld", host, (long)getpid());
}

void heartbeat_send_to_all(Heartbeat *h, MessageKind kind, int about, const void *text, int bytes, int except,
                           int wait_ms)
{
    for (int i = 1; i < h->size; i++)
        if (i != except && is_reachable(&h->peer[i]))
            connection_send(&h->peer[i], kind, about, text, bytes, wait_ms);
}

/* Ranks that have left get the message too: from now on nothing holds up the library any more. */
void heartbeat_check_all_left(Heartbeat *h)
{
    bool all = h->leaving && !h->all_left_at;
    for (int i = 1; i < h->size; i++) all &= h->peer[i].left;
    if (!all) return;
    h->all_left_at = clock_now();
    for (int i = 1; i < h->size; i++) connection_send(&h->peer[i], MSG_ALL_LEFT, 0, "", 0, 200);
}

static void handle_from_rank(Heartbeat *h, int rank, const Message *m)
{
    Connection *c = &h->peer[rank];
    char        text[MESSAGE_TEXT];
    switch (m->kind) {
    case MSG_PING:
        if (m->bytes == sizeof *h->progress) memcpy(&h->progress[rank], m->text, sizeof *h->progress);
        break;
    case MSG_GOODBYE:
        c->left = true, h->left = rank;
        heartbeat_send_to_all(h, MSG_PEER_LEFT, rank, "", 0, rank, 0);
        heartbeat_check_all_left(h);
        break;
    case MSG_ABORT:
        connection_send(c, MSG_ABORT_ACK, rank, "", 0, 200);
        c->left = true;
        snprintf(text, sizeof text, "aborted: %.500s", m->text);
        heartbeat_exit_all(h, rank, text);
        break;
    case MSG_FAILED:
        heartbeat_begin_end(h, rank, m->text, false);
        break;
    case MSG_STATE_REPLY:
        if (m->bytes == sizeof *h->state) memcpy(&h->state[rank], m->text, sizeof *h->state);
        break;
    default:
        break;
    }
}

static void send_state(Heartbeat *h)
{
    RankState s;
    watch_state(&h->watch, clock_now(), &s);
    connection_send(&h->peer[0], MSG_STATE_REPLY, h->rank, &s, sizeof s, 200);
}

static void handle_from_rank_0(Heartbeat *h, const Message *m)
{
    switch (m->kind) {
    case MSG_GOODBYE:     h->peer[0].left = true, h->left = 0; break;
    case MSG_PEER_LEFT:   h->left = m->about;                  break;
    case MSG_ALL_LEFT:    h->peer[0].left = true, h->all_left_at = clock_now(); break;
    case MSG_ABORT_ACK:   h->abort_acked = true;               break;
    case MSG_STATE_QUERY: send_state(h);                       break;
    case MSG_END:
    case MSG_END_OF_SAVE:
    case MSG_END_OF_HANG:
        h->wait_for_save = m->kind == MSG_END_OF_SAVE;
        if (!h->aborting) heartbeat_exit(h, m->text, m->kind != MSG_END);
        break;
    default:
        break;
    }
    pthread_cond_broadcast(&h->changed);
}

/* A connection that sends the right key becomes that of its rank. */
static void handle_hello(Heartbeat *h, Connection *c, const Message *m)
{
    char identity[160];
    bool valid = m->kind == MSG_HELLO && m->bytes > 16 && !memcmp(m->text, h->key, 16) && m->about > 0 &&
                 m->about < h->size && h->peer[m->about].fd < 0;
    if (!valid) { connection_close(c); return; }
    Connection *rank = &h->peer[m->about];
    heartbeat_identity(identity, sizeof identity);
    *rank = *c;
    snprintf(rank->identity, sizeof rank->identity, "%.150s", m->text + 16);
    connection_send(rank, MSG_WELCOME, 0, identity, (int)strlen(identity), 200);
    *c = (Connection){ .fd = -1 };
    h->connected++;
    pthread_cond_broadcast(&h->changed);
}

/* The connection has closed. During the end of a run that is expected. */
static void handle_loss(Heartbeat *h, int i)
{
    const char *what = "died: its heartbeat connection closed";
    if (h->peer[i].left || h->aborting || h->stop || h->ending) return;
    if (is_rank_0(h)) heartbeat_begin_end(h, i, what, false);
    else           heartbeat_exit_all(h, 0, what);
}

void heartbeat_receive(Heartbeat *h, int i)
{
    Connection *c = &h->peer[i];
    Message     m;
    int         got = 0;
    bool        unidentified = is_rank_0(h) && i >= h->size;
    while (c->fd >= 0 && (got = connection_receive(c, &m)) > 0) {
        if (unidentified)   handle_hello(h, c, &m);
        else if (is_rank_0(h)) handle_from_rank(h, i, &m);
        else                handle_from_rank_0(h, &m);
    }
    if (c->fd < 0 || got >= 0) return;
    connection_close(c);
    if (!unidentified) handle_loss(h, i);
}

/* NULL: UNIDENTIFIED connections are open; further ones wait in the listener's backlog. */
Connection *heartbeat_free_connection(const Heartbeat *h)
{
    for (int i = h->size; i < h->peers; i++)
        if (h->peer[i].fd < 0) return &h->peer[i];
    return NULL;
}

void heartbeat_accept(Heartbeat *h)
{
    for (Connection *c; h->listener >= 0 && (c = heartbeat_free_connection(h));) {
        int fd = connection_accept(h->listener);
        if (fd < 0) return;
        *c = (Connection){ .fd = fd, .last_message = clock_now() };
    }
}
