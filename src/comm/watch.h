/* comm/watch.h -- what a rank is doing: whether its main thread goes on, which call it waits in, which calls
 * it has arrived at. For the watchdog (heartbeat.h) alone.
 *
 * The main thread and the device make progress when a mark is set (base/activity.h), a call begins or ends,
 * a call is done on the device, or the device comes to a mark (Backend.progress). Nothing here waits for the
 * main thread. */
#ifndef COMM_WATCH_H
#define COMM_WATCH_H

#include "base/activity.h"
#include "comm/mesh.h"

enum { WATCH_MEMBERS = 512, WATCH_MESSAGES = 16, WATCH_LINE = 400 };

/* STOPPED: the main thread should poll for the end of a call and does not. */
typedef enum { RANK_UNKNOWN, RANK_COMPUTES, RANK_WAITS, RANK_STOPPED } RankDoing;

typedef struct RankProgress {               /* sent with every ping */
    int    doing;                        /* RankDoing */
    int    slow;                         /* the main thread is in what may take long (activity.h) */
    double idle;                         /* seconds since the last progress; STOPPED: since the last poll */
} RankProgress;

typedef struct MessageCount { int group, peer; int64_t sent, received; } MessageCount;

typedef struct RankState {               /* the answer to MSG_STATE_QUERY */
    RankProgress progress;
    double       waits;                  /* seconds in the call below; 0: the rank waits in no call */
    char         op[16];
    int          group, peer;            /* as in TraceCall */
    int64_t      seq, bytes;
    int          layer, micro_batch;
    int          members;                /* of the group, in the world; at most WATCH_MEMBERS are listed;
                                            0: not known */
    uint16_t     member[WATCH_MEMBERS];
    int64_t      arrived[GR_N];          /* collectives of each group that the rank has arrived at */
    int          messages;
    MessageCount message[WATCH_MESSAGES];
    char         line[WATCH_LINE];       /* the same in words */
} RankState;

typedef struct Watch {
    Trace          *trace;
    const Activity *activity;            /* of the main thread */
    uint64_t        marks, polls;        /* seen so far */
    int64_t         device;              /* device_progress so far */
    double          changed, polled;     /* clock_now() of the last progress, and of the last poll */
    /* Written by the thread that asks the device, see watch_poll_device. */
    int64_t         device_progress;     /* with the calls of all Comms, and marks seen */
    uint32_t        device_word;         /* Trace.device_word as it was last read */
    Status          device_error;
    char            device_text[400];
} Watch;

/* Called by the rank's main thread, which is the one that is watched. */
void watch_open(Watch *w, Trace *trace);
void watch_sample(Watch *w, double now);               /* notices progress; a few times a second */
void watch_restart(Watch *w, double now);              /* as if there were progress now */
RankProgress watch_progress(const Watch *w, double now);
void watch_state(const Watch *w, double now, RankState *out);

/* Asks the transports how far the device is (transport.h); may block where the device's library does. */
void watch_poll_device(Watch *w);

/* Whether the rank has arrived at the call that `waiting` is in; `rank` is the rank of `waiting`. */
bool watch_has_arrived(const RankState *s, const RankState *waiting, int rank);
/* Whether rank `other` is known to be a member of the group of the call that s waits in. */
bool watch_is_member(const RankState *s, int other);
/* Whether all members of that group are known. */
bool watch_knows_members(const RankState *s);

/* The next three with the lock of the list of Comms held. The number in the trace of the oldest call that the
 * device has not finished; -1: there is none. */
int64_t watch_oldest_unfinished(const Watch *w);
/* Whether calls of c run on a device after they were started; whether call number `call` is done there. */
bool watch_asks_device(const Comm *c);
bool watch_is_finished(Comm *c, int64_t call);

#endif
