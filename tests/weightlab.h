/* tests/weightlab.h -- a model bound to host memory, to load weights into and save them from; files rewritten
 * tensor by tensor. */
#include "small.h"
#include "model/weights.h"
#include "parallel/shard.h"

#include <sys/stat.h>

typedef struct Bound { Backend be; Model m; Shard s; Arena a[3]; } Bound;

static inline void bound_open(Bound *b, const ModelShape *s, DType d)
{
    ShardConf conf = { .dtype = d };
    int order[64];
    *b = (Bound){ 0 };
    EXPECT_OK(backend_open(&b->be, "cpu"));
    EXPECT_OK(model_open(&b->m, s, NULL));
    shard_conf_from_model(&conf, &b->m, order);
    EXPECT_OK(shard_open(&b->s, &conf));
    ShardSizes z = shard_sizes(&b->s);
    size_t bytes[3] = { z.param, z.grad, z.optim };
    for (int i = 0; i < 3; i++) EXPECT_OK(backend_arena_open(&b->be, &b->a[i], "test", bytes[i]));
    shard_bind(&b->s, &b->be, &b->a[0], &b->a[1], &b->a[2], NULL);
    EXPECT_OK(backend_sync(&b->be));
    for (int i = 0; i < 3; i++)
        EXPECT(b->a[i].used == bytes[i], "arena %d: %zu used of %zu promised", i, b->a[i].used, bytes[i]);
}

static inline void bound_close(Bound *b)
{
    for (int i = 0; i < 3; i++) backend_arena_close(&b->be, &b->a[i]);
    shard_close(&b->s);
    model_close(&b->m);
    backend_close(&b->be);
}

static inline const char *folder(const char *name)
{
    static char path[600];
    snprintf(path, sizeof path, "%s/%s", lab_tmp(), name);
    return path;
}

/* Rewrites the tensors of a saved folder one by one with `change`, which returns false to omit a tensor. */
typedef bool Change(StTensor *t);
static inline void rewrite(const char *from, const char *to, Change *change, const StTensor *extra)
{
    SafeTensors st;
    char file[400];
    EXPECT_OK(st_open(&st, from));
    StTensor *t = calloc((size_t)st.count + 1, sizeof *t);
    int n = 0;
    for (int i = 0; i < st.count; i++) {
        t[n] = st.tensor[i];
        if (!change || change(&t[n])) n++;
    }
    if (extra) t[n++] = *extra;
    mkdir(to, 0777);
    snprintf(file, sizeof file, "%s/model.safetensors", to);
    EXPECT_OK(st_save(file, t, n));
    free(t);
    st_close(&st);
}

static inline Status load_from(const char *dir, const ModelShape *s)
{
    Bound b;
    SafeTensors st;
    bound_open(&b, s, F32);
    Status r = st_open(&st, dir);
    if (!r) r = weights_load(&b.m, &b.be, &st, NULL);
    st_close(&st);
    bound_close(&b);
    return r;
}
