/* model/sink.c -- see sink.h. */
#include "model/sink.h"

#include <stdlib.h>

enum { STAGE = 1 << 22 };                                    /* elements of the staging buffer */

Status sink_open(Sink *s, Backend *be, Tensor t)
{
    int64_t n = t_count(t), size = n < STAGE ? n : STAGE;
    REQUIRE(t_dense(t), "sink_open: %s is not dense", t_fmt(t));
    *s = (Sink){ .be = be, .t = t_wrap(t.data, (DType)t.dtype, 1, &n) };
    if (!be || be->device->host_memory || !n) return OK;
    s->stage = malloc((size_t)size * dtype_size((DType)t.dtype));
    return s->stage ? OK : fail(E_FIT, "no host memory to stage a tensor");
}

static void flush(Sink *s)
{
    if (s->staged) backend_upload(s->be, t_rows(s->t, s->at - s->staged, s->staged), s->stage);
    s->staged = 0;
}

void sink_seek(Sink *s, int64_t at)
{
    if (at == s->at) return;
    flush(s);
    s->at = at;
}

void sink_put(Sink *s, const void *src, DType from, int64_t n)
{
    DType  to = (DType)s->t.dtype;
    size_t size = dtype_size(to);
    REQUIRE(n >= 0 && n <= t_count(s->t) - s->at, "sink_put: %lld elements at %lld of %s", (long long)n,
            (long long)s->at, t_fmt(s->t));
    for (int64_t done = 0; done < n;) {
        int64_t left = STAGE - s->staged, k = n - done < left ? n - done : left;
        char   *to_stage = s->stage + (size_t)s->staged * size;
        char   *to_tensor = (char *)s->t.data + (size_t)s->at * size;
        activity_slow_begin();                               /* src may be a mapped file */
        dtype_convert(s->stage ? to_stage : to_tensor, to,
                      (const char *)src + (size_t)done * dtype_size(from), from, k);
        activity_slow_end();
        s->at += k, done += k;
        if (s->stage) s->staged += k;
        if (s->staged == STAGE) flush(s);
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
