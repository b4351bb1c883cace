/* tests/test_timeline.c -- times computed by hand: ops, exposed and hidden collectives, rings, pipelines of
 * even and uneven stages, the step; then the dry run of a small model. */
#include "lab.h"
#include "base/rng.h"
#include "ops/ops.h"
#include "plan/engines.h"
#include "plan/timeline.h"

static bool near(double a, double b) { return fabs(a - b) <= 1e-9 + 1e-6 * fabs(b); }

/* 1 TFLOP/s, 1 GB/s of memory, 100 MB/s intra-node, 10 MB/s inter-node; everything else is free. */
static Hardware plain(void)
{
    Hardware h = { .id = "plain", .dtype = "f32", .bf16 = 1e12, .sms = 160, .memory_bw = 1e9, .intra_bw = 1e8,
                   .inter_bw = 1e7, .host_bw = 1e8, .intra_share = 1, .inter_share = 1, .host_share = 1,
                   .domain = 8, .error = 0.1, .together = 1 };
    for (int k = 0; k < WORK_N; k++) h.work[k].flat = 1;
    for (int i = 0; i < LEDGER_OPS; i++) h.slow[i] = 1;
    return h;
}

typedef struct Bench {
    Hardware      hw;
    EngineConf    conf;
    Timeline     *p;
    CostListener *m;
    Ledger        l;
    StageTime     t;
} Bench;

static void begin(Bench *b)
{
    EXPECT_OK(timeline_open(&b->p, &b->hw, &b->conf, USUAL_UNEVEN));
    b->m = timeline_listener(b->p);
}
static void end(Bench *b) { timeline_close(b->p, &b->t), b->p = NULL; }
static void phase(Bench *b, CostPhase what, int chunk, bool last) { b->m->phase(b->m, what, chunk, last); }
static void op(Bench *b, int id, double flops, int64_t bytes) { b->m->op(b->m, &b->l, id, flops, bytes, 0); }
static void call(Bench *b, int group, int slot, int kind, int members, int here, int64_t to_near,
                 int64_t to_far)
{
    b->m->start(b->m, &(CostCall){ group, slot, kind, members, here, to_near, to_far, 0 });
}
static void join(Bench *b, int group, int slot) { b->m->join(b->m, group, slot); }

static void work_of_ops(void)
{
    Bench b = { .hw = plain() };
    b.hw.slow[OP_rmsnorm_bwd] = 2;
    begin(&b);
    op(&b, OP_gemm, 1e12, 0);                                    /* before the first phase: not counted */
    phase(&b, COST_FORWARD, 0, false);
    b.l.part = PART_DECODER;
    op(&b, OP_gemm, 2e12, 0);
    op(&b, OP_gemm, 1e12, 3000000000);                           /* its bytes take longer */
    op(&b, OP_rmsnorm_fwd, 1e15, 500000000);                     /* its arithmetic is free */
    phase(&b, COST_BACKWARD, 0, false);
    b.l.part = PART_HEAD, b.l.replay = true;
    op(&b, OP_rmsnorm_bwd, 0, 500000000);
    phase(&b, COST_UPDATE, 0, true);
    op(&b, OP_adamw, 0, 4000000000);
    end(&b);
    EXPECT(near(b.t.forward, 5.5) && near(b.t.backward, 1) && near(b.t.update.seconds, 4),
           "%g %g %g", b.t.forward, b.t.backward, b.t.update.seconds);
    EXPECT(near(b.t.part[PART_DECODER], 5.5) && near(b.t.part[PART_HEAD], 1) && near(b.t.part[PART_OPTIM], 4),
           "by part");
    EXPECT(near(b.t.op[OP_gemm], 5) && near(b.t.replay, 1) && near(b.t.done, 3e12), "by op");
}

/* Products in 8 bits take their own rate, where the hardware has one; as many FLOPs are done. */
static void products_in_8_bits(void)
{
    for (int has = 0; has < 2; has++) {
        Bench b = { .hw = plain() };
        if (has) b.hw.fp8 = 4e12, b.hw.fp8_share = 0.5;
        begin(&b);
        phase(&b, COST_FORWARD, 0, false);
        op(&b, OP_gemm_fp8, 2e12, 0);
        op(&b, OP_grouped_gemm_fp8, 4e12, 0);
        op(&b, OP_gemm_fp8, 2e12, 3000000000);                   /* its bytes take longer */
        op(&b, OP_gemm, 2e12, 0);
        end(&b);
        EXPECT(near(b.t.op[OP_gemm_fp8], has ? 1 + 3 : 2 + 3), "%g", b.t.op[OP_gemm_fp8]);
        EXPECT(near(b.t.op[OP_grouped_gemm_fp8], has ? 2 : 4), "%g", b.t.op[OP_grouped_gemm_fp8]);
        EXPECT(near(b.t.op[OP_gemm], 2) && near(b.t.done, 10e12), "%g %g", b.t.op[OP_gemm], b.t.done);
    }
}

/* Microscaled products take the rate of the format of the run where the hardware has it. */
static void microscaled_products(void)
{
    static const double seconds[2][2] = { { 2, 1 }, { 2, 0.25 } };         /* [NVFP4][the GPU has them] */
    for (int four = 0; four < 2; four++) for (int has = 0; has < 2; has++) {
        Bench b = { .hw = plain(), .conf.precision.format = four ? PREC_NVFP4 : PREC_MXFP8 };
        b.hw.fp8 = 4e12, b.hw.fp8_share = 0.5;
        if (has) b.hw.fp4 = 16e12, b.hw.fp4_share = 0.5;
        begin(&b);
        phase(&b, COST_FORWARD, 0, false);
        op(&b, OP_gemm_micro, 2e12, 0);
        op(&b, OP_grouped_gemm_micro, 2e12, 0);
        end(&b);
        EXPECT(near(b.t.op[OP_gemm_micro], seconds[four][has]) &&
               near(b.t.op[OP_grouped_gemm_micro], seconds[four][has]), "%g %g", b.t.op[OP_gemm_micro],
               b.t.op[OP_grouped_gemm_micro]);
    }
}

static void kinds_of_work(void)
{
    Bench b = { .hw = plain(), .conf = { .ranks = { .layout = { .ep = 2 } } } };
    b.hw.work[WORK_VISION].flat = 0.5, b.hw.work[WORK_ATTENTION].flat = 0.25;
    b.hw.work[WORK_GROUPED] = (Curve){ .n = 2, .work = { 115, 1150 }, .share = { 0.5, 1 }, .flat = 1 };
    begin(&b);
    phase(&b, COST_FORWARD, 0, false);
    b.l.part = PART_VISION;
    op(&b, OP_attention_fwd, 1e12, 0);
    b.l.part = PART_DECODER;
    op(&b, OP_attention_fwd, 1e12, 0);
    b.m->op(b.m, &b.l, OP_grouped_gemm, 1e12, 0, 100);           /* of 115 on the busiest rank */
    end(&b);
    EXPECT(near(b.t.op[OP_attention_fwd], 6) && near(b.t.op[OP_grouped_gemm], 2.3), "%g %g",
           b.t.op[OP_attention_fwd], b.t.op[OP_grouped_gemm]);
}

/* The host launches first; a fetch makes the host wait, and then the device. */
static void launches(void)
{
    Bench b = { .hw = plain() };
    b.hw.launch = 1;
    begin(&b);
    phase(&b, COST_FORWARD, 0, false);
    op(&b, OP_gemm, 5e12, 0);                                    /* launched at 1, done at 6 */
    for (int i = 0; i < 3; i++) op(&b, OP_gemm, 1e11, 0);        /* launched by 4: the device is behind */
    b.m->fetch(b.m);
    op(&b, OP_gemm, 1e12, 0);
    op(&b, OP_gemm, 1e11, 0);
    end(&b);
    double first = 6.3 + 10e-6 + 1;
    EXPECT(near(b.t.forward, first + 1.1), "%.9g, want %.9g", b.t.forward, first + 1.1);
    EXPECT(near(b.t.run[0][0].starved, 2 + 10e-6) && near(b.t.launch, 6), "%g", b.t.run[0][0].starved);
}

static void ring_costs(void)
{
    Bench b = { .hw = plain() };
    b.hw.intra_delay = 0.5, b.hw.inter_delay = 2;
    begin(&b);
    phase(&b, COST_FORWARD, 0, false);
    /* all_gather of 8 on a node: 7/8 of 800 MB and 7 hops; an all_reduce has twice of both. */
    call(&b, GR_dp_cp, 0, CALL_ALL_GATHER, 8, 8, 700000000, 0), join(&b, GR_dp_cp, 0);
    call(&b, GR_tp, 0, CALL_ALL_REDUCE, 8, 8, 1400000000, 0), join(&b, GR_tp, 0);
    /* two nodes of 4: half of it is inter-node, over four NICs; 6 intra-node hops and one inter-node. */
    call(&b, GR_edp, 0, CALL_REDUCE_SCATTER, 8, 4, 300000000, 400000000), join(&b, GR_edp, 0);
    call(&b, GR_cp, 0, CALL_ALL_TO_ALL, 4, 2, 100000000, 50000000), join(&b, GR_cp, 0);
    end(&b);
    EXPECT(near(b.t.exposed[GR_dp_cp], 7 + 3.5), "%g", b.t.exposed[GR_dp_cp]);
    EXPECT(near(b.t.exposed[GR_tp], 14 + 7), "%g", b.t.exposed[GR_tp]);
    EXPECT(near(b.t.exposed[GR_edp], 10 / 0.97 + 3 + 2), "%g", b.t.exposed[GR_edp]);
    EXPECT(near(b.t.exposed[GR_cp], 5 + 2), "%g", b.t.exposed[GR_cp]);
    double across = 10 / 0.97 + 5; /* a ring over two nodes loses 3 % */
    EXPECT(near(b.t.comm[GR_edp], across) && near(b.t.forward, 10.5 + 21 + across + 7), "%g", b.t.forward);
}

/* Compute between start and join hides a share of a call and is slower meanwhile; a link carries one call at
 * a time. */
static void exposed_and_hidden(void)
{
    Bench b = { .hw = plain() };
    double held = engine_row_at(0)->held, left = 1 - engine_row_at(0)->dp_hides;
    begin(&b);
    phase(&b, COST_FORWARD, 0, false);
    call(&b, GR_shard_dp_cp, 3, CALL_ALL_GATHER, 2, 2, 200000000, 0);                  /* 2 s */
    op(&b, OP_gemm, 5e12, 0);
    join(&b, GR_shard_dp_cp, 3);
    call(&b, GR_shard_dp_cp, 3, CALL_ALL_GATHER, 2, 2, 200000000, 0);
    call(&b, GR_shard_edp, 3, CALL_ALL_GATHER, 2, 2, 300000000, 0);    /* after it: until 5 + 2 + 3 */
    op(&b, OP_gemm, 1e12, 0);
    join(&b, GR_shard_dp_cp, 3);
    join(&b, GR_shard_edp, 3);
    end(&b);
    EXPECT(near(b.t.exposed[GR_shard_dp_cp], 2 * left + 1 - held) && near(b.t.exposed[GR_shard_edp], 3) &&
               near(b.t.forward, 10 + 2 * left + 2 * held),
           "%g %g %g", b.t.exposed[GR_shard_dp_cp], b.t.exposed[GR_shard_edp], b.t.forward);
}

/* Passes of a stage follow each other in an order that a dry run does not have: each takes its own calls, and
 * a slower pass before it makes none shorter. The last micro-batch is the only one, or follows another. */
static void passes_begin_idle(void)
{
    double hidden = 1 - engine_row_at(0)->dp_hides;
    for (int slow = 1; slow <= 2; slow++) {
        Bench b = { .hw = plain(), .conf = { .ranks = { .layout = { .pp = 2 }, .micro = 2 } } };
        begin(&b);
        phase(&b, COST_FORWARD, 0, false), op(&b, OP_gemm, slow * 4e12, 0);
        call(&b, GR_shard_dp_cp, 0, CALL_ALL_TO_ALL, 2, 2, 1000000000, 0);
        phase(&b, COST_BACKWARD, 0, false), op(&b, OP_gemm, 4e12, 0);
        join(&b, GR_shard_dp_cp, 0);
        end(&b);
        EXPECT(near(b.t.forward, 10) && near(b.t.backward, 4 + 10 * hidden), "%g %g", b.t.forward,
               b.t.backward);
    }
    for (int micros = 1; micros <= 2; micros++) {
        Bench b = { .hw = plain(), .conf = { .ranks = { .micro = micros } } };
        begin(&b);
        phase(&b, COST_BACKWARD, 0, false);
        call(&b, GR_shard_dp_cp, 0, CALL_ALL_TO_ALL, 2, 2, 1000000000, 0);
        phase(&b, COST_BACKWARD, 0, true);
        join(&b, GR_shard_dp_cp, 0);
        end(&b);
        double wait = micros == 1 ? 10 * hidden : 10;
        EXPECT(near(b.t.last.seconds, wait), "%d micro-batches: %g s", micros, b.t.last.seconds);
    }
}

/* Copies wait for compute, and compute for copies, at events. */
static void copy_streams(void)
{
    Bench b = { .hw = plain() };
    begin(&b);
    phase(&b, COST_FORWARD, 0, false);
    op(&b, OP_gemm, 1e12, 0);
    b.m->side(b.m, COST_BEGIN, COPY_D2H, 0, 0);
    b.m->side(b.m, COST_COPY, COPY_D2H, 0, 400000000);          /* from 1 to 5 */
    b.m->side(b.m, COST_MARK, COPY_D2H, 7, 0);
    op(&b, OP_gemm, 2e12, 0);
    b.m->side(b.m, COST_LANE_WAIT, COPY_H2D, 7, 0);
    b.m->side(b.m, COST_COPY, COPY_H2D, 0, 100000000);           /* from 5 to 6 */
    b.m->side(b.m, COST_MARK, COPY_H2D, 8, 0);
    b.m->side(b.m, COST_WAIT, COPY_H2D, 9, 0);                   /* never recorded */
    b.m->side(b.m, COST_WAIT, COPY_H2D, 8, 0);
    end(&b);
    EXPECT(near(b.t.forward, 6) && near(b.t.run[0][0].copies, 3), "%g %g", b.t.forward, b.t.run[0][0].copies);
}

/* Reductions begin in the last backward and are joined in the update; gathers belong to the next forward. */
static void end_of_a_step(void)
{
    Bench b = { .hw = plain() };
    DryStep d;
    double  held = 3 * engine_row_at(0)->held;
    begin(&b);
    phase(&b, COST_FORWARD, 0, false),  op(&b, OP_gemm, 2e12, 0);
    phase(&b, COST_BACKWARD, 0, false), op(&b, OP_gemm, 4e12, 0);
    phase(&b, COST_FORWARD, 0, true),   op(&b, OP_gemm, 2e12, 0);
    phase(&b, COST_BACKWARD, 0, true),  op(&b, OP_gemm, 1e12, 0);
    call(&b, GR_dp_cp, 0, CALL_REDUCE_SCATTER, 2, 2, 500000000, 0);     /* 5 s, of which 3 hide */
    op(&b, OP_gemm, 3e12, 0);
    phase(&b, COST_UPDATE, 0, true);
    join(&b, GR_dp_cp, 0), op(&b, OP_adamw, 0, 1000000000);
    call(&b, GR_dp_cp, 0, CALL_ALL_GATHER, 2, 2, 600000000, 0);
    phase(&b, COST_GATHER, 0, true), join(&b, GR_dp_cp, 0);
    end(&b);
    EXPECT(near(b.t.last.seconds, held) && near(b.t.update.seconds, 3 - held) && near(b.t.update.work, 1) &&
               near(b.t.gather.seconds, 6),
           "%g %g %g", b.t.last.seconds, b.t.update.seconds, b.t.gather.seconds);
    EXPECT(near(b.t.update.exposed[GR_dp_cp], 2 - held) && near(b.t.once_comm[GR_dp_cp], 11), "%g",
           b.t.update.exposed[GR_dp_cp]);
    StepAsk ask = { .hw = &b.hw, .pipe = { 1, 1, 5, 0, 0 }, .dtype = F32, .ranks = 2, .tokens = 370,
                    .flops = 74e12 };
    EXPECT_OK(timeline_step(&d, &ask, &b.t, 1, NULL));
    EXPECT(near(d.step, 5 * 6 + 3 + 4), "%g: the first forward hides 2 of 6", d.step);
    EXPECT(near(d.tokens_s, 10) && near(d.model_tflops, 1) && near(d.mfu, 1) && near(d.error, 0.25), "%g %g",
           d.tokens_s, d.model_tflops);
    EXPECT(near(d.compute, 30 + held) && near(d.optimizer, 1) && near(d.bubble, 0), "%g %g", d.compute,
           d.bubble);
    double parts = d.compute + d.optimizer + d.bubble + d.launch;
    for (int g = 0; g < LEDGER_GROUPS; g++) parts += d.exposed[g];
    EXPECT(near(parts, d.step), "parts are %g, the step %g", parts, d.step);
}

/* The last micro-batch takes 2 s more than others, in which it waits for a collective; host copies and
 * launches of the update are parts as well. */
static void parts_are_the_step(void)
{
    Bench b = { .hw = plain() };
    DryStep d;
    b.hw.launch = 0.5;
    begin(&b);
    for (int last = 0; last < 2; last++) {
        phase(&b, COST_FORWARD, 0, last), op(&b, OP_gemm, 2e12, 0);
        call(&b, GR_etp_ep, 0, CALL_ALL_TO_ALL, 2, 2, 100000000 * (1 + 2 * last), 0);
        join(&b, GR_etp_ep, 0);
        phase(&b, COST_BACKWARD, 0, last), op(&b, OP_gemm, 4e12, 0);
    }
    phase(&b, COST_UPDATE, 0, true);
    b.m->side(b.m, COST_BEGIN, COPY_H2D, 0, 0), b.m->side(b.m, COST_COPY, COPY_H2D, 0, 700000000);
    b.m->side(b.m, COST_MARK, COPY_H2D, 1, 0), b.m->side(b.m, COST_WAIT, COPY_H2D, 1, 0);
    b.m->fetch(b.m), op(&b, OP_adamw, 0, 1000000000);
    end(&b);
    EXPECT(near(b.t.last.seconds, 2) && near(b.t.last.exposed[GR_etp_ep], 2), "%g", b.t.last.seconds);
    StepAsk ask = { .hw = &b.hw, .pipe = { 1, 1, 3, 0, 0 }, .dtype = F32, .ranks = 2, .flops = 1 };
    EXPECT_OK(timeline_step(&d, &ask, &b.t, 1, NULL));
    double parts = d.compute + d.optimizer + d.bubble + d.launch + d.copies + d.exposed[GR_etp_ep];
    EXPECT(near(parts, d.step) && near(d.copies, 7) && near(d.exposed[GR_etp_ep], 3 * 1 + 2),
           "parts are %g, the step %g, copies %g", parts, d.step, d.copies);
}

/* A plan that ran out of space begins again: what came before does not count. */
static void restarts(void)
{
    Bench b = { .hw = plain() };
    begin(&b);
    phase(&b, COST_FORWARD, 0, false), op(&b, OP_gemm, 9e12, 0);
    phase(&b, COST_RESTART, 0, false);
    phase(&b, COST_FORWARD, 0, false), op(&b, OP_gemm, 2e12, 0);
    end(&b);
    EXPECT(near(b.t.forward, 2) && near(b.t.done, 2e12), "%g", b.t.forward);
}

/* ---- pipelines ---- */

static void stages_alike(StageTime *t, int stages, int chunks, double f, double b)
{
    for (int s = 0; s < stages; s++) {
        t[s].chunks = chunks;
        for (int v = 0; v < chunks; v++) {
            t[s].run[v][0] = (RunTime){ .seconds = f, .work = f };
            t[s].run[v][1] = (RunTime){ .seconds = b, .work = b };
        }
    }
}

static void even_bubbles(void)
{
    static StageTime t[8];
    Hardware hw = plain();
    static const PipeShape shapes[] = { { 4, 1, 8, 0, 0 }, { 2, 1, 5, 0, 0 }, { 8, 1, 8, 0, 0 },
                                        { 1, 1, 3, 0, 0 }, { 4, 2, 8, 0, 0 }, { 2, 4, 6, 0, 0 },
                                        { 4, 3, 12, 0, 0 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const PipeShape *s = &shapes[i];
        Schedule x;
        stages_alike(t, s->stages, s->chunks, 1, 1);
        EXPECT_OK(schedule_open(&x, t, s, &hw));
        double bubble = (x.end - x.busy[0]) / x.end;
        EXPECT(near(bubble, pipe_bubble(s)), "%d stages, %d chunks, %d micros: bubble %g, want %g", s->stages,
               s->chunks, s->micros, bubble, pipe_bubble(s));
        for (int k = 0; k < s->stages; k++)
            EXPECT(near(x.busy[k], 2.0 * s->micros * s->chunks), "busy %g", x.busy[k]);
        schedule_close(&x);
    }
}

/* 1F1B: the bubble is (stages - 1)(f + b), backward twice as long or not. */
static void forward_unlike_backward(void)
{
    static StageTime t[4];
    Hardware  hw = plain();
    PipeShape s = { 4, 1, 6, 0, 0 };
    Schedule  x;
    stages_alike(t, 4, 1, 1, 2);
    EXPECT_OK(schedule_open(&x, t, &s, &hw));
    EXPECT(near(x.end, 6 * 3 + 3 * 3), "%g", x.end);
    schedule_close(&x);
}

/* Below the first trainable layer there are forwards only: they wait for no gradient and hide nothing behind
 * a backward, and the bubble is that of the stages above. */
static void stages_without_a_backward(void)
{
    static StageTime t[4];
    Hardware  hw = plain();
    Schedule  x;
    for (int ahead = 0; ahead < 2; ahead++) {
        PipeShape s = { 4, 1, 6, 0, ahead };
        stages_alike(t, 4, 1, 1, 2);
        t[2].floor = (PipeBackwardStop){ 0, true };
        for (int i = 0; i < 2; i++) {
            t[i].floor = (PipeBackwardStop){ 1, false };
            t[i].run[0][PIPE_BACKWARD] = (RunTime){ 0 };
            t[i].run[0][PIPE_FORWARD].exposed[GR_etp_ep] = 0.5;
        }
        EXPECT_OK(schedule_open(&x, t, &s, &hw));
        EXPECT(near(x.busy[0], 6) && near(x.busy[1], 6) && near(x.busy[3], 18), "busy %g, %g, %g", x.busy[0],
               x.busy[1], x.busy[3]);
        EXPECT(x.hidden[0] == 0 && x.hidden[1] == 0, "hidden %g, %g", x.hidden[0], x.hidden[1]);
        if (!ahead) EXPECT(near(x.end, 2 + 6 * 3 + 3), "%g", x.end);
        schedule_close(&x);
        memset(t, 0, sizeof t);
    }
}

/* The slowest stage sets the pace: its passes, and what comes before and after them. Messages take time. */
static void uneven_stages(void)
{
    static StageTime t[3];
    Hardware  hw = plain();
    PipeShape s = { 3, 1, 20, 0, 0 };
    Schedule  x;
    stages_alike(t, 3, 1, 1, 2);
    t[1].run[0][0].seconds = 2, t[1].run[0][1].seconds = 4;
    EXPECT_OK(schedule_open(&x, t, &s, &hw));
    EXPECT(near(x.end, 1 + 20 * 6 + 1 + 2), "%g: a second of waiting for the last stage's first", x.end);
    schedule_close(&x);
    PipeShape two = { 2, 1, 1, 0, 0 };
    stages_alike(t, 2, 1, 1, 2);
    t[0].run[0][0].send = 0.25, t[1].run[0][1].send = 0.5;
    EXPECT_OK(schedule_open(&x, t, &two, &hw));
    EXPECT(near(x.end, 1 + 0.25 + 3 + 0.5 + 2), "%g", x.end);
    schedule_close(&x);
}

/* For any times of stages: a stage does one thing at a time unless passes overlap, and the end is not before
 * that of the busiest stage. */
static void any_schedule(void)
{
    static StageTime t[6];
    Hardware hw = plain();
    uint64_t seed = 4711;
    printf("  seed %llu\n", (unsigned long long)seed);
    for (uint64_t turn = 0; turn < 60; turn++) {
        int stages = 1 + (int)(turn % 6), chunks = stages > 1 ? 1 + (int)(turn / 6 % 3) : 1;
        PipeShape s = { stages, chunks, stages * (1 + (int)(turn % 3)), 0, turn % 2 };
        Schedule x;
        stages_alike(t, stages, chunks, 1, 2);
        double most = 0;
        for (int i = 0; i < stages; i++) {
            double all = 0;
            for (int k = 0; k < 2 * chunks; k++) {
                RunTime *r = &t[i].run[k / 2][k % 2];
                r->seconds = r->work = 0.5 + rng_uniform(seed, turn, (uint64_t)(i * 64 + k));
                all += r->seconds * s.micros;
            }
            most = fmax(most, all);
        }
        EXPECT_OK(schedule_open(&x, t, &s, &hw));
        EXPECT(x.end >= most - 1e-9 && x.actions == 2 * s.micros * chunks, "turn %d: %g", (int)turn, x.end);
        for (int i = 0; i < stages; i++)
            for (int k = 1; k < x.actions; k++) {
                const ScheduleSpan *a = &x.span[i * x.actions + k - 1], *b = a + 1;
                bool pair = s.extra_warmup && near(b->from, a->from);
                EXPECT(b->from >= a->to - 1e-9 || pair, "turn %d stage %d action %d", (int)turn, i, k);
            }
        schedule_close(&x);
    }
}

/* An overlapped forward and backward hide a part of the expert dispatch, and not more. */
/* Two overlapped passes take no less than their calls with equal rows for all ranks: of uneven ones another
 * rank is the busiest from call to call. CPU ranks hide reductions behind all of their compute. */
static void uneven_calls_even_out(void)
{
    Bench b = { .hw = plain(), .conf = { .ranks = { .layout = { .ep = 2 }, .micro = 2 } } };
    begin(&b);
    phase(&b, COST_FORWARD, 0, false);
    call(&b, GR_etp_ep, 0, CALL_ALL_TO_ALL, 2, 2, 200000000, 0), join(&b, GR_etp_ep, 0);
    call(&b, GR_tp, 0, CALL_ALL_GATHER, 2, 2, 100000000, 0), join(&b, GR_tp, 0);
    end(&b);
    EXPECT(near(b.t.exposed[GR_etp_ep], 2 * USUAL_UNEVEN) && near(b.t.run[0][0].even[0], 2 + 1) &&
               b.t.run[0][0].even[1] == 0,
           "%g, even %g", b.t.exposed[GR_etp_ep], b.t.run[0][0].even[0]);
    EngineOverlap cpu = engine_overlap("cpu"), gpu = engine_overlap("cuda");
    EXPECT(cpu.held == 0 && cpu.dp_hides == 1 && gpu.dp_hides == engine_row_at(0)->dp_hides, "overlap");
}

/* The all-gather of weights hides behind the next forward as far as that leaves the link free. */
static void gathers_share_links(void)
{
    for (int inter = 0; inter <= 1; inter++) {
        Bench b = { .hw = plain() };
        DryStep d;
        begin(&b);
        phase(&b, COST_FORWARD, 0, false);
        op(&b, OP_gemm, 3e12, 0);
        call(&b, GR_tp, 0, CALL_ALL_GATHER, 2, 2, 400000000, 0), join(&b, GR_tp, 0);         /* 4 s */
        phase(&b, COST_UPDATE, 0, true);
        call(&b, GR_dp_cp, 0, CALL_ALL_TO_ALL, 2, 2, inter ? 0 : 500000000, inter ? 250000000 : 0);
        op(&b, OP_gemm, 1e12, 0);                                                            /* hides 1 s */
        phase(&b, COST_GATHER, 0, true), join(&b, GR_dp_cp, 0);
        end(&b);
        StepAsk ask = { .hw = &b.hw, .pipe = { 1, 1, 1, 0, 0 }, .dtype = F32, .ranks = 2, .tokens = 1,
                        .flops = 1 };
        EXPECT_OK(timeline_step(&d, &ask, &b.t, 1, NULL));
        double left = b.t.gather.seconds, apart = fmax(0, left - 7), shared = fmax(0, left + 4 - 7);
        EXPECT(near(d.exposed[GR_dp_cp], inter ? apart : shared) && left > 3, "%d: %g of %g", inter,
               d.exposed[GR_dp_cp], left);
    }
}

static void overlap_hides(void)
{
    static StageTime t[1];
    Hardware  hw = plain();
    PipeShape s = { 1, 1, 4, 0, 1 };
    Schedule  x;
    stages_alike(t, 1, 1, 10, 20);
    t[0].run[0][0].seconds += 2, t[0].run[0][0].exposed[GR_etp_ep] = 2;
    t[0].run[0][1].seconds += 4, t[0].run[0][1].exposed[GR_ep_inter_node] = 4;
    t[0].run[0][0].dispatch = 2, t[0].run[0][1].dispatch = 4;
    EXPECT_OK(schedule_open(&x, t, &s, &hw));
    const EngineRow *e     = engine_row_at(0);
    double           saved = 3 * e->hides * 6 * (1 - e->held); /* three overlapped pairs */
    EXPECT(near(x.end, 4 * 36 - saved) && near(x.hidden[0], saved), "%g, want %g", x.end, 4 * 36 - saved);
    schedule_close(&x);
    t[0].run[0][0].even[1] = t[0].run[0][1].even[1] = 17.5;  /* a link is busy for all but one second */
    EXPECT_OK(schedule_open(&x, t, &s, &hw));
    saved = 3 * 1 * (1 - e->held);
    EXPECT(near(x.end, 4 * 36 - saved), "%g, want %g", x.end, 4 * 36 - saved);
    schedule_close(&x);
}

static void bottlenecks(void)
{
    static StageTime t[4];
    Hardware hw = plain();
    DryStep  d;
    StepAsk  ask = { .hw = &hw, .pipe = { 1, 1, 2, 0, 0 }, .ranks = 1, .tokens = 1, .flops = 1 };
    stages_alike(t, 4, 1, 1, 1);
    EXPECT_OK(timeline_step(&d, &ask, t, 1, NULL));
    EXPECT(!strcmp(d.wall, "compute") && near(d.error, 0.1), "%s", d.wall);
    t[0].run[0][0].starved = 0.5, t[0].run[0][0].seconds = 1.5;
    EXPECT_OK(timeline_step(&d, &ask, t, 1, NULL));
    EXPECT(!strcmp(d.wall, "host") && near(d.launch, 1), "%s", d.wall);
    stages_alike(t, 4, 1, 1, 1);
    t[0].replay = 0.5;
    EXPECT_OK(timeline_step(&d, &ask, t, 1, NULL));
    EXPECT(!strcmp(d.wall, "memory"), "%s", d.wall);
    t[0].replay = 0;
    ask.pipe.stages = 4, ask.dtype = BF16;
    EXPECT_OK(timeline_step(&d, &ask, t, 4, NULL));
    EXPECT(!strcmp(d.wall, "communication") && d.bubble > 0 && near(d.error, 0.5), "%s", d.wall);
}

/* ---- a model ---- */

static const char tiny[] =
    "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 512, \"hidden_size\": 64, \"num_hidden_layers\": 4, "
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 32, \"intermediate_size\": 128, "
    "\"moe_intermediate_size\": 32, \"num_experts\": 8, \"num_experts_per_tok\": 2, \"rope_theta\": 1000000, "
    "\"tie_word_embeddings\": false}";

static void plan_tiny(StageTime *t, EnginePlan *plan, const Hardware *hw, int ranks, int ep, int zero)
{
    Json       *hf;
    ModelShape  s;
    Comm       *world = NULL;
    CommConf    who = { .kind = "fake", .rank = 0, .size = ranks, .per_node = ranks };
    EXPECT_OK(json_parse(&hf, tiny, sizeof tiny - 1, "tiny"));
    EXPECT_OK(shape_read(&s, hf, "tiny"));
    json_decref(hf);
    EngineConf conf = { .backend = "cpu", .dtype = F32, .train = true, .aux = AUX_LAYER,
                        .budget = { .tokens = 256, .docs = 4, .supervised = 256 } };
    policy_default(conf.policy);
    EXPECT_OK(comm_open(&world, &who));
    conf.ranks = (Ranks){ .world = world, .zero = zero, .micro = 1, .dispatch = { .name = "auto" },
                          .layout = { .tp = 1, .cp = 1, .pp = 1, .vpp = 1, .ep = ep, .etp = 1, .replicas = 1,
                                      .cp_inner = 1, .kv_heads = 2 },
                          .chunk = { { 0, s.text.L, true, true } } };
    StreamShape ss = shape_stream(&s);
    Stream full = stream_full(&ss, &conf.budget);
    Timeline *p;
    EXPECT_OK(timeline_open(&p, hw, &conf, USUAL_UNEVEN));
    conf.meter = timeline_listener(p);
    EXPECT_OK(engine_plan(plan, &s, &conf, &full));
    timeline_close(p, t);
    comm_close(world);
}

static double all(const double *v, int n)
{
    double x = 0;
    for (int i = 0; i < n; i++) x += v[i];
    return x;
}

/* Every op of the ledger of a plan is in the time, and the FLOPs are those of the ledger. */
static void dry_run_of_a_model(void)
{
    static StageTime t, wide, sharded;
    static EnginePlan plan, other;
    Hardware hw = plain();
    plan_tiny(&t, &plan, &hw, 1, 1, 0);
    double flops = 0;
    for (int i = 0; i < OP_N; i++) {
        const LedgerRow *r = &plan.ledger.op[i];
        flops += r->flops + r->extra;
        EXPECT((r->bytes > 0) == (t.op[i] > 0), "%s: %g s", op_name(i), t.op[i]);
    }
    EXPECT(near(flops, t.done), "%g FLOPs of %g", t.done, flops);
    EXPECT(near(all(t.op, LEDGER_OPS), all(t.part, PART_OPTIM)), "ops and parts");
    EXPECT(near(t.forward + t.backward, all(t.op, LEDGER_OPS)), "%g, work %g", t.forward + t.backward,
           all(t.op, LEDGER_OPS));
    EXPECT(t.update.seconds > 0 && t.gather.seconds == 0 && all(t.comm, LEDGER_GROUPS) == 0, "alone");
    EXPECT(!plan.ledger.meter && !plan.step_ledger.meter, "the listener is detached");
    plan_tiny(&wide, &other, &hw, 4, 4, 0);
    EXPECT(wide.exposed[GR_etp_ep] > 0 && all(wide.once_comm, LEDGER_GROUPS) > 0, "four ranks");
    plan_tiny(&sharded, &other, &hw, 4, 1, 3);
    EXPECT(all(sharded.comm, LEDGER_GROUPS) > all(sharded.exposed, LEDGER_GROUPS), "some of it hides");
    EXPECT(sharded.update.work < t.update.work / 2, "a quarter of the state");
}

int main(void)
{
    RUN(work_of_ops);
    RUN(products_in_8_bits);
    RUN(microscaled_products);
    RUN(kinds_of_work);
    RUN(launches);
    RUN(ring_costs);
    RUN(exposed_and_hidden);
    RUN(passes_begin_idle);
    RUN(copy_streams);
    RUN(end_of_a_step);
    RUN(parts_are_the_step);
    RUN(restarts);
    RUN(even_bubbles);
    RUN(forward_unlike_backward);
    RUN(stages_without_a_backward);
    RUN(uneven_stages);
    RUN(any_schedule);
    RUN(overlap_hides);
    RUN(uneven_calls_even_out);
    RUN(gathers_share_links);
    RUN(bottlenecks);
    RUN(dry_run_of_a_model);
    return lab_report();
}
