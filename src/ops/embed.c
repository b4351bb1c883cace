/* ops/embed.c -- rows of a table by token id: contract, cost, CPU.
 *
 *   y[t] = table[ids[t]]                     dtable[ids[t]] += dy[t]
 *   slice_ids   y[t] = ids[t] - from where from <= ids[t] < from + n, else -1: ids of a slice of the table
 *
 * y, dy (T, D) and table (V, D) are f32 or bf16 each; dtable (V, D) f32 adds; ids (T) i32. Id -1 writes a
 * zero row and gets no gradient, nor does id == skip (the padding token; -1 = none). Gradients add in token
 * order for any number of threads: threads split the columns, not the tokens. */
#include "ops/cpu/cpu_rows.h"

static bool is_ids(Tensor t, int64_t n) { return t.rank == 1 && t.n[0] == n && t.dtype == I32; }

Cost embed_fwd_cost(Backend *be, Tensor y, Tensor table, Tensor ids)
{
    int64_t T = y.n[0], D = y.n[1];
    REQUIRE(is_rows(y, T, D) && is_rows(table, table.n[0], D) && is_ids(ids, T),
            "embed_fwd: y %s table %s ids %s", t_fmt(y), t_fmt(table), t_fmt(ids));
    return (Cost){ .rd = T * D * (int64_t)dtype_size((DType)table.dtype) + t_bytes(ids), .wr = t_bytes(y) };
}

static void embed_row(Tensor y, int64_t t, Tensor table, int64_t id)
{
    int64_t D = y.n[1];
    void *out = row_ptr(y, t);
    REQUIRE(id >= -1 && id < table.n[0], "embed: id %lld of table %s", (long long)id, t_fmt(table));
    if (id < 0)                      memset(out, 0, (size_t)D * dtype_size((DType)y.dtype));
    else if (y.dtype == table.dtype) memcpy(out, row_ptr(table, id), (size_t)D * dtype_size((DType)y.dtype));
    else if (y.dtype == F32)         cpu_widen(out, (const uint16_t *)row_ptr(table, id), D);
    else                             cpu_narrow(out, (const float *)row_ptr(table, id), D);
}

void cpu_embed_fwd(Backend *be, Tensor y, Tensor table, Tensor ids)
{
    const int32_t *id = ids.data;
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(y)))
    for (int64_t t = 0; t < y.n[0]; t++) embed_row(y, t, table, id[t]);
}

Cost embed_bwd_cost(Backend *be, Tensor dtable, Tensor dy, Tensor ids, int64_t skip)
{
    int64_t T = dy.n[0], D = dy.n[1];
    REQUIRE(is_rows(dy, T, D) && is_rows_f32(dtable, dtable.n[0], D) && is_ids(ids, T),
            "embed_bwd: dtable %s dy %s ids %s", t_fmt(dtable), t_fmt(dy), t_fmt(ids));
    return (Cost){ .flops = (double)t_count(dy),
                   .rd    = t_bytes(dy) + T * D * 4 + t_bytes(ids),
                   .wr    = T * D * 4 };
}

static void add_slice(Tensor dtable, Tensor dy, const int32_t *id, int64_t skip, float *buf)
{
    for (int64_t t = 0; t < dy.n[0]; t++) {
        REQUIRE(id[t] >= -1 && id[t] < dtable.n[0], "embed: id %d of table %s", id[t], t_fmt(dtable));
        if (id[t] == -1 || id[t] == skip) continue;
        float *sum = (float *)row_ptr(dtable, id[t]);
        rows_add(sum, sum, row_read(dy, t, buf), dy.n[1]);
    }
}

void cpu_embed_bwd(Backend *be, Tensor dtable, Tensor dy, Tensor ids, int64_t skip)
{
    int64_t D = dy.n[1], step = slice_columns(D);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(dy)))
    for (int64_t from = 0; from < D; from += step) {
        int64_t cols = D - from < step ? D - from : step;
        add_slice(t_cols(dtable, from, cols), t_cols(dy, from, cols), ids.data, skip, cpu_own(be));
    }
}

Cost slice_ids_cost(Backend *be, Tensor y, Tensor ids, int64_t from, int64_t n)
{
    REQUIRE(is_ids(y, t_count(y)) && is_ids(ids, t_count(y)) && from >= 0 && n >= 0,
            "slice_ids: y %s ids %s from %lld n %lld", t_fmt(y), t_fmt(ids), (long long)from, (long long)n);
    return (Cost){ .rd = t_bytes(ids), .wr = t_bytes(y) };
}

void cpu_slice_ids(Backend *be, Tensor y, Tensor ids, int64_t from, int64_t n)
{
    const int32_t *id = ids.data;
    int32_t       *out = y.data;
    for (int64_t t = 0; t < y.n[0]; t++) {
        int64_t at = id[t] - from;
        out[t] = id[t] >= 0 && at >= 0 && at < n ? (int32_t)at : -1;
    }
}
