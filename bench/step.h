/* bench/step.h -- a benchmark of whole steps: its settings, its engine and what was measured. */
#ifndef BENCH_STEP_H
#define BENCH_STEP_H

#include "base/json.h"
#include "ops/energy.h"
#include "engine/engine.h"
#include "plan/timeline.h"

/* A value of --cuda-graph. */
enum { STEP_GRAPHS_MOST = 4 };
typedef struct StepGraphs { char words[96]; unsigned bits; } StepGraphs;

typedef struct StepBench {
    const char *cuda_graph;
    StepGraphs  way[STEP_GRAPHS_MOST];                       /* its values */
    int         ways;
    const char *backend, *model, *grid, *dtype_name, *recompute, *offload, *moments, *grads,
               *targets, *fp8, *base;
    int64_t     lora_rank, panel;
    double      dropout;
    bool        shared_a;
    ModelShape  shape;
    Stream      stream;
    Engine      e;
    int64_t     tokens, doc, images, grid_h, grid_w, photos, layers, micro, repeats;
    DType       dtype;
    bool        json, repeat, zipf, ragged, brief;
    double      fwd, bwd, opt;                               /* seconds of the last step */
    double      host;                                        /* of these, of the host's code */
    double      start, ready;                                /* seconds until the engine is open, and until
                                                                its weights are drawn */
    int64_t     steps;                                       /* that this engine has taken */
    int64_t     longest, shortest;                           /* documents of step_fill_ragged */
    char        state[96];                                   /* of the GPU, under load */
    Losses      losses;
    uint8_t     policy[LABEL_N];
    FullRecompute full;
    ProductPrecision precision;                              /* of --fp8 */
    bool        codes_alone;                                 /* no bf16 weights beside FP8 ones */
    BaseQuant   base_quant;                                  /* of --base */
    OptimStore  store;                                       /* of moments and masters */
    LoraConf    lora;                                        /* rank 0: all parameters train */
    WordList    words;                                       /* its targets, in `text` */
    const char *word[32];
    char        text[512];
    bool        floor;                                       /* measure the frozen weights as well */
    LoraTarget  lowest;                                      /* the module of --floor */
    const char *hardware;                                    /* to predict by; NULL: this, if there is one */
    Hardware    hw;                                          /* its id is empty: nothing is predicted */
    StageTime   expected;
    DryStep     predicted;
} StepBench;

/* Medians over the steps, in seconds, and the first two: graphs are captured in the second. host: of the code
 * that queues work; peak: FLOP/s of the device; busiest: rows of the busiest expert over the mean. */
typedef struct StepTimes {
    double first, second, fwd, bwd, opt, host, peak, busiest, part[PART_N];
    int64_t launches;                                        /* of a step, by the host */
    double flops;                                            /* of the model, in a step */
    double train;                                            /* a step as step_train runs it; 0: --brief */
    Energy energy, train_energy;                             /* of a step: with its parts apart; of `train` */
} StepTimes;

static inline double step_seconds(const StepTimes *t) { return t->fwd + t->bwd + t->opt; }

OptimConf   step_optim(int64_t number);
MUST Status step_train(StepBench *b, StepTimes *out);        /* steps as `treb train` runs them */
/* Documents of unequal lengths, without pictures, in place of those of the stream; it has as many. */
MUST Status step_fill_ragged(StepBench *b);

/* The values of --cuda-graph into b->way; all of their bits. */
MUST Status step_read_graphs(StepBench *b, const char *text);
unsigned    step_all_graphs(const StepBench *b);

void  step_print_start(const StepBench *b);                  /* what is measured, and how long opening took */
void  step_print(const StepBench *b, const StepTimes *t);
void  step_print_train(const StepTimes *t);
void  step_print_host(const StepBench *b, const StepTimes *t);
/* Steps with another value of --cuda-graph beside those with the first. */
void  step_print_graphs(const StepBench *b, const StepGraphs *g, const StepTimes *t, const StepTimes *first);
/* The same tokens in documents of unequal lengths beside the step t of even ones. */
void  step_print_ragged(const StepBench *b, const StepTimes *t, const StepTimes *ragged);
/* The step of the frozen weights with one adapter beside the step t of all adapters. */
void  step_print_floor(const StepBench *b, const StepTimes *t, const StepTimes *floor);
Json *step_json(const StepBench *b, const StepTimes *t);

#endif
