/* comm/comm_threads.h -- the two files of the threads transport: comm_threads.c opens, starts and joins,
 * comm_threads_work.c does the work of a collective. */
#ifndef COMM_COMM_THREADS_H
#define COMM_COMM_THREADS_H

#include "comm/transport.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct MemberCall {           /* one member's part of a Collective */
    CommCall    call;
    int64_t    *rows;                 /* (4, size) copies of get and give, allocated at the first use */
    void       *out;                  /* of a host gather, as the next two */
    const void *in;
    size_t      bytes;
} MemberCall;

typedef struct Collective {
    struct Collective *next;
    int64_t    number;                /* number of the call in its group */
    int        arrived, left;         /* members that have started it; that have joined it */
    bool       working, done;
    double     ended;                 /* clock_now() when it was done */
    MemberCall member[];              /* (size) */
} Collective;

/* A send or a recv; it waits in its rank's row for the matching one. */
typedef struct P2pMessage {
    bool    used, working, done;
    double  ended;
    bool    sends;
    int     peer;
    int64_t number;                   /* among the messages between the two ranks in this direction */
    void   *data;
    int64_t bytes;
} P2pMessage;

typedef struct ThreadWorld ThreadWorld;

typedef struct ThreadGroup {
    ThreadWorld        *world;
    struct ThreadGroup *next;
    int                 size, group, closed;     /* closed: members that have closed it */
    int                *members;      /* (size) ranks of the world */
    bool               *joined;       /* (size) */
    pthread_mutex_t     lock;
    pthread_cond_t      changed;
    Collective         *open, *idle;  /* started and not joined by all; finished, to be used again */
    P2pMessage         *message;      /* (size, COMM_TICKETS) */
} ThreadGroup;

struct ThreadWorld {
    pthread_mutex_t lock;             /* of all below */
    ThreadGroup    *groups;
    int             open;             /* ranks that have not closed the world */
    atomic_bool     aborted;
    int             failed_rank;
    char            why[400];
};

typedef struct ThreadMember {         /* priv of a Comm: one member of a group */
    ThreadGroup *group;
    int64_t      calls;               /* collectives that this member has started */
    int64_t     *sent, *got;          /* (size) messages to and from each member */
    Collective  *at[COMM_TICKETS];    /* the collective of each ticket; NULL: a message */
} ThreadMember;

/* Does the work of a collective at which all members have arrived. Returns why it cannot be done, written to
 * `text` of n bytes or a constant; NULL: it is done. */
const char *threads_do_collective(const ThreadGroup *r, const Collective *m, char *text, size_t n);

#endif
