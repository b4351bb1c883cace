/* tensor/safetensors.h -- files of named tensors: mapped reads, atomic writes.
 *
 * A file is a 64-bit little-endian length N, N bytes of JSON (name -> dtype, shape, data_offsets), and the
 * data, which the tensors cover without holes or overlaps. A large model is several such files in a folder
 * with model.safetensors.index.json, which maps tensor names to files.
 *
 * Reading maps the files; `data` points straight into the mapping and is copied once, into its destination.
 * These files are untrusted: st_open checks every number, and after it each tensor's bytes lie inside its
 * file. It cannot guarantee two things:
 *   - data may be unaligned (the format allows it), so read with dtype_convert or memcpy;
 *   - a file that is cut short while mapped raises SIGBUS on access, as with any mapping.
 *
 * Writing streams, so that a model never exists twice in memory: declare all tensors, begin, hand over the
 * bytes in the order of declaration, finish. Until finish the target is untouched: data goes to hidden
 * temporary files beside it, which are synced and then renamed, the index last. */
#ifndef TENSOR_SAFETENSORS_H
#define TENSOR_SAFETENSORS_H

#include "tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ST_MAXDIM 8                   /* in files; patch embeddings have five, a Tensor has MAXDIM */
#define ST_MAX_HEADER 100000000       /* bytes; the same limit as the reference implementation */

typedef struct StTensor {
    const char *name;
    DType       dtype;
    int         rank;                 /* 0: a scalar */
    int64_t     shape[ST_MAXDIM];     /* an extent may be 0 */
    const void *data;                 /* dense, row-major, maybe unaligned */
    size_t      bytes;
    int         file;                 /* index into SafeTensors.file */
    const struct StTensor *scale;     /* of e4m3: the tensor with the scales of its blocks; NULL: none */
} StTensor;

typedef struct StMeta { char *key, *value; } StMeta;

typedef struct StFile {
    char       *path;
    const char *bytes;
    size_t      len;
    bool        mapped;               /* st_close unmaps it */
} StFile;

typedef struct SafeTensors {
    StTensor *tensor;                 /* sorted by name: walk tensor[0 … count - 1] */
    int       count;
    StFile   *file;
    int       files;
    StMeta   *meta;                   /* __metadata__ of all files, in file order */
    int       metas;
} SafeTensors;

/* path is a file or a folder; a folder's index is used if there is one, else its model.safetensors.
 * st_open_memory reads one file's bytes, which must outlive s; `what` names them in messages.
 * On failure *s is closed and safe to close again. */
MUST Status     st_open(SafeTensors *s, const char *path);
MUST Status     st_open_memory(SafeTensors *s, const void *bytes, size_t len, const char *what);
void            st_close(SafeTensors *s);

enum { ST_SHAPE_TEXT = 256 };
const char     *st_shape_text(char out[ST_SHAPE_TEXT], int rank, const int64_t *shape);   /* "[4, 16]" */

const StTensor *st_find(const SafeTensors *s, const char *name);                  /* NULL when absent */
MUST Status     st_get(const SafeTensors *s, const char *name, const StTensor **t);   /* or E_DATA */
const char     *st_meta(const SafeTensors *s, const char *key);                   /* NULL when absent */
/* Elements from .. as f32; codes times their scales, where the tensor has any. */
void            st_read(float *out, const StTensor *t, int64_t from, int64_t n);
#define ST_SCALE "_scale_inv"         /* the name of scales behind that of their tensor */
MUST Status     st_check_scales(const SafeTensors *s);        /* each has the other, or E_DATA */
bool            st_is_scale(const char *name);
void            st_link_scales(SafeTensors *s);               /* sets StTensor.scale; st_open does it */

typedef struct StWriter {
    char   *dir, *name;               /* name: of the one file, or NULL for a folder's model*.safetensors */
    int64_t max_shard;                /* bytes of data */
    struct StSlot *slot;              /* the declared tensors */
    int     count, cap;
    int     shards, made, placed;     /* all; with a temporary file begun; renamed */
    int     fd;                       /* of shard made - 1 */
    int64_t base;                     /* offset of the shard's data */
    int     at;                       /* the slot being written, and its bytes written so far */
    int64_t done;
    bool    open, begun;
} StWriter;

/* path ending in .safetensors is one file; any other is a folder, made if absent, split into shards of at
 * most max_shard bytes (0: no limit). On any failure the writer is closed and its temporary files are
 * removed. */
MUST Status     st_writer_open(StWriter *w, const char *path, int64_t max_shard);
MUST Status     st_writer_declare(StWriter *w, const char *name, DType d, int rank, const int64_t *shape);
MUST Status     st_writer_begin(StWriter *w);
const char     *st_writer_next(const StWriter *w);            /* the tensor to write next; NULL at the end */
MUST Status     st_writer_write(StWriter *w, const void *data, size_t bytes);   /* in pieces of any size */
MUST Status     st_writer_finish(StWriter *w);
void            st_writer_close(StWriter *w);                 /* unfinished: removes its files; idempotent */

/* Writes a few tensors to one file of any name. */
StTensor        st_of(const char *name, Tensor t);            /* t must be dense */
MUST Status     st_save(const char *path, const StTensor *t, int n);

#ifdef __cplusplus
}
#endif
#endif
