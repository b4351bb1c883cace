/* Runs whose steps end one step late, as on a GPU, against runs whose steps end at once: the same metrics,
 * weights and files, also with steps that are bad once or stay bad. */
#include "runlab.h"

#include "base/clock.h"
#include "base/rng.h"

#include <omp.h>
#include <signal.h>
#include <time.h>

static RunLab lab;

/* ---- bad steps ---- */

/* The norm of step `step` is not a number in its first `times` computations. */
typedef struct Fault { int64_t step; int times; } Fault;

static struct { const Engine *e; uint64_t seed; Fault fault[2]; } faulty;

static void faulty_squares(Backend *be, Tensor out, Tensor each, const Addends *list)
{
    cpu_squares(be, out, each, list);
    for (int i = 0; i < 2; i++) {
        Fault *f = &faulty.fault[i];
        uint64_t seed = rng_u64(faulty.seed, rng_stream("dropout"), (uint64_t)(f->step - 1)) | 1;
        if (faulty.e->dropout_seed == seed && f->times-- > 0) *(double *)out.data = NAN;
    }
}

static void inject(Trainer *t, Ops *ops, const Fault *fault)
{
    *ops = *t->engine.be.ops;
    ops->squares = faulty_squares;
    t->engine.be.ops = ops;
    faulty.e = &t->engine, faulty.seed = (uint64_t)t->recipe->train.seed;
    memcpy(faulty.fault, fault, sizeof faulty.fault);
}

/* ---- runs ---- */

typedef struct Ran { Status st; uint64_t hash; Guard guard; int64_t step, updates; Json *lines, *load; } Ran;

static bool is_measured(const char *key) { return !strncmp(key, "perf/", 5) || !strncmp(key, "mem/", 4); }

/* metrics.jsonl without what no two runs share. */
static Json *read_lines(const char *run)
{
    char  path[400], line[1 << 14];
    Json *all = json_array();
    snprintf(path, sizeof path, "%s/metrics.jsonl", lab_path(run));
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        Json *o = json_loads(line, 0, NULL), *value;
        const char *key;
        void *next;
        json_object_foreach_safe(o, next, key, value)
            if (is_measured(key) || !strcmp(key, "time")) json_object_del(o, key);
        json_array_append_new(all, o);
    }
    if (f) fclose(f);
    return all;
}

static Ran run(const char *text, bool late, const Fault *fault)
{
    Config  c;
    Trainer t;
    Ops     ops;
    Ran     out = { 0 };
    runlab_recipe(&c, &lab, "late", text);
    EXPECT_OK(trainer_open(&t, &(TrainerConf){ .recipe = &c, .least = LOG_ERROR }));
    t.late = late;
    inject(&t, &ops, fault);
    out.st = trainer_run(&t);
    out.hash = runlab_hash(&t), out.guard = t.guard, out.step = t.step, out.updates = t.updates;
    trainer_close(&t), config_close(&c);
    out.lines = read_lines("late");
    if (file_is(lab_path("late/expert_load.json")))
        EXPECT_OK(json_load(&out.load, lab_path("late/expert_load.json")));
    return out;
}

static void same(const Ran *a, const Ran *b, const char *text, const Fault *f)
{
    EXPECT(a->st == b->st && a->step == b->step && a->updates == b->updates, "%s, bad step %lld x %d: %d "
           "after step %lld, %lld updates; late %d, %lld, %lld", text, (long long)f->step, f->times, a->st,
           (long long)a->step, (long long)a->updates, b->st, (long long)b->step, (long long)b->updates);
    EXPECT(a->hash == b->hash, "%s, bad step %lld x %d: weights or moments differ", text, (long long)f->step,
           f->times);
    EXPECT(a->guard.highest == b->guard.highest && a->guard.skipped == b->guard.skipped &&
           a->guard.in_a_row == b->guard.in_a_row, "%s: guard", text);
    char *x = json_dumps(a->lines, JSON_INDENT(0)), *y = json_dumps(b->lines, JSON_INDENT(0));
    EXPECT(json_equal(a->lines, b->lines) && json_array_size(a->lines) > 0,
           "%s, bad step %lld x %d: metrics.jsonl\n%s\n%s", text, (long long)f->step, f->times, x, y);
    free(x), free(y);
    EXPECT(!a->load == !b->load && (!a->load || json_equal(a->load, b->load)), "%s: expert_load.json", text);
}

/* Returns the steps that were skipped. */
static int64_t compare(const char *text, const Fault *fault)
{
    Ran at_once = run(text, false, fault);
    folder_remove(lab_path("late"));
    Ran late = run(text, true, fault);
    folder_remove(lab_path("late"));
    same(&at_once, &late, text, fault);
    json_decref(at_once.lines), json_decref(late.lines), json_decref(at_once.load), json_decref(late.load);
    return late.guard.skipped;
}

static const Fault none[2];

static void late_runs_are_equal(void)
{
    char text[1000];
    snprintf(text, sizeof text, "data.train[0].channel=questions\ndata.train[1].path=%s\n"
             "data.train[1].channel=words\nmoe.z_loss_coeff=0.01\nmodel.dtype=bfloat16\neval.split=0.25\n"
             "eval.eval_steps=4\ncheckpoint.save_steps=3\ntrain.max_steps=5", lab.text);
    compare(text, none);
    compare("log.logging_steps=2\nlora.rank=4\nlora.dropout=0.1\ntrain.max_steps=5", none);
}

/* Bad once: the second result counts. Bad for ever: skipped, and the step after it has the number of updates
 * that the moments have. The first step, the last one, the one before a save; two in a row end a run. */
static void bad_steps_are_recovered(void)
{
    static const Fault rows[][2] = { { { 2, 1 }, { 3, 9 } }, { { 2, 9 }, { 3, 1 } }, { { 1, 9 }, { 4, 9 } } };
    static const Fault two[2] = { { 2, 9 }, { 3, 9 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        EXPECT(compare("checkpoint.save_steps=3\nlora.rank=4\nlora.dropout=0.1\ntrain.max_skipped_steps=0\n"
                       "train.max_steps=4", rows[i]) == (i < 2 ? 1 : 2), "skipped, row %zu", i);
    EXPECT(compare("train.max_skipped_steps=2\ntrain.max_steps=4", two) == 2, "two in a row");
}

/* A loss above the highest one before it: the device knows those of all steps before. */
static void spikes_are_found(void)
{
    int64_t n = compare(
        "train.spike_history=0\ntrain.spike_factor=1.0001\noptim.learning_rate=0.3\noptim.warmup_steps=0\n"
        "train.max_skipped_steps=0\ntrain.max_steps=5",
        none);
    EXPECT(n > 0 && n < 5, "%lld spikes of 5", (long long)n);
}

/* ---- a signal ---- */

static void signalling_squares(Backend *be, Tensor out, Tensor each, const Addends *list)
{
    uint64_t third = rng_u64(faulty.seed, rng_stream("dropout"), 2) | 1;
    cpu_squares(be, out, each, list);
    if (faulty.e->dropout_seed == third && faulty.fault[0].times-- > 0) raise(SIGTERM);
}

/* Opens and runs; a signal comes while step 3 is computed if `stops`. Returns the hash at the end. */
static uint64_t run_until(const char *text, bool late, bool stops)
{
    Config  c;
    Trainer t;
    Ops     ops;
    runlab_recipe(&c, &lab, "late", text);
    EXPECT_OK(trainer_open(&t, &(TrainerConf){ .recipe = &c, .least = LOG_ERROR }));
    t.late = late;
    inject(&t, &ops, (Fault[2]){ { 0, stops }, { 0, 0 } });
    ops.squares = signalling_squares;
    EXPECT_OK(trainer_run(&t));
    EXPECT(t.step == (stops ? 3 : 6) && t.begun == 0, "step %lld", (long long)t.step);
    uint64_t hash = runlab_hash(&t);
    trainer_close(&t), config_close(&c);
    return hash;
}

/* The step in flight ends and is saved, and a resumed run goes on from it. */
static void a_stopped_run_resumes(void)
{
    static const char text[] = "lora.rank=4\nlora.dropout=0.1";
    uint64_t whole = run_until(text, false, false);
    folder_remove(lab_path("late"));
    run_until(text, true, true);
    EXPECT(file_is(lab_path("late/checkpoint-3/MANIFEST.json")), "no checkpoint of step 3");
    uint64_t resumed = run_until("lora.rank=4\nlora.dropout=0.1\ncheckpoint.resume_from_checkpoint=auto",
                                 true, false);
    EXPECT(whole == resumed, "a late run that was stopped differs from one that was not");
    folder_remove(lab_path("late"));
}

/* ---- between begin and end ---- */

static void a_late_step_is_not_done(void)
{
    Config     c;
    Trainer    t;
    StepReport r;
    runlab_recipe(&c, &lab, "late", "");
    EXPECT_OK(trainer_open(&t, &(TrainerConf){ .recipe = &c, .least = LOG_ERROR }));
    t.late = true;
    EXPECT_OK(trainer_begin_step(&t));
    EXPECT_OK(trainer_begin_step(&t));
    EXPECT(t.step == 0 && t.updates == 0 && t.begun == 2, "step %lld", (long long)t.step);
    EXPECT_OK(trainer_end_step(&t, &r));
    EXPECT(t.step == 1 && r.step == 1 && t.updates == 1 && t.begun == 1 && r.sums.ce > 0, "first");
    EXPECT_OK(trainer_end_step(&t, &r));
    EXPECT(t.step == 2 && r.step == 2 && t.updates == 2 && t.begun == 0, "second");
    trainer_close(&t), config_close(&c);
    folder_remove(lab_path("late"));
}

static void slow_squares(Backend *be, Tensor out, Tensor each, const Addends *list)
{
    cpu_squares(be, out, each, list);
    nanosleep(&(struct timespec){ .tv_nsec = 30000000 }, NULL);
}

/* Both steps have been computed before the first one is read, and the host does something else between. */
static void times_are_those_of_the_device(void)
{
    Config     c;
    Trainer    t;
    Ops        ops;
    StepReport r[2];
    runlab_recipe(&c, &lab, "late", "");
    EXPECT_OK(trainer_open(&t, &(TrainerConf){ .recipe = &c, .least = LOG_ERROR }));
    t.late = true;
    inject(&t, &ops, none), ops.squares = slow_squares;
    double from = t.step_ended;
    EXPECT_OK(trainer_begin_step(&t));
    EXPECT_OK(trainer_begin_step(&t));
    double computed = clock_now() - from;
    nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
    for (int i = 0; i < 2; i++) EXPECT_OK(trainer_end_step(&t, &r[i]));
    double sum = r[0].seconds + r[1].seconds;
    EXPECT(r[0].seconds > 0.03 && r[1].seconds > 0.03, "%g and %g s", r[0].seconds, r[1].seconds);
    EXPECT(sum < computed + 0.001 && sum > 0.5 * computed, "%g of %g s", sum, computed);
    trainer_close(&t), config_close(&c);
    folder_remove(lab_path("late"));
}

static void a_step_that_fails_has_not_ended(void)
{
    Config  c;
    Trainer t;
    runlab_recipe(&c, &lab, "late", "");
    EXPECT_OK(trainer_open(&t, &(TrainerConf){ .recipe = &c, .least = LOG_ERROR }));
    t.late = true;
    StepReport r;
    EXPECT_OK(trainer_step(&t, &r));
    EXPECT_OK(trainer_begin_step(&t));
    t.engine.be.sticky = fail(E_DEVICE, "a broken device");
    EXPECT_FAIL(trainer_end_step(&t, &r), E_DEVICE, "broken");
    EXPECT(t.step == 1 && r.step == 2, "step %lld", (long long)t.step);
    trainer_close(&t), config_close(&c);
    folder_remove(lab_path("late"));
}

int main(void)
{
    omp_set_num_threads(1);                                  /* tiny products */
    runlab_open(&lab, 40);
    RUN(late_runs_are_equal);
    RUN(bad_steps_are_recovered);
    RUN(spikes_are_found);
    RUN(a_stopped_run_resumes);
    RUN(a_late_step_is_not_done);
    RUN(times_are_those_of_the_device);
    RUN(a_step_that_fails_has_not_ended);
    runlab_close(&lab);
    return lab_report();
}
