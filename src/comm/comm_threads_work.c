/* comm/comm_threads_work.c -- the work of a collective, done by the last member to arrive; see
 * comm_threads.h. */
#include "comm/comm_threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *find_mismatch(const ThreadGroup *r, const Collective *m, char *text, size_t n)
{
    const MemberCall *a = &m->member[0];
    for (int i = 1; i < r->size; i++) {
        const MemberCall *b = &m->member[i];
        bool same = a->call.kind == b->call.kind && a->call.reduce == b->call.reduce &&
                    a->call.out.dtype == b->call.out.dtype && a->bytes == b->bytes &&
                    (a->call.kind == CALL_ALL_TO_ALL || t_count(a->call.in) == t_count(b->call.in));
        if (!same) {
            snprintf(text, n, "call %lld of a group is %s %s on rank %d and %s %s on rank %d",
                     (long long)m->number, call_name(a->call.kind), t_fmt(a->call.in), r->members[0],
                     call_name(b->call.kind), t_fmt(b->call.in), r->members[i]);
            return text;
        }
    }
    for (int i = 0; i < r->size && a->call.kind == CALL_ALL_TO_ALL; i++)
        for (int j = 0; j < r->size; j++) {
            long long gives = m->member[i].call.give.n[j], gets = m->member[j].call.get.n[i];
            if (gives == gets) continue;
            snprintf(text, n, "all_to_all: rank %d sends %lld rows to rank %d, which expects %lld",
                     r->members[i], gives, r->members[j], gets);
            return text;
        }
    return NULL;
}

static void exchange(const ThreadGroup *r, const Collective *m)
{
    for (int i = 0; i < r->size; i++)
        for (int j = 0; j < r->size; j++) {
            const CommCall *from = &m->member[i].call, *to = &m->member[j].call;
            int64_t row = call_row(from->in);
            char   *at  = (char *)to->out.data + to->get.at[i] * row;
            if (from->give.n[j])
                memcpy(at, (char *)from->in.data + from->give.at[j] * row, (size_t)(from->give.n[j] * row));
        }
}

static void gather(const ThreadGroup *r, const Collective *m)
{
    size_t bytes = (size_t)t_bytes(m->member[0].call.in);
    for (int i = 0; i < r->size; i++)
        for (int j = 0; j < r->size && bytes; j++) {
            char *to = (char *)m->member[j].call.out.data + (size_t)i * bytes;
            if (to != m->member[i].call.in.data) memcpy(to, m->member[i].call.in.data, bytes);
        }
}

static bool reduce(const ThreadGroup *r, const Collective *m)
{
    const CommCall  *c    = &m->member[0].call;
    bool         all  = c->kind == CALL_ALL_REDUCE;
    int64_t      n    = t_count(c->out);
    const void **part = malloc((size_t)r->size * sizeof *part);
    if (!part) return false;
    for (int i = 0; i < (all ? 1 : r->size); i++) {
        for (int j = 0; j < r->size; j++)
            part[j] = (char *)m->member[j].call.in.data + i * t_bytes(c->out);
        sum_parts(m->member[i].call.out.data, part, r->size, (DType)c->in.dtype, n, c->reduce);
    }
    for (int i = 1; i < r->size && all && n; i++)
        memcpy(m->member[i].call.out.data, c->out.data, (size_t)t_bytes(c->out));
    free(part);
    return true;
}

static void host_gather(const ThreadGroup *r, const Collective *m)
{
    for (int i = 0; i < r->size; i++)
        for (int j = 0; j < r->size; j++)
            memcpy((char *)m->member[j].out + (size_t)i * m->member[i].bytes, m->member[i].in,
                   m->member[i].bytes);
}

const char *threads_do_collective(const ThreadGroup *r, const Collective *m, char *text, size_t n)
{
    if (find_mismatch(r, m, text, n)) return text;
    switch (m->member[0].call.kind) {
    case CALL_ALL_GATHER:   gather(r, m);   return NULL;
    case CALL_ALL_TO_ALL: exchange(r, m); return NULL;
    case CALL_HOST_GATHER:     host_gather(r, m);     return NULL;
    default:            return reduce(r, m) ? NULL : "no memory";
    }
}
