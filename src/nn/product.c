/* nn/product.c -- see product.h. */
#include "nn/product.h"

#include "base/num.h"
#include "nn/product_micro.h"
#include "nn/weight_panel.h"
#include "ops/quant.h"

static const Tensor none = { 0 };

bool product_is_coded(const Pass *c, const Param *w, ProductKind kind)
{
    Site site = c->env->precision ? precision_site(w) : SITES;
    return site < SITES && c->env->precision->coded[site][kind];
}

bool product_is_fp8(const Pass *c, const Param *w, ProductKind kind)
{
    return product_is_coded(c, w, kind) && c->env->precision->format == PREC_FP8;
}

int64_t product_column_step(const Pass *c, const Param *w)
{
    return product_is_coded(c, w, PRODUCT_Y) ? precision_group(c->env->precision->format) : 8;
}

/* ---- in 8 bits ---- */

/* Codes and scales, as ops/quantize.c makes them. */
typedef struct Quantized { Tensor q, scale; } Quantized;

/* Rows of scales begin on 16 bytes. */
static CodedRows with_codes(const Pass *c, Tensor x, ExpertRows rows)
{
    int64_t R = x.n[0], K = x.n[1];
    return (CodedRows){ x, t_rows(scratch2(c, E4M3, rows.capacity, K), 0, R),
                        t_cols(scratch2(c, F32, quant_groups(K), round_up(rows.capacity, 4)), 0, R) };
}

CodedRows coded_rows(const Pass *c, Tensor x, const Param *w, ProductKind kind, ExpertRows rows)
{
    return product_is_fp8(c, w, kind) ? with_codes(c, x, rows) : (CodedRows){ .x = x };
}

void encode_rows(const Pass *c, CodedRows x, ExpertRows rows)
{
    if (t_has(x.q)) op_quantize_rows(c->be, x.q, x.scale, x.x, rows.offsets, true);
}

static CodedRows quantized_rows(const Pass *c, CodedRows x, ExpertRows rows)
{
    if (t_has(x.q)) return x;
    CodedRows z = with_codes(c, x.x, rows);
    encode_rows(c, z, rows);
    return z;
}

static Tensor like_stack(const Pass *c, DType d, Tensor w, int64_t rows, int64_t cols)
{
    return w.rank == 3 ? t3(c->scratch, "scratch", d, w.n[0], rows, cols) : scratch2(c, d, rows, cols);
}

static WeightPart whole(const Param *w) { return (WeightPart){ .of = w }; }
static WeightPart transposed(const Param *w) { return (WeightPart){ .of = w, .transposed = true }; }

/* A part begins on a block: see product_column_step. */
static Quantized kept_weight(WeightPart p)
{
    const QuantizedWeight *z = &p.of->shard.fp8;
    if (p.transposed) return (Quantized){ z->qt, z->scale_t };
    if (!p.rows) return (Quantized){ z->q, z->scale };
    return (Quantized){ t_rows(z->q, p.from, p.rows),
                        t_rows(z->scale, p.from / QUANT_GROUP, quant_groups(p.rows)) };
}

/* The transposed codes of a weight that is kept in one layout. */
static Quantized transposed_codes(const Pass *c, const QuantizedWeight *w)
{
    int       last = w->q.rank - 1;
    Quantized z = { like_stack(c, E4M3, w->q, w->q.n[last], w->q.n[last - 1]),
                    like_stack(c, F32, w->q, w->scale.n[last], w->scale.n[last - 1]) };
    op_transpose(c->be, z.q, w->q);
    op_transpose(c->be, z.scale, w->scale);
    return z;
}

static Quantized quantized_weight(const Pass *c, WeightPart p)
{
    const QuantizedWeight *kept = &p.of->shard.fp8;
    if (t_has(kept->q)) return p.transposed && !t_has(kept->qt) ? transposed_codes(c, kept) : kept_weight(p);
    Tensor    w = p.rows ? t_rows(p.of->shard.w, p.from, p.rows) : p.of->shard.w;
    int64_t   N = w.n[w.rank - 2], K = w.n[w.rank - 1];
    int64_t   rows = p.transposed ? K : N, cols = p.transposed ? N : K;
    Quantized z = { like_stack(c, E4M3, w, rows, cols),
                    like_stack(c, F32, w, quant_groups(rows), quant_groups(cols)) };
    if (p.transposed) op_quantize_weight(c->be, none, none, z.q, z.scale, w, true);
    else              op_quantize_weight(c->be, z.q, z.scale, none, none, w, true);
    return z;
}

/* Adds what the codes of a product's rows lose to the statistics of the step, if they are wanted. A replay
 * would count a forward twice. Rows that tokens become for their experts are not measured: where no
 * backward reads them they exist as codes alone. */
static void measure_codes(const Pass *c, WeightPart w, CodedRows x, Tensor offsets)
{
    enum { SAMPLE = 4096 };                                  /* rows; one in `every` of more than that */
    if (!t_has(c->code_stats) || !t_has(x.x) || (!w.transposed && c->mode != FORWARD)) return;
    Tensor  row = t_rows(c->code_stats, code_stats_row(w.of, w.transposed), 1);
    int64_t every = (x.x.n[0] + SAMPLE - 1) / SAMPLE;
    op_code_stats(c->be, t_wrap(row.data, I64, 1, &row.n[1]), x.x, x.q, x.scale, offsets, every ? every : 1);
}

static void fp8_product(const Pass *c, Tensor y, Tensor x, WeightPart w, Tensor bias, Tensor res)
{
    ArenaMark mark = arena_mark(c->scratch);
    CodedRows a = quantized_rows(c, (CodedRows){ .x = x }, (ExpertRows){ .capacity = x.n[0] });
    Quantized b = quantized_weight(c, w);
    measure_codes(c, w, a, none);
    op_gemm_fp8(c->be, y, a.q, a.scale, b.q, b.scale, bias, res);
    arena_reset(c->scratch, mark);
}

static void fp8_experts(const Pass *c, Tensor y, CodedRows x, WeightPart w, ExpertRows rows, bool measured)
{
    ArenaMark mark = arena_mark(c->scratch);
    CodedRows a = quantized_rows(c, x, rows);
    Quantized b = quantized_weight(c, w);
    if (measured) measure_codes(c, w, a, rows.offsets);
    op_grouped_gemm_fp8(c->be, y, a.q, a.scale, b.q, b.scale, rows.offsets);
    arena_reset(c->scratch, mark);
}

/* ---- in the format of the run ---- */

static void coded_product(const Pass *c, Tensor y, Tensor x, WeightPart w, Tensor bias, Tensor res)
{
    if (c->env->precision->format == PREC_FP8) fp8_product(c, y, x, w, bias, res);
    else                                       micro_product(c, y, x, w, bias, res);
}

static void coded_experts(const Pass *c, Tensor y, CodedRows x, WeightPart w, ExpertRows rows, LoraTerm lora,
                          bool measured)
{
    if (c->env->precision->format == PREC_FP8) fp8_experts(c, y, x, w, rows, measured);
    else                                       micro_experts(c, y, x.x, w, rows);
    if (t_has(lora.low_rank))
        op_grouped_scaled(c->be, y, lora.low_rank, lora.w, rows.offsets, 1.0f, lora.dropout,
                          (w.transposed ? GEMM_NN : GEMM_NT) | GEMM_ACC);
}

/* ---- a weight ---- */

static Tensor bias_part(const Param *b, int64_t from, int64_t n)
{
    return b ? t_cols(b->shard.w, from, n) : none;
}

void product_y(const Pass *c, Tensor y, Tensor x, const Param *w, const Param *b)
{
    product_y_part(c, y, x, w, b, 0);
}

void product_y_part(const Pass *c, Tensor y, Tensor x, const Param *w, const Param *b, int64_t from)
{
    int64_t n = y.n[1];
    if (product_is_coded(c, w, PRODUCT_Y)) {
        coded_product(c, y, x, (WeightPart){ w, false, from, n }, bias_part(b, from, n), none);
        return;
    }
    for (WeightPanel t = panel_open_rows(c, w, from, n); panel_next(c, &t);)
        op_gemm(c->be, t_cols(y, t.from, t.n), x, t.w, bias_part(b, from + t.from, t.n), GEMM_NT);
}

void product_residual(const Pass *c, Tensor y, Tensor x, const Param *w, const Param *b, Tensor res)
{
    if (product_is_coded(c, w, PRODUCT_Y)) {
        coded_product(c, y, x, whole(w), param_w(b), res);
        return;
    }
    for EACH_PANEL(t, c, w, PANEL_ROWS)
        op_gemm_residual(c->be, t_cols(y, t.from, t.n), t_cols(res, t.from, t.n), x, t.w,
                         bias_part(b, t.from, t.n));
}

void product_gelu(const Pass *c, Tensor y, Tensor pre, Tensor x, const Param *w, const Param *b, Gelu kind)
{
    if (product_is_coded(c, w, PRODUCT_Y)) {
        coded_product(c, pre, x, whole(w), param_w(b), none);
        op_gelu_fwd(c->be, y, pre, kind);
        return;
    }
    for EACH_PANEL(t, c, w, PANEL_ROWS)
        op_gemm_gelu(c->be, t_cols(y, t.from, t.n), t_cols(pre, t.from, t.n), x, t.w,
                     bias_part(b, t.from, t.n), kind);
}

void product_dx(const Pass *c, Tensor dx, Tensor dy, const Param *w, int flags)
{
    if (product_is_coded(c, w, PRODUCT_DX)) {
        coded_product(c, dx, dy, transposed(w), none, flags ? dx : none);
        return;
    }
    for EACH_PANEL(t, c, w, PANEL_COLS)
        op_gemm(c->be, t_cols(dx, t.from, t.n), dy, t.w, none, GEMM_NN | flags);
}

void product_dgelu(const Pass *c, Tensor dpre, Tensor dy, const Param *w, Tensor pre, Gelu kind)
{
    if (product_is_coded(c, w, PRODUCT_DX)) {
        coded_product(c, dpre, dy, transposed(w), none, none);
        op_gelu_bwd(c->be, dpre, dpre, pre, kind);
        return;
    }
    for EACH_PANEL(t, c, w, PANEL_COLS)
        op_gemm_dgelu(c->be, t_cols(dpre, t.from, t.n), dy, t.w, t_cols(pre, t.from, t.n), kind);
}

void product_dw(const Pass *c, Param *w, Tensor dy, Tensor x)
{
    if (t_has(w->shard.g)) op_gemm(c->be, w->shard.g, dy, x, none, param_grad_flags(w));
}

/* ---- experts ---- */

/* Computes y = x w of the experts in the dtype of the model; mode: GEMM_NT or GEMM_NN. */
static void wide_experts(const Pass *c, Tensor y, Tensor x, const Param *w, ExpertRows rows, LoraTerm lora,
                         int mode)
{
    ArenaMark mark = arena_mark(c->scratch);
    if (weight_is_coded(w))
        op_grouped_coded(c->be, y, x, w->shard.codes, panel_of_matrices(c, w), rows.offsets, lora, mode);
    else
        op_grouped_gemm(c->be, y, x, w->shard.w, rows.offsets, lora, mode);
    arena_reset(c->scratch, mark);
}

void experts_y(const Pass *c, Tensor y, CodedRows x, const Param *w, ExpertRows rows, LoraTerm lora)
{
    if (product_is_coded(c, w, PRODUCT_Y)) coded_experts(c, y, x, whole(w), rows, lora, true);
    else wide_experts(c, y, x.x, w, rows, lora, GEMM_NT);
}

void experts_dx(const Pass *c, Tensor dx, CodedRows dy, const Param *w, ExpertRows rows, LoraTerm lora)
{
    if (product_is_coded(c, w, PRODUCT_DX)) coded_experts(c, dx, dy, transposed(w), rows, lora, true);
    else wide_experts(c, dx, dy.x, w, rows, lora, GEMM_NN);
}

/* The flags of the product that writes the gradient of w; where it is the first of a step it sums squares. */
static int begin_expert_grad(Param *w)
{
    int flags = param_grad_flags(w);
    w->step.squared = t_has(w->shard.squares) && !(flags & GEMM_ACC);
    return flags;
}

void experts_dw(const Pass *c, Param *w, Tensor dy, Tensor x, ExpertRows rows)
{
    if (!t_has(w->shard.g)) return;
    int flags = begin_expert_grad(w);
    if (w->step.squared) op_grouped_squares(c->be, w->shard.g, w->shard.squares, dy, x, rows.offsets);
    else op_grouped_gemm(c->be, w->shard.g, dy, x, rows.offsets, (LoraTerm){ 0 }, flags);
}

static ColumnCodes column_codes(const Pass *c, int64_t width, int64_t scales, ExpertRows rows)
{
    int64_t cols = quant_columns(rows.capacity, rows.offsets.n[0] - 1);
    return (ColumnCodes){ scratch2(c, E4M3, width, cols), scratch2(c, F32, cols / QUANT_GROUP, scales) };
}

ColumnCodes dy_columns(const Pass *c, int64_t width, ExpertRows rows)
{
    return column_codes(c, width, width, rows);
}

ColumnCodes x_columns(const Pass *c, int64_t width, ExpertRows rows)
{
    return column_codes(c, width, quant_groups(width), rows);
}

void experts_dw_coded(const Pass *c, Param *w, ColumnCodes dy, ColumnCodes x, ExpertRows rows)
{
    if (!t_has(w->shard.g)) return;
    int flags = begin_expert_grad(w);
    op_grouped_dw_fp8(c->be, w->shard.g, w->step.squared ? w->shard.squares : none, dy, x, rows.offsets,
                      rows.capacity, flags & GEMM_ACC);
}

static void fp8_act(const Pass *c, ExpertAct by, Tensor gu, CodedRows h, CodedRows x, const Param *w)
{
    ArenaMark mark = arena_mark(c->scratch);
    CodedRows a = quantized_rows(c, x, by.rows);
    Quantized b = quantized_weight(c, whole(w));
    by.act->grouped_fwd_fp8(c->be, gu, h, a, b.q, b.scale, by.rows.offsets, by.gate, by.stores_rows);
    arena_reset(c->scratch, mark);
}

static void wide_act(const Pass *c, ExpertAct by, Tensor gu, Tensor h, Tensor x, const Param *w,
                     LoraTerm lora)
{
    ArenaMark mark = arena_mark(c->scratch);
    if (weight_is_coded(w))
        by.act->grouped_fwd_coded(c->be, gu, h, x, w->shard.codes, panel_of_matrices(c, w), by.rows.offsets,
                                  by.gate, lora);
    else
        by.act->grouped_fwd(c->be, gu, h, x, w->shard.w, by.rows.offsets, by.gate, lora);
    arena_reset(c->scratch, mark);
}

static void wide_dact(const Pass *c, ExpertAct by, Tensor dgu, Tensor dgate, Tensor dout, const Param *w,
                      Tensor gu, LoraTerm lora)
{
    ArenaMark mark = arena_mark(c->scratch);
    if (weight_is_coded(w))
        by.act->grouped_bwd_coded(c->be, dgu, dgate, dout, w->shard.codes, panel_of_matrices(c, w),
                                  by.rows.offsets, gu, by.gate, lora);
    else
        by.act->grouped_bwd(c->be, dgu, dgate, dout, w->shard.w, by.rows.offsets, gu, by.gate, lora);
    arena_reset(c->scratch, mark);
}

void experts_act(const Pass *c, ExpertAct by, Tensor gu, CodedRows h, CodedRows x, const Param *w,
                 LoraTerm lora)
{
    bool coded = product_is_coded(c, w, PRODUCT_Y);
    if (coded && t_has(h.q) && by.act->grouped_fwd_fp8 && !t_has(lora.low_rank)) {
        fp8_act(c, by, gu, h, x, w);
        return;
    }
    if (coded) {
        coded_experts(c, gu, x, whole(w), by.rows, lora, false);
        by.act->fwd(c->be, h.x, gu, by.gate, by.rows.offsets);
    } else {
        wide_act(c, by, gu, h.x, x.x, w, lora);
    }
    encode_rows(c, h, by.rows);
}

/* dh is computed in the first columns of dgu, where the activation's backward may read it. */
void experts_dact(const Pass *c, ExpertAct by, CodedRows dgu, ExpertCols cols, Tensor dgate, CodedRows dout,
                  const Param *w, Tensor gu, LoraTerm lora)
{
    Tensor dh = t_cols(dgu.x, 0, dgu.x.n[1] / by.act->projections);
    bool   coded = product_is_coded(c, w, PRODUCT_DX);
    if (coded) coded_experts(c, dh, dout, transposed(w), by.rows, lora, true);
    if (coded && t_has(cols.dgu.q)) {
        by.act->bwd_cols(c->be, dgu, cols.dgu, cols.h, dgate, dh, gu, by.gate, by.rows.offsets,
                         by.stores_rows);
        return;
    }
    if (coded && t_has(dgu.q) && by.act->bwd_fp8) {
        by.act->bwd_fp8(c->be, dgu, dgate, dh, gu, by.gate, by.rows.offsets);
        return;
    }
    if (coded) by.act->bwd(c->be, dgu.x, dgate, dh, gu, by.gate);
    else       wide_dact(c, by, dgu.x, dgate, dout.x, w, gu, lora);
    encode_rows(c, dgu, by.rows);
}
