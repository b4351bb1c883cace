/* engine/pipeline_run.c -- see pipeline_run.h. */
#include "engine/pipeline_run.h"

#include "base/activity.h"
#include "base/clock.h"
#include "base/rng.h"

#include <string.h>

/* Counts of a micro-batch that data-parallel ranks exchange before a step. */
typedef struct MicroCount { int64_t tokens, supervised, further, patches, visual, docs; } MicroCount;

_Static_assert(sizeof(MicroCount) == MICRO_COUNTS * sizeof(int64_t),
               "MICRO_COUNTS must be the fields of MicroCount");

static MicroCount *counts_of(const Engine *e, int rank)
{
    return (MicroCount *)e->counts + (size_t)rank * (size_t)e->pipe.shape.micros;
}

/* FLOPs and attention pairs of this rank's micro-batches become those of all data-parallel ranks. */
static void sum_work(StepSums *sum, Comm *dp)
{
    double x[PART_N + 2];
    memcpy(x, sum->model.part, sizeof sum->model.part);
    x[PART_N] = sum->pairs, x[PART_N + 1] = sum->vpairs;
    comm_host_sum(dp, x, PART_N + 2);
    memcpy(sum->model.part, x, sizeof sum->model.part);
    sum->pairs = x[PART_N], sum->vpairs = x[PART_N + 1];
}

/* Sums over the whole step: all micro-batches of all data-parallel ranks. */
static void count_step(StepSums *sum, Engine *e, Stream *const *micro, int n)
{
    Comm *dp = e->mesh.comm[GR_dp];
    MicroCount *mine = (MicroCount *)e->counts + (size_t)dp->size * (size_t)n;
    *sum = (StepSums){ 0 };
    for (int i = 0; i < n; i++) {
        const Stream *s = micro[i];
        Load  load = load_of(s);
        Flops f = flops_train(&e->work, &load);
        flops_add(&sum->model, &f);
        sum->pairs += load.pairs, sum->vpairs += load.vpairs;
        int64_t further = e->model.shape.text.mtp ? stream_shifted_targets(s) : 0;
        mine[i] = (MicroCount){ s->tokens, s->supervised, further, s->patches, s->visual, s->docs };
        sum->token_budget += s->budget.tokens * dp->size;
    }
    comm_host_gather(dp, e->counts, mine, (size_t)n * sizeof *mine);
    sum_work(sum, dp);
    for (int i = 0; i < n * dp->size; i++) {
        const MicroCount *c = (MicroCount *)e->counts + i;
        sum->tokens += c->tokens, sum->supervised += c->supervised, sum->further += c->further;
        sum->patches += c->patches, sum->visual += c->visual, sum->docs += c->docs;
    }
}

static double fraction(int64_t part, int64_t whole) { return whole > 0 ? (double)part / (double)whole : 0; }

/* weight: this micro-batch's share of the tokens of the step so far, for the expert counts. */
static LossScales loss_scales(const Engine *e, const StepSums *sum, int at)
{
    const MicroCount *c = &counts_of(e, e->mesh.at[AX_DP])[at];
    double  tokens = fraction(c->tokens, sum->tokens);
    int64_t so_far = 0;
    bool    by_document = e->conf.aux == AUX_DOCUMENT;
    LossScales m = { .z   = (float)tokens,
                     .aux = (float)(by_document ? fraction(c->docs, sum->docs) : tokens) };
    if (sum->supervised) m.ce = (float)(1.0 / (double)sum->supervised);
    if (sum->further)    m.mtp = (float)((double)e->conf.mtp_weight / (double)sum->further);
    if (!sum->supervised) m.aux = m.z = 0;                    /* without a loss there is nothing to balance */
    for (int r = 0; r < e->mesh.size[AX_DP]; r++)
        for (int i = 0; i <= at; i++) so_far += counts_of(e, r)[i].tokens;
    if (e->dropout_seed) m.dropout_seed = rng_u64(e->dropout_seed, 0, (uint64_t)at) | 1;
    m.carry = at ? 1 : 0, m.weight = (float)fraction(c->tokens, so_far);
    return m;
}

/* Whether any data-parallel rank has pictures in this micro-batch. */
static bool any_pictures(const Engine *e, int at)
{
    bool any = false;
    for (int r = 0; r < e->mesh.size[AX_DP]; r++) any |= counts_of(e, r)[at].patches > 0;
    return any;
}

typedef struct PipeRun {
    Engine        *e;
    Stream *const *micro;
    int            n, first;             /* micro-batches; ring index of the first */
    int            uploaded;
    const Stream  *after;
    StepSums      *sum;
    const StepStats *stats;
    Ticket         recv[2][MAX_SLOTS], send[2];
} PipeRun;

static int batch_of(const PipeRun *w, int micro) { return (w->first + micro) % w->e->batches; }

static const Chunk *chunk_of(const PipeRun *w, const PipeAction *a) { return &w->e->model.chunk[a->chunk]; }

static Comm *link_comm(const PipeRun *w, int way)
{
    return w->e->mesh.comm[way == PIPE_FORWARD ? GR_pp : GR_pp_back];
}

/* The buffer of a message: the input of the chunk, or the gradient of its output. */
static Tensor recv_buffer(const PipeRun *w, const PipeStep *s)
{
    const Chunk *k = chunk_of(w, &w->e->pipe.action[s->action]);
    return engine_recv_buffer(w->e, s->way, s->buffer, s->way == PIPE_FORWARD ? k->from : k->to);
}

static void upload(PipeRun *w, int micro)
{
    if (micro < w->uploaded) return;
    engine_upload(w->e, w->micro[micro]);
    engine_batch(w->e)->pictures = any_pictures(w->e, micro);
    w->uploaded = micro + 1;
}

static void forward(PipeRun *w, const PipeAction *a, const PipeStep *fed)
{
    Engine    *e = w->e;
    LossScales m = loss_scales(e, w->sum, a->micro);
    activity_micro_batch(a->micro, "forward");
    upload(w, a->micro);
    if (e->conf.per_row_loss) e->row_loss = step_results_row_loss(&e->results, &e->results.device, a->micro);
    engine_run_forward(e, FORWARD, batch_of(w, a->micro), a->chunk, a->slot, &m,
                       fed ? recv_buffer(w, fed) : (Tensor){ 0 });
}

static void backward(PipeRun *w, const PipeAction *a, const PipeStep *fed)
{
    activity_micro_batch(a->micro, "backward");
    engine_run_backward(w->e, batch_of(w, a->micro), a->chunk, a->slot,
                        fed ? recv_buffer(w, fed) : (Tensor){ 0 });
}

/* After a backward: prefetches, and adds the losses. Of the ranks that share a micro-batch over tp and cp the
 * first counts its auxiliary losses. */
static void finish_micro(PipeRun *w, const PipeAction *a)
{
    Engine *e = w->e;
    LossScales   m = loss_scales(e, w->sum, a->micro);
    if (a->micro + 1 + e->pipe.shape.extra_warmup >= w->uploaded)
        engine_prefetch(e, w->uploaded < w->n ? w->micro[w->uploaded] : w->after);
    engine_add_slot_losses(e, a->slot, &m, e->mesh.at[AX_TP] == 0 && e->mesh.at[AX_CP] == 0);
}

typedef struct OverlapArg { PipeRun *w; const PipeAction *a; const PipeStep *fed; } OverlapArg;

static void run_forward(void *arg)  { OverlapArg *r = arg; forward(r->w, r->a, r->fed); }
static void run_backward(void *arg) { OverlapArg *r = arg; backward(r->w, r->a, r->fed); }

/* Overlaps a forward with a backward. The backward starts first and ends first: a table that is both
 * embedding and head gets its gradients in the same order as without overlap. */
static void run_overlapped(PipeRun *w, const PipeAction *a, const PipeStep *const *fed)
{
    OverlapArg f = { w, a, fed[PIPE_FORWARD] }, b = { w, a + 1, fed[PIPE_BACKWARD] };
    coroutine_run(&w->e->coroutine, run_backward, &b, run_forward, &f);
    finish_micro(w, b.a);
}

static void run_action(PipeRun *w, const PipeStep *s, const PipeStep *const *fed)
{
    const PipeAction *a = &w->e->pipe.action[s->action];
    if (s->what == PIPE_OVERLAPPED) run_overlapped(w, a, fed);
    else if (a->what == PIPE_FORWARD) forward(w, a, fed[PIPE_FORWARD]);
    else backward(w, a, fed[PIPE_BACKWARD]), finish_micro(w, a);
}

/* Sends the result of the last action in this direction. */
static void send_result(PipeRun *w, const PipeStep *s)
{
    const PipeAction *a = &w->e->pipe.action[s->action];
    Tensor out = s->way == PIPE_FORWARD ? engine_output(w->e, a->chunk, a->slot)
                                        : engine_gradient(w->e, a->chunk, a->slot);
    w->send[s->way] = comm_send_start(link_comm(w, s->way), out, s->peer);
}

static void run_schedule(PipeRun *w)
{
    const Pipe *p = &w->e->pipe;
    const PipeStep *fed[2] = { NULL, NULL };
    for (int i = 0; i < p->steps; i++) {
        const PipeStep *s = &p->step[i];
        switch (s->what) {
        case PIPE_POST:
            w->recv[s->way][s->buffer] = comm_recv_start(link_comm(w, s->way), recv_buffer(w, s), s->peer);
            break;
        case PIPE_RECV:
            comm_join(w->recv[s->way][s->buffer]);
            fed[s->way] = s;
            break;
        case PIPE_RUN:
        case PIPE_OVERLAPPED:
            run_action(w, s, fed);
            fed[0] = fed[1] = NULL;
            break;
        case PIPE_FLUSH:
            comm_join(w->send[s->way]);
            w->send[s->way] = (Ticket){ 0 };
            break;
        case PIPE_SEND: send_result(w, s); break;
        }
    }
}

void pipeline_queue(Engine *e, const PipelineStep *s, StepSums *out)
{
    PipeRun k = { .e     = e,
                  .micro = s->micro,
                  .n     = s->n,
                  .first = (e->at + 1) % e->batches,
                  .after = s->after,
                  .sum   = out,
                  .stats = s->stats };
    REQUIRE(s->n == e->pipe.shape.micros, "a step of %d micro-batches on an engine for %d", s->n,
            e->pipe.shape.micros);
    count_step(out, e, s->micro, s->n);
    e->count_experts = step_stats_count_experts(s->stats) || e->conf.bias_rate > 0;
    e->measure_codes = s->stats && s->stats->codes;
    engine_begin_step(e, s->n);
    run_schedule(&k);
    activity_micro_batch(-1, NULL);
    if (s->norm) engine_compute_grad_norm(e);
}

void pipeline_sums(const Engine *e, int slot, StepSums *out)
{
    const double *sums = e->results.slot[slot].sums.data;
    double weight = (double)e->conf.mtp_weight;
    out->ce = sums[SUM_CE], out->aux = sums[SUM_AUX], out->z = sums[SUM_Z];
    out->mtp = weight > 0 ? sums[SUM_MTP] / weight : 0;
    out->total = out->ce + sums[SUM_MTP] + (double)e->conf.aux_coeff * out->aux +
                 (double)e->conf.z_coeff * out->z;
}

static Status drain(Engine *e)
{
    double from = clock_now();
    step_results_post(&e->results, &e->be, 0);
    TRY(engine_wait_for_peers(e));
    Status st = backend_sync(&e->be);
    e->waited += clock_now() - from;
    return st;
}

/* Runs the step once. *overflow: on some rank an MoE layer had more rows than its buffers hold, and nothing
 * of the step is of use. */
static Status run_once(Engine *e, const PipelineStep *s, StepSums *out, bool *overflow)
{
    pipeline_queue(e, s, out);
    TRY(drain(e));
    TRY(dispatch_overflowed(&e->dispatch, overflow));
    double *mine = e->results.slot[0].sums.data, sums[SUMS + 1] = { [SUMS] = *overflow };
    memcpy(sums, mine, SUMS * sizeof *sums);
    comm_host_sum(e->mesh.comm[GR_world], sums, SUMS + 1);
    memcpy(mine, sums, SUMS * sizeof *sums);
    *overflow = sums[SUMS] > 0;
    pipeline_sums(e, 0, out);
    return e->be.sticky ? backend_sync(&e->be) : OK;
}

/* A step whose rows did not fit is run again with counts on the host, which cuts layers into chunks. */
static Status run_until_fits(Engine *e, const PipelineStep *s, StepSums *out)
{
    bool overflow = false;
    TRY(run_once(e, s, out, &overflow));
    if (!overflow) return OK;
    engine_drop_prefetched(e);
    e->dispatch.host_counts = DISPATCH_COUNTED_STEPS + 1;
    return run_once(e, s, out, &overflow);
}

Status pipeline_run(Engine *e, const PipelineStep *s, StepSums *out)
{
    TRY(run_until_fits(e, s, out));
    step_stats_add(s->stats, e, 0, s->micro, s->n);
    return OK;
}
