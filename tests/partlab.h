/* tests/partlab.h -- the ranks of a layout, one after the other in one process and without any Comm: each has
 * its part of a small model, bound to memory of its own, with the optimizer's slices of ZeRO where asked. */
#ifndef TESTS_PARTLAB_H
#define TESTS_PARTLAB_H

#include "lab.h"
#include "base/rng.h"
#include "model/model.h"

typedef struct RankPart {
    Mesh   mesh;
    Chunk  chunk[4];
    Model  m;
    void  *memory[4096];
    int    blocks;
} RankPart;

typedef enum { WHOLE_STATE, SLICED_STATE, SLICED_WEIGHTS } Slicing;     /* plain DP; ZeRO-1; ZeRO-3 */

static inline Tensor part_tensor(RankPart *r, DType d, int64_t n)
{
    REQUIRE(r->blocks < 4096, "too many tensors");
    void *p = r->memory[r->blocks++] = calloc((size_t)n + 1, dtype_size(d));
    return t_wrap(p, d, 1, &n);
}

/* Equal slices over the ranks that hold the same; the last may be short or empty. */
static inline void part_own(RankPart *r, Param *p, Slicing s)
{
    int ranks[256], n = mesh_group(&r->mesh, p->sums, ranks), me = 0;
    while (ranks[me] != r->mesh.rank) me++;
    int64_t all = param_local(p), part = (all + n - 1) / n;
    p->keeper = s != WHOLE_STATE || me == 0;
    p->own_at = s == WHOLE_STATE ? 0 : me * part < all ? me * part : all;
    p->own_n  = s == WHOLE_STATE ? all : p->own_at + part < all ? part : all - p->own_at;
}

static inline void part_bind(RankPart *r, DType d, Slicing s)
{
    for (int i = 0; i < r->m.params.n; i++) {
        Param *p = r->m.params.p[i];
        bool frozen = p->frozen;
        part_own(r, p, frozen ? WHOLE_STATE : s);
        p->w = part_tensor(r, d, s == SLICED_WEIGHTS && !frozen ? p->own_n : param_local(p));
        if (frozen) continue;
        if (d != F32) p->master = part_tensor(r, F32, p->own_n);
        p->m = part_tensor(r, F32, p->own_n);
        p->v = part_tensor(r, F32, p->own_n);
    }
}

/* Layers in equal chunks over pp x vpp: chunk c of stage s is piece c pp + s. */
static inline void part_chunks(RankPart *r, int64_t L)
{
    int pp = r->mesh.layout.pp, vpp = r->mesh.layout.vpp, n = pp * vpp;
    for (int c = 0; c < vpp; c++) {
        int at = c * pp + r->mesh.at[AX_PP];
        r->chunk[c] = (Chunk){ L * at / n, L * (at + 1) / n, at == 0, at == n - 1 };
    }
}

static inline void part_open_adapted(RankPart *r, const ModelShape *s, const bool *frozen,
                                     const AdapterConf *lora, const Layout *l, int rank, int world, DType d,
                                     Slicing slicing)
{
    *r = (RankPart){ 0 };
    Layout layout = *l;
    layout.kv_heads = (int)s->text.G;
    mesh_place(&r->mesh, rank, world, &layout);
    part_chunks(r, s->text.L);
    EXPECT_OK(model_open_part(&r->m, s, frozen, lora, &r->mesh, r->chunk, r->mesh.layout.vpp));
    part_bind(r, d, slicing);
}

static inline void part_open(RankPart *r, const ModelShape *s, const bool *frozen, const Layout *l, int rank,
                             int world, DType d, Slicing slicing)
{
    part_open_adapted(r, s, frozen, NULL, l, rank, world, d, slicing);
}

static inline void part_close(RankPart *r)
{
    model_close(&r->m);
    for (int i = 0; i < r->blocks; i++) free(r->memory[i]);
    *r = (RankPart){ 0 };
}

static inline Param *part_param(const RankPart *r, const char *name)
{
    for (int i = 0; i < r->m.params.n; i++)
        if (!strcmp(r->m.params.p[i]->piece[0].name, name)) return r->m.params.p[i];
    return NULL;
}

#endif
