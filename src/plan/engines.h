/* plan/engines.h -- what a trainer costs beyond the hardware: its host, its kernels, its overlap. Rows of
 * engines.def; published steps are of other trainers, and a row keeps their cost apart from the hardware. */
#ifndef PLAN_ENGINES_H
#define PLAN_ENGINES_H

typedef enum { GRAPHS_NONE, GRAPHS_PARTIAL, GRAPHS_FULL, GRAPHS_N } Graphs;

typedef struct EngineRow {
    const char *name, *help;
    double      host[GRAPHS_N]; /* milliseconds of the host for a MoE layer and micro-batch */
    double      wait;           /* milliseconds of a MoE layer that the GPU waits for the host */
    double      gemm, grouped, attention, memory, fp8; /* factors on the time of work */
    double      dispatch[2];     /* factors on the time of a dispatch: one level, two levels */
    double      hides, dp_hides; /* largest shares of dispatch and of ZeRO-3 traffic that hide */
    double      held;            /* slow-down of compute beside communication */
    double      sinks, delta;    /* factors on layers with sinks and biases; on delta nets */
} EngineRow;

/* What this trainer's overlap gives on a backend; the shares of EngineRow. */
typedef struct EngineOverlap { double hides, dp_hides, held; } EngineOverlap;

const EngineRow *engine_row(const char *name); /* NULL: none such */
const EngineRow *engine_row_at(int i);         /* NULL past the last; 0: this trainer */
EngineOverlap    engine_overlap(const char *backend);
extern const char engine_choices[];            /* "|treb|megatron|…" */

#endif
