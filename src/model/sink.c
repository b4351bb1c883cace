/* model/sink.c -- see sink.h. */
#include "model/sink.h"

#include <stdlib.h>

enum { STAGE = 1 << 22 };                                    /* elements of the staging buffer */

Status sink_open_view(Sink *s, Backend *be, ShardView h)
{
    int64_t n = t_count(h.t), room = n < STAGE ? n : STAGE;
    size_t  each = dtype_size((DType)h.t.dtype) + (t_has(h.rest) ? dtype_size((DType)h.rest.dtype) : 0);
    REQUIRE(t_dense(h.t) && (!t_has(h.rest) || (h.t.dtype == BF16 && h.rest.dtype == I16)),
            "sink_open: %s and %s", t_fmt(h.t), t_fmt(h.rest));
    *s = (Sink){ .be = be, .t = t_wrap(h.t.data, (DType)h.t.dtype, 1, &n), .rest = h.rest, .room = room };
    if (!be || be->device->host_memory || !n) return OK;
    s->stage = malloc((size_t)room * each);
    return s->stage ? OK : fail(E_FIT, "no host memory to stage a tensor");
}

Status sink_open(Sink *s, Backend *be, Tensor t) { return sink_open_view(s, be, (ShardView){ .t = t }); }

/* Element i of the staging buffer, or, where there is none, of t itself; and its rest. */
static char *near_at(const Sink *s, int64_t staged, int64_t at)
{
    return (s->stage ? s->stage : (char *)s->t.data) +
           (size_t)(s->stage ? staged : at) * dtype_size((DType)s->t.dtype);
}
static uint16_t *rest_at(const Sink *s, int64_t staged, int64_t at)
{
    if (!s->stage) return (uint16_t *)s->rest.data + at;
    return (uint16_t *)(s->stage + (size_t)s->room * dtype_size((DType)s->t.dtype)) + staged;
}

static void flush(Sink *s)
{
    int64_t from = s->at - s->staged;
    if (s->staged) {
        backend_upload(s->be, t_rows(s->t, from, s->staged), near_at(s, 0, 0));
        if (t_has(s->rest)) backend_upload(s->be, t_rows(s->rest, from, s->staged), rest_at(s, 0, 0));
    }
    s->staged = 0;
}

void sink_seek(Sink *s, int64_t at)
{
    if (at == s->at) return;
    flush(s);
    s->at = at;
}

static void convert_split(uint16_t *near, uint16_t *rest, const char *src, DType from, int64_t n)
{
    uint32_t x[1024];
    for (int64_t at = 0, k; at < n; at += k) {
        k = n - at < 1024 ? n - at : 1024;
        dtype_convert(x, F32, src + (size_t)at * dtype_size(from), from, k);
        for (int64_t i = 0; i < k; i++) {
            uint32_t u = bits_quiet(x[i]);
            near[at + i] = bits_near(u), rest[at + i] = bits_rest(u);
        }
    }
}

/* Converts the next n elements, which the staging buffer has room for. */
static void convert(Sink *s, const char *src, DType from, int64_t n)
{
    char *near = near_at(s, s->staged, s->at);
    if (t_has(s->rest)) convert_split((uint16_t *)near, rest_at(s, s->staged, s->at), src, from, n);
    else                dtype_convert(near, (DType)s->t.dtype, src, from, n);
}

void sink_put(Sink *s, const void *src, DType from, int64_t n)
{
    REQUIRE(n >= 0 && n <= t_count(s->t) - s->at, "sink_put: %lld elements at %lld of %s", (long long)n,
            (long long)s->at, t_fmt(s->t));
    for (int64_t done = 0; done < n;) {
        int64_t left = s->room - s->staged, k = n - done < left ? n - done : left;
        activity_slow_begin();                               /* src may be a mapped file */
        convert(s, (const char *)src + (size_t)done * dtype_size(from), from, k);
        activity_slow_end();
        s->at += k, done += k;
        if (s->stage) s->staged += k;
        if (s->staged == s->room) flush(s);
    }
}

static void put_zeros(Sink *s, int64_t n)
{
    static const float zeros[1024];
    for (int64_t k; n > 0; n -= k) {
        k = n < 1024 ? n : 1024;
        sink_put(s, zeros, F32, k);
    }
}

void sink_zero_padding(Sink *s, const Param *p, ShardView h)
{
    int64_t from = param_local(p) / p->shard.shape[0] * p->shard.real_rows - h.at;
    if (from < 0) from = 0;
    if (p->shard.real_rows == p->shard.shape[0] || from >= h.n) return;
    sink_seek(s, from);
    put_zeros(s, h.n - from);
}

Status sink_close(Sink *s)
{
    bool staged = s->stage;
    if (staged) flush(s);
    Status st = staged ? backend_sync(s->be) : OK;
    free(s->stage);
    *s = (Sink){ 0 };
    return st;
}
