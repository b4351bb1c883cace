/* launch/hosts.h -- the hosts of a run and their slots, and which of them answer. */
#ifndef LAUNCH_HOSTS_H
#define LAUNCH_HOSTS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { HOST_NAME = 256, HOSTS_MOST = 4096 };

typedef struct Host { char name[HOST_NAME]; int slots; bool lost; } Host;
typedef struct Hosts { Host *host; int n; } Hosts;                 /* n 0: this machine alone */

/* "a:8,b:8"; a host without a number has an equal share of `ranks`. NULL: no hosts. */
MUST Status hosts_parse(Hosts *h, const char *text, int ranks);
void        hosts_close(Hosts *h);                                 /* twice is fine */
int         hosts_slots(const Hosts *h);                           /* of hosts that are not lost */
int         hosts_widest(const Hosts *h);                          /* the most slots of one of them */
bool        hosts_local(const char *name);                         /* it is this machine */
/* Starts `true` on every host by `agent` ("ssh" if NULL) and marks those as lost that do not answer within
 * ten seconds; the others are marked as present. */
MUST Status hosts_probe(Hosts *h, const char *agent);
void        hosts_text(char *out, size_t n, const Hosts *h, bool lost);        /* "a:8,b:8" of one kind */

#endif
