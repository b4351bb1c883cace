/* Runs that end by bad data or a full disk. Whichever rank fails, all ranks end after the same step with its
 * error message, and a checkpoint in flight is completed. */
#include "layoutlab.h"
#include "runlab.h"

static RunLab lab;

typedef struct Ending { Status status; char words[400]; int64_t step; bool agreed; } Ending;

static struct { const char *keys; bool full; Ending end[2]; } all;

/* Makes the rank that writes metrics write them to a full disk. */
static void fill_disk(Trainer *t)
{
    if (!t->first) return;
    fclose(t->metrics.file);
    t->metrics.file = fopen("/dev/full", "w");
    REQUIRE(t->metrics.file, "no /dev/full");
}

static void run_one(Comm *world, Ending *e)
{
    Trainer t;
    Config  c;
    omp_set_num_threads(1);
    runlab_recipe(&c, &lab, "ends", all.keys);
    Status st = trainer_open(&t, &(TrainerConf){ .recipe = &c, .least = LOG_ERROR, .world = world });
    if (!st && all.full) fill_disk(&t);
    e->status = st ? st : trainer_run(&t);
    e->step = t.step, e->agreed = world && world->failure_agreed;
    snprintf(e->words, sizeof e->words, "%s", status_text());
    trainer_close(&t), config_close(&c);
}

static void rank_main(Peer *p) { run_one(p->world, &all.end[p->rank]); }

static void expect_saved(int64_t step)
{
    char name[64];
    Path path;
    snprintf(name, sizeof name, "ends/checkpoint-%lld", (long long)step);
    EXPECT_OK(checkpoint_verify(lab_path(name)));
    EXPECT_OK(checkpoint_find(path, lab_path("ends"), NULL));
    EXPECT(!strcmp(path, lab_path(name)), "the newest is %s", path);
    folder_remove(lab_path("ends"));
}

/* On two ranks: one fails with the error, the other with the error it received. */
static void expect_two(const char *what, int first, Status want, const char *words)
{
    const Ending *a = &all.end[first], *b = &all.end[!first];
    EXPECT(a->status == want && strstr(a->words, words), "%s: rank %d ends with %d, %s", what, first,
           (int)a->status, a->words);
    EXPECT(b->status == E_COMM && strstr(b->words, words) && !strncmp(b->words, "rank ", 5),
           "%s: rank %d ends with %d, %s", what, !first, (int)b->status, b->words);
    EXPECT(a->step == b->step && a->step > 0, "%s: after steps %lld and %lld", what, (long long)a->step,
           (long long)b->step);
    EXPECT(a->agreed && b->agreed, "%s: to end is what they said last", what);
}

static void full_disks(void)
{
    all.full = true;
    all.keys = "checkpoint.save_steps=1\nparallel.pp=2";
    on_ranks(2, 0, rank_main);
    expect_two("metrics", 0, E_IO, "metrics.jsonl: No space left on device");
    EXPECT(all.end[0].step == 1, "after step %lld", (long long)all.end[0].step);
    expect_saved(1);
    all.keys = "checkpoint.save_steps=1";
    run_one(NULL, &all.end[0]);
    EXPECT(all.end[0].status == E_IO && strstr(all.end[0].words, "metrics.jsonl: No space left"), "%d, %s",
           (int)all.end[0].status, all.end[0].words);
    expect_saved(1);
    all.full = false;
}

/* Adds a sample, used after a few steps, with a truncated image: only the rank that decodes it fails. */
static void add_bad_sample(int lines)
{
    char  path[400], line[1024];
    Bytes b = tiny_picture(3);
    snprintf(path, sizeof path, "%s/cut.jpg", lab.set.dir);
    tiny_write(path, b.v, b.n - b.n / 3);
    free(b.v);
    FILE *f = fopen(lab.set.path, "wb");
    REQUIRE(f, "cannot write %s", lab.set.path);
    for (int i = 0; i < lines; i++) tiny_line(line, sizeof line, i), fprintf(f, "%s\n", line);
    fprintf(f, "{\"messages\":[{\"role\":\"user\",\"content\":\"<image>?\"},{\"role\":\"assistant\","
            "\"content\":\"x\"}],\"images\":[\"cut.jpg\"]}\n");
    fclose(f);
}

/* The first pipeline stage decodes images. */
static void bad_data(void)
{
    add_bad_sample(40);
    all.keys = "checkpoint.save_steps=1\ntrain.max_steps=40\ntrain.seed=5\nparallel.pp=2";
    on_ranks(2, 0, rank_main);
    expect_two("data", 0, E_DATA, "cut.jpg");
    expect_saved(all.end[0].step);
    all.keys = "checkpoint.save_steps=1\ntrain.max_steps=40\ntrain.seed=5";
    run_one(NULL, &all.end[0]);
    EXPECT(all.end[0].status == E_DATA && all.end[0].step > 0, "%d, %s", (int)all.end[0].status,
           all.end[0].words);
    expect_saved(all.end[0].step);
    tiny_jsonl(lab.set.path, 12);
}

int main(void)
{
    runlab_open(&lab, 12);
    RUN(full_disks);
    RUN(bad_data);
    runlab_close(&lab);
    return lab_report();
}
