/* Checkpoints of any layout loaded by any other: weights and moments restored bit for bit, errors that name
 * the tensor, the model in HF form, and asynchronous saves. Ranks take turns in one process. */
#include "commlab.h"
#include "partlab.h"
#include "small.h"
#include "model/weights.h"
#include "checkpoint/checkpoint_async.h"

#include <omp.h>
#include <sys/stat.h>

static const char config[] =
    "{\"model_type\": \"qwen3_vl_moe\", \"image_token_id\": 40, \"video_token_id\": 41,"
    " \"tie_word_embeddings\": true, \"dtype\": \"bfloat16\","
    " \"text_config\": {\"vocab_size\": 50, \"hidden_size\": 24, \"num_hidden_layers\": 4,"
    "  \"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"head_dim\": 6, \"intermediate_size\": 40,"
    "  \"moe_intermediate_size\": 12, \"num_experts\": 8, \"num_experts_per_tok\": 2,"
    "  \"mlp_only_layers\": [1], \"rope_theta\": 10000.0, \"attention_bias\": true,"
    "  \"rope_scaling\": {\"rope_type\": \"default\", \"mrope_section\": [1, 1, 1]}},"
    " \"vision_config\": {\"depth\": 2, \"hidden_size\": 16, \"intermediate_size\": 20, \"num_heads\": 2,"
    "  \"patch_size\": 4, \"num_position_embeddings\": 25, \"out_hidden_size\": 24,"
    "  \"deepstack_visual_indexes\": [0]}}";

static Backend be;
static ModelShape shape;
static Json *state;

static const char *run_dir(const char *name)
{
    static char dir[300];
    snprintf(dir, sizeof dir, "%s/%s", lab_tmp(), name);
    folder_remove(dir);
    EXPECT_OK(folder_make(dir));
    return dir;
}

/* Values are a function of the element's position; weights are their rounded masters. */
static void fill(RankPart *r, uint64_t seed)
{
    EXPECT_OK(model_init(&r->m, &be, seed));
    for (int i = 0; i < r->m.params.n; i++) {
        Param *p = r->m.params.p[i];
        if (!t_has(p->shard.m)) continue;
        rng_fill_normal(p->shard.m.data, p->shard.len, seed, rng_stream(p->piece[0].name) + 1, 0, 0.0f, 1.0f);
        rng_fill_uniform(p->shard.v.data, p->shard.len, seed, rng_stream(p->piece[0].name) + 2, 0, 0.0f,
                         1.0f);
    }
}

static bool same(Tensor a, Tensor b)
{
    return t_has(a) == t_has(b) && (!t_has(a) || !memcmp(a.data, b.data, (size_t)t_bytes(a)));
}

static void expect_same(const RankPart *a, const RankPart *b)
{
    for (int i = 0; i < a->m.params.n; i++) {
        const Param *p = a->m.params.p[i], *q = b->m.params.p[i];
        EXPECT(same(p->shard.w, q->shard.w), "%s: weights", p->piece[0].name);
        EXPECT(same(p->shard.master, q->shard.master), "%s: masters", p->piece[0].name);
        EXPECT(same(p->shard.m, q->shard.m) && same(p->shard.v, q->shard.v), "%s: moments", p->piece[0].name);
    }
}

typedef struct Run {
    MeshLayout l;
    int world;
    Slicing slicing;
    DType dtype;
    const bool *frozen;
    const HfExport *hf;
    const LoraConf *lora;
} Run;

static Snapshot snapshot(const RankPart *r, const char *dir, int64_t step, const Run *run)
{
    return (Snapshot){ .dir = dir, .step = step, .model = &r->m, .be = &be, .mesh = &r->mesh, .state = state,
                       .hf = run->hf };
}

/* Fills all ranks of a layout from checkpoint `from` (NULL: new values) and saves them as checkpoint `step`.
 * Rank 0 is first and last, as in a run. */
static Status load_and_save(const Run *x, const char *from, const char *dir, int64_t step)
{
    static RankPart first, r;
    SaveJob job, mine;
    Status st = OK;
    part_open_adapted(&first, &shape, x->frozen, x->lora, &x->l, 0, x->world, x->dtype, x->slicing);
    if (from) st = checkpoint_load(from, &first.m, &be);
    else fill(&first, 5);
    Snapshot s = snapshot(&first, dir, step, x);
    if (!st) st = checkpoint_save_open(&job, &s);
    if (!st) st = checkpoint_save_prepare(&job);
    for (int rank = 1; rank < x->world && !st; rank++) {
        part_open_adapted(&r, &shape, x->frozen, x->lora, &x->l, rank, x->world, x->dtype, x->slicing);
        st = checkpoint_load(from, &r.m, &be);
        Snapshot part = snapshot(&r, dir, step, x);
        if (!st) st = checkpoint_save_open(&mine, &part);
        if (!st) st = checkpoint_save_write(&mine, &be, NULL);
        checkpoint_save_close(&mine);
        part_close(&r);
    }
    if (!st) st = checkpoint_save_write(&job, &be, NULL);
    if (!st) st = checkpoint_save_finish(&job);
    checkpoint_save_close(&job);
    part_close(&first);
    return st;
}

static const Run chain[] = {
    { { .tp = 2, .ep = 4 }, 8, WHOLE_STATE, BF16, NULL, NULL, NULL },
    { { .ep = 1 }, 8, SLICED_WEIGHTS, BF16, NULL, NULL, NULL },
    { { .tp = 4, .pp = 2, .vpp = 2, .ep = 2, .etp = 2 }, 16, SLICED_STATE, BF16, NULL, NULL, NULL },
    { { .tp = 2, .cp = 2, .ep = 8 }, 8, SLICED_STATE, BF16, NULL, NULL, NULL },
    { { .pp = 4, .etp = 4 }, 16, SLICED_WEIGHTS, BF16, NULL, NULL, NULL },
};
enum { CHAIN = sizeof chain / sizeof *chain };

static void five_layouts_round_trip(void)
{
    const bool no_vit[GROUP_N] = { true, false, false };
    /* bf16, nothing frozen; f32, a frozen vision tower */
    for (int k = 0; k < 4; k += 3) {
        static RankPart a, b;
        Path from, to;
        Run one = { .world = 1, .dtype = k % 2 ? F32 : BF16, .frozen = k / 2 ? no_vit : NULL };
        char name[64];
        const char *dir = run_dir("chain");
        part_open(&a, &shape, one.frozen, &one.l, 0, 1, one.dtype, WHOLE_STATE);
        fill(&a, 5);
        EXPECT_OK(load_and_save(&one, NULL, dir, 0));
        for (int i = 0; i < CHAIN; i++) {
            Run x = chain[(i + k) % CHAIN];
            x.dtype = one.dtype, x.frozen = one.frozen;
            snprintf(name, sizeof name, "checkpoint-%d", i);
            EXPECT_OK(path_join(from, dir, name));
            EXPECT_OK(load_and_save(&x, from, dir, i + 1));
        }
        EXPECT_OK(path_join(to, dir, "last"));
        EXPECT_OK(checkpoint_verify(to));
        part_open(&b, &shape, one.frozen, &one.l, 0, 1, one.dtype, WHOLE_STATE);
        EXPECT_OK(checkpoint_load(to, &b.m, &be));
        expect_same(&a, &b);
        part_close(&a), part_close(&b);
    }
}

static const char *const adapted_words[] = { "all-linear", "mlp.gate" };
static const char *const whole_words[] = { "embed_tokens" };

/* Adapters too: the PEFT files assembled from the shards of all ranks equal those of one rank. */
static void adapters_of_five_layouts(void)
{
    static const WordList target = { adapted_words, 2 }, whole = { whole_words, 1 };
    for (int k = 0; k < 2; k++) {                            /* bf16; f32 with one A for all experts */
        static RankPart a, b;
        Path to, names[2];
        Json *hf;
        LoraConf lora = { .rank = 4, .alpha = 8, .target = &target, .save = &whole, .shared_a = k };
        const char *dir = run_dir("adapters");
        EXPECT_OK(json_parse(&hf, config, strlen(config), "config"));
        HfExport x = { .config = hf, .companions = dir };
        Run one = { .world = 1, .dtype = k ? F32 : BF16, .lora = &lora, .hf = &x };
        part_open_adapted(&a, &shape, NULL, &lora, &one.l, 0, 1, one.dtype, WHOLE_STATE);
        fill(&a, 5);
        EXPECT_OK(load_and_save(&one, NULL, dir, 0));
        for (int i = 0; i < CHAIN; i++) {
            Run run = chain[(i + k) % CHAIN];
            char name[64];
            snprintf(name, sizeof name, "checkpoint-%d", i);
            run.dtype = one.dtype, run.lora = &lora, run.hf = &x;
            EXPECT_OK(path_join(to, dir, name));
            EXPECT_OK(load_and_save(&run, to, dir, i + 1));
        }
        EXPECT_OK(path_join(to, dir, "last"));
        EXPECT_OK(checkpoint_verify(to));
        part_open_adapted(&b, &shape, NULL, &lora, &one.l, 0, 1, one.dtype, WHOLE_STATE);
        for (int i = 0; i < a.m.params.n; i++)               /* no checkpoint has the base */
            if (a.m.params.p[i]->frozen)
                memcpy(b.m.params.p[i]->shard.w.data, a.m.params.p[i]->shard.w.data,
                       (size_t)t_bytes(a.m.params.p[i]->shard.w));
        EXPECT_OK(checkpoint_load(to, &b.m, &be));
        expect_same(&a, &b);
        EXPECT_OK(path_join(names[0], dir, "checkpoint-0/adapter_model.safetensors"));
        EXPECT_OK(path_join(names[1], dir, "last/adapter_model.safetensors"));
        SafeTensors p, q;
        EXPECT_OK(st_open(&p, names[0]));
        EXPECT_OK(st_open(&q, names[1]));
        EXPECT(p.count == q.count && p.file[0].len == q.file[0].len && p.count > 40 &&
               !memcmp(p.file[0].bytes, q.file[0].bytes, p.file[0].len), "the files differ");
        st_close(&p), st_close(&q);
        json_decref(hf);
        part_close(&a), part_close(&b);
    }
}

/* A checkpoint of eight ranks at dir/checkpoint-1. */
static void eight_ranks(const char *dir, const HfExport *hf)
{
    Path from;
    Run one = { .world = 1, .dtype = BF16 }, x = chain[0];
    x.slicing = SLICED_STATE, x.hf = hf;
    EXPECT_OK(load_and_save(&one, NULL, dir, 0));
    EXPECT_OK(path_join(from, dir, "checkpoint-0"));
    EXPECT_OK(load_and_save(&x, from, dir, 1));
}

static void export_equals_one_rank(void)
{
    static RankPart a, b;
    Path path;
    Json *hf;
    SafeTensors st;
    const char *dir = run_dir("export");
    EXPECT_OK(json_parse(&hf, config, strlen(config), "config"));
    HfExport x = { .config = hf, .companions = dir, .min_pixels = 1024, .max_pixels = 4096 };
    eight_ranks(dir, &x);
    EXPECT_OK(path_join(path, dir, "checkpoint-1"));
    EXPECT_OK(checkpoint_verify(path));
    EXPECT_OK(st_open(&st, path));
    part_open(&a, &shape, NULL, &(MeshLayout){ 0 }, 0, 1, BF16, WHOLE_STATE);
    part_open(&b, &shape, NULL, &(MeshLayout){ 0 }, 0, 1, BF16, WHOLE_STATE);
    fill(&a, 5);
    EXPECT_OK(weights_load(&b.m, &be, &st, NULL));
    for (int i = 0; i < a.m.params.n; i++) {
        const Param *p = a.m.params.p[i];                     /* the master, rounded as the optimizer does */
        const uint16_t *w = b.m.params.p[i]->shard.w.data;
        const uint32_t *master = p->shard.master.data;
        int64_t bad = 0;
        for (int64_t k = 0; k < p->shard.len; k++) bad += w[k] != bits_near(master[k]);
        EXPECT(!bad, "%s: %lld differ", p->piece[0].name, (long long)bad);
    }
    part_close(&a), part_close(&b);
    st_close(&st);
    json_decref(hf);
}

static void consolidates_to_one_rank(void)
{
    static RankPart a, b;
    Path from, to;
    Json *o;
    const char *dir = run_dir("rewrite");
    eight_ranks(dir, NULL);
    EXPECT_OK(path_join(from, dir, "checkpoint-1"));
    EXPECT_OK(path_join(to, dir, "one"));
    EXPECT(checkpoint_is(from) && !checkpoint_is(dir), "what a checkpoint looks like");
    EXPECT_OK(checkpoint_consolidate(from, to));
    EXPECT_OK(checkpoint_verify(to));
    EXPECT_OK(checkpoint_read_state(to, &o));
    EXPECT(json_equal(o, state), "trainer_state.json");
    json_decref(o);
    part_open(&a, &shape, NULL, &(MeshLayout){ 0 }, 0, 1, BF16, WHOLE_STATE);
    part_open(&b, &shape, NULL, &(MeshLayout){ 0 }, 0, 1, BF16, WHOLE_STATE);
    fill(&a, 5);
    EXPECT_OK(checkpoint_load(to, &b.m, &be));
    expect_same(&a, &b);
    part_close(&a), part_close(&b);
}

static Status load_one(const char *path)
{
    static RankPart r;
    part_open(&r, &shape, NULL, &(MeshLayout){ 0 }, 0, 1, BF16, WHOLE_STATE);
    Status st = checkpoint_load(path, &r.m, &be);
    part_close(&r);
    return st;
}

/* Changes one number of a tensor's first run. */
static void change_run(const char *path, const char *name, size_t number, int64_t by)
{
    Json *o;
    EXPECT_OK(json_load(&o, path));
    Json *runs = json_object_get(json_object_get(json_object_get(o, "tensors"), name), "runs");
    Json *n = json_array_get(json_array_get(runs, 0), number);
    EXPECT(json_is_integer(n), "%s is not in %s", name, path);
    json_integer_set(n, json_integer_value(n) + by);
    EXPECT(!json_dump_file(o, path, 0), "write");
    json_decref(o);
}

static void wrong_descriptions_are_refused(void)
{
    Path path, file, other;
    const char *dir = run_dir("wrong"), *norm = "v.model.language_model.layers.0.input_layernorm.weight";
    eight_ranks(dir, NULL);
    EXPECT_OK(path_join(path, dir, "checkpoint-1"));
    EXPECT_OK(load_one(path));
    EXPECT_OK(checkpoint_verify(path));
    EXPECT_OK(shards_path(file, path, 2, "runs.json"));
    change_run(file, norm, 0, -1);                           /* overlaps another rank's last element */
    EXPECT_FAIL(load_one(path), E_DATA, norm);
    EXPECT(strstr(status_text(), "stored twice"), "%s", status_text());
    change_run(file, norm, 0, 2);
    EXPECT_FAIL(load_one(path), E_DATA, "no file has");
    change_run(file, norm, 0, 1000);
    EXPECT_FAIL(load_one(path), E_DATA, "not inside the tensor");
    change_run(file, norm, 0, -1001);
    EXPECT_OK(load_one(path));
    EXPECT_FAIL(checkpoint_verify(path), E_DATA, "runs.json");         /* its text has changed */
    change_run(file, norm, 1, 1);
    EXPECT_FAIL(load_one(path), E_DATA, "its runs have");
    change_run(file, norm, 1, -1);
    EXPECT_OK(shards_path(other, path, 2, ""));
    EXPECT_OK(path_join(file, dir, "elsewhere"));
    EXPECT(!rename(other, file), "rename");
    EXPECT_FAIL(load_one(path), E_DATA, "8 ranks wrote the checkpoint, the files of 7 are there");
}

static void other_models_are_refused(void)
{
    static RankPart r;
    Path path;
    const bool frozen[GROUP_N] = { true, false, false };
    const char *dir = run_dir("other");
    eight_ranks(dir, NULL);
    EXPECT_OK(path_join(path, dir, "checkpoint-1"));
    part_open(&r, &shape, frozen, &chain[0].l, 3, 8, BF16, WHOLE_STATE);
    EXPECT_FAIL(checkpoint_load(path, &r.m, &be), E_CONFIG, "trained when this checkpoint was saved");
    part_close(&r);
    ModelShape longer = shape;
    longer.text.L = 5;
    part_open(&r, &longer, NULL, &chain[0].l, 3, 8, BF16, WHOLE_STATE);
    EXPECT_FAIL(checkpoint_load(path, &r.m, &be), E_DATA, "layers.4");
    part_close(&r);
    longer.text.L = 3;
    part_open(&r, &longer, NULL, &chain[0].l, 3, 8, BF16, WHOLE_STATE);
    EXPECT_FAIL(checkpoint_load(path, &r.m, &be), E_DATA, "tensors more than the model");
    part_close(&r);
}

/* A save has the values of its beginning, even if the weights change before it ends. */
static void async_save_is_a_snapshot(void)
{
    static RankPart a, b;
    AsyncCheckpointer v;
    Path path;
    const char *dir = run_dir("beside");
    Run one = { .world = 1 };
    part_open(&a, &shape, NULL, &one.l, 0, 1, BF16, WHOLE_STATE);
    EXPECT_OK(checkpoint_async_open(&v, &a.m, &be, true, false));
    for (int64_t step = 1; step <= 4; step++) {
        fill(&a, (uint64_t)step);
        Snapshot s = snapshot(&a, dir, step, &one);
        EXPECT_OK(checkpoint_async_begin(&v, &s));
        EXPECT_OK(checkpoint_async_poll(&v));
    }
    fill(&a, 99);
    EXPECT_OK(checkpoint_async_wait(&v));
    EXPECT_OK(checkpoint_async_wait(&v));
    for (int64_t step = 1; step <= 4; step++) {
        char name[64];
        snprintf(name, sizeof name, "checkpoint-%lld", (long long)step);
        part_open(&b, &shape, NULL, &one.l, 0, 1, BF16, WHOLE_STATE);
        fill(&a, (uint64_t)step);
        EXPECT_OK(path_join(path, dir, name));
        EXPECT_OK(checkpoint_verify(path));
        EXPECT_OK(checkpoint_load(path, &b.m, &be));
        expect_same(&a, &b);
        part_close(&b);
    }
    checkpoint_async_close(&v);
    part_close(&a);
}

static void failed_save_is_reported_once(void)
{
    static RankPart a;
    AsyncCheckpointer v;
    Path path;
    const char *dir = run_dir("fails");
    Run one = { .world = 1 };
    part_open(&a, &shape, NULL, &one.l, 0, 1, BF16, WHOLE_STATE);
    fill(&a, 1);
    EXPECT_OK(checkpoint_async_open(&v, &a.m, &be, true, false));
    Snapshot s = snapshot(&a, dir, 1, &one);
    EXPECT_OK(path_join(path, dir, "last"));
    EXPECT_OK(folder_make(path));                            /* a folder in place of the link */
    EXPECT_OK(checkpoint_async_begin(&v, &s));
    EXPECT_FAIL(checkpoint_async_wait(&v), E_IO, "earlier checkpoints are intact");
    EXPECT_OK(checkpoint_async_poll(&v));
    EXPECT_OK(checkpoint_async_wait(&v));
    folder_remove(path);
    EXPECT_OK(checkpoint_async_begin(&v, &s));
    Status st = OK;
    while (v.in_flight && !st) st = checkpoint_async_poll(&v), usleep(10000);
    EXPECT_OK(st);
    checkpoint_async_close(&v), checkpoint_async_close(&v);
    part_close(&a);
}

/* Rank 0 reports a rank that failed, and one that stopped writing. */
static void reports_late_ranks(void)
{
    static RankPart a, b;
    SaveJob first, second;
    const char *dir = run_dir("late");
    Run two = { .world = 2, .slicing = SLICED_STATE };
    part_open(&a, &shape, NULL, &two.l, 0, 2, BF16, two.slicing);
    part_open(&b, &shape, NULL, &two.l, 1, 2, BF16, two.slicing);
    fill(&a, 1), fill(&b, 1);
    Snapshot s = snapshot(&a, dir, 1, &two), t = snapshot(&b, dir, 1, &two);
    s.patience = 0.2;
    EXPECT_OK(checkpoint_save_open(&first, &s));
    EXPECT_OK(checkpoint_save_open(&second, &t));
    EXPECT_OK(checkpoint_save_prepare(&first));
    EXPECT_OK(checkpoint_save_write(&first, &be, NULL));
    EXPECT_FAIL(checkpoint_save_finish(&first), E_COMM, "the files of rank 1 have not grown");
    EXPECT_OK(checkpoint_save_write(&second, &be, NULL));
    EXPECT_OK(checkpoint_save_finish(&first));
    EXPECT_OK(checkpoint_save_prepare(&first));
    EXPECT(checkpoint_save_failed(&second, fail(E_IO, "the disk is full")) == E_IO, "its own status");
    EXPECT_FAIL(checkpoint_save_finish(&first), E_COMM, "the disk is full");
    checkpoint_save_close(&first), checkpoint_save_close(&second);
    part_close(&a), part_close(&b);
}

/* ---- four ranks at once ---- */

static char shared_dir[300];

static void expect_saved(const RankPart *r, Backend *own, int64_t step, const char *dir)
{
    RankPart *b = calloc(1, sizeof *b);
    Path path;
    char name[64];
    snprintf(name, sizeof name, "checkpoint-%lld", (long long)step);
    part_open(b, &shape, NULL, &r->mesh.layout, r->mesh.rank, r->mesh.world, BF16, SLICED_STATE);
    EXPECT_OK(path_join(path, dir, name));
    EXPECT_OK(checkpoint_load(path, &b->m, own));
    expect_same(r, b);
    part_close(b);
    free(b);
}

static void save_on_rank(Peer *p)
{
    RankPart *r = calloc(1, sizeof *r);
    AsyncCheckpointer v;
    part_open(r, &shape, NULL, &(MeshLayout){ .tp = 2, .ep = 4 }, p->rank, p->size, BF16, SLICED_STATE);
    r->mesh.comm[GR_world] = p->world;
    for (int async = 1; async >= 0; async--) {
        EXPECT_OK(checkpoint_async_open(&v, &r->m, &p->be, async, false));
        for (int64_t step = 1; step <= 3; step++) {
            Snapshot s = snapshot(r, shared_dir, 10 * async + step, &(Run){ 0 });
            s.be = &p->be, s.keep = 2;
            EXPECT_OK(model_init(&r->m, &p->be, 5 + (uint64_t)step));
            EXPECT_OK(checkpoint_async_begin(&v, &s));
            for (int i = 0; i < 3; i++) EXPECT_OK(checkpoint_async_poll(&v));
        }
        EXPECT_OK(checkpoint_async_wait(&v));
        expect_saved(r, &p->be, 10 * async + 3, shared_dir);
        checkpoint_async_close(&v);
    }
    part_close(r);
    free(r);
}

static void four_ranks_save_together(void)
{
    snprintf(shared_dir, sizeof shared_dir, "%s", run_dir("four"));
    on_ranks(4, 0, save_on_rank);
    Path path;
    EXPECT_OK(path_join(path, shared_dir, "last"));
    EXPECT_OK(checkpoint_verify(path));
}

/* Rank 0 cannot rename the checkpoint: all ranks fail. */
static void fail_on_rank_0(Peer *p)
{
    RankPart *r = calloc(1, sizeof *r);
    AsyncCheckpointer v;
    part_open(r, &shape, NULL, &(MeshLayout){ .tp = 2, .ep = 4 }, p->rank, p->size, BF16, SLICED_STATE);
    r->mesh.comm[GR_world] = p->world;
    EXPECT_OK(model_init(&r->m, &p->be, 5));
    for (int async = 1; async >= 0; async--) {
        EXPECT_OK(checkpoint_async_open(&v, &r->m, &p->be, async, false));
        Snapshot s = snapshot(r, shared_dir, 1, &(Run){ 0 });
        s.be = &p->be;
        Status st = checkpoint_async_begin(&v, &s);
        while (!st && v.in_flight) st = checkpoint_async_poll(&v), usleep(2000);
        EXPECT_FAIL(st, p->rank ? E_COMM : E_IO, "earlier checkpoints are intact");
        checkpoint_async_close(&v);
    }
    part_close(r);
    free(r);
}

static void failure_on_one_rank_fails_all(void)
{
    Path path;
    snprintf(shared_dir, sizeof shared_dir, "%s", run_dir("fail4"));
    EXPECT_OK(path_join(path, shared_dir, "last"));
    EXPECT_OK(folder_make(path));
    on_ranks(4, 0, fail_on_rank_0);
}

int main(void)
{
    omp_set_num_threads(1);
    shape = small_shape(config);
    state = json_pack("{s:i}", "global_step", 7);
    if (backend_open(&be, "cpu")) return 1;
    RUN(five_layouts_round_trip);
    RUN(adapters_of_five_layouts);
    RUN(export_equals_one_rank);
    RUN(consolidates_to_one_rank);
    RUN(wrong_descriptions_are_refused);
    RUN(other_models_are_refused);
    RUN(async_save_is_a_snapshot);
    RUN(failed_save_is_reported_once);
    RUN(reports_late_ranks);
    RUN(four_ranks_save_together);
    RUN(failure_on_one_rank_fails_all);
    backend_close(&be);
    json_decref(state);
    folder_remove(lab_tmp());
    return lab_report();
}
