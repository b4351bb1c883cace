/* comm/heartbeat.h -- the watchdog of a rank: detects ranks that die, hang or are cut off, independently of
 * the transport that moves tensors.
 *
 * Every rank has a TCP connection to rank 0 and a thread that does nothing else: a ping at least once a
 * second in each direction, which says how long ago the rank last made progress (watch.h). The run ends with
 * the exit code of E_COMM on every rank, whatever its main thread waits in, when
 *   - a connection closes without a goodbye: at once;
 *   - no ping comes from a rank for `timeout` seconds;
 *   - the main thread of a rank computes without progress for `timeout` seconds; ten times as long in a
 *     system call that may take long (base/activity.h);
 *   - no rank makes progress for `timeout` seconds; a rank that waits in a call while others work is healthy;
 *   - the library of a device reports that a communicator has failed.
 * Rank 0 asks all ranks what they do, for two seconds at most, and writes to stderr which rank failed, in
 * which call the others wait, and which members have arrived there; each rank writes one line and leaves a
 * record of its last calls (hang_file.h). A rank that loses rank 0 exits by itself and says what it knows.
 *
 * A rank that aborts sends its reason the same way. A rank that has left in good order is not an error,
 * unless another rank still waits in a call after `timeout`: no answer will come. A rank without peers has
 * no watchdog. */
#ifndef COMM_HEARTBEAT_H
#define COMM_HEARTBEAT_H

#include "base/status.h"
#include "comm/comm.h"

enum { HEARTBEAT_ADDRESSES = 8 };

typedef struct HeartbeatEndpoint {         /* where rank 0 listens */
    uint16_t port;
    uint8_t  n, family[HEARTBEAT_ADDRESSES];   /* 4 or 6 */
    uint8_t  address[HEARTBEAT_ADDRESSES][16];
    uint8_t  key[16];                      /* random; a connection that does not send it is refused */
} HeartbeatEndpoint;

typedef struct Heartbeat Heartbeat;
typedef void HeartbeatPrint(void *self, const char *line);

/* Rank 0 listens first (local: on this host alone); its endpoint is sent to the other ranks, then all
 * connect. */
MUST Status heartbeat_open(Heartbeat **h, int rank, int size, const CommConf *conf, Trace *trace);
MUST Status heartbeat_listen(Heartbeat *h, HeartbeatEndpoint *endpoint, bool local);
MUST Status heartbeat_connect(Heartbeat *h, const HeartbeatEndpoint *endpoint);
/* Says goodbye: this rank makes no more calls. The watchdog stays until close: it ends a library that does
 * not close although all ranks have left. NULL is fine for both. */
void        heartbeat_leave(Heartbeat *h);
void        heartbeat_close(Heartbeat *h);                  /* leaves, too */

/* Makes all other ranks exit, not this one. lost: a library has lost a peer or the network; if the heartbeat
 * finds out within a moment which rank it was, that ends this rank and the others. */
void        heartbeat_abort(Heartbeat *h, const char *why, bool lost);
/* On rank 0: unless this is called again within `seconds`, every rank is asked which call it waits in and the
 * answers are printed, once. 0: stop watching. */
void        heartbeat_watch(Heartbeat *h, double seconds, HeartbeatPrint *print, void *self);

#endif
