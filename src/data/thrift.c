/* data/thrift.c -- see thrift.h. */
#include "data/thrift.h"

enum { DEPTH = 32 };

static void damage(Thrift *t) { t->damaged = true, t->at = t->end; }

static uint8_t byte_next(Thrift *t)
{
    if (t->at < t->end) return *t->at++;
    return damage(t), 0;
}

static uint64_t varint(Thrift *t)
{
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t b = byte_next(t);
        v |= (uint64_t)(b & 127) << shift;
        if (!(b & 128)) return v;
    }
    return damage(t), 0;
}

static int64_t zigzag(uint64_t v) { return (int64_t)(v >> 1) ^ -(int64_t)(v & 1); }

bool thrift_next(Thrift *t, ThriftField *f)
{
    uint8_t head = byte_next(t), delta = head >> 4;
    f->type = head & 15;
    if (f->type > TH_STRUCT) damage(t);
    if (t->damaged || f->type == TH_STOP) return false;
    f->id = delta ? f->id + delta : (int)(int16_t)zigzag(varint(t));
    return !t->damaged;
}

static void skip_bytes(Thrift *t, uint64_t n)
{
    if (n > (uint64_t)(t->end - t->at)) damage(t);
    else t->at += n;
}

static void skip_struct(Thrift *t)
{
    ThriftField f = { 0 };
    while (thrift_next(t, &f)) thrift_skip(t, f.type);
}

static void skip_list(Thrift *t)
{
    ThriftField f = { 0, TH_LIST };
    ThriftType  element;
    size_t      n   = thrift_list(t, &f, &element);
    bool        one = element == TH_TRUE || element == TH_FALSE;
    for (size_t i = 0; i < n && !t->damaged; i++) {
        if (one) byte_next(t);
        else thrift_skip(t, element);
    }
}

static void skip_map(Thrift *t)
{
    uint64_t n     = varint(t);
    uint8_t  types = n ? byte_next(t) : 0;
    if (n > (uint64_t)(t->end - t->at)) {
        damage(t);
        return;
    }
    for (uint64_t i = 0; i < n && !t->damaged; i++) thrift_skip(t, types >> 4), thrift_skip(t, types & 15);
}

void thrift_skip(Thrift *t, ThriftType type)
{
    if (t->depth >= DEPTH || t->damaged) {
        damage(t);
        return;
    }
    t->depth++;
    switch (type) {
    case TH_TRUE:
    case TH_FALSE:
        break;
    case TH_I8:
        byte_next(t);
        break;
    case TH_I16:
    case TH_I32:
    case TH_I64:
        varint(t);
        break;
    case TH_DOUBLE:
        skip_bytes(t, 8);
        break;
    case TH_BINARY:
        skip_bytes(t, varint(t));
        break;
    case TH_LIST:
    case TH_SET:
        skip_list(t);
        break;
    case TH_MAP:
        skip_map(t);
        break;
    case TH_STRUCT:
        skip_struct(t);
        break;
    default:
        damage(t);
        break;
    }
    t->depth--;
}

int64_t thrift_int(Thrift *t, const ThriftField *f)
{
    switch (f->type) {
    case TH_TRUE:
        return 1;
    case TH_FALSE:
        return 0;
    case TH_I8:
        return (int8_t)byte_next(t);
    case TH_I16:
    case TH_I32:
    case TH_I64:
        return zigzag(varint(t));
    default:
        return damage(t), 0;
    }
}

ThriftText thrift_text(Thrift *t, const ThriftField *f)
{
    uint64_t n = f->type == TH_BINARY ? varint(t) : UINT64_MAX;
    if (n > (uint64_t)(t->end - t->at)) return damage(t), (ThriftText){ "", 0 };
    ThriftText text = { (const char *)t->at, (size_t)n };
    return t->at += n, text;
}

size_t thrift_list(Thrift *t, const ThriftField *f, ThriftType *element)
{
    uint8_t  head = f->type == TH_LIST || f->type == TH_SET ? byte_next(t) : (damage(t), 0);
    uint64_t n    = head >> 4 == 15 ? varint(t) : head >> 4;
    *element      = head & 15;
    if (n > (uint64_t)(t->end - t->at)) damage(t);
    return t->damaged ? 0 : (size_t)n;
}
