/* data/loader_private.h -- what the four files of the loader share.
 *
 *   loader.c        opening, handing out steps, state, bad samples
 *   loader_pack.c   which samples come next: measured ahead, packed in the order of the pass
 *   loader_fill.c   worker threads: samples into streams, pixels into their place
 *   loader_steps.c  how many steps some epochs have
 *
 * One lock guards everything but the inside of a slot or of a pending sample that a worker is busy with. */
#ifndef DATA_LOADER_PRIVATE_H
#define DATA_LOADER_PRIVATE_H

#include "base/activity.h"
#include "base/thread_pool.h"
#include "data/index.h"
#include "data/loader.h"
#include "data/sample_cache.h"
#include "data/step_packer.h"

/* A sample that cannot be used. Its holder frees text. */
typedef struct BadSample { int64_t id, epoch, position; Status status; char *text; } BadSample;

/* TEXT: documents wait to be read and tokenised. BUSY: a worker lays them out or finishes the stream.
 * PICTURES: workers decode pixels. */
typedef enum { SLOT_FREE, SLOT_TEXT, SLOT_BUSY, SLOT_PICTURES, SLOT_READY } SlotState;

typedef struct SlotDoc {
    Sample  sample;
    bool    loaded;                       /* sample came from the cache */
    int64_t position, id, patch;          /* patch: row of its first patch in the stream */
    bool    bad;
    int64_t bad_slice;                    /* of several bad pictures the first is reported */
    Status  status;
    char   *text;
} SlotDoc;

typedef struct SlotJob { int64_t doc, slice, patch; } SlotJob;

/* One micro-batch that is being filled. */
typedef struct LoaderSlot {
    SlotState  state;
    Stream     stream;
    PackBin    bin;
    SlotDoc   *doc;
    LoaderDoc *from;                      /* origin of each document in the stream */
    int64_t    docs, cap;
    SlotJob   *job;
    int64_t    jobs, job_cap, next, left; /* next: first job not begun; left: jobs not finished */
} LoaderSlot;

typedef enum { STEP_FREE, STEP_FILLING, STEP_END } StepState;

/* A step that is packed and not yet handed out, or handed out and still in use. */
typedef struct PendingStep {
    StepState   state;
    LoaderSlot *slot;                     /* conf.micro of them */
    Stream    **out;                      /* their streams and documents, as they are handed out */
    const LoaderDoc **out_doc;
    int64_t     epoch;
    double      passes;                   /* passes done after this step, with a fraction */
    Json       *after;                    /* the step packer's state after this step */
    BadSample  *bad;                      /* bad samples met while the step was packed */
    int64_t     bads, bad_cap;
    Status      status;  /* STEP_END: the error that ends the steps, or OK at the end of the data */
    char       *text;
} PendingStep;

typedef enum { SAMPLE_ASKED, SAMPLE_BUSY, SAMPLE_MEASURED } PendingState;

/* A sample on its way to the step packer, which wants its size. */
typedef struct PendingSample {
    PendingState state;
    int64_t      epoch, position, id;
    DocSize      size;
    SizeKind     kind;
    Status       status;
    char        *text;
} PendingSample;

enum {
    AHEAD = 128,                          /* samples measured ahead of the step packer */
    STEPS = 4,                            /* pending steps: HELD are handed out, two are filled */
    HELD = 2,
    CACHE_ROWS = 2048,                    /* of the sample cache */
    CACHE_BYTES = 64 << 20
};

struct Loader {
    LoaderConf      conf;
    Dataset         data;
    SampleConf      sample;
    Index           index;
    SampleCache     cache;
    StepPacker      packer;
    PackBin        *bins;                 /* ranks * micro: the bins of the step that is being taken */
    PendingStep     step[STEPS];
    int64_t         handed, packed;       /* steps so far; step i is step[i % STEPS] */
    PendingSample   ahead[AHEAD];
    /* samples asked for, begun to be measured, given to the step packer */
    int64_t         asked, begun, used;
    int64_t         ask_epoch, ask_position;
    bool            ended;                /* no more steps will be packed */

    pthread_mutex_t lock;
    pthread_cond_t  work, ready;
    Activity        activity;             /* of the workers */
    ThreadPool            pool;
    ThreadPoolJob         job;                  /* the workers: one long call each */
    SampleScratch  *scratch;              /* one for each worker */
    int             workers, busy;
    bool            stop, pause;
    int             held;                 /* the caller uses so many steps before `handed` */

    Json           *now;                  /* the step packer's state after that step */
    int64_t         skipped, bad_pass, bad_epoch, warned;
    bool            rewound;              /* bad samples have been listed by the first pass */
    Status          status;               /* the first failure; it stays */
    char           *text;
};

/* Called with the lock held. The functions named *_some release it while they work and return false when
 * there was nothing to do. */
void        loader_pack_ahead(Loader *l);               /* as far as known sizes and free steps allow */
void        loader_pack_clear(Loader *l);               /* forgets all pending and cached samples */
bool        loader_measure_some(Loader *l, SampleScratch *t);
bool        loader_fill_some(Loader *l, SampleScratch *t);
bool        step_is_ready(const Loader *l, const PendingStep *s);
void        step_clear(Loader *l, PendingStep *s);      /* to STEP_FREE; no worker may be busy with it */

bool        loader_is_tolerant(const Loader *l);        /* data.bad_sample: skip */
MUST Status loader_worker(void *l, int64_t i);
void        slot_close(LoaderSlot *s);

#endif
