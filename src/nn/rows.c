/* nn/rows.c -- see rows.h. */
#include "nn/rows.h"

#include "nn/lora.h"
#include "nn/product.h"

static bool   is_cut(const Pass *c)      { return mesh_size(c->env->mesh, AX_TP) > 1; }
static Comm  *ranks_of(const Pass *c) { return c->env->mesh->comm[GR_tp]; }
static Tensor all_rows_scratch(const Pass *c,
                               Tensor x) { return scratch2(c, (DType)x.dtype, all_rows_count(c, x), x.n[1]); }

AllRows all_rows_start(const Pass *c, Tensor x)
{
    AllRows r = { .all = x };
    if (!is_cut(c)) return r;
    r.all    = all_rows_scratch(c, x);
    r.ticket = comm_all_gather_start(ranks_of(c), r.all, x);
    return r;
}

Tensor all_rows_join(AllRows r)
{
    comm_join(r.ticket);
    return r.all;
}

Tensor part_rows(const Pass *c, Tensor y) { return is_cut(c) ? all_rows_scratch(c, y) : y; }

Ticket sum_rows_start(const Pass *c, Tensor y, Tensor part)
{
    return is_cut(c) ? comm_reduce_scatter_start(ranks_of(c), y, part, RED_SUM) : (Ticket){ 0 };
}

/* ---- chunks: part of a gather or a sum travels while the product of another part runs ---- */

enum { CHUNKS = 8, CHUNKED_RANKS = 64 };

/* All rows, in chunks that consist of the rows of neighbouring ranks. A rank gets the chunk with its own rows
 * first, then the others in ascending order, starting over at 0. */
typedef struct ChunkedRows { Tensor x, all; int n, first; Ticket ticket[CHUNKS]; } ChunkedRows;
typedef struct RowChunk { Tensor rows; int64_t at; } RowChunk;             /* at: index in all rows */

/* The largest number of chunks of equally many ranks that Env.tp_chunks allows. */
static int gather_chunks(const Pass *c)
{
    int tp = mesh_size(c->env->mesh, AX_TP), n = c->env->tp_chunks < CHUNKS ? c->env->tp_chunks : CHUNKS;
    if (tp > CHUNKED_RANKS) return 1;
    while (n > 1 && tp % n) n--;
    return n > 1 ? n : 1;
}

/* Chunks of the columns of y; the adapters of w make all of them at once. */
static int sum_chunks(const Pass *c, Tensor y, const Param *w)
{
    int n = c->env->tp_chunks < CHUNKS ? c->env->tp_chunks : CHUNKS;
    while (n > 1 && y.n[1] < product_column_step(c, w) * n) n--;
    return w->lora || n < 1 ? 1 : n;
}

static bool is_own(const ChunkedRows *r, int i) { return i == 0 && r->all.n[0] == r->n * r->x.n[0]; }

/* Step i: this rank gets the rows of chunk first + i, and gives its own to the ranks that get its chunk. */
static Ticket exchange_start(const Pass *c, const ChunkedRows *r, int i)
{
    int64_t at[2][CHUNKED_RANKS] = { { 0 } }, n[2][CHUNKED_RANKS] = { { 0 } }, T = r->x.n[0];
    Comm   *tp = ranks_of(c);
    int     ranks = tp->size / r->n, get = (r->first + i) % r->n, give = (r->first - i + r->n) % r->n;
    for (int m = 0; m < tp->size; m++) {
        at[0][m] = m * T;
        n[0][m] = m / ranks == get ? T : 0, n[1][m] = m / ranks == give ? T : 0;
    }
    return comm_all_to_all_start(tp, r->all, (RowRanges){ at[0], n[0] }, r->x, (RowRanges){ at[1], n[1] });
}

static ChunkedRows chunked_rows_start(const Pass *c, Tensor x)
{
    ChunkedRows r = { .x = x, .n = gather_chunks(c) };
    if (r.n == 1) {
        AllRows all = all_rows_start(c, x);
        r.all = all.all, r.ticket[0] = all.ticket;
        return r;
    }
    r.all   = all_rows_scratch(c, x);
    r.first = mesh_at(c->env->mesh, AX_TP) * r.n / mesh_size(c->env->mesh, AX_TP);
    for (int i = 0; i < r.n; i++)
        if (!is_own(&r, i)) r.ticket[i] = exchange_start(c, &r, i);
    return r;
}

static RowChunk chunked_rows_join(const ChunkedRows *r, int i)
{
    int64_t rows = r->all.n[0] / r->n, at = (r->first + i) % r->n * rows;
    comm_join(r->ticket[i]);
    return (RowChunk){ is_own(r, i) && r->n > 1 ? r->x : t_rows(r->all, at, rows), at };
}

/* After all chunks are joined. */
static Tensor chunked_rows_all(const Pass *c, const ChunkedRows *r)
{
    if (r->n > 1 && is_own(r, 0)) op_copy(c->be, t_rows(r->all, r->first * r->x.n[0], r->x.n[0]), r->x);
    return r->all;
}

void column_linear_fwd(const Pass *c, Tensor y, Tensor x, const Param *w, const Param *b)
{
    ArenaMark mark = arena_mark(c->scratch);
    ChunkedRows r = chunked_rows_start(c, x);
    Pass pass = *c;
    for (int i = 0; i < r.n; i++) {
        RowChunk k = chunked_rows_join(&r, i);
        pass.first_row = c->first_row + k.at;
        linear_fwd(&pass, t_rows(y, k.at, k.rows.n[0]), k.rows, w, b);
    }
    arena_reset(c->scratch, mark);
}

/* The rows are gathered while dx is computed, and dx is summed while the product that reads the rows runs. */
void column_linear_bwd(const Pass *c, Tensor dx, Tensor dy, Tensor x, Param *w, const Param *b)
{
    ArenaMark mark = arena_mark(c->scratch);
    AllRows all = is_trainable(w) ? all_rows_start(c, x) : (AllRows){ .all = x };   /* frozen: not read */
    Tensor part = t_has(dx) ? part_rows(c, dx) : dx, d_a_out = lora_d_a_out(c, dy, w);
    if (t_has(dx)) linear_input_grad(c, part, dy, d_a_out, w, 0);
    Tensor rows = all_rows_join(all);
    Ticket sum = { 0 };
    if (t_has(dx)) sum = sum_rows_start(c, dx, part);               /* each rank has some outputs of x */
    linear_grads(c, dy, d_a_out, rows, w, b);
    comm_join(sum);
    arena_reset(c->scratch, mark);
}

static void row_linear_whole(const Pass *c, Tensor y, Tensor x, const Param *w, const Param *b, Tensor res)
{
    if (t_has(res)) linear_residual(c, y, x, w, b, res);
    else            linear_fwd(c, y, x, w, b);
}

static void row_linear_at_once(const Pass *c, Tensor y, Tensor x, const Param *w, const Param *b, Tensor res)
{
    Tensor part = part_rows(c, y);
    linear_fwd(c, part, x, w, b);
    sum_rows(c, y, part);                                           /* each rank has a part of w's inputs */
    if (t_has(res)) op_add(c->be, y, y, res);
}

/* Where chunk i of n begins: a multiple of `step`. */
static int64_t column_chunk(int64_t cols, int i, int n, int64_t step)
{
    return i < n ? cols * i / n / step * step : cols;
}

/* Chunks of columns of y: every product has all rows, and the sum of a chunk travels during the next. */
static void row_linear_chunked(const Pass *c, Tensor y, Tensor x, const Param *w, const Param *b, Tensor res,
                               int n)
{
    Tensor  sum[CHUNKS];
    Ticket  ticket[CHUNKS];
    int64_t step = product_column_step(c, w);
    for (int i = 0; i < n; i++) {
        int64_t from = column_chunk(y.n[1], i, n, step), cols = column_chunk(y.n[1], i + 1, n, step) - from;
        Tensor  part = scratch2(c, (DType)y.dtype, x.n[0], cols);
        sum[i] = scratch2(c, (DType)y.dtype, y.n[0], cols);
        product_y_part(c, part, x, w, b, from);
        ticket[i] = sum_rows_start(c, sum[i], part);
    }
    for (int64_t i = 0, from = 0; i < n; from += sum[i++].n[1]) {
        comm_join(ticket[i]);
        Tensor to = t_cols(y, from, sum[i].n[1]);
        if (t_has(res)) op_add(c->be, to, sum[i], t_cols(res, from, sum[i].n[1]));
        else            op_copy(c->be, to, sum[i]);
    }
}

void row_linear_fwd(const Pass *c, Tensor y, Tensor x, const Param *w, const Param *b, Tensor res)
{
    if (!is_cut(c)) {
        row_linear_whole(c, y, x, w, b, res);
        return;
    }
    ArenaMark mark = arena_mark(c->scratch);
    int n = sum_chunks(c, y, w);
    if (mesh_at(c->env->mesh, AX_TP)) b = NULL;                     /* the sum has the bias once */
    if (n > 1) row_linear_chunked(c, y, x, w, b, res, n);
    else       row_linear_at_once(c, y, x, w, b, res);
    arena_reset(c->scratch, mark);
}

void row_linear_bwd(const Pass *c, Tensor dx, Tensor dy, Tensor x, Param *w, const Param *b)
{
    ArenaMark mark = arena_mark(c->scratch);
    ChunkedRows r = chunked_rows_start(c, dy);
    bool by_chunk = t_has(dx) && !w->lora;            /* gradients of adapters read all rows at once */
    if (t_has(param_g(b))) op_colsum(c->be, b->shard.g, dy);
    for (int i = 0; i < r.n; i++) {
        RowChunk k = chunked_rows_join(&r, i);
        if (by_chunk) linear_input_grad(c, t_rows(dx, k.at, k.rows.n[0]), k.rows, (Tensor){ 0 }, w, 0);
    }
    linear_bwd(c, by_chunk ? (Tensor){ 0 } : dx, chunked_rows_all(c, &r), x, w, NULL);
    arena_reset(c->scratch, mark);
}
