/* plan/timeline.h -- the time of a step, from the ops and calls of a dry run.
 *
 * A Timeline is a CostListener (base/ledger.h): it follows the dry run and advances one clock each for the
 * device, which executes ops in order; the host, which launches them first and waits at every fetch; the
 * links of a node, the network, and the copy streams to and from host memory. An op takes the time that
 * plan/hardware.h gives for its kind and size. A collective begins where it is started and delays the
 * device where it is joined, so what overlaps in the program overlaps here; there is no list of overlaps.
 * What one rank cannot know is a rule: micro-batches of a pipeline follow its schedule (schedule_open); a
 * forward overlapped with a backward (moe.overlap) hides a share of the expert dispatch, compute hides a
 * share of the traffic of sharded weights and is slower beside communication (engines.def); with expert
 * parallelism and free routing the busiest rank has `uneven` times the even share of rows.
 *
 *   Timeline *p;
 *   timeline_open(&p, &hw, &conf, USUAL_UNEVEN), conf.meter = timeline_listener(p);
 *   engine_plan(&plan, &shape, &conf, &stream);                  for one rank of each stage
 *   timeline_close(p, &stage[i]);
 *   timeline_ask(&ask, &hw, &conf, &shape, &load, ranks);           load_of(&stream)
 *   timeline_step(&step, &ask, stage, stages, NULL or &schedule);
 *
 * Ranks of a node of the fake world are joined by intra-node links: open it with per_node <= hw.domain. */
#ifndef PLAN_TIMELINE_H
#define PLAN_TIMELINE_H

#include "plan/hardware.h"
#include "engine/engine.h"
#include "engine/flops.h"

/* A phase on the device's clock, such as the forward of one micro-batch through a chunk. Seconds. */
typedef struct RunTime {
    double seconds;                      /* from beginning to end: the sum of the four below */
    double work, starved;                /* the device computes; it waits for a launch */
    double exposed[LEDGER_GROUPS];       /* it waits for a collective, by group */
    double copies;                       /* it waits for host copies */
    double dispatch;                     /* its token dispatch takes, exposed or not */
    double even[2];                      /* its calls on each link, with equal rows: intra-node, network */
    double send;                         /* from the end until the next stage has the result */
} RunTime;

/* One rank of a stage: forward and backward of a micro-batch through all chunks, and the end of a step. */
typedef struct StageTime {
    double part[PART_N];                 /* compute by part of the model */
    double op[LEDGER_OPS];               /* and by op */
    double replay;                       /* of it, recomputed forward work */
    double launch;                       /* host time to launch all of it */
    double comm[LEDGER_GROUPS];          /* by GroupId, without overlap */
    double exposed[LEDGER_GROUPS];       /* of it, not hidden by compute */
    double forward, backward;            /* of all chunks, exposed communication included */
    double done;                         /* matrix FLOPs, recomputed ones included */
    int    chunks;
    PipeBackwardStop floor;                     /* where backward stops; from EnginePlan */
    RunTime run[MAX_CHUNKS][2];          /* by PipeDirection */
    RunTime last;                        /* what the last micro-batch of a step takes beyond others */
    RunTime update;                      /* after it: pending gradient reductions, norm, AdamW */
    RunTime gather;                      /* all-gather of weights before the next forward, without overlap */
    double once_comm[LEDGER_GROUPS];     /* communication of these three, without overlap */
} StageTime;

/* The slowest rank, seconds. The step is the sum of its parts: compute, exposed communication, bubble (which
 * is waiting for other stages), the optimizer's work, waiting for launches and for host copies. */
typedef struct DryStep {
    double compute, exposed[LEDGER_GROUPS], bubble, optimizer, launch, copies, step;
    double tokens_s, model_tflops, mfu, hfu, error;              /* error: relative, of step */
    int         stage;                   /* the slowest, whose parts these are */
    const char *wall;                    /* the bottleneck: "memory" "communication" "compute" "host" */
} DryStep;

double run_parts(const RunTime *r);       /* the sum of its four parts */
/* The bottleneck of a step, from seconds of it: exposed communication and bubble; waiting for launches;
 * recomputation and host copies. */
const char *bottleneck_name(double step, double communication, double host, double memory);

typedef struct Timeline Timeline;

/* uneven: rows of the busiest rank over the even share, where routing is free. */
#define USUAL_UNEVEN 1.15
MUST Status        timeline_open(Timeline **p, const Hardware *hw, const EngineConf *conf, double uneven);
CostListener      *timeline_listener(Timeline *p);
void        timeline_close(Timeline *p, StageTime *out);               /* out may be NULL, and so may p */

/* ---- the pipeline ---- */

typedef struct ScheduleSpan { int micro, chunk, way; double from, to; } ScheduleSpan; /* of one PipeAction */

/* The schedule of all stages: span[stage * actions + i] is action i of a stage (parallel/pipe.h). */
typedef struct Schedule {
    int        stages, actions;
    ScheduleSpan *span;
    double    *busy, *hidden;            /* (stages): not idle; saved by overlapping two passes */
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
    double    tokens, flops;             /* of a step on all ranks; flops: of the model */
} StepAsk;

MUST Status timeline_ask(StepAsk *out, const Hardware *hw, const EngineConf *conf, const ModelShape *s,
                      const Load *load, int ranks);
/* t: the schedule, for the caller to close; may be NULL. */
MUST Status timeline_step(DryStep *out, const StepAsk *ask, const StageTime *stage, int stages, Schedule *t);

#endif
