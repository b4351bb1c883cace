/* Whole runs on a tiny model: resuming to the bit, what is refused, guards, evaluation, signals,
 * overfitting. */
#include "runlab.h"
#include "base/version.h"

#include <omp.h>
#include <signal.h>

static RunLab lab;

static void step_or_die(Trainer *t, StepReport *r)
{
    Status st = trainer_step(t, r);
    REQUIRE(!st, "%s", status_text());
}

static void open_or_die(Trainer *t, const Config *c)
{
    TrainerConf conf = { .recipe = c, .least = LOG_ERROR };
    Status st = trainer_open(t, &conf);
    REQUIRE(!st, "%s", status_text());
}

static uint64_t weight_hash(const Trainer *t)
{
    uint64_t h = 1;
    for (int i = 0; i < t->engine.model.params.n; i++)
        h = tiny_hash(t->engine.model.params.p[i]->shard.w.data,
                      (size_t)t_bytes(t->engine.model.params.p[i]->shard.w), h);
    return h;
}

/* Five steps at once, and two, a stop, and three more: pictures, videos, two micro-batches, every kind of
 * loss. */
static void resumes_to_the_bit(void)
{
    static const char *const kinds[] = {
        "model.dtype=float32\nmoe.aux_loss_type=global",
        "model.dtype=bfloat16\nmoe.aux_loss_type=sequence\nmoe.z_loss_coeff=0.01\n"
        "memory.recompute=[moe_act]\n"
        "memory.activation_offload=[core_attn, moe_act, vision]\nmemory.activation_offload_fraction=0.5",
        "model.dtype=bfloat16\nmodel.freeze_vit=true\nmemory.recompute=[full]\nmemory.recompute_layers=2\n"
        "memory.activation_offload=[attn_norm]"
    };
    for (int k = 0; k < 3; k++) {
        Config c;
        Trainer t;
        StepReport r;
        double losses[5];
        char text[512];
        snprintf(text, sizeof text, "%s\ntrain.seed=%d", kinds[k], 7 + k);
        runlab_recipe(&c, &lab, "whole", text);
        open_or_die(&t, &c);
        for (int i = 0; i < 5; i++) step_or_die(&t, &r), losses[i] = r.sums.total;
        uint64_t want = runlab_hash(&t);
        EXPECT(losses[4] < losses[0], "kind %d: the loss went from %g to %g", k, losses[0], losses[4]);
        trainer_close(&t), config_close(&c);

        runlab_recipe(&c, &lab, "parts", text);
        open_or_die(&t, &c);
        for (int i = 0; i < 2; i++) step_or_die(&t, &r);
        EXPECT_OK(trainer_save(&t, false));
        step_or_die(&t, &r);                                 /* lost with the process */
        trainer_close(&t), config_close(&c);

        snprintf(text + strlen(text), sizeof text - strlen(text), "\ncheckpoint.resume_from_checkpoint=auto");
        runlab_recipe(&c, &lab, "parts", text);
        if (!k) omp_set_num_threads(2);                      /* the number of threads does not matter */
        open_or_die(&t, &c);
        EXPECT(t.step == 2 && t.updates == 2, "resumed after step %lld", (long long)t.step);
        for (int i = 2; i < 5; i++) {
            step_or_die(&t, &r);
            EXPECT(r.sums.total == losses[i], "kind %d, step %d: loss %.9g, not %.9g", k, i + 1, r.sums.total,
                   losses[i]);
        }
        EXPECT(runlab_hash(&t) == want, "kind %d: weights or moments differ", k);
        omp_set_num_threads(1);
        trainer_close(&t), config_close(&c);
        folder_remove(lab_path("whole")), folder_remove(lab_path("parts"));
    }
}

static void refuses(void)
{
    static const struct { const char *set, *word; Status st;
    } rows[] = {
        { "parallel.tp=2", "tp 2", E_CONFIG },
        { "parallel.ep=8", "parallel.ep", E_CONFIG },
        { "parallel.layout=Et", "parallel.layout", E_CONFIG },
        { "lora.alpha=8", "lora.rank = 0", E_CONFIG },
        { "lora.target_modules=[all-linear]", "set lora.rank", E_CONFIG },
        { "lora.target_modules=[q_proj]", "lora.target_modules: lora.rank = 0 means no adapters", E_CONFIG },
        { "lora.rank=8\nlora.alpha=0", "lora.alpha = 0", E_CONFIG },
        { "lora.rank=8\nlora.target_modules=[]", "is empty", E_CONFIG },
        { "lora.rank=8\nlora.target_modules=[q_prj]", "nearest is q_proj", E_CONFIG },
        { "lora.rank=8\nlora.target_modules=[q_proj]\noptim.vit_lr=1e-4", "optim.vit_lr", E_CONFIG },
        { "lora.rank=8\nlora.path=there", "lora.rank: the adapter at lora.path", E_CONFIG },
        { "model.freeze_vit=true\noptim.vit_lr=1e-4", "optim.vit_lr", E_CONFIG },
        { "memory.activation_offload=[moe_acts]", "expert_fc1", E_CONFIG },
        { "memory.activation_offload=[expert_fc1]\nmemory.recompute=[moe]", "drops", E_CONFIG },
        { "memory.recompute=[everything]", "moe_act", E_CONFIG },
        { "moe.overlap=true", "moe.overlap", E_CONFIG },
        { "moe.dispatcher=deepep", "dispatcher", E_CONFIG },
        { "optim.grad_dtype=bfloat16", "grad_dtype", E_CONFIG },
        { "optim.master=split", "set model.dtype=bfloat16", E_CONFIG },
        { "device.backend=cuda", "cuda", E_CONFIG },
        { "device.backend=meta", "meta", E_CONFIG },
        { "comm.kind=fake", "comm.kind", E_CONFIG },
        { "device.dtype=bfloat16", "device.dtype", E_CONFIG },
        { "train.global_tokens=1000", "multiple", E_CONFIG },
        { "optim.min_lr=0.5", "optim.min_lr", E_CONFIG },
        { "eval.eval_on_start=true", "held out", E_CONFIG },
        { "model.path=nowhere", "nowhere", E_IO },
        { "model.preset=nothing", "Qwen3-VL-30B-A3B", E_CONFIG },
        { "data.train[0].path=nowhere.jsonl", "nowhere.jsonl", E_IO },
        { "checkpoint.resume_from_checkpoint=nowhere", "resume_from_checkpoint", E_IO },
        { "train.micro_tokens=1e7\ntrain.global_tokens=0", "does not fit", E_FIT },
        { "model.freeze_vit=true\nmodel.freeze_aligner=true\nmodel.freeze_llm=true", "nothing to train",
          E_CONFIG },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Config c;
        Trainer t;
        TrainerConf conf = { .recipe = &c, .least = LOG_ERROR };
        runlab_recipe(&c, &lab, "refused", rows[i].set);
        Status st = trainer_open(&t, &conf);
        EXPECT(st == rows[i].st && strstr(status_text(), rows[i].word), "%s: status %d (want %d): %s",
               rows[i].set, (int)st, (int)rows[i].st, st ? status_text() : "accepted");
        trainer_close(&t), config_close(&c);
        folder_remove(lab_path("refused"));
    }
}

static void folder_rules(void)
{
    Config c, d;
    Trainer t, u;
    TrainerConf conf = { .recipe = &d, .least = LOG_ERROR };
    runlab_recipe(&c, &lab, "folder", "train.max_steps=2");
    open_or_die(&t, &c);
    runlab_recipe(&d, &lab, "folder", "checkpoint.resume_from_checkpoint=auto");
    EXPECT_FAIL(trainer_open(&u, &conf), E_CONFIG, "another run");
    EXPECT_OK(trainer_run(&t));
    trainer_close(&t), config_close(&d);
    runlab_recipe(&d, &lab, "folder", "");
    EXPECT_FAIL(trainer_open(&u, &conf), E_CONFIG, "not empty");
    config_close(&d);
    char resume[400];
    snprintf(resume, sizeof resume, "train.max_steps=3\ncheckpoint.resume_from_checkpoint=%s/checkpoint-2",
             lab_path("folder"));
    runlab_recipe(&d, &lab, "folder", resume);               /* by name, in the same folder */
    EXPECT_OK(runlab_train(&d, &u));
    EXPECT(u.step == 3, "step %lld", (long long)u.step);
    trainer_close(&u), config_close(&d);
    runlab_recipe(&d, &lab, "branch", resume);               /* by name, into a new one */
    EXPECT_OK(runlab_train(&d, &u));
    EXPECT(u.step == 3, "step %lld", (long long)u.step);
    trainer_close(&u), config_close(&d);
    runlab_recipe(&d, &lab, "folder", "checkpoint.resume_from_checkpoint=auto\ntrain.seed=8");
    EXPECT_FAIL(trainer_open(&u, &conf), E_CONFIG, "train.seed");
    config_close(&d), config_close(&c);
    folder_remove(lab_path("folder")), folder_remove(lab_path("branch"));
}

/* Weights that are not numbers: every step is skipped, nothing changes, and after the limit the run ends. */
static void not_a_number(void)
{
    Config c;
    Trainer t;
    StepReport r;
    runlab_recipe(&c, &lab, "nan", "train.max_skipped_steps=3\ntrain.max_steps=50");
    open_or_die(&t, &c);
    step_or_die(&t, &r);
    float *w = t.engine.model.head.norm->shard.w.data, was = w[3];
    w[3] = NAN;
    uint64_t before = runlab_hash(&t);
    for (int i = 0; i < 2; i++) {
        step_or_die(&t, &r);
        EXPECT(r.verdict == STEP_NOT_FINITE, "verdict %d", (int)r.verdict);
    }
    EXPECT(runlab_hash(&t) == before && t.step == 3 && t.updates == 1, "a skipped step changed something");
    w[3] = was;
    step_or_die(&t, &r);
    EXPECT(r.verdict == STEP_GOOD && t.guard.skipped == 2 && t.guard.in_a_row == 0, "it goes on");
    w[3] = INFINITY;
    EXPECT_FAIL(trainer_run(&t), E_CHECK, "3 steps in a row");
    EXPECT(t.updates == 2 && t.guard.skipped == 5, "%lld updates", (long long)t.updates);
    trainer_close(&t), config_close(&c);
    folder_remove(lab_path("nan"));
}

static void spikes(void)
{
    Guard g = { .spike = 10, .limit = 2 };
    EXPECT(guard_classify(&g, 50, 1, 9) == STEP_GOOD, "the first has nothing to be compared with");
    EXPECT_OK(guard_record(&g, STEP_GOOD, 5, 1));
    EXPECT_OK(guard_record(&g, STEP_GOOD, 2, 1));
    EXPECT(guard_classify(&g, 49, 1, 9) == STEP_GOOD && guard_classify(&g, 51, 1, 9) == STEP_SPIKE,
           "ten times the highest");
    EXPECT(guard_classify(&g, 1, INFINITY, 9) == STEP_NOT_FINITE &&
               guard_classify(&g, NAN, 1, 9) == STEP_NOT_FINITE && guard_classify(&g, 0, 0, 0) == STEP_EMPTY,
           "others");
    EXPECT_OK(guard_record(&g, STEP_SPIKE, 51, 1));
    EXPECT(g.highest == 5, "a skipped loss is not one to compare with");
    EXPECT_FAIL(guard_record(&g, STEP_SPIKE, 51, 1), E_CHECK, "far above");
    g.spike = 0;
    EXPECT(guard_classify(&g, 1e9, 1, 9) == STEP_GOOD, "switched off");
}

static Status ask_to_leave(void *self, Trainer *t, double *accuracy)
{
    *accuracy = 0.25;
    if (t->step == *(int *)self) raise(SIGTERM);
    return OK;
}

static Json *metrics_line(const char *run, int64_t step, const char *key)
{
    char path[400], line[1 << 14];
    Json *found = NULL;
    snprintf(path, sizeof path, "%s/metrics.jsonl", lab_path(run));
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        Json *o = json_loads(line, 0, NULL);
        bool mine = json_integer_value(json_object_get(o, "step")) == step && json_object_get(o, key);
        if (mine) json_decref(found), found = json_incref(o);
        json_decref(o);
    }
    if (f) fclose(f);
    return found;
}

/* Evaluation, the best checkpoint, answers, a signal, and resuming: metrics.jsonl is that of one run. */
static void signal_and_evaluation(void)
{
    Config c;
    Trainer t;
    int leave_at = 4;
    char text[1000];
    snprintf(text, sizeof text,
             "data.eval=[{path: %s, channel: held_out, max_samples: "
             "5}]\neval.eval_steps=2\neval.eval_on_start=true\ncheckpoint.save_steps=2\n"
             "checkpoint.save_total_limit=1\ncheckpoint.hf=final\ndata.train[0].channel=questions\n"
             "data.train[1].path=%s\ndata.train[1].channel=words",
             lab.set.path, lab.text);
    runlab_recipe(&c, &lab, "signal", text);
    TrainerConf conf = { .recipe = &c,
                         .least = LOG_ERROR,
                         .answers = { .run = ask_to_leave, .self = &leave_at } };
    EXPECT_OK(trainer_open(&t, &conf));
    EXPECT_OK(trainer_run(&t));
    EXPECT(t.step == 4 && t.saved == 4, "left after step %lld", (long long)t.step);
    trainer_close(&t);
    EXPECT(file_is(lab_path("signal/checkpoint-4/MANIFEST.json")) &&
               !file_is(lab_path("signal/checkpoint-4/config.json")),
           "saved, and without the export of the end");

    leave_at = -1;
    EXPECT_OK(config_set(&c, "checkpoint.resume_from_checkpoint=auto"));
    EXPECT_OK(trainer_open(&t, &conf));
    EXPECT_OK(trainer_run(&t));
    EXPECT(t.step == 6 && t.best_step == 6 && t.best > 0, "best at %lld", (long long)t.best_step);
    Evaluation again;
    EXPECT_OK(trainer_evaluate(&t, &again));
    EXPECT(again.loss == t.eval_loss && again.accuracy == 0.25, "evaluation is the same twice: %.9g %.9g",
           again.loss, t.eval_loss);
    for (int i = 0; i < ARENA_N; i++)
        EXPECT(t.engine.arena[i].peak <= t.engine.plan.bytes[i], "%s went beyond its plan",
               t.engine.arena[i].name);
    EXPECT_OK(trainer_run(&t));                              /* nothing is left */
    trainer_close(&t);
    EXPECT(file_is(lab_path("signal/checkpoint-6/model.safetensors")) &&
               file_is(lab_path("signal/checkpoint-6/tokenizer.json")) &&
               !file_is(lab_path("signal/checkpoint-4")),
           "the end is exported, the older one is gone");
    EXPECT(file_is(lab_path("signal/recipe.yaml")) && file_is(lab_path("signal/train.log")),
           "files of the run");
    EXPECT(file_is(lab_path("signal/plan.json")) && file_is(lab_path("signal/expert_load.json")),
           "for the report");
    Json *e = metrics_line("signal", 4, "eval/loss"), *s = metrics_line("signal", 5, "train/loss");
    EXPECT(json_is_number(json_object_get(e, "eval/accuracy")), "accuracy in metrics.jsonl");
    double all = json_number_value(json_object_get(e, "eval/loss"));
    double one = json_number_value(json_object_get(e, "eval/loss_by_source/held_out"));
    EXPECT(fabs(one - all) < 1e-5 * all, "the only source has %.9g, all have %.9g", one, all);
    static const char *const keys[] = { "train/grad_norm",
                                        "train/learning_rate",
                                        "train/epoch",
                                        "perf/tokens_per_second_per_gpu",
                                        "perf/mfu",
                                        "perf/hfu",
                                        "perf/mfu_vision",
                                        "perf/mfu_merger",
                                        "perf/mfu_decoder",
                                        "perf/mfu_head",
                                        "perf/step_time",
                                        "perf/data_wait",
                                        "perf/exposed_comm",
                                        "perf/tflops",
                                        "mem/planned_gib",
                                        "mem/measured_gib",
                                        "mem/peak_gib",
                                        "moe/aux_loss",
                                        "moe/max_over_mean/layer_00",
                                        "moe/max_over_mean/layer_01",
                                        "data/visual_token_share",
                                        "loss_by_source/questions" };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        EXPECT(json_is_number(json_object_get(s, keys[i])), "%s is not in metrics.jsonl", keys[i]);
    json_decref(e), json_decref(s);
    config_close(&c);
    folder_remove(lab_path("signal"));
}

/* A run starts from the weights that another one exported. */
static void starts_from_an_export(void)
{
    Config c;
    Trainer t;
    char text[600];
    runlab_recipe(&c, &lab, "donor", "checkpoint.hf=every\ntrain.max_steps=2");
    EXPECT_OK(runlab_train(&c, &t));
    uint64_t want = weight_hash(&t);
    trainer_close(&t), config_close(&c);
    snprintf(text, sizeof text, "model.preset=\"\"\nmodel.path=%s/last\nmodel.freeze_llm=true",
             lab_path("donor"));
    runlab_recipe(&c, &lab, "heir", text);
    open_or_die(&t, &c);
    EXPECT(weight_hash(&t) == want, "the weights are not the exported ones");
    trainer_close(&t);
    config_close(&c);
    folder_remove(lab_path("donor")), folder_remove(lab_path("heir"));
}

static void held_out_by_split(void)
{
    Config c;
    Trainer t;
    Evaluation e;
    runlab_recipe(&c, &lab, "split",
                  "eval.split=0.25\ntrain.max_steps=0\ntrain.num_train_epochs=2\n"
                  "log.report_to=[tensorboard]");
    open_or_die(&t, &c);
    EXPECT_OK(trainer_evaluate(&t, &e));
    EXPECT(e.docs == 10 && loader_samples(t.loader) == 30, "%lld of 40 are held out", (long long)e.docs);
    EXPECT_OK(trainer_run(&t));
    EXPECT(fabs(t.epoch - 2) < 1e-9, "two epochs: %g", t.epoch);
    trainer_close(&t), config_close(&c);
    EXPECT(!file_is(lab_path("split/metrics.jsonl")), "only what was asked for is written");
    folder_remove(lab_path("split"));
}

/* A run whose steps are estimated ends with its data, whatever the estimate is and also if it is resumed. */
static void an_estimated_run_ends_with_its_data(void)
{
    static const char *const keys = "train.max_steps=0\ntrain.num_train_epochs=1\ndata.measure_samples=%d\n"
                                    "checkpoint.save_steps=3\ncheckpoint.resume_from_checkpoint=auto";
    static const int measured[] = { 0, 1, 7 };
    int64_t          steps[3];
    for (int i = 0; i < 3; i++) {
        Config  c;
        Trainer t;
        char    text[256];
        snprintf(text, sizeof text, keys, measured[i]);
        runlab_recipe(&c, &lab, "estimated", text);
        open_or_die(&t, &c);
        EXPECT(t.counted.estimated == (i > 0), "%d samples", measured[i]);
        for (int k = 0; i == 2 && k < 3; k++) {
            StepReport r;
            EXPECT_OK(trainer_step(&t, &r));
        }
        if (i == 2) {
            EXPECT_OK(trainer_save(&t, false));
            trainer_close(&t), open_or_die(&t, &c);
        }
        EXPECT_OK(trainer_run(&t));
        steps[i] = t.step;
        EXPECT(t.lr.steps == t.counted.steps, "the rate follows the estimate");
        EXPECT(fabs(t.epoch - 1) < 1e-9, "%d: one epoch: %g", i, t.epoch);
        EXPECT(t.progress.steps == t.step, "the last line says how many");
        trainer_close(&t);
        open_or_die(&t, &c);
        EXPECT(t.step == steps[i] && t.steps == t.step, "a run that is resumed is complete");
        trainer_close(&t), config_close(&c), folder_remove(lab_path("estimated"));
    }
    EXPECT(steps[0] == steps[1] && steps[0] == steps[2], "%lld %lld %lld steps", (long long)steps[0],
           (long long)steps[1], (long long)steps[2]);
}

/* Learning rates of groups, clipping, weight decay and a frozen part in one run. */
static void frozen_parts_stay(void)
{
    Config c;
    Trainer t;
    StepReport r;
    runlab_recipe(&c, &lab, "frozen", "model.freeze_vit=true\noptim.aligner_lr=1e-2\nlog.logging_steps=2");
    open_or_die(&t, &c);
    const Param *vit = t.engine.model.vision.w_patch, *merger = t.engine.model.vision.merger.w1;
    uint64_t before = tiny_hash(vit->shard.w.data, (size_t)t_bytes(vit->shard.w), 1),
             other = tiny_hash(merger->shard.w.data, (size_t)t_bytes(merger->shard.w), 1);
    for (int i = 0; i < 3; i++) step_or_die(&t, &r);
    EXPECT(tiny_hash(vit->shard.w.data, (size_t)t_bytes(vit->shard.w), 1) == before && !t_has(vit->shard.g) &&
               !t_has(vit->shard.m),
           "the tower moved");
    EXPECT(tiny_hash(merger->shard.w.data, (size_t)t_bytes(merger->shard.w), 1) != other,
           "the mergers did not");
    EXPECT(t.engine.plan.ledger.by_part[PART_VISION].flops > 0, "it still looks at pictures");
    trainer_close(&t), config_close(&c);
    folder_remove(lab_path("frozen"));
}

static void overfits(void)
{
    Config c;
    Trainer t;
    StepReport r = { 0 };
    char text[512];
    snprintf(text, sizeof text,
             "data.train=[%s]\ntrain.max_steps=150\ntrain.micro_tokens=64\ntrain.global_tokens=64\n"
             "train.micro_patches=0\noptim.learning_rate=1e-2\noptim.weight_decay=0",
             lab.text);
    runlab_recipe(&c, &lab, "overfit", text);
    open_or_die(&t, &c);
    for (int i = 0; i < 150; i++) step_or_die(&t, &r);
    EXPECT(r.sums.ce < 0.1, "loss %.4f after 150 steps over two lines", r.sums.ce);
    trainer_close(&t), config_close(&c);
    folder_remove(lab_path("overfit"));
}

/* env.json has the machine as the caller describes it, the build, and the files of the data. */
static void env_names_build_and_data(void)
{
    Config c;
    Trainer t;
    Json *env = json_pack("{s:s}", "cpu", "any"), *o = NULL;
    runlab_recipe(&c, &lab, "env", "eval.split=0.25");
    TrainerConf conf = { .recipe = &c, .least = LOG_ERROR, .env = env };
    EXPECT_OK(trainer_open(&t, &conf));
    trainer_close(&t), config_close(&c);
    EXPECT_OK(json_load(&o, lab_path("env/env.json")));
    const Json *build = json_object_get(o, "build"), *data = json_object_get(o, "data_train");
    const char *version = json_string_value(json_object_get(build, "version"));
    const char *hash = json_string_value(json_object_get(data, "xxh128"));
    EXPECT(json_object_get(o, "cpu") && version && !strcmp(version, TREB_VERSION), "version %s", version);
    EXPECT(json_object_get(json_object_get(build, "libraries"), "jansson"), "libraries");
    EXPECT(hash && strlen(hash) == 32, "hash %s", hash);
    EXPECT(json_integer_value(json_object_get(data, "files")) == 1, "one file of training data");
    EXPECT(json_object_get(o, "data_eval"), "the held-out data has a fingerprint too");
    json_decref(o), json_decref(env);
    folder_remove(lab_path("env"));
}

/* A line names the groups that a rank waits for, and the share of their calls that compute covers. */
static void a_line_names_exposed_groups(void)
{
    Log log;
    Metrics metrics;
    ExpertCounts experts = { 0 };
    SourceLoss sources = { 0 };
    TensorBoard board = { 0 };
    char text[2000] = "";
    EXPECT_OK(log_open(&log, lab_path("exposed.log"), 0, 1, LOG_INFO));
    EXPECT_OK(folder_make(lab_path("exposed")));
    EXPECT_OK(metrics_open(&metrics, lab_path("exposed/metrics.jsonl"), "test"));
    Progress p = { .log = &log, .metrics = &metrics, .board = &board, .steps = 2, .every = 2, .ranks = 2 };
    for (int64_t step = 1; step <= 2; step++) {
        StepReport r = { .step = step, .verdict = STEP_GOOD, .seconds = 0.5 };
        if (step == 2) r.comm[GR_tp] = (CommTime){ 0.25, 0.5 }, r.comm[GR_edp] = (CommTime){ 0, 0.5 };
        EXPECT_OK(progress_step(&p, &r, &experts, &sources));
    }
    log_close(&log), metrics_close(&metrics);
    FILE *f = fopen(lab_path("exposed.log"), "rb");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    EXPECT(strstr(text, "comm exposed 25.0% (tp 25.0; hidden 75%)"), "%s", text);
    Json *line = metrics_line("exposed", 2, "perf/exposed_comm");
    EXPECT(json_number_value(json_object_get(line, "perf/exposed_comm/tp")) == 0.25 &&
               json_number_value(json_object_get(line, "perf/hidden_comm/tp")) == 0.5 &&
               json_number_value(json_object_get(line, "perf/hidden_comm/edp")) == 1 &&
               json_number_value(json_object_get(line, "perf/hidden_comm")) == 0.75,
           "values of groups");
    EXPECT(!json_object_get(line, "perf/exposed_comm/cp"), "a group without calls is not named");
    json_decref(line);
    folder_remove(lab_path("exposed"));
}

/* Two steps a line: what was skipped has no loss to show; null in metrics.jsonl, "-" for people. */
static void skipped_steps_have_no_loss(void)
{
    Log log;
    Metrics metrics;
    ExpertCounts experts = { 0 };
    SourceLoss sources = { 0 };
    TensorBoard board = { 0 };
    char text[4000] = "";
    EXPECT_OK(log_open(&log, lab_path("skipped.log"), 0, 1, LOG_INFO));
    EXPECT_OK(metrics_open(&metrics, lab_path("skipped.jsonl"), "test"));
    Progress p = { .log = &log, .metrics = &metrics, .board = &board, .steps = 4, .every = 2, .ranks = 1,
                   .peak = { 1e12, true }, .planned = 1 << 30, .device_memory = 4e9 };
    for (int64_t step = 1; step <= 4; step++) {
        StepReport r = { .step = step, .verdict = step > 2 ? STEP_EMPTY : STEP_GOOD, .seconds = 0.5,
                         .memory_used = 2 * 0x1p30, .sums = { .ce = 3, .tokens = 10, .token_budget = 20 } };
        r.sums.model.part[PART_DECODER] = 1e11;
        EXPECT_OK(progress_step(&p, &r, &experts, &sources));
    }
    log_close(&log), metrics_close(&metrics);
    FILE *f = fopen(lab_path("skipped.log"), "rb");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    EXPECT(strstr(text, "step 2/4  loss 3.0000  grad 0"), "%s", text);
    EXPECT(strstr(text, "step 4/4  loss -  grad -"), "%s", text);
    EXPECT(strstr(text, "0.2 TFLOP/s  mfu 20.0%"), "%s", text);
    EXPECT(strstr(text, "mem 2.00/3.7 GiB (planned 1.00)"), "%s", text);
}

static void text_of_times(void)
{
    char out[32];
    EXPECT(!strcmp(progress_time_text(out, 8.4), "8s") && !strcmp(progress_time_text(out, 2460), "41m") &&
               !strcmp(progress_time_text(out, 7500), "2h05m") &&
               !strcmp(progress_time_text(out, 200000), "2d07h") &&
               !strcmp(progress_time_text(out, NAN), "0s"),
           "%s", out);
}

int main(void)
{
    omp_set_num_threads(1); /* tiny products: threads would only wait for each other */
    runlab_open(&lab, 40);
    RUN(resumes_to_the_bit);
    RUN(refuses);
    RUN(folder_rules);
    RUN(not_a_number);
    RUN(spikes);
    RUN(signal_and_evaluation);
    RUN(starts_from_an_export);
    RUN(held_out_by_split);
    RUN(an_estimated_run_ends_with_its_data);
    RUN(frozen_parts_stay);
    RUN(overfits);
    RUN(env_names_build_and_data);
    RUN(skipped_steps_have_no_loss);
    RUN(a_line_names_exposed_groups);
    RUN(text_of_times);
    runlab_close(&lab);
    return lab_report();
}
