/* comm/heartbeat.h -- signs of life between processes, apart from whatever they compute with.
 *
 * Every rank has a TCP connection to rank 0 and a small thread that does nothing else: a beat a second each
 * way. A connection that closes without a goodbye, or silence longer than `timeout`, ends every rank at once:
 * each writes who it was (rank, host, process) to stderr and leaves with the exit code of E_COMM, whatever
 * its main thread waits in. A rank that gives up says why on the same road. A rank that has left in good
 * order is not missed, unless others still wait in a call after `timeout`: nobody will answer them.
 *
 * The same threads answer what their rank waits in, so that one that stands still can be found. */
#ifndef COMM_HEARTBEAT_H
#define COMM_HEARTBEAT_H

#include "base/status.h"
#include "comm/trace.h"

enum { HEARTBEAT_ADDRESSES = 8 };

typedef struct HeartbeatEndpoint {                 /* where rank 0 is to be found */
    uint16_t port;
    uint8_t  n, family[HEARTBEAT_ADDRESSES];   /* 4 or 6 */
    uint8_t  address[HEARTBEAT_ADDRESSES][16];
    uint8_t  key[16];                      /* who does not know it is not one of us */
} HeartbeatEndpoint;

typedef struct Heartbeat Heartbeat;
typedef void HeartbeatPrint(void *self, const char *line);

/* Rank 0 opens its door first (local: to this host alone) and has the others told of it; then all go in. */
MUST Status heartbeat_open(Heartbeat **p, int rank, int size, double timeout, Trace *trace);
MUST Status heartbeat_listen(Heartbeat *p, HeartbeatEndpoint *door, bool local);
MUST Status heartbeat_connect(Heartbeat *p, const HeartbeatEndpoint *door);
void        heartbeat_close(Heartbeat *p);         /* says goodbye; NULL is fine */

void        heartbeat_abort(Heartbeat *p, const char *why);         /* ends the others, not this rank */
/* On rank 0: if this is not called again within `seconds`, every rank is asked what it waits in and the
 * answers are said, once. 0: no longer. */
void        heartbeat_watch(Heartbeat *p, double seconds, HeartbeatPrint *say, void *self);

#endif
