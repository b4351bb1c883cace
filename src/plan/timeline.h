/* plan/timeline.h -- how long a step takes, from what the trainer itself says to a machine that has no data.
 *
 * A Timeline listens to the dry run (base/ledger.h, CostListener) and keeps its clocks: the device, which works off ops
 * one after the other; the host, which has to launch them first and waits at every fetch; the fast links, the
 * network, and the lanes to and from the host's memory. An op takes what plan/hardware.h says of work of its
 * kind and size. A call to others sets out when it is started and holds up the device where it is joined:
 * what work hides, hides, because that is how the program is written; there is no list of what overlaps. What
 * no rank can tell alone is a rule: micro-batches of a pipeline are laid out by its own schedule
 * (schedule_open); a forward beside a backward (moe.overlap) hides at most 0.45 of the road to the experts;
 * the busiest rank has 1.15 times the even share of rows where experts are shared out and routing is free.
 *
 *   Timeline *p;
 *   timeline_open(&p, &hw, &conf), conf.meter = timeline_listener(p);
 *   engine_plan(&plan, &shape, &conf, &stream);                  for one rank of each stage
 *   timeline_close(p, &stage[i]);
 *   timeline_ask(&ask, &hw, &conf, &shape, &load, ranks);           load_of(&stream)
 *   timeline_step(&step, &ask, stage, stages, NULL or &schedule);
 *
 * Ranks that fast links join are those of a node of the fake world: open it with per_node <= hw.domain. */
#ifndef PLAN_TIMELINE_H
#define PLAN_TIMELINE_H

#include "plan/hardware.h"
#include "engine/engine.h"
#include "engine/flops.h"

/* A chunk of one micro-batch there, or back. Seconds. */
typedef struct RunTime {
    double seconds;                      /* from its beginning to its end: the four below */
    double work, starved;                /* the device works; it waits for the host to launch something */
    double exposed[LEDGER_GROUPS];       /* it waits for others */
    double copies;                       /* it waits for the lanes */
    double send;                         /* from the end until the result is with the next stage */
} RunTime;

/* One rank of a stage: a micro-batch through all its chunks there and back, and the end of a step. */
typedef struct StageTime {
    double part[PART_N];                 /* work of the model's parts */
    double op[LEDGER_OPS];               /* the same by op */
    double replay;                       /* of it, forward work done again */
    double launch;                       /* what the host needs to say all of it */
    double comm[LEDGER_GROUPS];          /* by GroupId, each call alone */
    double exposed[LEDGER_GROUPS];       /* of it, what nothing hides */
    double forward, backward;            /* all chunks one way, with what is not hidden */
    double done;                         /* matrix FLOPs, with those done again */
    int    chunks;
    PipeBackwardStop floor;                     /* where backward ends; of EnginePlan */
    RunTime run[MAX_CHUNKS][2];          /* by PipeDirection */
    double last;                         /* that the last micro-batch of a step takes longer */
    double update;                       /* from its end: sums that are still under way, norm, AdamW */
    double update_work, update_copies;   /* of it, the device works; it waits for the lanes */
    double gather;                       /* weights that the next forward waits for, were nothing beside it */
    double once[LEDGER_GROUPS];          /* of last and update, what is waited for others */
    double gathers[LEDGER_GROUPS];       /* of gather */
    double once_comm[LEDGER_GROUPS];     /* each call alone */
} StageTime;

typedef struct DryStep {                 /* of the slowest rank, seconds */
    double compute, exposed[LEDGER_GROUPS], bubble, optimizer, launch, copies, step;
    double tokens_s, model_tflops, mfu, hfu, error;              /* error: of step, as a share of it */
    const char *wall;                    /* "memory" "communication" "compute" "host": what holds it up */
} DryStep;

typedef struct Timeline Timeline;

MUST Status timeline_open(Timeline **p, const Hardware *hw, const EngineConf *conf);
CostListener      *timeline_listener(Timeline *p);
void        timeline_close(Timeline *p, StageTime *out);               /* out NULL: of no interest; p NULL: fine */

/* ---- the pipeline ---- */

typedef struct ScheduleSpan { int micro, chunk, way; double from, to; } ScheduleSpan;        /* of one PipeAction */

/* When each stage does what: span[stage * actions + i] is action i of its list (parallel/pipe.h). */
typedef struct Schedule {
    int        stages, actions;
    ScheduleSpan *span;
    double    *busy, *hidden;            /* (stages): not idle; that running beside each other saved */
    double     end;
} Schedule;

MUST Status schedule_open(Schedule *t, const StageTime *stage, const PipeShape *shape, const Hardware *hw);
void        schedule_close(Schedule *t);

/* ---- the step ---- */

typedef struct StepAsk {
    const Hardware *hw;
    PipeShape pipe;
    DType     dtype;
    int       ranks;
    double    tokens, flops;             /* of a step on all ranks; flops: what the model needs */
} StepAsk;

MUST Status timeline_ask(StepAsk *out, const Hardware *hw, const EngineConf *conf, const ModelShape *s,
                      const Load *load, int ranks);
/* A plan's stream is one document and one picture, of which a step would take too long: the same with as many
 * of at most `doc` tokens and pictures of a usual size (2,304 patches, or `picture` if that is less) as fit.
 * Only what attends to what changes, no size that memory follows from. */
Stream      timeline_stream(Stream full, int64_t doc, int64_t picture);
/* t: kept for the caller, who closes it; NULL: of no interest. */
MUST Status timeline_step(DryStep *out, const StepAsk *ask, const StageTime *stage, int stages, Schedule *t);

#endif
