/* tests/test_tensor.c -- views over a small matrix whose element (i, j) holds 10 i + j, so that a wrong
 * offset or stride shows as a wrong number; and views outside their tensor, which must abort. */
#include "lab.h"
#include "tensor/tensor.h"

#include <signal.h>
#include <sys/wait.h>

typedef struct Fixture { char bytes[1 << 14]; Status sticky; Arena a; } Fixture;

static Fixture *fixture_open(void)
{
    Fixture *r = calloc(1, sizeof *r);
    EXPECT_OK(arena_open(&r->a, "test", r->bytes, sizeof r->bytes, &r->sticky));
    return r;
}

static void fixture_close(Fixture *r)
{
    arena_close(&r->a);
    free(r);
}

static Tensor grid(Arena *a, int64_t rows, int64_t cols)
{
    Tensor t = t2(a, "grid", I32, rows, cols);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) ((int32_t *)t.data)[i * cols + j] = 10 * i + j;
    return t;
}

static int at(Tensor t, int64_t i, int64_t j, int64_t k)
{
    return ((int32_t *)t.data)[i * t.s[0] + j * t.s[1] + k * t.s[2]];
}

static void fresh_tensors(void)
{
    Fixture   *r = fixture_open();
    Tensor  a = t1(&r->a, "a", F32, 5), b = t3(&r->a, "b", BF16, 2, 3, 4);
    int64_t n[] = { 2, 2, 2, 2 };
    Tensor  c = t_new(&r->a, "c", U8, 4, n);
    EXPECT(a.rank == 1 && a.n[0] == 5 && a.n[1] == 1 && a.s[0] == 1 && t_bytes(a) == 20, "%s", t_fmt(a));
    EXPECT(b.s[0] == 12 && b.s[1] == 4 && b.s[2] == 1 && t_bytes(b) == 48, "%s", t_fmt(b));
    EXPECT(c.s[0] == 8 && c.s[3] == 1 && t_count(c) == 16, "%s", t_fmt(c));
    EXPECT((char *)b.data == (char *)a.data + ARENA_ALIGN, "one after the other");
    EXPECT(t_dense(a) && t_dense(b) && t_dense(c), "fresh tensors are dense");
    EXPECT(!strcmp(r->a.label[2].name, "b") && r->a.label[2].used == ARENA_ALIGN, "the label is kept");
    fixture_close(r);
}

static void empty_and_scalar(void)
{
    Fixture   *r = fixture_open();
    Tensor  e = t2(&r->a, "e", F32, 0, 7), s = t_wrap(r->bytes, F64, 0, NULL);
    EXPECT(t_has(e) && t_count(e) == 0 && t_bytes(e) == 0 && t_dense(e) && e.s[0] == 7, "%s", t_fmt(e));
    EXPECT(s.rank == 0 && t_count(s) == 1 && t_bytes(s) == 8 && t_dense(s), "%s", t_fmt(s));
    EXPECT(t_count(t_rows(e, 0, 0)) == 0, "an empty slice of nothing");
    EXPECT(r->a.used == 0 && !r->sticky, "an empty tensor takes no memory");
    fixture_close(r);
}

static void slices(void)
{
    Fixture  *r = fixture_open();
    Tensor t = grid(&r->a, 6, 8), rows = t_rows(t, 2, 3), cols = t_cols(t, 3, 4), both = t_cols(rows, 1, 2);
    EXPECT(at(rows, 0, 0, 0) == 20 && at(rows, 2, 7, 0) == 47 && t_dense(rows), "%s", t_fmt(rows));
    EXPECT(at(cols, 0, 0, 0) == 3 && at(cols, 5, 3, 0) == 56 && !t_dense(cols), "%s", t_fmt(cols));
    EXPECT(at(both, 0, 0, 0) == 21 && at(both, 2, 1, 0) == 42 && t_bytes(both) == 24, "%s", t_fmt(both));
    EXPECT(t_dense(t_rows(cols, 1, 1)), "one row has no gap after it");
    EXPECT(t_dense(t_cols(t, 0, 8)) && t_count(t_rows(t, 6, 0)) == 0, "whole and empty slices");
    EXPECT(at(t_at(cols, 4), 2, 0, 0) == 45 && t_at(cols, 4).rank == 1, "one row of a slice");
    EXPECT(t_at(t_at(t, 5), 7).rank == 0 && at(t_at(t_at(t, 5), 7), 0, 0, 0) == 57, "down to one element");
    fixture_close(r);
}

static void heads_and_shapes(void)
{
    Fixture  *r = fixture_open();
    Tensor t = grid(&r->a, 4, 9), q = t_heads(t, 0, 2, 3), k = t_heads(t, 6, 1, 3);
    EXPECT(q.rank == 3 && q.n[1] == 2 && q.n[2] == 3 && at(q, 3, 1, 2) == 35 && !t_dense(q), "%s", t_fmt(q));
    EXPECT(at(k, 2, 0, 1) == 27, "%s: `from` counts columns", t_fmt(k));
    EXPECT(at(t_as3(t, 4, 3, 3), 1, 2, 0) == 16 && at(t_as2(t, 12, 3), 4, 1, 0) == 14, "dense reshapes");
    EXPECT(t_same(t, t_heads(t, 0, 1, 9)) == false && t_same(t_cols(t, 0, 2), t_cols(t, 5, 2)), "sameness");
    EXPECT(!t_same(t, t_wrap(t.data, F32, 2, t.n)) && t_same(t, t_wrap(NULL, I32, 2, t.n)), "dtype counts");
    EXPECT(!strcmp(t_fmt(q), "i32(4, 2, 3)"), "%s", t_fmt(q));
    EXPECT(strcmp(t_fmt(q), t_fmt(t)), "two in one message");
    fixture_close(r);
}

static void absent_stays_absent(void)
{
    int64_t n[] = { 4, 6 };
    Tensor  t = t_wrap(NULL, BF16, 2, n);
    EXPECT(!t_has(t_rows(t, 1, 2)) && !t_has(t_cols(t, 1, 2)) && !t_has(t_at(t, 3)), "slices");
    EXPECT(!t_has(t_heads(t, 2, 2, 2)) && !t_has(t_as2(t, 6, 4)), "shapes");
    EXPECT(!strcmp(t_fmt(t), "absent bf16(4, 6)"), "%s", t_fmt(t));
}

static void full_arena_sticks(void)
{
    Fixture  *r = fixture_open();
    Tensor t = t2(&r->a, "huge", F32, 1 << 10, 1 << 10);
    EXPECT(r->sticky == E_FIT && t.data == r->bytes && strstr(status_text(), "huge"), "%s", status_text());
    fixture_close(r);
}

/* A bug() must abort; run the guilty call in a child, its message thrown away. */
static bool aborts(void (*guilty)(Tensor t), Tensor t)
{
    int   status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        if (freopen("/dev/null", "w", stderr)) guilty(t);
        _exit(0);
    }
    bool ended = child > 0 && waitpid(child, &status, 0) == child;
    return ended && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void rows_past_end(Tensor t)      { t_rows(t, 3, 2); }
static void rows_before_start(Tensor t)  { t_rows(t, -1, 2); }
static void rows_overflow(Tensor t)      { t_rows(t, 2, INT64_MAX); }
static void cols_past_end(Tensor t)      { t_cols(t, 5, 2); }
static void at_past_end(Tensor t)        { t_at(t, 4); }
static void heads_too_wide(Tensor t)     { t_heads(t, 1, 3, 2); }
static void heads_overflow(Tensor t)     { t_heads(t, 0, INT64_MAX, 2); }
static void reshape_miscounts(Tensor t)  { t_as2(t, 5, 5); }
static void reshape_with_gaps(Tensor t)  { t_as2(t_cols(t, 0, 3), 3, 4); }
static void negative_extent(Tensor t)    { t_wrap(t.data, F32, 2, (int64_t[]){ 2, -1 }); }
static void extents_overflow(Tensor t)   { t_wrap(t.data, F32, 3, (int64_t[]){ 1ll << 40, 0, 1ll << 40 }); }
static void rank_too_high(Tensor t)      { t_wrap(t.data, F32, MAXDIM + 1, t.n); }

static void misuse_aborts(void)
{
    Fixture  *r = fixture_open();
    Tensor t = grid(&r->a, 4, 6);
    static const struct { const char *name; void (*f)(Tensor); } calls[] = {
#define CALL(f) { #f, f }
        CALL(rows_past_end), CALL(rows_before_start), CALL(rows_overflow), CALL(cols_past_end),
        CALL(at_past_end), CALL(heads_too_wide), CALL(heads_overflow), CALL(reshape_miscounts),
        CALL(reshape_with_gaps), CALL(negative_extent), CALL(extents_overflow), CALL(rank_too_high),
#undef CALL
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        EXPECT(aborts(calls[i].f, t), "%s", calls[i].name);
    fixture_close(r);
}

int main(void)
{
    RUN(fresh_tensors);
    RUN(empty_and_scalar);
    RUN(slices);
    RUN(heads_and_shapes);
    RUN(absent_stays_absent);
    RUN(full_arena_sticks);
    RUN(misuse_aborts);
    return lab_report();
}
