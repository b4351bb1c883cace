/* data/loader_private.h -- what the three files of the loader share.
 *
 *   loader.c        opening, handing out, state, bad samples
 *   loader_pack_ahead.c   which samples come next: measured ahead, then given to the planner in order
 *   loader_fill.c   worker threads; samples into streams, pictures into their place
 *
 * One lock guards everything but the insides of a slot that a worker is busy with. */
#ifndef DATA_LOADER_PRIVATE_H
#define DATA_LOADER_PRIVATE_H

#include "base/thread.h"
#include "data/index.h"
#include "data/loader.h"
#include "data/step_packer.h"

/* A sample that cannot be used; text is the caller's to free. */
typedef struct BadSample { int64_t id, epoch, position; Status status; char *text; } BadSample;

/* TEXT: to be read and tokenised; PICTURES: to be decoded; both may have workers on them. */
typedef enum { SLOT_FREE, SLOT_TEXT, SLOT_BUSY, SLOT_PICTURES, SLOT_READY } SlotState;

typedef struct SlotDoc {
    Sample  sample;
    int64_t position, id, patch;          /* patch: row of its first one in the stream */
    bool    bad;
    int64_t bad_slice;                    /* of several bad pictures the first is named */
    Status  status;
    char   *text;
} SlotDoc;

typedef struct SlotJob { int64_t doc, slice, patch; } SlotJob;

typedef struct LoaderSlot {                     /* one micro-batch in the making */
    SlotState  state;
    Stream     stream;
    PackBin    bin;
    SlotDoc   *doc;
    LoaderDoc *from;                      /* of the documents that are in the stream */
    int64_t    docs, room;
    SlotJob   *job;
    int64_t    jobs, job_room, next, left;
} LoaderSlot;

typedef enum { STEP_FREE, STEP_FILLING, STEP_END } StepState;

typedef struct PendingStep {
    StepState  state;
    LoaderSlot      *slot;                      /* micro of them */
    int64_t    epoch;
    double     passes;                    /* done after it */
    Json      *after;                     /* the planner's state after it */
    BadSample *bad;                       /* met while it was planned */
    int64_t    bads, bad_room;
    Status     status;                    /* why there is no such step */
    char      *text;
} PendingStep;

typedef enum { MEASURE_ASKED, MEASURE_BUSY, MEASURE_DONE } MeasureState;

typedef struct PendingSample {
    MeasureState state;
    int64_t      epoch, position, id;
    DocSize      size;
    SizeKind     kind;
    Status       status;
    char        *text;
} PendingSample;

enum { AHEAD = 128, STEPS = 2 };          /* samples measured ahead of the planner; steps in the ring */

struct Loader {
    LoaderConf      conf;
    Dataset         data;
    SampleConf      sample;
    Index           index;
    StepPacker         planner;
    PackBin        *bins;                 /* ranks * micro: where the planner puts a step */
    PendingStep            step[STEPS];
    int64_t         handed, planned;      /* steps so far; step i lives in step[i % STEPS] */
    PendingSample         ahead[AHEAD];
    int64_t         asked, begun, used;   /* measures asked for, begun, given to the planner */
    int64_t         ask_epoch, ask_position;
    bool            ended;                /* no more steps will be planned */

    pthread_mutex_t lock;
    pthread_cond_t  work, ready;
    Pool            pool;
    PoolJob         job;                  /* the workers: one long call each */
    SampleScratch  *scratch;
    int             workers, busy;
    bool            locks, stop, pause, holding;      /* holding: the caller has the step before `handed` */

    Stream        **out;                  /* what the caller sees of the step handed out */
    const LoaderDoc **out_doc;
    Json           *now;                  /* state after it */
    int64_t         skipped, bad_pass, bad_epoch, warned;
    bool            again;                /* rewound: its bad samples are listed already */
    Status          status;               /* sticky: a loader that failed stays so */
    char           *text;
};

/* Called with the lock held. */
void        loader_pack_ahead(Loader *l);                     /* as far as measures and free steps allow */
bool        loader_measure_some(Loader *l, SampleScratch *t);      /* gives the lock up meanwhile; */
bool        loader_fill_some(Loader *l, SampleScratch *t);         /* false: there is nothing to do */
bool        step_is_ready(const Loader *l, const PendingStep *s);
void        step_clear(Loader *l, PendingStep *s);             /* to STEP_FREE; nobody works on it */
void        loader_pack_clear(Loader *l);                      /* forget all measures */

MUST Status loader_worker(void *l, int64_t i);
void        slot_close(LoaderSlot *s);

#endif
