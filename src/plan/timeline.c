/* plan/timeline.c -- the clocks of a dry run; see timeline.h. */
#include "plan/timeline.h"

#include "base/graph_scopes.h"
#include "ops/ops.h"
#include "plan/engines.h"

#include <math.h>
#include <stdlib.h>

enum { DEVICE_CALLS = COMM_TICKETS };
static const double FETCH  = 10e-6;              /* seconds until the host has what the device wrote */

struct Timeline {
    CostListener      meter;                            /* first: the dry run holds a pointer to it */
    Hardware   hw;
    Precision  precision;
    double     uneven;
    EngineOverlap overlap;
    double     device, host, link[2];            /* when each is free; links: intra-node, inter-node */
    double            until[LEDGER_GROUPS][DEVICE_CALLS]; /* when a call ends */
    double            least[LEDGER_GROUPS][DEVICE_CALLS]; /* seconds of it that nothing hides */
    double            sent[2], even[2];          /* seconds of a phase that each link carries; even: with
                                                    equal rows for all ranks */
    int               sender[2];                 /* the group of its last call */
    bool       stages, single;                   /* of a pipeline; one micro-batch a step */
    double     lane[COPY_STREAMS], mark[COPY_EVENTS];
    CostPhase phase;
    int        chunk;
    bool       on, last;
    double     since;                            /* the device's clock when the phase began */
    RunTime    final;                            /* the last micro-batch of a step */
    StageTime  time;
};

/* ---- ops ---- */

/* The kind of work of an op, and the kernels of a call. */
typedef struct OpKind { uint8_t work, kernels; } OpKind;

static const OpKind kinds[OP_N] = {
#define OP(name, kind, params, args) [OP_##name] = { (kind) == MM ? WORK_GEMM : WORK_MEMORY, 1 },
#include "ops/ops.def"
#undef OP
};
static const OpKind special[OP_N] = {
    [OP_grouped_gemm]     = { WORK_GROUPED, 2 },          /* a kernel assigns tiles first */
    [OP_grouped_squares]  = { WORK_GROUPED, 2 },
    [OP_grouped_scaled]   = { WORK_GROUPED, 1 },
    [OP_grouped_swiglu]   = { WORK_GROUPED, 2 },
    [OP_grouped_dswiglu]  = { WORK_GROUPED, 2 },
    [OP_grouped_coded]    = { WORK_GROUPED, 2 },
    [OP_grouped_swiglu_coded]  = { WORK_GROUPED, 2 },
    [OP_grouped_dswiglu_coded] = { WORK_GROUPED, 2 },
    [OP_grouped_gemm_fp8] = { WORK_GROUPED, 1 },
    [OP_grouped_dw_fp8]   = { WORK_GROUPED, 2 },
    [OP_grouped_swiglu_fp8] = { WORK_GROUPED, 1 },
    [OP_grouped_gemm_micro] = { WORK_GROUPED, 1 },
    [OP_attention_fwd]    = { WORK_ATTENTION, 1 },
    [OP_attention_bwd]    = { WORK_ATTENTION_BACK, 3 },   /* delta, matrix products, dq */
    [OP_rmsnorm_bwd]      = { WORK_MEMORY, 2 },           /* partial sums of dw, then their sum */
    [OP_layernorm_bwd]    = { WORK_MEMORY, 2 },
    [OP_rope_bwd]         = { WORK_MEMORY, 2 },
    [OP_colsum]           = { WORK_MEMORY, 2 },
    [OP_sort_by_expert]        = { WORK_MEMORY, 3 },
    [OP_embed_bwd]        = { WORK_MEMORY, 2 },
    [OP_squares]          = { WORK_MEMORY, 2 },
};

static OpKind kind_of(int op) { return special[op].kernels ? special[op] : kinds[op]; }

static Work work_of(int op, Part part)
{
    Work k = (Work)kind_of(op).work;
    if (part != PART_VISION) return k;
    return k == WORK_ATTENTION ? WORK_VISION : k == WORK_ATTENTION_BACK ? WORK_VISION_BACK : k;
}

static Precision precision_of(const Timeline *p, int op)
{
    if (op == OP_gemm_fp8 || op == OP_grouped_gemm_fp8 || op == OP_grouped_swiglu_fp8 ||
        op == OP_grouped_dw_fp8) return PREC_FP8;
    return op == OP_gemm_micro || op == OP_grouped_gemm_micro ? p->precision : PREC_BF16;
}

/* FLOPs at the rate of the dtype of the weights that take as long as these; hardware without such products
 * emulates them. */
static double wide_flops(const Timeline *p, int op, double flops)
{
    Precision f = precision_of(p, op);
    double    rate = hardware_rate(&p->hw, f);
    return f != PREC_BF16 && rate > 0 ? flops * hardware_rate(&p->hw, PREC_BF16) / rate : flops;
}

/* Products that decode their weight take longer than those of a bf16 one: measured on an H200 with fp8. */
#define DECODING 1.25
static double slower_by(int op)
{
    bool coded = op == OP_grouped_coded || op == OP_grouped_swiglu_coded || op == OP_grouped_dswiglu_coded;
    return coded ? DECODING : 1;
}

static double op_seconds(const Timeline *p, int op, Part part, double flops, double bytes, double rows)
{
    Work   k = work_of(op, part);
    double u = k == WORK_GROUPED ? p->uneven : 1;
    flops = wide_flops(p, op, flops);
    double t = k == WORK_GROUPED ? grouped_seconds(&p->hw, u * flops, u * bytes, u * rows)
                                 : work_seconds(&p->hw, k, flops, bytes);
    return t * slower_by(op) * p->hw.slow[op];
}

static bool in_run(const Timeline *p) { return p->phase <= COST_BACKWARD && !p->last; }

/* What the current phase is counted in. */
static RunTime *run_of(Timeline *p)
{
    if (p->phase == COST_UPDATE) return &p->time.update;
    if (p->phase == COST_GATHER) return &p->time.gather;
    return p->last ? &p->final : &p->time.run[p->chunk][p->phase == COST_BACKWARD];
}

static void note_op(Timeline *p, const Ledger *l, int op, double seconds, double starved, double flops)
{
    StageTime *t = &p->time;
    run_of(p)->work += seconds, run_of(p)->starved += starved;
    if (p->phase == COST_UPDATE) t->part[PART_OPTIM] += seconds;
    if (!in_run(p)) return;
    t->part[l->part] += seconds, t->op[op] += seconds;
    t->launch += kind_of(op).kernels * p->hw.launch;
    if (l->replay) t->replay += seconds;
    if (kind_of(op).work != WORK_MEMORY) t->done += flops;
}

static void meter_op(CostListener *m, const Ledger *l, int op, double flops, int64_t bytes, double rows)
{
    Timeline *p = (Timeline *)m;
    if (!p->on) return;
    double seconds = op_seconds(p, op, l->part, flops, (double)bytes, rows), starved;
    p->host += kind_of(op).kernels * p->hw.launch;
    starved = fmax(0, p->host - p->device);
    p->device += starved;
    seconds += p->overlap.held * fmin(seconds, fmax(0, fmax(p->link[0], p->link[1]) - p->device));
    p->device += seconds;
    note_op(p, l, op, seconds, starved, flops);
}

/* ---- communication ---- */

typedef struct Transfer { double intra, inter, delay; } Transfer;  /* seconds on each link; latency */

static bool is_dispatch(int group)
{
    return group == GR_etp_ep || group == GR_ep_intra_node || group == GR_ep_inter_node;
}

/* Gathers of weights and reductions of gradients, inside a replica and over replicas. */
static bool is_sharing(int group) { return group >= GR_shard_dp_cp && group <= GR_copy_ep_edp; }

/* Rows of the busiest rank in calls of a group over the even share. */
static double uneven_of(const Timeline *p, int group) { return is_dispatch(group) ? p->uneven : 1; }

/* A ring over all members, with few hops between nodes; beyond 64 members a tree is used. */
static double ring_delay(const Hardware *h, const CostCall *c)
{
    double nodes = ceil((double)c->members / c->here);
    if (c->members > 64) return log2(c->members) * (nodes > 1 ? h->inter_delay : h->intra_delay);
    return (c->members - nodes) * h->intra_delay + (nodes - 1) * h->inter_delay;
}

static Transfer transfer_of(const Timeline *p, const CostCall *c)
{
    const Hardware *h = &p->hw;
    double intra = h->intra_bw * h->intra_share, inter = h->inter_bw * h->inter_share;
    double u = uneven_of(p, c->group);
    Transfer t = { u * (double)c->intra_node / intra, u * (double)c->inter_node / inter,
                   c->inter_node ? h->inter_delay : h->intra_delay };
    if (c->kind == CALL_ALL_TO_ALL || c->kind == CALL_SEND || c->kind == CALL_PUSH) return t;
    t.intra = c->here > 1 ? (double)(c->intra_node + c->inter_node) / intra : 0;
    t.inter /= c->here * ring_share(ceil((double)c->members / c->here));
    t.delay = ring_delay(h, c) * (c->kind == CALL_ALL_REDUCE ? 2 : 1);
    return t;
}

static void note_call(Timeline *p, const CostCall *c, double seconds)
{
    double *list = in_run(p) ? p->time.comm : p->time.once_comm;
    list[c->group] += seconds;
}

/* A gather of the host: the host waits, and the device too once its queue is empty. */
static void host_call(Timeline *p, const CostCall *c)
{
    double delay = log2(c->members) * (c->members > c->here ? p->hw.inter_delay : p->hw.intra_delay);
    p->host += delay;
    note_call(p, c, delay);
}

/* The end of a call of so many seconds that is started now. */
static double occupy_link(Timeline *p, int link, double now, double seconds, int group)
{
    p->sent[link] += seconds, p->even[link] += seconds / uneven_of(p, group), p->sender[link] = group;
    return p->link[link] = fmax(now, p->link[link]) + seconds;
}

static void meter_start(CostListener *m, const CostCall *c)
{
    Timeline *p = (Timeline *)m;
    if (!p->on) return;
    if (c->kind == CALL_HOST_GATHER) {
        host_call(p, c);
        return;
    }
    p->host += p->hw.launch;
    p->until[c->group][c->slot] = p->least[c->group][c->slot] = 0;
    if (c->kind == CALL_RECV) return;
    Transfer t = transfer_of(p, c);
    double seconds = fmax(t.intra, t.inter) + t.delay;
    if (in_run(p) && (c->group == GR_pp || c->group == GR_pp_back)) {   /* placed by schedule_open */
        p->time.run[p->chunk][c->group == GR_pp_back].send = seconds;
        p->time.comm[c->group] += seconds;
        return;
    }
    double now = fmax(p->device, p->host), ends = now;
    if (t.intra > 0) ends = occupy_link(p, 0, now, t.intra, c->group);
    if (t.inter > 0) ends = fmax(ends, occupy_link(p, 1, now, t.inter, c->group));
    p->until[c->group][c->slot] = ends + t.delay;
    if (is_dispatch(c->group)) run_of(p)->dispatch += seconds;
    p->least[c->group][c->slot] = is_sharing(c->group) ? (1 - p->overlap.dp_hides) * seconds : 0;
    note_call(p, c, seconds);
}

static void wait_for_call(Timeline *p, int group, double wait)
{
    p->device += wait;
    run_of(p)->exposed[group] += wait;
    if (in_run(p)) p->time.exposed[group] += wait;
}

static void meter_join(CostListener *m, int group, int slot)
{
    Timeline *p = (Timeline *)m;
    if (!p->on) return;
    double wait = fmax(p->least[group][slot], p->until[group][slot] - p->device);
    wait_for_call(p, group, wait);
}

static void meter_fetch(CostListener *m)
{
    Timeline *p = (Timeline *)m;
    if (p->on) p->host = fmax(p->host, p->device) + FETCH;
}

/* ---- copy streams ---- */

static void lane_wait(Timeline *p, int id)
{
    double wait = fmax(0, p->mark[id] - p->device);
    p->device += wait;
    run_of(p)->copies += wait;
}

static void meter_side(CostListener *m, CostSide what, int lane, int id, int64_t bytes)
{
    Timeline *p = (Timeline *)m;
    if (!p->on) return;
    switch (what) {
    case COST_COPY:      p->lane[lane] += (double)bytes / (p->hw.host_bw * p->hw.host_share); return;
    case COST_BEGIN:     p->lane[lane] = fmax(p->lane[lane], p->device);                       return;
    case COST_MARK:      p->mark[id] = p->lane[lane];                                          return;
    case COST_WAIT:      lane_wait(p, id);                                                     return;
    case COST_LANE_WAIT: p->lane[lane] = fmax(p->lane[lane], p->mark[id]);                     return;
    }
}

/* ---- phases ---- */

/* Between two passes of a stage others run, in an order that the dry run does not have: each begins with idle
 * links, and takes no less than its own calls do. So does the last micro-batch, if it is not the first. */
static bool begins_idle(const Timeline *p, CostPhase what, bool last)
{
    bool first_of_last = last && !p->last;
    return what <= COST_BACKWARD && (p->stages ? !last || first_of_last : p->single && first_of_last);
}

static void idle_links(Timeline *p)
{
    p->link[0] = p->link[1] = p->device;
    for (int g = 0; g < LEDGER_GROUPS; g++)
        for (int k = 0; k < DEVICE_CALLS; k++) p->until[g][k] = fmin(p->until[g][k], p->device);
}

static void finish_calls(Timeline *p)
{
    for (int k = 0; k < 2 && p->stages && in_run(p); k++) {
        double left = p->since + p->sent[k] - p->device;
        if (left > 0) wait_for_call(p, p->sender[k], left);
    }
}

static void end_phase(Timeline *p)
{
    StageTime *t = &p->time;
    if (!p->on) return;
    finish_calls(p);
    double took = p->device - p->since;
    run_of(p)->seconds += took;
    for (int k = 0; k < 2; k++) run_of(p)->even[k] += p->even[k];
    if (in_run(p)) *(p->phase == COST_FORWARD ? &t->forward : &t->backward) += took;
}

static void restart(Timeline *p)
{
    Timeline fresh = { .meter = p->meter, .hw = p->hw, .precision = p->precision, .uneven = p->uneven,
                       .overlap = p->overlap, .stages = p->stages, .single = p->single };
    *p = fresh;
}

/* Between micro-batches the host waits for the loss, so host and device begin a forward together. */
static void meter_phase(CostListener *m, CostPhase what, int chunk, bool last)
{
    Timeline *p = (Timeline *)m;
    if (what == COST_RESTART) {
        restart(p);
        return;
    }
    end_phase(p);
    if (begins_idle(p, what, last)) idle_links(p);
    for (int k = 0; k < 2; k++)                             /* the update has started the gather's calls */
        p->sent[k] = p->even[k] = what == COST_GATHER ? fmax(0, p->link[k] - p->device) : 0;
    p->on = true, p->phase = what, p->chunk = chunk, p->last = last, p->since = p->device;
    if (what == COST_FORWARD) p->host = p->device;
    if (what <= COST_BACKWARD && chunk >= p->time.chunks) p->time.chunks = chunk + 1;
}

/* The host's time of a launch with what runs as CUDA graphs. */
static double launch_time(const Hardware *hw, const EngineConf *conf)
{
    const double *host = engine_row_at(0)->host;
    Graphs        g = conf->graphs & GRAPH_FULL ? GRAPHS_FULL : conf->graphs ? GRAPHS_PARTIAL : GRAPHS_NONE;
    return hw->launch * host[g] / host[GRAPHS_NONE];
}

Status timeline_open(Timeline **out, const Hardware *hw, const EngineConf *conf, double uneven)
{
    Timeline *p = *out = calloc(1, sizeof *p);
    bool   shared = conf->ranks.layout.ep > 1 && !conf->balance;
    if (!p) return fail(E_FIT, "no host memory for a timeline");
    p->hw = *hw, p->hw.launch = launch_time(hw, conf), p->precision = conf->precision.format;
    p->uneven = shared ? uneven : 1, p->overlap = engine_overlap(hw->backend);
    p->stages = conf->ranks.layout.pp > 1, p->single = conf->ranks.micro <= 1;
    p->meter  = (CostListener){ meter_op, meter_start, meter_join, meter_fetch, meter_side, meter_phase,
                                NULL, NULL };
    return OK;
}

CostListener *timeline_listener(Timeline *p) { return &p->meter; }

/* Adds the parts of b to a, each times `factor` and at least 0. */
static void add_run(RunTime *a, const RunTime *b, double factor)
{
    a->work    = fmax(0, a->work + factor * b->work);
    a->starved = fmax(0, a->starved + factor * b->starved);
    a->copies  = fmax(0, a->copies + factor * b->copies);
    for (int g = 0; g < LEDGER_GROUPS; g++) a->exposed[g] = fmax(0, a->exposed[g] + factor * b->exposed[g]);
}

/* What the last micro-batch takes beyond an ordinary one. A part that is shorter in it makes up for another:
 * the parts are scaled to the difference of the sums. */
static RunTime beyond_ordinary(const Timeline *p)
{
    const StageTime *t = &p->time;
    RunTime all = { 0 }, x = p->final, scaled = { 0 };
    for (int v = 0; v < t->chunks; v++)
        for (int way = 0; way < 2; way++) add_run(&all, &t->run[v][way], 1);
    add_run(&x, &all, -1);
    double seconds = fmax(0, p->final.seconds - t->forward - t->backward), parts = run_parts(&x);
    if (parts > 0) add_run(&scaled, &x, seconds / parts);
    return scaled.seconds = parts > 0 ? seconds : 0, scaled;
}

void timeline_close(Timeline *p, StageTime *out)
{
    if (!p) return;
    end_phase(p);
    p->time.last = beyond_ordinary(p);
    if (out) *out = p->time;
    free(p);
}
