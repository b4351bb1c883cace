/* data/parquet_schema.c -- see parquet_schema.h. */
#include "data/parquet_schema.h"

enum { MOST_SCALE = 128 };

/* The annotations of the format: ConvertedType, and the fields of LogicalType. */
enum {
    CONVERTED_TEXT             = 0,
    CONVERTED_MAP              = 1,
    CONVERTED_MAP_KEY_VALUE    = 2,
    CONVERTED_LIST             = 3,
    CONVERTED_ENUM             = 4,
    CONVERTED_DECIMAL          = 5,
    CONVERTED_DATE             = 6,
    CONVERTED_TIME_MILLIS      = 7,
    CONVERTED_TIME_MICROS      = 8,
    CONVERTED_TIMESTAMP_MILLIS = 9,
    CONVERTED_TIMESTAMP_MICROS = 10,
    CONVERTED_UINT_8           = 11,
    CONVERTED_UINT_64          = 14,
    CONVERTED_JSON             = 19,
    LOGICAL_TEXT               = 1,
    LOGICAL_MAP                = 2,
    LOGICAL_LIST               = 3,
    LOGICAL_ENUM               = 4,
    LOGICAL_DECIMAL            = 5,
    LOGICAL_DATE               = 6,
    LOGICAL_TIME               = 7,
    LOGICAL_TIMESTAMP          = 8,
    LOGICAL_INTEGER            = 10,
    LOGICAL_JSON               = 12,
    LOGICAL_UUID               = 14,
    LOGICAL_HALF               = 15
};

/* The unit of a time: a union of milliseconds, microseconds and nanoseconds, each an empty struct. */
static void read_unit(Thrift *t, ParquetElement *e)
{
    ThriftField f = { 0 };
    while (thrift_next(t, &f)) {
        if (f.id >= 1 && f.id <= 3) e->digits = 3 * f.id;
        thrift_skip(t, f.type);
    }
}

/* The fields of an annotation: of an integer its sign, of a decimal its scale, of a time its unit. */
static void read_annotation(Thrift *t, ParquetElement *e)
{
    ThriftField f    = { 0 };
    bool        time = e->logical == LOGICAL_TIME || e->logical == LOGICAL_TIMESTAMP;
    while (thrift_next(t, &f)) {
        if (e->logical == LOGICAL_INTEGER && f.id == 2) e->is_unsigned = !thrift_int(t, &f);
        else if (e->logical == LOGICAL_DECIMAL && f.id == 1) e->scale = (int)thrift_int(t, &f);
        else if (time && f.id == 1) e->is_utc = thrift_int(t, &f);
        else if (time && f.id == 2 && f.type == TH_STRUCT) read_unit(t, e);
        else thrift_skip(t, f.type);
    }
}

static void read_logical(Thrift *t, ParquetElement *e)
{
    ThriftField f = { 0 };
    while (thrift_next(t, &f)) {
        e->logical = f.id;
        if (f.type == TH_STRUCT) read_annotation(t, e);
        else thrift_skip(t, f.type);
    }
}

ParquetElement parquet_element(Thrift *t)
{
    ParquetElement e = { .type = -1, .converted = -1 };
    ThriftField    f = { 0 };
    while (thrift_next(t, &f)) {
        if (f.id == 1) e.type = (int)thrift_int(t, &f);
        else if (f.id == 2) e.length = (int)thrift_int(t, &f);
        else if (f.id == 3) e.repeat = (int)thrift_int(t, &f);
        else if (f.id == 4) e.name = thrift_text(t, &f);
        else if (f.id == 5) e.children = (int)thrift_int(t, &f);
        else if (f.id == 6) e.converted = (int)thrift_int(t, &f);
        else if (f.id == 7) e.scale = (int)thrift_int(t, &f);
        else if (f.id == 10 && f.type == TH_STRUCT) read_logical(t, &e);
        else thrift_skip(t, f.type);
    }
    return e;
}

/* The unit of a time by either annotation; 0: it is no time that is known. */
static int time_digits(const ParquetElement *e)
{
    if (e->digits) return e->digits;
    if (e->converted == CONVERTED_TIME_MILLIS || e->converted == CONVERTED_TIMESTAMP_MILLIS) return 3;
    return e->converted == CONVERTED_TIME_MICROS || e->converted == CONVERTED_TIMESTAMP_MICROS ? 6 : 0;
}

/* Only where the type can hold it: an annotation that does not fit is as if it were absent. */
static ParquetMeaning meaning_of(const ParquetNode *n, const ParquetElement *e)
{
    bool whole = n->type == PQ_INT32 || n->type == PQ_INT64, fixed = n->type == PQ_FIXED;
    int  c = e->converted, l = e->logical;
    if (l == LOGICAL_HALF && fixed && n->type_length == 2) return PQ_HALF;
    if (l == LOGICAL_UUID && fixed && n->type_length == 16) return PQ_UUID;
    if ((c == CONVERTED_DATE || l == LOGICAL_DATE) && n->type == PQ_INT32) return PQ_DATE;
    if ((c == CONVERTED_DECIMAL || l == LOGICAL_DECIMAL) && e->scale >= 0 && e->scale <= MOST_SCALE &&
        (whole || fixed || n->type == PQ_BYTES))
        return PQ_DECIMAL;
    if (!whole || !time_digits(e)) return PQ_AS_STORED;
    if (c == CONVERTED_TIME_MILLIS || c == CONVERTED_TIME_MICROS || l == LOGICAL_TIME) return PQ_TIME;
    return n->type == PQ_INT64 ? PQ_TIMESTAMP : PQ_AS_STORED;
}

void parquet_annotate(ParquetNode *n, const ParquetElement *e)
{
    int c = e->converted, l = e->logical;
    n->is_list = c == CONVERTED_LIST || l == LOGICAL_LIST;
    n->is_map  = c == CONVERTED_MAP || c == CONVERTED_MAP_KEY_VALUE || l == LOGICAL_MAP;
    n->is_text = c == CONVERTED_TEXT || c == CONVERTED_ENUM || c == CONVERTED_JSON || l == LOGICAL_TEXT ||
                 l == LOGICAL_ENUM || l == LOGICAL_JSON;
    n->is_unsigned = e->is_unsigned || (c >= CONVERTED_UINT_8 && c <= CONVERTED_UINT_64);
    n->meaning     = meaning_of(n, e);
    n->scale       = e->scale;
    n->digits      = time_digits(e);
    /* The older annotation is of times in UTC; the newer one says whether they are. */
    n->is_utc = l ? e->is_utc : n->digits != 0;
}
