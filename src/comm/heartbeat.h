/* comm/heartbeat.h -- detects ranks that die or hang, independently of the transport that moves tensors.
 *
 * Every rank has a TCP connection to rank 0 and a thread that does nothing else: one ping a second in each
 * direction. When a connection closes without a goodbye, or no ping comes for `timeout` seconds, every rank
 * exits at once with the exit code of E_COMM, whatever call its main thread waits in, after writing to stderr
 * which rank failed (rank, host, process). A rank that aborts sends its reason the same way. A rank that has
 * left in good order is not an error, unless another rank still waits in a call after `timeout`: no answer
 * will come.
 *
 * On request the threads also report which call their rank waits in, so that a hanging rank can be found. */
#ifndef COMM_HEARTBEAT_H
#define COMM_HEARTBEAT_H

#include "base/status.h"
#include "comm/trace.h"

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
MUST Status heartbeat_open(Heartbeat **h, int rank, int size, double timeout, Trace *trace);
MUST Status heartbeat_listen(Heartbeat *h, HeartbeatEndpoint *endpoint, bool local);
MUST Status heartbeat_connect(Heartbeat *h, const HeartbeatEndpoint *endpoint);
void        heartbeat_close(Heartbeat *h);                  /* sends a goodbye; NULL is fine */

void        heartbeat_abort(Heartbeat *h, const char *why); /* makes all other ranks exit, not this one */
/* On rank 0: unless this is called again within `seconds`, every rank is asked which call it waits in and the
 * answers are printed, once. 0: stop watching. */
void        heartbeat_watch(Heartbeat *h, double seconds, HeartbeatPrint *print, void *self);

#endif
