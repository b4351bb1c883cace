/* train/checkpoint_state.c -- weights and moments as safetensors, under the names that checkpoints in HF form
 * use, so that no layout of ranks or fusing of parameters is written into the file:
 *
 *   master.NAME, m.NAME, v.NAME    f32, of what trains
 *   w.NAME                         of what is frozen, as it is held
 *
 * One tensor is in host memory at a time. A bf16 weight is its master, rounded, so it is not written. */
#include "train/checkpoint.h"

#include "model/weights.h"
#include "tensor/safetensors.h"

#include <stdlib.h>

#define SHARD ((int64_t)4 << 30)         /* bytes: large enough to be few, small enough to copy about */

/* The tensors of one parameter with their prefixes; n of them. */
typedef struct Kept { const char *prefix[3]; Tensor t[3]; int n; } Kept;

static Kept kept_of(const Param *p)
{
    if (!t_has(p->m)) return (Kept){ { "w" }, { p->w }, 1 };
    return (Kept){ { "master", "m", "v" }, { t_has(p->master) ? p->master : p->w, p->m, p->v }, 3 };
}

static void kept_name(char out[160], const Kept *k, int i, const Piece *q)
{
    snprintf(out, 160, "%s.%s", k->prefix[i], q->name);
}

static int64_t piece_count(const Piece *q)
{
    int64_t n = 1;
    for (int i = 0; i < q->rank; i++) n *= q->shape[i];
    return n;
}

typedef Status KeptFn(void *self, const char *name, const Piece *q, Tensor t);

/* Every tensor of the state, in the one order of the file. */
static Status walk(const Model *m, KeptFn *fn, void *self)
{
    for (int i = 0; i < m->params.n; i++) {
        const Param *p = m->params.p[i];
        Kept k = kept_of(p);
        for (int j = 0; j < k.n; j++)
            for (int q = 0; q < p->pieces; q++) {
                char name[160];
                kept_name(name, &k, j, &p->piece[q]);
                TRY(fn(self, name, &p->piece[q], piece_view(p, k.t[j], q)));
            }
    }
    return OK;
}

typedef struct Writer { StWriter out; Backend *be; void *stage; size_t room; } Writer;

static Status declare(void *self, const char *name, const Piece *q, Tensor t)
{
    Writer *w = self;
    size_t  bytes = (size_t)piece_count(q) * dtype_size((DType)t.dtype);
    if (bytes > w->room) w->room = bytes;
    return st_writer_declare(&w->out, name, (DType)t.dtype, q->rank, q->shape);
}

static Status write_one(void *self, const char *name, const Piece *q, Tensor t)
{
    Writer *w = self;
    backend_fetch(w->be, w->stage, t);
    TRY(backend_sync(w->be));
    return st_writer_write(&w->out, w->stage, (size_t)t_bytes(t));
}

Status state_save(const char *folder, const Model *m, Backend *be)
{
    Writer w = { .be = be };
    Status st = st_writer_open(&w.out, folder, SHARD);
    if (!st) st = walk(m, declare, &w);
    if (!st) st = st_writer_begin(&w.out);
    if (!st && !(w.stage = malloc(w.room)))
        st = fail(E_FIT, "no host memory for a tensor of %zu bytes", w.room);
    if (!st) st = walk(m, write_one, &w);
    if (!st) st = st_writer_finish(&w.out);
    st_writer_close(&w.out);
    free(w.stage);
    return st;
}

typedef struct Reader { const SafeTensors *st; Backend *be; int64_t read; } Reader;

static Status absent(const SafeTensors *st, const char *name, const Piece *q)
{
    char other[160];
    snprintf(other, sizeof other, "%s.%s", name[0] == 'w' ? "master" : "w", q->name);
    if (st_find(st, other))
        return fail(
            E_CONFIG,
            "%s was %s when this was saved: set model.freeze_* as they were, or start from it as model.path",
            q->name, name[0] == 'w' ? "trained" : "frozen");
    return fail(E_DATA, "%s: not in the checkpoint; is it of another model?", name);
}

static Status read_one(void *self, const char *name, const Piece *q, Tensor t)
{
    Reader *r = self;
    const StTensor *s = st_find(r->st, name);
    if (!s) return absent(r->st, name, q);
    bool same = s->rank == q->rank;
    for (int i = 0; same && i < q->rank; i++) same = s->shape[i] == q->shape[i];
    if (!same) return fail(E_DATA, "%s: its shape in the checkpoint is not the model's", name);
    if (s->dtype != (DType)t.dtype)
        return fail(E_CONFIG, "%s: saved as %s, wanted as %s; set model.dtype as it was", name,
                    dtype_name(s->dtype), dtype_name((DType)t.dtype));
    backend_upload(r->be, t, s->data);
    r->read++;
    return OK;
}

static void round_weights(Model *m, Backend *be)
{
    for (int i = 0; i < m->params.n; i++)
        if (t_has(m->params.p[i]->master)) op_copy(be, m->params.p[i]->w, m->params.p[i]->master);
}

Status checkpoint_load(const char *path, Model *m, Backend *be)
{
    Path folder;
    SafeTensors st;
    TRY(path_join(folder, path, "state"));
    TRY(st_open(&st, folder));
    Reader r = { .st = &st, .be = be };
    Status s = walk(m, read_one, &r);
    if (!s && r.read != st.count)
        s = fail(E_DATA, "%s: %lld tensors that the model does not have; is it of another model?", folder,
                 (long long)(st.count - r.read));
    if (!s) round_weights(m, be);
    if (!s) s = backend_sync(be);                           /* uploads are done before the file is unmapped */
    st_close(&st);
    return s ? wrap(s, "%s", path) : OK;
}
