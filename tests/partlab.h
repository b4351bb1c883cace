/* tests/partlab.h -- the ranks of a layout, one after the other in one process and without any Comm: each has
 * its part of a small model, bound to memory of its own, with the optimizer's ZeRO slices if asked. */
#ifndef TESTS_PARTLAB_H
#define TESTS_PARTLAB_H

#include "small.h"

/* Which layers are dense is asked. Every degree of part_layout divides the sizes, but for the vocabulary,
 * which gets padding, and the kv heads, which are shared by tp 4. */
static const char part_config[] =
    "{\"model_type\": \"qwen3_vl_moe\", \"image_token_id\": 40, \"video_token_id\": 41,"
    " \"dtype\": \"float32\", \"tie_word_embeddings\": %s,"
    " \"text_config\": {\"vocab_size\": 50, \"hidden_size\": 24, \"num_hidden_layers\": 4,"
    "  \"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"head_dim\": 6, \"intermediate_size\": 40,"
    "  \"moe_intermediate_size\": 12, \"num_experts\": 8, \"num_experts_per_tok\": 2,"
    "  \"mlp_only_layers\": [%s], \"rope_theta\": 10000.0, \"attention_bias\": true,"
    "  \"rope_scaling\": {\"rope_type\": \"default\", \"mrope_section\": [1, 1, 1]}},"
    " \"vision_config\": {\"depth\": 2, \"hidden_size\": 16, \"intermediate_size\": 20, \"num_heads\": 2,"
    "  \"patch_size\": 4, \"num_position_embeddings\": 25, \"out_hidden_size\": 24,"
    "  \"deepstack_visual_indexes\": [0]}}";

static inline ModelShape part_shape(bool tied, const char *dense_layers)
{
    char text[sizeof part_config + 20];
    snprintf(text, sizeof text, part_config, tied ? "true" : "false", dense_layers);
    return small_shape(text);
}

/* "a,b,c" as a list of a recipe; none of NULL. */
typedef struct Words { char text[400]; const char *item[16]; WordList list; } Words;

static inline const WordList *words(Words *w, const char *text)
{
    if (!text) return NULL;
    snprintf(w->text, sizeof w->text, "%s", text);
    w->list = (WordList){ .item = w->item };
    for (char *p = strtok(w->text, ","); p; p = strtok(NULL, ",")) w->item[w->list.n++] = p;
    return &w->list;
}

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
    int ranks[256], n = mesh_group(&r->mesh, p->grad_group, ranks), me = 0;
    while (ranks[me] != r->mesh.rank) me++;
    int64_t all = param_local(p), part = (all + n - 1) / n;
    p->shard.is_writer = s != WHOLE_STATE || me == 0;
    p->shard.offset = s == WHOLE_STATE ? 0 : me * part < all ? me * part : all;
    p->shard.len  = s == WHOLE_STATE ? all : p->shard.offset + part < all ? part : all - p->shard.offset;
}

static inline void part_bind(RankPart *r, DType d, Slicing s)
{
    for (int i = 0; i < r->m.params.n; i++) {
        Param *p = r->m.params.p[i];
        bool frozen = p->frozen;
        part_own(r, p, frozen ? WHOLE_STATE : s);
        p->shard.w = part_tensor(r, d, s == SLICED_WEIGHTS && !frozen ? p->shard.len : param_local(p));
        if (frozen) continue;
        if (d != F32) p->shard.master = part_tensor(r, F32, p->shard.len);
        p->shard.m = part_tensor(r, F32, p->shard.len);
        p->shard.v = part_tensor(r, F32, p->shard.len);
    }
}

/* Layers in equal chunks over pp x vpp: chunk c of stage s is number c pp + s. */
static inline void part_chunks(RankPart *r, int64_t L)
{
    int pp = r->mesh.layout.pp, vpp = r->mesh.layout.vpp, n = pp * vpp;
    for (int c = 0; c < vpp; c++) {
        int at = c * pp + r->mesh.at[AX_PP];
        r->chunk[c] = (Chunk){ L * at / n, L * (at + 1) / n, at == 0, at == n - 1 };
    }
}

static inline void part_open_adapted(RankPart *r, const ModelShape *s, const bool *frozen,
                                     const LoraConf *lora, const MeshLayout *l, int rank, int world, DType d,
                                     Slicing slicing)
{
    *r = (RankPart){ 0 };
    MeshLayout layout = *l;
    layout.kv_heads = (int)s->text.G;
    mesh_place(&r->mesh, rank, world, &layout);
    part_chunks(r, s->text.L);
    EXPECT_OK(model_open_part(&r->m, s, frozen, lora, &r->mesh, r->chunk, r->mesh.layout.vpp));
    part_bind(r, d, slicing);
}

static inline void part_open(RankPart *r, const ModelShape *s, const bool *frozen, const MeshLayout *l,
                             int rank, int world, DType d, Slicing slicing)
{
    part_open_adapted(r, s, frozen, NULL, l, rank, world, d, slicing);
}

static inline void part_close(RankPart *r)
{
    model_close(&r->m);
    for (int i = 0; i < r->blocks; i++) free(r->memory[i]);
    *r = (RankPart){ 0 };
}

static inline int part_degree(uint64_t seed, uint64_t round, uint64_t what, uint64_t choices)
{
    return 1 << rng_below(seed, what, round, choices);
}

/* A layout of at most 16 ranks; the world is as large as it must be, or twice that. */
static inline MeshLayout part_layout(uint64_t seed, uint64_t round, int *world)
{
    for (uint64_t at = round * 1000;; at++) {
        MeshLayout l = { .tp = part_degree(seed, at, 1, 3), .cp = part_degree(seed, at, 2, 2),
                     .pp = part_degree(seed, at, 3, 2), .ep = part_degree(seed, at, 4, 4),
                     .etp = part_degree(seed, at, 5, 3) };
        l.vpp = l.pp > 1 ? part_degree(seed, at, 6, 2) : 1;
        int dense = l.tp * l.cp, sparse = l.ep * l.etp;
        *world = l.pp * (dense > sparse ? dense : sparse) * part_degree(seed, at, 7, 2);
        if (*world <= 16) return l;
    }
}

static inline Param *part_param(const RankPart *r, const char *name)
{
    for (int i = 0; i < r->m.params.n; i++)
        if (!strcmp(r->m.params.p[i]->piece[0].name, name)) return r->m.params.p[i];
    return NULL;
}

#endif
