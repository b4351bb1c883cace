/* data/thrift.h -- reads Thrift's compact protocol, in which Parquet writes its metadata. Nothing is trusted:
 * a reader that met damage stays at its end and says so. */
#ifndef DATA_THRIFT_H
#define DATA_THRIFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    TH_STOP,
    TH_TRUE,
    TH_FALSE,
    TH_I8,
    TH_I16,
    TH_I32,
    TH_I64,
    TH_DOUBLE,
    TH_BINARY,
    TH_LIST,
    TH_SET,
    TH_MAP,
    TH_STRUCT
} ThriftType;

typedef struct Thrift {
    const uint8_t *at, *end;
    bool           damaged;
    int            depth;
} Thrift;
typedef struct ThriftField {
    int        id;
    ThriftType type;
} ThriftField;
typedef struct ThriftText {
    const char *v;
    size_t      n;
} ThriftText;

/* The fields of a struct, one a call; false at its end. Begin with *f zeroed; each field is read or
 * skipped. */
bool       thrift_next(Thrift *t, ThriftField *f);
void       thrift_skip(Thrift *t, ThriftType type);
int64_t    thrift_int(Thrift *t, const ThriftField *f); /* of any integer or boolean field */
ThriftText thrift_text(Thrift *t, const ThriftField *f);
/* The number of elements of a list, and their type. A list never has more elements than bytes are left. */
size_t     thrift_list(Thrift *t, const ThriftField *f, ThriftType *element);

#endif
