/* tensor/tensor.c -- views and their properties; see tensor.h. Nothing here touches elements, so everything
 * works on device and meta memory alike. A view outside its tensor is our bug and aborts. */
#include "tensor/tensor.h"

#include <stdio.h>

Tensor t_wrap(void *data, DType d, int rank, const int64_t *n)
{
    REQUIRE(rank >= 0 && rank <= MAXDIM, "rank %d", rank);
    Tensor  t = { data, { 1, 1, 1, 1 }, { 1, 1, 1, 1 }, (uint8_t)rank, (uint8_t)d };
    int64_t size = (int64_t)dtype_size(d), bytes = size;
    for (int i = rank - 1; i >= 0; i--) {
        int64_t steps = n[i] ? n[i] : 1;                    /* empty tensors keep the strides of a full one */
        t.n[i] = n[i];
        t.s[i] = bytes / size;
        REQUIRE(n[i] >= 0 && !__builtin_mul_overflow(bytes, steps, &bytes), "dim %d of %s", i, t_fmt(t));
    }
    return t;
}

Tensor t_new(Arena *a, const char *label, DType d, int rank, const int64_t *n)
{
    Tensor t = t_wrap(NULL, d, rank, n);
    t.data = arena_push(a, label, (size_t)t_bytes(t));
    return t;
}

Tensor t1(Arena *a, const char *label, DType d, int64_t n0)
{
    return t_new(a, label, d, 1, &n0);
}

Tensor t2(Arena *a, const char *label, DType d, int64_t n0, int64_t n1)
{
    int64_t n[] = { n0, n1 };
    return t_new(a, label, d, 2, n);
}

Tensor t3(Arena *a, const char *label, DType d, int64_t n0, int64_t n1, int64_t n2)
{
    int64_t n[] = { n0, n1, n2 };
    return t_new(a, label, d, 3, n);
}

/* A view of an absent tensor is absent, so that callers need not check first. */
static void *element(Tensor t, int64_t offset)
{
    return t.data ? (char *)t.data + offset * (int64_t)dtype_size((DType)t.dtype) : NULL;
}

static bool within(int64_t from, int64_t count, int64_t extent)
{
    return from >= 0 && count >= 0 && from <= extent && count <= extent - from;
}

Tensor t_rows(Tensor t, int64_t from, int64_t rows)
{
    REQUIRE(t.rank >= 1 && within(from, rows, t.n[0]), "rows %lld + %lld of %s",
            (long long)from, (long long)rows, t_fmt(t));
    t.data = element(t, from * t.s[0]);
    t.n[0] = rows;
    return t;
}

Tensor t_cols(Tensor t, int64_t from, int64_t cols)
{
    int last = t.rank - 1;
    REQUIRE(t.rank >= 1 && within(from, cols, t.n[last]), "columns %lld + %lld of %s",
            (long long)from, (long long)cols, t_fmt(t));
    t.data = element(t, from);
    t.n[last] = cols;
    return t;
}

Tensor t_at(Tensor t, int64_t i)
{
    REQUIRE(t.rank >= 1 && within(i, 1, t.n[0]), "[%lld] of %s", (long long)i, t_fmt(t));
    t.data = element(t, i * t.s[0]);
    t.rank--;
    for (int d = 0; d < MAXDIM; d++) {
        t.n[d] = d < t.rank ? t.n[d + 1] : 1;
        t.s[d] = d < t.rank ? t.s[d + 1] : 1;
    }
    return t;
}

Tensor t_heads(Tensor t, int64_t from, int64_t heads, int64_t width)
{
    int64_t cols = 0;
    REQUIRE(t.rank == 2 && heads >= 0 && width >= 0 && !__builtin_mul_overflow(heads, width, &cols) &&
            within(from, cols, t.n[1]), "%lld heads of %lld from column %lld of %s",
            (long long)heads, (long long)width, (long long)from, t_fmt(t));
    t.data = element(t, from);
    t.rank = 3;
    t.n[1] = heads, t.n[2] = width;
    t.s[1] = width, t.s[2] = 1;
    return t;
}

static Tensor as(Tensor t, int rank, const int64_t *n)
{
    Tensor v = t_wrap(t.data, (DType)t.dtype, rank, n);
    REQUIRE(t_dense(t) && t_count(t) == t_count(v), "%s%s seen as %s",
            t_fmt(t), t_dense(t) ? "" : " with gaps", t_fmt(v));
    return v;
}

Tensor t_as2(Tensor t, int64_t n0, int64_t n1)
{
    int64_t n[] = { n0, n1 };
    return as(t, 2, n);
}

Tensor t_as3(Tensor t, int64_t n0, int64_t n1, int64_t n2)
{
    int64_t n[] = { n0, n1, n2 };
    return as(t, 3, n);
}

/* The stride of a dim of extent 1 does not matter. */
bool t_dense(Tensor t)
{
    int64_t stride = 1;
    if (t_count(t) == 0) return true;
    for (int i = t.rank - 1; i >= 0; i--) {
        if (t.n[i] > 1 && t.s[i] != stride) return false;
        stride *= t.n[i];
    }
    return true;
}

bool t_same(Tensor a, Tensor b)
{
    return a.dtype == b.dtype && a.rank == b.rank && !memcmp(a.n, b.n, sizeof a.n);
}

int64_t t_count(Tensor t) { return t.n[0] * t.n[1] * t.n[2] * t.n[3]; }
int64_t t_bytes(Tensor t) { return t_count(t) * (int64_t)dtype_size((DType)t.dtype); }

/* A ring per thread, so that one message can show several tensors. */
const char *t_fmt(Tensor t)
{
    enum { RING = 8, WIDTH = 112 };
    static _Thread_local char ring[RING][WIDTH];
    static _Thread_local unsigned next;
    char *out = ring[next++ % RING];
    int   len = snprintf(out, WIDTH, "%s%s(", t.data ? "" : "absent ", dtype_name((DType)t.dtype));
    for (int i = 0; i < t.rank && len < WIDTH - 32; i++)
        len += snprintf(out + len, (size_t)(WIDTH - len), "%s%lld", i ? ", " : "", (long long)t.n[i]);
    snprintf(out + len, (size_t)(WIDTH - len), ")");
    return out;
}
