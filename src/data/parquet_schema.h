/* data/parquet_schema.h -- one element of a Parquet file's schema, and what its annotations mean. */
#ifndef DATA_PARQUET_SCHEMA_H
#define DATA_PARQUET_SCHEMA_H

#include "data/parquet.h"
#include "data/thrift.h"

/* As it is stored; -1 and 0 stand for what is absent. */
typedef struct ParquetElement {
    ThriftText name;
    int        type, repeat, length, children, converted, scale;
    int        logical, digits; /* the newer annotation; of a time, 3, 6 or 9: its unit */
    bool       is_unsigned, is_utc;
} ParquetElement;

ParquetElement parquet_element(Thrift *t);
/* Sets what the annotations of e say of a node whose type is known. */
void parquet_annotate(ParquetNode *node, const ParquetElement *e);

#endif
