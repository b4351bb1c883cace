/* Parameters sharded over meshes: the part of each rank, and all parts together are the whole parameter. */
#include "partlab.h"
#include "model/weights_private.h"

#include <fcntl.h>
#include <omp.h>
#include <sys/stat.h>

static const char text_config[] =
    "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 50, \"hidden_size\": 24, \"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"head_dim\": 6, \"intermediate_size\": 40,"
    " \"moe_intermediate_size\": 12, \"num_experts\": 8, \"num_experts_per_tok\": 2,"
    " \"rope_theta\": 10000.0}";

/* Weights of the whole model, initialized on one rank. */
static RankPart whole;

static const float *full_of(const Param *p) { return part_param(&whole, p->piece[0].name)->shard.w.data; }

static void expect_rows(const Param *p, int64_t row, int64_t full_row)
{
    int64_t cols = p->shape[1];
    const float *here = p->shard.w.data;
    EXPECT(!memcmp(here + row * cols, full_of(p) + full_row * cols, (size_t)cols * sizeof *here),
           "%s: row %lld is not row %lld of all", p->piece[0].name, (long long)row, (long long)full_row);
}

/* The expected rows and columns of a rank, computed independently of the code under test. */
static void attention_is_cut_by_heads(const ModelShape *s, const RankPart *r)
{
    int64_t tp = r->mesh.size[AX_TP], t = r->mesh.at[AX_TP], H = s->text.H, G = s->text.G, C = s->text.C;
    int64_t h = H / tp, g = G < tp ? 1 : G / tp, kv = G < tp ? t / (tp / G) : t * g;
    for (int l = 0; l < s->text.L; l++) {
        const Attention *a = decoder_gqa(&r->m.layer[l]);
        if (!a) continue;                                    /* another stage has the layer */
        const Param *q = a->w_qkv, *o = a->w_o;
        EXPECT(q->shard.shape[0] == (h + 2 * g) * C && a->b_qkv->shard.shape[0] == q->shard.shape[0],
               "rows of qkv");
        for (int64_t i = 0; i < h * C; i++) expect_rows(q, i, t * h * C + i);
        for (int64_t i = 0; i < g * C; i++) expect_rows(q, h * C + i, H * C + kv * C + i);
        for (int64_t i = 0; i < g * C; i++) expect_rows(q, (h + g) * C + i, (H + G + kv) * C + i);
        EXPECT(o->shard.shape[1] == h * C, "columns of o");
        const float *full = full_of(o), *w = o->shard.w.data;
        for (int64_t i = 0; i < o->shard.shape[0] * o->shard.shape[1]; i++)
            EXPECT(w[i] == full[i / (h * C) * H * C + t * h * C + i % (h * C)], "%s [%lld]", o->piece[0].name,
                   (long long)i);
    }
}

static void experts_are_cut_by_number_and_width(const ModelShape *s, const RankPart *r)
{
    int64_t E = s->text.E / r->mesh.size[AX_EP], F = s->text.F / r->mesh.size[AX_ETP], D = s->text.D;
    int64_t e0 = r->mesh.at[AX_EP] * E, f0 = r->mesh.at[AX_ETP] * F, all = s->text.F;
    for (int l = 0; l < s->text.L; l++) {
        const Moe *m = decoder_moe(&r->m.layer[l]);
        if (!m) continue;
        EXPECT(m->w_gu->shard.shape[0] == E && m->w_gu->shard.shape[1] == 2 * F &&
               m->w_d->shard.shape[2] == F, "experts");
        const float *full = full_of(m->w_gu), *w = m->w_gu->shard.w.data;
        for (int64_t i = 0; i < E * 2 * F * D; i++) {
            int64_t e = i / (2 * F * D), half = i / (F * D) % 2, f = i / D % F, d = i % D;
            EXPECT(w[i] == full[(((e0 + e) * 2 + half) * all + f0 + f) * D + d], "%s [%lld]",
                   m->w_gu->piece[0].name, (long long)i);
        }
        full = full_of(m->w_d), w = m->w_d->shard.w.data;
        for (int64_t i = 0; i < E * D * F; i++)
            EXPECT(w[i] == full[(e0 * D + i / F) * all + f0 + i % F], "%s [%lld]", m->w_d->piece[0].name,
                   (long long)i);
    }
}

static void vocabulary_is_padded(const ModelShape *s, const RankPart *r)
{
    int64_t tp = r->mesh.size[AX_TP], t = r->mesh.at[AX_TP], V = s->text.V, part = (V + tp - 1) / tp;
    int64_t real = V - t * part < part ? V - t * part : part;
    const Param *table[2] = { r->m.embed, r->m.head.w };
    for (int k = 0; k < 2; k++) {
        const Param *p = table[k];
        if (!p) continue;
        EXPECT(p->shard.shape[0] == part && p->shard.first_row == t * part && p->shard.real_rows == real,
               "%lld rows from %lld, %lld real", (long long)p->shard.shape[0], (long long)p->shard.first_row,
               (long long)p->shard.real_rows);
        for (int64_t i = 0; i < p->shard.real_rows; i++) expect_rows(p, i, t * part + i);
        for (int64_t i = p->shard.real_rows * s->text.D; i < param_local(p); i++)
            EXPECT(((float *)p->shard.w.data)[i] == 0, "padding");
    }
    if (r->mesh.size[AX_PP] > 1 && r->m.head.w)
        EXPECT(r->m.head.w->tied_copy && !r->m.head.w->shard.unique,
               "a tied head of another stage is a copy");
}

/* Every element is on as many ranks as its gradient group has, replicas not counted. */
static void covers(int *seen, const RankPart *r)
{
    for (int i = 0; i < r->m.params.n; i++) {
        const Param *p = r->m.params.p[i], *q = part_param(&whole, p->piece[0].name);
        int ranks[64], n = mesh_group(&r->mesh, p->grad_group, ranks), place = 0;
        StridedRange c[SHARD_VIEW_RANGES], all[PARAM_RANGES];
        for (int k = 0; whole.m.params.p[k] != q; k++) place += (int)param_count(whole.m.params.p[k]);
        int ranges = ranges_clip(c, all, param_ranges(p, all), 0, p->shard.unique);
        for (int k = 0; k < ranges; k++)
            for (int64_t x = 0; x < c[k].count; x++)
                for (int64_t y = 0; y < c[k].len; y++)
                    seen[place + c[k].at + x * c[k].stride + y] += 5040 / n;
    }
}

static void all_parts_are_the_whole(void)
{
    ModelShape s = part_shape(true, "1");
    Backend be;
    static RankPart r;
    EXPECT_OK(backend_open(&be, "cpu"));
    part_open(&whole, &s, NULL, &(MeshLayout){ 0 }, 0, 1, F32, WHOLE_STATE);
    EXPECT_OK(model_init(&whole.m, &be, 9));
    int *seen = malloc((size_t)params_count(&whole.m.params) * sizeof *seen);
    for (uint64_t round = 0; round < 12; round++) {
        int world;
        MeshLayout l = part_layout(6, round, &world);
        memset(seen, 0, (size_t)params_count(&whole.m.params) * sizeof *seen);
        for (int rank = 0; rank < world; rank++) {
            part_open(&r, &s, NULL, &l, rank, world, F32, WHOLE_STATE);
            EXPECT_OK(model_init(&r.m, &be, 9));
            attention_is_cut_by_heads(&s, &r);
            experts_are_cut_by_number_and_width(&s, &r);
            vocabulary_is_padded(&s, &r);
            covers(seen, &r);
            part_close(&r);
        }
        for (int64_t i = 0; i < params_count(&whole.m.params); i++)
            if (seen[i] != 5040) {
                EXPECT(false, "world %d tp %d cp %d pp %d ep %d etp %d: element %lld is held %d/5040 times",
                       world, l.tp, l.cp, l.pp, l.ep, l.etp, (long long)i, seen[i]);
                break;
            }
    }
    free(seen);
    part_close(&whole);
    backend_close(&be);
}

/* Sharded master weights, and weights of another type, round to the same bits as the whole parameter's. */
static void slices_of_the_optimizer_are_drawn_alike(void)
{
    ModelShape s = part_shape(true, "1");
    Backend be;
    static RankPart r;
    EXPECT_OK(backend_open(&be, "cpu"));
    for (int mode = 0; mode < 3; mode++)
        for (int rank = 0; rank < 8; rank++) {
            part_open(&r, &s, NULL, &(MeshLayout){ .tp = 2, .ep = 4 }, rank, 8, BF16, (Slicing)mode);
            EXPECT_OK(model_init(&r.m, &be, 9));
            for (int i = 0; i < r.m.params.n; i++) {
                const Param *p = r.m.params.p[i];
                ShardView w = param_weight_view(p);
                for (int64_t k = 0; k < p->shard.len; k++) {
                    uint16_t narrow;
                    dtype_convert(&narrow, BF16, (float *)p->shard.master.data + k, F32, 1);
                    if (((uint16_t *)w.t.data)[p->shard.offset + k - w.at] == narrow) continue;
                    EXPECT(false, "%s: [%lld] in mode %d", p->piece[0].name, (long long)k, mode);
                    break;
                }
            }
            part_close(&r);
        }
    backend_close(&be);
}

static void save_whole(const ModelShape *s, Backend *be, const char *dir)
{
    static RankPart r;
    part_open(&r, s, NULL, &(MeshLayout){ 0 }, 0, 1, F32, WHOLE_STATE);
    for (int i = 0; i < r.m.params.n; i++) {                  /* as one rank binds them */
        Param *p = r.m.params.p[i];
        if (p->ndim > 1) p->shard.w = p->ndim == 2 ? t_as2(p->shard.w, p->shape[0], p->shape[1])
                                             : t_as3(p->shard.w, p->shape[0], p->shape[1], p->shape[2]);
        else p->shard.w = t_as2(p->shard.w, 1, p->shape[0]);
    }
    EXPECT_OK(model_init(&r.m, be, 9));
    EXPECT_OK(weights_save(&r.m, be, dir, F32, 0));
    part_close(&r);
}

/* The same folder with every expert tensor as [E, out, in], the layout of transformers in memory. */
static void turn_experts(const char *from, const char *to)
{
    SafeTensors st;
    EXPECT_OK(st_open(&st, from));
    StTensor *t = calloc((size_t)st.count, sizeof *t);
    for (int i = 0; i < st.count; i++) {
        t[i] = st.tensor[i];
        if (!strstr(t[i].name, ".experts.")) continue;
        int64_t E = t[i].shape[0], a = t[i].shape[1], b = t[i].shape[2];
        float *turned = malloc(t[i].bytes);
        for (int64_t e = 0; e < E; e++)
            weights_transpose(turned + e * a * b, (const float *)t[i].data + e * a * b, a, b);
        t[i].data = turned, t[i].shape[1] = b, t[i].shape[2] = a;
    }
    mkdir(to, 0777);
    char file[400];
    snprintf(file, sizeof file, "%s/model.safetensors", to);
    EXPECT_OK(st_save(file, t, st.count));
    for (int i = 0; i < st.count; i++)
        if (t[i].data != st.tensor[i].data) free((void *)t[i].data);
    free(t);
    st_close(&st);
}

/* A rank loads the weights that it would have initialized, and reads no other part of the file. */
static void expect_loaded(const ModelShape *s, Backend *be, const SafeTensors *st, const MeshLayout *l,
                          int rank,
                          int world, Slicing mode)
{
    static RankPart a, b;
    int64_t read, want = 0;
    part_open(&a, s, NULL, l, rank, world, BF16, mode);
    part_open(&b, s, NULL, l, rank, world, BF16, mode);
    EXPECT_OK(model_init(&a.m, be, 9));
    for (int i = 0; i < b.m.params.n; i++)
        memset(b.m.params.p[i]->shard.w.data, 0x7f, (size_t)t_bytes(b.m.params.p[i]->shard.w));
    EXPECT_OK(weights_read(&b.m, be, st, NULL, &read));
    for (int i = 0; i < a.m.params.n; i++) {
        const Param *p = a.m.params.p[i], *q = b.m.params.p[i];
        StridedRange c[SHARD_VIEW_RANGES];
        EXPECT(!memcmp(p->shard.w.data, q->shard.w.data, (size_t)t_bytes(p->shard.w)) &&
                   !memcmp(p->shard.master.data, q->shard.master.data, (size_t)t_bytes(p->shard.master)),
               "%s: rank %d of %d, mode %d", p->piece[0].name, rank, world, (int)mode);
        int n = shard_view_ranges(c, p, param_weight_view(p));
        for (int k = 0; k < n; k++) want += c[k].len * c[k].count;
    }
    EXPECT(read == want, "%lld elements were read, %lld are here", (long long)read, (long long)want);
    part_close(&a), part_close(&b);
}

static void every_form_loads_into_every_layout(void)
{
    ModelShape vl = part_shape(true, "1"), text = small_shape(text_config);
    Backend be;
    SafeTensors st[3];
    EXPECT_OK(backend_open(&be, "cpu"));
    save_whole(&vl, &be, lab_path("hub"));
    save_whole(&text, &be, lab_path("each"));
    char from[300];
    snprintf(from, sizeof from, "%s", lab_path("hub"));
    turn_experts(from, lab_path("turned"));
    EXPECT_OK(st_open(&st[0], lab_path("hub")));
    EXPECT_OK(st_open(&st[1], lab_path("turned")));
    EXPECT_OK(st_open(&st[2], lab_path("each")));
    for (uint64_t round = 0; round < 15; round++) {
        int world, rank, form = (int)(round % 3);
        MeshLayout l = part_layout(6, round, &world);
        if (form == 2) l.vpp = 1;
        rank = (int)rng_below(6, 99, round, (uint64_t)world);
        for (int mode = 0; mode < 3; mode++)
            expect_loaded(form == 2 ? &text : &vl, &be, &st[form], &l, rank, world, (Slicing)mode);
    }
    for (int i = 0; i < 3; i++) st_close(&st[i]);
    backend_close(&be);
}

/* Bytes that came from the disk for this process; -1: unknown. */
static long long disk_bytes(void)
{
    char line[200];
    long long n = -1;
    FILE *f = fopen("/proc/self/io", "r");
    while (f && fgets(line, sizeof line, f)) sscanf(line, "read_bytes: %lld", &n);
    if (f) fclose(f);
    return n;
}

/* The ranks of a node share its page cache, as the threads here do. */
static void a_node_reads_the_file_once(void)
{
    static const char large[] =
        "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 2000, \"hidden_size\": 256,"
        " \"num_hidden_layers\": 2, \"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"head_dim\": 32,"
        " \"intermediate_size\": 512, \"moe_intermediate_size\": 128, \"num_experts\": 8,"
        " \"num_experts_per_tok\": 2, \"rope_theta\": 10000.0}";
    static const MeshLayout layouts[] = { { .tp = 2, .ep = 4 }, { .tp = 4, .ep = 2, .etp = 4 }, { .ep = 8 } };
    ModelShape s = small_shape(large);
    static RankPart r;
    Backend be;
    SafeTensors st;
    bool counted = false;
    EXPECT_OK(backend_open(&be, "cpu"));
    save_whole(&s, &be, lab_path("large"));
    for (int i = 0; i < 3; i++) {
        char path[400];
        snprintf(path, sizeof path, "%s/model.safetensors", lab_path("large"));
        int fd = open(path, O_RDONLY);
        long long size = lseek(fd, 0, SEEK_END), from, read;
        int64_t elements;
        EXPECT(!posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), "fadvise");
        close(fd);
        from = disk_bytes();
        EXPECT_OK(st_open(&st, lab_path("large")));
        for (int rank = 0; rank < 8; rank++) {
            part_open(&r, &s, NULL, &layouts[i], rank, 8, BF16, SLICED_STATE);
            EXPECT_OK(weights_read(&r.m, &be, &st, NULL, &elements));
            part_close(&r);
        }
        st_close(&st);
        read = disk_bytes() - from;
        counted |= read > size / 2;
        EXPECT((double)read <= 1.05 * (double)size, "%lld bytes read of a file of %lld", read, size);
    }
    backend_close(&be);
    if (!counted) SKIP("reads of the disk are not counted here");
}

static void units_follow_the_walk(void)
{
    ModelShape s = part_shape(true, "1");
    static RankPart r;
    part_open(&r, &s, NULL, &(MeshLayout){ 0 }, 0, 1, F32, WHOLE_STATE);
    const Model *m = &r.m;
    EXPECT(m->params.units == 1 + 2 + 2 + 1 + 4 + 1, "%d units", m->params.units);
    EXPECT(m->vision.pos->unit == 0 && m->vision.block[1].w_o->unit == 2 && m->vision.merger.w1->unit == 3 &&
           m->embed->unit == 5 && decoder_moe(&m->layer[3])->w_d->unit == 9 && m->head.norm->unit == 10,
           "units");
    part_close(&r);
}

int main(void)
{
    omp_set_num_threads(1);                                  /* tensors are tiny */
    RUN(all_parts_are_the_whole);
    RUN(slices_of_the_optimizer_are_drawn_alike);
    RUN(every_form_loads_into_every_layout);
    RUN(a_node_reads_the_file_once);
    RUN(units_follow_the_walk);
    char rm[400];
    snprintf(rm, sizeof rm, "rm -rf '%s'", lab_tmp());
    if (system(rm)) perror(rm);
    return lab_report();
}
