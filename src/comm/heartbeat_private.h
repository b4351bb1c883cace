/* comm/heartbeat_private.h -- the files of the heartbeat: heartbeat.c opens, closes and runs the thread;
 * heartbeat_messages.c handles messages; heartbeat_watchdog.c decides when a run ends and ends it;
 * heartbeat_explain.c says why; heartbeat_threads.c has the threads that may block. */
#ifndef COMM_HEARTBEAT_PRIVATE_H
#define COMM_HEARTBEAT_PRIVATE_H

#include "comm/connection.h"
#include "comm/watch.h"

#include <poll.h>

enum { UNIDENTIFIED = 16 };                  /* connections that have not sent MSG_HELLO yet */
enum { HEARTBEAT_SLOW = 10 };                /* times comm.timeout for a system call that may take long */

/* Seconds for the heartbeat to find out which rank was lost, after an error of a library. */
#define DEVICE_SECONDS 1.5

/* The current work of the writer's thread. */
typedef enum { WRITER_RESTS, WRITER_PRINTS, WRITER_ENDS } WriterDoing;

struct Heartbeat {
    int             rank, size;
    Connection     *peer;             /* rank 0: one for each rank, then UNIDENTIFIED; others: rank 0 alone */
    int             peers;
    double          timeout;
    Watch           watch;
    char            folder[4096];          /* of the run, for the record of a hang; "": none */
    struct pollfd  *polls;
    int             listener, wake_fd;
    uint8_t         key[16];
    pthread_t       thread;
    bool            running;
    pthread_mutex_t lock;                  /* of all below, and of sending */
    pthread_cond_t  changed;
    bool            stop;
    bool            leaving;               /* this rank has left; its main thread closes the library */
    double          all_left_at;           /* when the last rank had left; 0: not yet */
    double          device_failed_at;      /* when an error of this rank's device was seen; 0: none */
    bool            device_reported;       /* rank 0 knows that this rank's device has failed */
    bool            aborting, abort_acked; /* this rank has aborted and exits by itself */
    double          aborted_at;
    int             connected;             /* ranks that have sent MSG_HELLO */
    int             left;                  /* a rank that has left in good order; -1: none */
    double          next_ping, last_turn;  /* of the thread */
    double          query_due, queried_at; /* when to ask what ranks do; when they were asked; 0: not */
    RankProgress   *progress;                /* (size) of the last ping; on rank 0 alone, like the rest: */
    RankState      *state;                 /* (size) answers to the last query */
    bool            ending;                /* the answers are for the message that ends the run */
    int             failed_rank;           /* the rank that ends it; -1: no single one */
    char            reason[400];           /* what it did: "died: …" */
    bool            wait_for_save;         /* a save in progress may finish */
    HeartbeatPrint *print;
    void           *self;
    /* the threads that may block */
    pthread_t       device, writer;
    bool            device_running, writer_running, print_due;
    bool            last_due, last_written; /* the last lines and, if `record`, the record of a hang */
    WriterDoing     writer_doing;
    bool            record;
    char            why[MESSAGE_TEXT + 1];      /* of the record */
    char            lines[24 << 10];            /* the last lines of the rank, for stderr */
    size_t          lines_bytes;
};

static inline bool is_rank_0(const Heartbeat *h) { return h->rank == 0; }
static inline bool is_reachable(const Connection *c) { return c->fd >= 0 && !c->left; }

/* All with the lock held, unless they say otherwise. */
void heartbeat_identity(char *out, size_t n);                     /* "host a, process 12": this rank's */
void heartbeat_accept(Heartbeat *h);
void heartbeat_receive(Heartbeat *h, int i);                      /* all messages of connection i */
void heartbeat_send_to_all(Heartbeat *h, MessageKind kind, int about, const void *text, int bytes, int except,
                           int wait_ms);
void heartbeat_check_all_left(Heartbeat *h);                      /* on rank 0 */
Connection *heartbeat_free_connection(const Heartbeat *h);

void heartbeat_check(Heartbeat *h);                               /* periodic work */
/* On rank 0: every rank ends, because rank `rank` did `reason`; first the ranks are asked what they do. */
void heartbeat_begin_end(Heartbeat *h, int rank, const char *reason, bool wait_for_save);
void heartbeat_exit_all(Heartbeat *h, int rank, const char *what);
/* Leaves the record of a hang if `record`, and exits. */
void heartbeat_exit(Heartbeat *h, const char *why, bool record) __attribute__((noreturn));

/* Says why the run ends, from the states of the ranks. */
void heartbeat_explain(Heartbeat *h);
void heartbeat_print_states(Heartbeat *h);                        /* of the writer; without the lock */

void *heartbeat_run_device(void *heartbeat);
void *heartbeat_run_writer(void *heartbeat);
void heartbeat_say(Heartbeat *h, const char *line);               /* one of the last lines */
/* The last lines and the record go out, or their time is over: a disk that hangs holds up no exit. */
void heartbeat_write_last(Heartbeat *h, const char *why, bool record);

#endif
