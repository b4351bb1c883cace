/* profile/recorder.h -- what the host of one rank does in the profiled steps, event by event.
 *
 * A Recorder listens to the ledger of a backend (CostListener of base/ledger.h) on a real run: every op,
 * collective, join, copy, graph launch and wait of the host gets the host's clock before and after it, with
 * the part of the model, layer, micro-batch and pass that it belongs to. Where ops are done when they return,
 * these are the intervals of the device; on a GPU they are launches, and spans.h finds what they launched. */
#ifndef PROFILE_RECORDER_H
#define PROFILE_RECORDER_H

#include "ops/backend.h"

typedef enum {
    HOST_OP,
    HOST_CALL,
    HOST_JOIN,
    HOST_GATHER,
    HOST_FETCH,
    HOST_SYNC,
    HOST_COPY,
    HOST_UPLOAD,
    HOST_LAUNCH,
    HOST_DATA
} HostKind;

typedef enum { PASS_NONE, PASS_FORWARD, PASS_BACKWARD, PASS_UPDATE, PASS_N } PassKind;

/* Where an event belongs. */
typedef struct HostPlace {
    uint8_t part, scope, pass; /* Part, GraphScope, PassKind */
    bool    replay;
    int16_t layer, micro; /* 1 + the number; 0: none */
} HostPlace;

typedef struct HostEvent {
    double    from, to; /* clock_now() */
    HostKind  kind;
    int       id;    /* op; group of a call, join or gather; lane of a copy */
    int       slot;  /* ticket of a call or join */
    int       calls; /* number of a call in its group since the recording began */
    HostPlace place;
    int64_t   intra_node, inter_node; /* bytes of a call; of a copy: intra_node */
} HostEvent;

typedef struct Recorder {
    CostListener       listener; /* first */
    Backend           *be;
    const DeviceTrace *trace; /* told where ops begin and end; NULL: not */
    HostEvent         *event;
    size_t             n, cap;
    size_t             open; /* 1 + the event that has not returned; 0: none */
    HostPlace          range; /* of the NVTX range that is open */
    int                calls[LEDGER_GROUPS];
    bool               full; /* no memory for more */
} Recorder;

/* The listener of the backend's ledger from now on. trace: see Recorder, or NULL. */
void recorder_start(Recorder *r, Backend *be, const DeviceTrace *trace);
void recorder_stop(Recorder *r);  /* sorts the events by their beginning */
void recorder_close(Recorder *r); /* twice is fine */
/* An event that the ledger does not see, such as a wait for data; before recorder_stop. */
void recorder_add(Recorder *r, HostKind kind, int id, double from, double to);

/* An op and its place, but for the micro-batch, as the tag of kernels that are captured (DeviceTrace), and
 * back: untag sets all but the micro-batch, and returns the op. */
uint32_t host_tag(int op, const HostPlace *p);
int      host_untag(uint32_t tag, HostPlace *p);

#endif
