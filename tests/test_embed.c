/* tests/test_embed.c -- embed_fwd, embed_bwd and slice_ids. */
#include "rowlab.h"

static Tensor random_ids(int64_t T, int64_t V)               /* with some -1, and repeats */
{
    Tensor ids = num_i32(T, NULL);
    for (int64_t t = 0; t < T; t++) ((int32_t *)ids.data)[t] = (int32_t)num_below(V + 1) - 1;
    return ids;
}

static void known_values(void)
{
    float table[] = { 1, 2, 3, 4, 5, 6 };
    int32_t ids[] = { 2, -1, 0, 2 };
    Tensor w = num_vals(F32, 3, 2, table), y = num_poison(BF16, 4, 2), dw = num_zeros(F32, 3, 2);
    float want[] = { 5, 6, 0, 0, 1, 2, 5, 6 }, sum[] = { 3, 4, 0, 0, 2 + 8, 2 + 10 };
    float dy[] = { 2, 2, 50, 50, 3, 4, 8, 10 };
    op_embed_fwd(BE, y, w, num_i32(4, ids));
    for (int i = 0; i < 8; i++) EXPECT(get(y, i) == want[i], "[%d] is %g", i, get(y, i));
    op_embed_bwd(BE, dw, num_vals(BF16, 4, 2, dy), num_i32(4, ids), -1);
    for (int i = 0; i < 6; i++) EXPECT(get(dw, i) == sum[i], "dtable[%d] is %g", i, get(dw, i));
    op_embed_bwd(BE, dw, num_vals(BF16, 4, 2, dy), num_i32(4, ids), 2);        /* now row 2 is padding */
    for (int i = 0; i < 6; i++) EXPECT(get(dw, i) == (i < 2 ? 2 : 1) * sum[i], "again: [%d]", i);
    num_clear();
}

static void any_view(void)
{
    DType dy, dt;
    int64_t D;
    for EACH_WIDTH(D) for EACH_FLOAT(dy) for EACH_FLOAT(dt) {
        Tensor table = loose_copy(num_randn(dt, 6, D)), ids = random_ids(11, 6), y = loose(dy, 11, D);
        Tensor want = num_zeros(dy, 11, D), sum = num_randn(F32, 6, D), dtable = loose_copy(sum);
        Tensor g = loose_copy(num_randn(dy, 11, D));
        for (int64_t t = 0; t < 11; t++) {
            int64_t id = ((int32_t *)ids.data)[t];
            for (int64_t i = 0; i < D && id >= 0; i++) {
                put(want, t * D + i, get(table, id * D + i));
                if (id != 3) put(sum, id * D + i, get(sum, id * D + i) + get(g, t * D + i));
            }
        }
        op_embed_fwd(BE, y, table, ids);
        op_embed_bwd(BE, dtable, g, ids, 3);
        EXPECT(same_bits(y, want) && gaps_intact(y), "%s from %s", t_fmt(y), t_fmt(table));
        EXPECT(same_bits(dtable, sum) && gaps_intact(dtable), "gradient of %s", t_fmt(table));
        num_clear();
    }
}

typedef struct Case { Tensor y, table, ids, dtable, dy; } Case;
static double loss(void *arg)
{
    Case *c = arg;
    op_embed_fwd(BE, c->y, c->table, c->ids);
    return num_dot(c->y, c->dy);
}
static void both(Case *c)
{
    op_fill(BE, c->dtable, 0.0f);
    op_embed_fwd(BE, c->y, c->table, c->ids);
    op_embed_bwd(BE, c->dtable, c->dy, c->ids, -1);
}

static void gradient_and_threads(void)
{
    Case c = { num_poison(F32, 20, 7), num_randn(F32, 5, 7), random_ids(20, 5), num_zeros(F32, 5, 7),
               num_randn(F32, 20, 7) };
    both(&c);
    EXPECT_GRADIENT(loss, &c, c.table, c.dtable, 1e-2f, 1e-3);
    Case b = { num_poison(BF16, 300, 211), num_randn(BF16, 40, 211), random_ids(300, 40),
               num_zeros(F32, 40, 211), num_randn(BF16, 300, 211) };
    Tensor out[2] = { b.y, b.dtable };
    EXPECT_THREADS_AGREE(both, &b, out, 2);
    num_clear();
}

static void ids_of_a_slice(void)
{
    int32_t ids[] = { 0, 4, 5, -1, 9, 6, 2147483647 }, want[] = { -1, -1, 0, -1, -1, 1, -1 };
    Tensor y = num_i32(7, NULL);
    op_slice_ids(BE, y, num_i32(7, ids), 5, 4);
    EXPECT(!memcmp(y.data, want, sizeof want), "5 .. 8");
    op_slice_ids(BE, y, num_i32(7, ids), 5, 0);
    for (int i = 0; i < 7; i++) EXPECT(((int32_t *)y.data)[i] == -1, "[%d] of no rows", i);
    num_clear();
}

/* A table cut in slices: the parts of a lookup add up, the gradients lie beside each other. */
static void slices_of_a_table(void)
{
    enum { T = 37, V = 11, D = 5, CUT = 4 };
    Tensor table = num_randn(F32, V, D), ids = random_ids(T, V), dy = num_randn(F32, T, D);
    Tensor y = num_poison(F32, T, D), dtable = num_zeros(F32, V, D), sum = num_zeros(F32, T, D);
    Tensor part = num_poison(F32, T, D), dslices = num_zeros(F32, V, D), here = num_i32(T, NULL);
    op_embed_fwd(BE, y, table, ids);
    op_embed_bwd(BE, dtable, dy, ids, 6);
    for (int64_t from = 0; from < V; from += CUT) {
        int64_t n = V - from < CUT ? V - from : CUT, skip = 6 - from;
        op_slice_ids(BE, here, ids, from, n);
        op_embed_fwd(BE, part, t_rows(table, from, n), here);
        op_add(BE, sum, sum, part);
        op_embed_bwd(BE, t_rows(dslices, from, n), dy, here, skip >= 0 && skip < n ? skip : -1);
    }
    EXPECT(same_bits(sum, y), "lookup");
    EXPECT(same_bits(dslices, dtable), "gradient");
    num_clear();
}

int main(void)
{
    rowlab_open();
    RUN(known_values);
    RUN(ids_of_a_slice);
    RUN(slices_of_a_table);
    RUN(any_view);
    RUN(gradient_and_threads);
    return numlab_report();
}
