/* engine/step_stats.h -- what is noticed of micro-batches besides their loss: which experts they chose, and how the
 * loss spreads over the sources of the data. Counts add up until they are cleared; room for them is made at
 * start. */
#ifndef ENGINE_STEP_STATS_H
#define ENGINE_STEP_STATS_H

#include "data/loader.h"
#include "engine/engine.h"

/* How often each expert was chosen, by layer and kind of token. */
typedef struct Routing {
    int64_t  layers, experts, slots;     /* MoE layers, experts, choices per token */
    int64_t *layer;                      /* which layer of the decoder each of them is */
    double  *text, *visual;              /* (layers, experts) since routing_clear */
    double  *past_text, *past_visual;    /* and before it, since routing_forget */
    int32_t *stage;                      /* choices of one layer, on the host */
    uint8_t *kind;                       /* of each token of a stream: 0 tail, 1 text, 2 visual */
} Routing;

MUST Status routing_open(Routing *r, const Engine *e);       /* a model without experts: layers = 0 */
void        routing_close(Routing *r);                       /* twice is fine */
void        routing_clear(Routing *r);
void        routing_forget(Routing *r);
double      routing_peak(const Routing *r, int64_t layer); /* busiest expert over the mean; 0: none counted */

/* Summed loss and supervised tokens by channel. Sources that share a channel's name share its row. */
typedef struct BySource {
    int          channels, sources;      /* 0: not asked for */
    const char **name;                   /* of channels; belong to the loader */
    int         *row;                    /* of each source */
    double      *loss;
    int64_t     *tokens;
    float       *stage;                  /* losses of the rows of one micro-batch, on the host */
} BySource;

/* E must have been opened with conf.each. */
MUST Status by_source_open(BySource *b, const Engine *e, const Loader *l, int sources);
void        by_source_close(BySource *b);                    /* twice is fine */
void        by_source_clear(BySource *b);

typedef struct Watch {                   /* either may be NULL */
    Routing                *routing;
    BySource               *by;
    const LoaderDoc *const *doc;         /* where the documents of each micro-batch come from */
} Watch;

/* After a forward of the step, of the micro-batch `s`; w may be NULL. */
void watch_forward(const Watch *w, Engine *e, const Stream *s, const PipeAction *a);
/* Of all ranks together: before counts are shown. */
void watch_sum(const Watch *w, const Engine *e);

#endif
