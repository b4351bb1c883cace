/* Checkpoints: restored bit for bit; complete or absent after a full disk or a kill. */
#include "checkpoint/hub_cache.h"
#include "small.h"
#include "base/clock.h"
#include "base/folder.h"
#include "model/weights.h"
#include "checkpoint/checkpoint.h"

#include <omp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static const Budget budget = { .tokens = 120, .patches = 64, .docs = 6, .supervised = 100 };

typedef struct Lab { ModelShape shape; Stream s; Engine e; Json *state; } Lab;

/* A model after two steps, so that moments are not zero. */
static void lab_open(Lab *l, DType dtype, bool frozen_vit)
{
    OptimConf o = { .adam = { 1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 1 } };
    EngineConf conf = small_conf(budget);
    l->shape = small_shape(small_vl_moe);
    conf.dtype = dtype, conf.frozen[G_VIT] = frozen_vit;
    small_stream(&l->s, &l->shape, budget, 0, 3, 7);
    small_engine(&l->e, &l->shape, &conf, &l->s);
    for (int i = 0; i < 2; i++, o.adam.step++) small_step(&l->e, 0.1f), engine_update(&l->e, &o);
    l->state = json_pack("{s:i}", "global_step", 7);
}

static void lab_close(Lab *l)
{
    engine_close(&l->e);
    stream_close(&l->s);
    json_decref(l->state);
}

static const char *run_dir(const char *name)
{
    static char dir[300];
    snprintf(dir, sizeof dir, "%s/%s", lab_tmp(), name);
    folder_remove(dir);
    if (folder_make(dir)) printf("%s\n", status_text()), exit(1);
    return dir;
}

static Snapshot snapshot(Lab *l, const char *dir, int64_t step)
{
    return (Snapshot){ .dir = dir, .step = step, .model = &l->e.model, .be = &l->e.be, .state = l->state };
}

static bool exists(const char *dir, const char *name)
{
    Path path;
    return !path_join(path, dir, name) && !access(path, F_OK);
}

static void restores_bit_for_bit(void)
{
    for (int i = 0; i < 4; i++) {
        Lab a, b;
        Path path;
        const char *dir = run_dir("bits");
        lab_open(&a, i % 2 ? BF16 : F32, i / 2);
        Snapshot s = snapshot(&a, dir, 7);
        EXPECT_OK(checkpoint_save(&s));
        EXPECT_OK(path_join(path, dir, "checkpoint-7"));
        EXPECT_OK(checkpoint_verify(path));
        lab_open(&b, i % 2 ? BF16 : F32, i / 2);
        size_t param = a.e.arena[A_PARAM].used,
               optim = a.e.arena[A_OPTIM].used - ARENA_ALIGN; /* all but the norm */
        memset(b.e.arena[A_OPTIM].base, 0x7f, optim);
        for (int k = 0; k < b.e.model.params.n; k++)
            memset(b.e.model.params.p[k]->shard.w.data, 0x7f,
                   (size_t)t_bytes(b.e.model.params.p[k]->shard.w));
        EXPECT_OK(checkpoint_load(path, &b.e.model, &b.e.be));
        engine_publish_weights(&b.e);
        EXPECT(!memcmp(a.e.arena[A_PARAM].base, b.e.arena[A_PARAM].base, param), "weights differ (%d)", i);
        for (int k = 0; k < a.e.model.params.n; k++) {
            const Param *p = a.e.model.params.p[k], *q = b.e.model.params.p[k];
            if (!t_has(p->shard.m)) continue;
            EXPECT(!memcmp(p->shard.m.data, q->shard.m.data, (size_t)t_bytes(p->shard.m)) &&
                       !memcmp(p->shard.v.data, q->shard.v.data, (size_t)t_bytes(p->shard.v)),
                   "%s: moments differ (%d)", p->piece[0].name, i);
        }
        Json *state;
        EXPECT_OK(checkpoint_read_state(path, &state));
        EXPECT(json_equal(state, a.state), "trainer_state.json");
        json_decref(state);
        lab_close(&a), lab_close(&b);
    }
}

static void other_models_are_refused(void)
{
    Lab a, b;
    Path path;
    const char *dir = run_dir("other");
    lab_open(&a, F32, true), lab_open(&b, F32, false);
    Snapshot s = snapshot(&a, dir, 7);
    EXPECT_OK(checkpoint_save(&s));
    EXPECT_OK(path_join(path, dir, "checkpoint-7"));
    EXPECT_FAIL(checkpoint_load(path, &b.e.model, &b.e.be), E_CONFIG, "model.freeze_");
    s = snapshot(&b, dir, 8);
    EXPECT_OK(checkpoint_save(&s));
    EXPECT_OK(path_join(path, dir, "checkpoint-8"));
    EXPECT_FAIL(checkpoint_load(path, &a.e.model, &a.e.be), E_CONFIG, "trained");
    lab_close(&a), lab_close(&b);
}

static int64_t last_of(const char *dir, const char *link)
{
    Path path, to = "";
    if (path_join(path, dir, link)) return -1;
    ssize_t n = readlink(path, to, sizeof to - 1);
    return n < 0 ? -1 : atoll(to + strlen("checkpoint-"));
}

static void keeps_last_and_best(void)
{
    Lab l;
    const char *dir = run_dir("keep");
    lab_open(&l, F32, false);
    for (int64_t step = 1; step <= 5; step++) {
        Snapshot s = snapshot(&l, dir, step);
        s.keep = 2, s.best = step == 2;
        EXPECT_OK(checkpoint_save(&s));
        EXPECT(last_of(dir, "last") == step, "last is %lld", (long long)last_of(dir, "last"));
    }
    EXPECT(!exists(dir, "checkpoint-1") && exists(dir, "checkpoint-2") && !exists(dir, "checkpoint-3") &&
           exists(dir, "checkpoint-4") && exists(dir, "checkpoint-5"), "2, 4 and 5 are kept");
    EXPECT(last_of(dir, "best") == 2, "best is %lld", (long long)last_of(dir, "best"));
    Snapshot again = snapshot(&l, dir, 4);                       /* the run was rewound to an older step */
    again.keep = 2;
    EXPECT_OK(checkpoint_save(&again));
    EXPECT(last_of(dir, "last") == 4 && exists(dir, "checkpoint-5") && !exists(dir, "checkpoint-4.tmp"),
           "replaced in place");
    lab_close(&l);
}

/* Changes one byte of a file, or truncates it. */
static void damage(const char *dir, const char *name, long at, bool cut)
{
    Path path;
    EXPECT_OK(path_join(path, dir, name));
    if (cut) {
        EXPECT(!truncate(path, at), "truncate");
        return;
    }
    FILE *f = fopen(path, "r+b");
    fseek(f, at, SEEK_SET);
    int c = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(c ^ 1, f);
    fclose(f);
}

static void detects_damage(void)
{
    Lab l;
    Path path, found;
    const char *dir = run_dir("damage");
    Log quiet = { .least = LOG_ERROR };
    lab_open(&l, F32, false);
    for (int64_t step = 1; step <= 3; step++) {
        Snapshot s = snapshot(&l, dir, step);
        EXPECT_OK(checkpoint_save(&s));
    }
    EXPECT_OK(checkpoint_find(found, dir, &quiet));
    EXPECT(strstr(found, "checkpoint-3"), "found %s", found);
    EXPECT_OK(path_join(path, dir, "checkpoint-3/state/more.safetensors"));
    EXPECT_OK(file_write(path, "x", 1));
    EXPECT_OK(path_join(path, dir, "checkpoint-3"));
    EXPECT_FAIL(checkpoint_verify(path), E_DATA, "more.safetensors is not listed in MANIFEST.json");
    EXPECT_OK(path_join(path, dir, "checkpoint-3/state/more.safetensors"));
    EXPECT(!unlink(path), "unlink");
    damage(dir, "checkpoint-3/state/model.safetensors", 20000, false);
    EXPECT_OK(path_join(path, dir, "checkpoint-3"));
    EXPECT_FAIL(checkpoint_verify(path), E_DATA, "damaged");
    EXPECT_OK(checkpoint_find(found, dir, &quiet));
    EXPECT(strstr(found, "checkpoint-2"), "found %s", found);
    damage(dir, "checkpoint-2/trainer_state.json", 3, true);
    EXPECT_OK(path_join(path, dir, "checkpoint-2"));
    EXPECT_FAIL(checkpoint_verify(path), E_DATA, "3 bytes");
    damage(dir, "checkpoint-1/MANIFEST.json", 40, true);
    EXPECT_OK(checkpoint_find(found, dir, &quiet));
    EXPECT(!*found, "found %s though all are damaged", found);
    const char *bad[] = {
        "[]",
        "{\"format\": 1, \"hash\": \"xxh128\", \"files\": 3}",
        "{\"format\": 9}",
        "{\"format\": 1, \"hash\": \"xxh128\", \"files\": {\"../../x\": {\"bytes\": 1, \"hash\": \"\"}}}",
        "{\"format\": 1, \"hash\": \"xxh128\", \"files\": {\"a\": []}}",
        "{\"format\": 1, \"hash\": \"xxh128\", \"files\": {\"a\": {\"bytes\": \"1\"}}}"
    };
    EXPECT_OK(path_join(path, dir, "checkpoint-1/MANIFEST.json"));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        EXPECT_OK(file_write(path, bad[i], strlen(bad[i])));
        EXPECT_OK(checkpoint_find(found, dir, &quiet));
        EXPECT(!*found, "accepted %s", bad[i]);
    }
    lab_close(&l);
}

/* The disk fills up at every possible byte: an error, the last checkpoint intact, no partial folder left. */
static void full_disk(void)
{
    Lab l;
    Path found;
    const char *dir = run_dir("full");
    Log quiet = { .least = LOG_ERROR };
    struct rlimit had, now;
    struct stat info;
    int failures = 0;
    lab_open(&l, F32, false);
    Snapshot s = snapshot(&l, dir, 1);
    EXPECT_OK(checkpoint_save(&s));
    EXPECT_OK(path_join(found, dir, "checkpoint-1/state/model.safetensors"));
    EXPECT(!stat(found, &info), "state");
    getrlimit(RLIMIT_FSIZE, &had);
    signal(SIGXFSZ, SIG_IGN);
    for (int64_t step = 2; step < 14; step++) {
        now = (struct rlimit){ (rlim_t)(info.st_size * (step - 2) / 10), had.rlim_max };
        if (now.rlim_cur < 16) now.rlim_cur = 16;
        s.step = step;
        setrlimit(RLIMIT_FSIZE, &now);
        Status st = checkpoint_save(&s);
        setrlimit(RLIMIT_FSIZE, &had);
        failures += st != OK;
        EXPECT(st == OK || (st == E_IO && strstr(status_text(), "earlier checkpoints are intact")), "%s",
               status_text());
        char name[64];
        snprintf(name, sizeof name, "checkpoint-%lld.tmp", (long long)step);
        EXPECT(!exists(dir, name), "%s is left", name);
        EXPECT_OK(checkpoint_find(found, dir, &quiet));
        EXPECT(*found && !checkpoint_verify(found), "no complete checkpoint after step %lld",
               (long long)step);
    }
    signal(SIGXFSZ, SIG_DFL);
    EXPECT(failures >= 9 && failures < 12, "%d of 12 saves failed", failures);
    lab_close(&l);
}

static void save_repeatedly(Lab *l, const char *dir, int64_t step)
{
    for (;; step++) {
        Snapshot s = snapshot(l, dir, step);
        s.keep = 2, s.best = step % 3 == 0;
        if (checkpoint_save(&s)) _exit(1);
    }
}

/* Killed at any moment of a save: the links name complete checkpoints, and the next start finds one. */
static void survives_kill(void)
{
    Lab l;
    Path path;
    const char *dir = run_dir("survives_kill");
    Log quiet = { .least = LOG_ERROR };
    lab_open(&l, F32, false);
    Snapshot first = snapshot(&l, dir, 1);
    double from = clock_now();
    EXPECT_OK(checkpoint_save(&first));
    double takes = clock_now() - from;
    int64_t step = 2;
    for (int round = 0; round < 30; round++) {
        pid_t child = fork();
        if (!child) save_repeatedly(&l, dir, step);
        usleep((useconds_t)(3e6 * takes * rng_uniform(5, 5, (uint64_t)round)));
        kill(child, SIGKILL);
        int how;
        waitpid(child, &how, 0);
        EXPECT(WIFSIGNALED(how), "a save failed");
        static const char *const links[] = { "last", "best" };
        for (int i = 0; i < 2; i++) {
            if (last_of(dir, links[i]) < 0) continue;        /* no best yet */
            EXPECT_OK(path_join(path, dir, links[i]));
            EXPECT_OK(checkpoint_verify(path));
        }
        checkpoint_remove_tmp(dir);
        EXPECT_OK(checkpoint_find(path, dir, &quiet));
        EXPECT(*path, "nothing to resume from");
        step = last_of(dir, "last") + 1;
    }
    EXPECT(step > 2, "killed before the first checkpoint was complete");
    lab_close(&l);
}

/* Masters halfway between two bf16 values: only the rounding mode decides the weight. */
static void put_ties(Lab *l)
{
    for (int i = 0; i < l->e.model.params.n; i++) {
        const Param *p = l->e.model.params.p[i];
        for (int64_t k = 0; k < p->shard.len && k < 40; k++) {
            uint32_t *u = (uint32_t *)p->shard.master.data + k;
            *u = (*u & 0xffff0000) + 0x8000;
        }
    }
    engine_publish_weights(&l->e);
}

static void export_loads(void)
{
    Lab a, b;
    Path path, file;
    Json *hf, *o;
    SafeTensors st;
    const char *dir = run_dir("export");
    lab_open(&a, BF16, false), lab_open(&b, BF16, true);
    put_ties(&a);
    EXPECT_OK(json_parse(&hf, small_vl_moe, strlen(small_vl_moe), "config"));
    EXPECT_OK(path_join(file, dir, "tokenizer.json"));
    EXPECT_OK(file_write(file, "{}", 2));
    HfExport x = { .config = hf, .companions = dir, .min_pixels = 1024, .max_pixels = 4096 };
    Snapshot s = snapshot(&a, dir, 3);
    s.hf = &x;
    EXPECT_OK(checkpoint_save(&s));
    EXPECT_OK(path_join(path, dir, "checkpoint-3"));
    EXPECT_OK(checkpoint_verify(path));
    EXPECT(exists(path, "tokenizer.json") && exists(path, "config.json") && exists(path, "model.safetensors"),
           "files");
    EXPECT_OK(st_open(&st, path));
    EXPECT_OK(weights_load(&b.e.model, &b.e.be, &st, NULL));
    engine_publish_weights(&b.e);
    for (int i = 0; i < a.e.model.params.n; i++)
        EXPECT(!memcmp(a.e.model.params.p[i]->shard.w.data, b.e.model.params.p[i]->shard.w.data,
                       (size_t)t_bytes(a.e.model.params.p[i]->shard.w)),
               "%s differs", a.e.model.params.p[i]->piece[0].name);
    st_close(&st);
    EXPECT_OK(path_join(file, path, "preprocessor_config.json"));
    EXPECT_OK(json_load(&o, file));
    EXPECT(json_integer_value(json_object_get(json_object_get(o, "size"), "longest_edge")) == 4096 &&
           json_integer_value(json_object_get(o, "patch_size")) == 4, "the processor's bounds");
    json_decref(o);
    EXPECT_OK(path_join(file, path, "config.json"));
    EXPECT_OK(json_load(&o, file));
    EXPECT(!strcmp(json_string_value(json_object_get(o, "dtype")), "bfloat16"),
           "config.json names the type of the weights");
    json_decref(o), json_decref(hf);
    lab_close(&a), lab_close(&b);
}

static void hub_put(const char *name, const char *text)
{
    Path path;
    EXPECT_OK(path_join(path, lab_tmp(), name));
    char *slash = strrchr(path, '/');
    *slash      = 0;
    EXPECT_OK(folder_make(path));
    *slash = '/';
    EXPECT_OK(file_write(path, text, strlen(text)));
}

/* A hub id is the snapshot that refs/main names in the local cache; one that is not there says how to get
 * it. */
static void hub_ids_are_found_in_the_cache(void)
{
    Path        found;
    const char *had    = getenv("HF_HUB_CACHE");
    char       *before = had ? strdup(had) : NULL;
    setenv("HF_HUB_CACHE", lab_tmp(), 1);
    hub_put("models--a--b.c/refs/main", "0123");
    hub_put("models--a--b.c/snapshots/0123/config.json", "{}");
    hub_put("models--a--b.c/snapshots/4567/config.json", "{}");
    EXPECT_OK(hub_cache_find(found, "a/b.c"));
    EXPECT(strstr(found, "models--a--b.c/snapshots/0123"), "%s", found);
    EXPECT_FAIL(hub_cache_find(found, "a/none"), E_CONFIG, "hf download a/none");
    EXPECT_OK(hub_cache_find(found, "./a/b.c"));
    EXPECT(!strcmp(found, "./a/b.c"), "%s", found);
    if (before) setenv("HF_HUB_CACHE", before, 1);
    else unsetenv("HF_HUB_CACHE");
    free(before);
}

int main(void)
{
    omp_set_num_threads(1);                                  /* a forked child has no other threads */
    RUN(hub_ids_are_found_in_the_cache);
    RUN(restores_bit_for_bit);
    RUN(other_models_are_refused);
    RUN(keeps_last_and_best);
    RUN(detects_damage);
    RUN(full_disk);
    RUN(survives_kill);
    RUN(export_loads);
    folder_remove(lab_tmp());
    return lab_report();
}
