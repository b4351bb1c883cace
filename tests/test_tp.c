/* tests/test_tp.c -- attention, feed-forward, embedding and head cut over tp: outputs and gradients are those
 * of one rank. */
#include "tplab.h"

#include "nn/decoder.h"
#include "nn/head.h"

static struct {
    int64_t Ta, D, H, G, C, F, V, S, chunk, pad;
    bool    bias, tied, drop, each;
} now_;

static const Tensor none;

static int64_t draw(int64_t lo, int64_t hi)
{
    static uint64_t n;
    return lo + (int64_t)rng_below(tp_.seed, rng_stream("draw"), n++, (uint64_t)(hi - lo + 1));
}

/* Sums in another order, of up to a thousand products; a layer run twice is a few modules in a row. */
static double tolerance(DType d, bool layer) { return (d == F32 ? 2e-6 : 2e-2) * (layer ? 5 : 1); }

/* ---- modules as model/qwen3_build.c declares them ---- */

static Attention attention_of(Rig *r)
{
    ParamSet *s = &r->set;
    int64_t q = now_.H * now_.C, kv = now_.G * now_.C;
    Attention a = { .H = now_.H, .G = now_.G, .C = now_.C, .R = now_.C, .eps = 1e-6f };
    a.norm  = tp_bind(r, param_vector(s, G_LLM, INIT_ONE, now_.D, "norm"), false);
    a.w_qkv = param_matrix(s, G_LLM, q, now_.D, "qkv");
    param_piece(a.w_qkv, kv, "k"), param_piece(a.w_qkv, kv, "v");
    param_cut_heads(s, a.w_qkv, now_.C);
    a.w_o = param_matrix(s, G_LLM, now_.D, q, "o");
    param_cut(s, a.w_o, AX_TP, 1);
    tp_bind(r, a.w_qkv, true), tp_bind(r, a.w_o, true);
    a.q_norm = tp_bind(r, param_vector(s, G_LLM, INIT_ONE, now_.C, "q_norm"), false);
    a.k_norm = tp_bind(r, param_vector(s, G_LLM, INIT_ONE, now_.C, "k_norm"), false);
    if (!now_.bias) return a;
    a.b_qkv = param_vector(s, G_LLM, INIT_ZERO, q, "b_qkv");
    param_piece(a.b_qkv, kv, "b_k"), param_piece(a.b_qkv, kv, "b_v");
    param_cut_heads(s, a.b_qkv, now_.C);
    tp_bind(r, a.b_qkv, false);
    a.b_o = tp_bind(r, param_vector(s, G_LLM, INIT_ZERO, now_.D, "b_o"), false);
    return a;
}

static Mlp mlp_of(Rig *r)
{
    Mlp m = { .I = now_.F };
    m.w_gu = param_matrix(&r->set, G_LLM, now_.F, now_.D, "gate_up");
    param_piece(m.w_gu, now_.F, "up");
    m.w_d = param_matrix(&r->set, G_LLM, now_.D, now_.F, "down");
    param_cut(&r->set, m.w_gu, AX_TP, 0), param_cut(&r->set, m.w_d, AX_TP, 1);
    tp_bind(r, m.w_gu, true), tp_bind(r, m.w_d, true);
    return m;
}

static Param *table_of(Rig *r, const char *name, bool fresh)
{
    Param *p = param_matrix(&r->set, G_LLM, now_.V, now_.D, "%s", name);
    param_cut(&r->set, p, AX_TP, 0);
    return tp_bind(r, p, fresh);
}

static void give_grads(Rig *r)
{
    for (int i = 0; i < r->set.n; i++) tp_give_grad(r, r->set.p[i]);
}

/* Three documents and a tail that belongs to none. */
static void batch_of(Rig *r)
{
    Batch  *b = &r->batch;
    int64_t Ta = now_.Ta, start[4] = { 0, Ta / 3, Ta / 2, Ta - Ta / 7 };
    *b = (Batch){ .T = Ta / r->tp, .Ta = Ta, .supervised = now_.S };
    b->ids       = tp_ints(r, "ids", Ta, now_.V);
    b->sup_row   = t1(&r->act, "rows", I32, Ta);
    b->sup_label = tp_ints(r, "labels", Ta, now_.V);
    b->seg = (Segments){ .starts = t1(&r->act, "starts", I32, 4), .n = 3, .longest = Ta, .causal = true };
    if (!r->be->device->host_memory) return;
    for (int i = 0; i < 4; i++) ((int32_t *)b->seg.starts.data)[i] = (int32_t)start[i];
    for (int64_t i = 0; i < Ta; i++) ((int32_t *)b->sup_row.data)[i] = (int32_t)(Ta - now_.S + i);
    for (int64_t i = 0; i < Ta; i += 5) ((int32_t *)b->ids.data)[i] = i % 2 ? -1 : (int32_t)now_.pad;
}

static Tensor angles_of(Rig *r)
{
    int64_t half = now_.C / 2;
    Tensor  cs = t2(&r->act, "cs", F32, now_.Ta, now_.C), pos = t2(&r->act, "pos", I32, 1, now_.Ta);
    Tensor  inv = t1(&r->act, "inv", F32, half), axis = t1(&r->act, "axis", I32, half);
    bool    real = r->be->device->host_memory;
    op_fill(r->be, axis, 0.0f);
    for (int64_t i = 0; real && i < now_.Ta; i++) ((int32_t *)pos.data)[i] = (int32_t)i;
    for (int64_t j = 0; real && j < half; j++) ((float *)inv.data)[j] = 1.0f / (float)(j + 1);
    op_rope_table(r->be, cs, pos, inv, axis);
    return cs;
}

/* ---- bodies ---- */

static void attention_body(Rig *r)
{
    int64_t T = now_.Ta / r->tp, D = now_.D;
    Attention m = attention_of(r);
    AttentionAct a;
    batch_of(r);
    Tensor cs = angles_of(r), x = tp_input(r, "x", T, D), y = tp_output(r, "y", T, D);
    Tensor dy = tp_input(r, "dy", T, D), dres = tp_input(r, "dres", T, D), dx = tp_output(r, "dx", T, D);
    attention_fwd(&r->c, &m, &a, y, x, cs);
    attention_bwd(&r->c, &m, &a, dx, dy, x, cs, dres);
    tp_give_rows(r, "y", y), tp_give_rows(r, "dx", dx);
    give_grads(r);
}

static void mlp_body(Rig *r)
{
    int64_t T = now_.Ta / r->tp, D = now_.D;
    Mlp m = mlp_of(r);
    MlpAct a;
    Tensor x = tp_input(r, "x", T, D), res = tp_input(r, "res", T, D), y = tp_output(r, "y", T, D);
    Tensor dy = tp_input(r, "dy", T, D), dx = tp_output(r, "dx", T, D);
    mlp_fwd(&r->c, &m, &a, y, x, res);
    mlp_bwd(&r->c, &m, &a, dx, dy, x);
    tp_give_rows(r, "y", y), tp_give_rows(r, "dx", dx);
    give_grads(r);
}

/* A layer twice, as two micro-batches of a step are: the second adds to the gradients of the first. */
static void decoder_body(Rig *r)
{
    int64_t T = now_.Ta / r->tp, D = now_.D;
    Attention attention = attention_of(r);
    Mlp ffn = mlp_of(r);
    AttentionAct kept = { 0 };
    MlpAct ffn_kept = { 0 };
    Decoder m = { .attention = &attention, .ffn = &ffn, .eps = attention.eps };      /* GQA, dense */
    DecoderAct a = { .attention = &kept, .ffn = &ffn_kept };
    m.norm = tp_bind(r, param_vector(&r->set, G_LLM, INIT_ONE, D, "norm2"), false);
    if (now_.drop && policy_drop(r->policy, "full")) exit(1);
    batch_of(r);
    Tensor cs = angles_of(r), x = tp_input(r, "x", T, D), y = tp_output(r, "y", T, D);
    Tensor dx = tp_input(r, "dy", T, D);
    for (int i = 0; i < 2; i++) {
        ArenaMark mark = arena_mark(&r->scratch);
        decoder_fwd(&r->c, &m, &a, y, x, cs);
        arena_reset(&r->scratch, mark);
        if (r->be->device->host_memory) memset(r->scratch.base, 0xff, ARENA);
        decoder_replay(&r->c, &m, &a, (Tensor){ 0 }, x, cs);
        decoder_bwd(&r->c, &m, &a, dx, dx, x, cs);
    }
    tp_give_rows(r, "y", y), tp_give_rows(r, "dx", dx);
    r->c.mode = EVAL;
    decoder_fwd(&r->c, &m, &a, y, x, cs);
    tp_give_rows(r, "y of evaluation", y);
    give_grads(r);
}

static void embed_body(Rig *r)
{
    int64_t T = now_.Ta / r->tp, D = now_.D;
    Param *table = table_of(r, "table", false);
    batch_of(r);
    Tensor x = tp_output(r, "x", T, D), dx = tp_input(r, "dx", T, D);
    embed_table_fwd(&r->c, table, x);
    embed_table_bwd(&r->c, table, dx, now_.pad);
    tp_give_rows(r, "x", x);
    give_grads(r);
}

static void head_body(Rig *r)
{
    int64_t T = now_.Ta / r->tp, D = now_.D, n = now_.Ta / 2;
    Head h = { .eps = 1e-6f, .V = now_.V, .chunk = now_.chunk };
    h.norm = tp_bind(r, param_vector(&r->set, G_LLM, INIT_ONE, D, "norm"), false);
    h.w    = table_of(r, "table", !now_.tied);
    batch_of(r);
    Tensor loss = t1(&r->act, "loss", F64, 1), x = tp_input(r, "x", T, D), dx = tp_output(r, "dx", T, D);
    Tensor each = t2(&r->act, "each", F32, now_.S, 1), z = t2(&r->act, "logits", F32, n, now_.V);
    op_fill(r->be, loss, 0.0f);
    if (now_.each) r->c.row_loss = each;
    head_loss(&r->c, &h, loss, dx, x, factor(0.25f), true);
    if (now_.each && now_.S) tp_give_alike(r, "each", each);
    r->c.row_loss = none;
    r->c.mode = EVAL;
    head_loss(&r->c, &h, loss, none, x, factor(2), false);           /* evaluation adds to the same loss */
    if (now_.tied) embed_table_bwd(&r->c, h.w, dx, now_.pad);
    else if (h.w->step.grad_unset) op_fill(r->be, h.w->shard.g, 0.0f);            /* no row is supervised */
    head_logits(&r->c, &h, z, all_rows(&r->c, x), now_.Ta / 4);
    tp_give(r, "loss", loss, 0, 1, 1), tp_give_rows(r, "dx", dx), tp_give_alike(r, "logits", z);
    give_grads(r);
}

/* ---- tests ---- */

static void some_shape(int tp)
{
    now_.Ta = tp * draw(tp < 4 ? 4 / tp : 1, 9), now_.D = draw(5, 50), now_.F = tp * draw(1, 9);
    now_.V = draw(tp, 90), now_.pad = draw(0, now_.V - 1), now_.S = draw(0, now_.Ta), now_.chunk = draw(1, 9);
    now_.C = 2 * draw(1, 9);
    now_.G = draw(0, 1) ? tp * draw(1, 2) : tp > 1 ? tp / 2 : 1;         /* as many as ranks, or fewer */
    now_.H = (now_.G > tp ? now_.G : tp) * draw(1, 2);
    tp_.frozen = !draw(0, 3);
    now_.bias = draw(0, 1), now_.tied = draw(0, 1), now_.drop = draw(0, 1), now_.each = draw(0, 1);
}

static void many(void (*body)(Rig *))
{
    static const int degrees[] = { 1, 2, 4, 8 };
    for (int i = 0; i < 24; i++) {
        int   tp = degrees[i / 6];
        DType d = i & 1 ? BF16 : F32;
        some_shape(tp);
        EXPECT_ALIKE(body, d, tp, now_.G, tolerance(d, body == decoder_body),
                     "Ta %d D %d H %d G %d C %d F %d V %d S %d%s%s%s%s\n", (int)now_.Ta, (int)now_.D,
                     (int)now_.H, (int)now_.G, (int)now_.C, (int)now_.F, (int)now_.V, (int)now_.S,
                     now_.bias ? " bias" : "", now_.tied ? " tied" : "", now_.drop ? " drop" : "",
                     tp_.frozen ? " frozen" : "");
    }
}

static void attention_is_that_of_one_rank(void) { many(attention_body); }
static void mlp_is_that_of_one_rank(void)       { many(mlp_body); }
static void layer_is_that_of_one_rank(void)     { many(decoder_body); }
static void embedding_is_that_of_one_rank(void) { many(embed_body); }
static void head_is_that_of_one_rank(void)      { many(head_body); }

/* Arenas are as high and ops as many whether data moves or not. */
static void a_plan_is_what_runs(void)
{
    static void (*const bodies[])(Rig *) = { attention_body, mlp_body, decoder_body, embed_body, head_body };
    for (int i = 0; i < 10; i++) {
        some_shape(4);
        tp_.body = bodies[i / 2], tp_.dtype = i & 1 ? BF16 : F32;
        tp_.layout = (MeshLayout){ .tp = 4, .kv_heads = (int)now_.G };
        tp_.side = &tp_.many;
        on_ranks(4, 0, rig_peer);
        side_close(&tp_.many);
        Ledger ran = tp_.ledger;
        size_t scratch = tp_.scratch, act = tp_.act;
        tp_plan(bodies[i / 2], tp_.dtype);
        EXPECT(tp_.scratch == scratch && tp_.act == act, "case %d: plan %zu and %zu, run %zu and %zu",
               i, tp_.act, tp_.scratch, act, scratch);
        for (int op = 0; op < OP_N; op++)
            EXPECT(tp_.ledger.op[op].calls == ran.op[op].calls, "case %d: %s", i, op_name(op));
    }
}

int main(void)
{
    tplab_open();
    RUN(attention_is_that_of_one_rank);
    RUN(mlp_is_that_of_one_rank);
    RUN(layer_is_that_of_one_rank);
    RUN(embedding_is_that_of_one_rank);
    RUN(head_is_that_of_one_rank);
    RUN(a_plan_is_what_runs);
    return lab_report();
}
