/* Runs with adapters: contents of their checkpoints, bit-equal resuming, checks of the base model, training
 * an existing adapter further, and merged against unmerged models. */
#include "runlab.h"
#include "small.h"
#include "checkpoint/base_model.h"
#include "infer/predict.h"

#include <dirent.h>
#include <math.h>
#include <omp.h>
#include <sys/stat.h>
#include <unistd.h>

static RunLab lab;

static void open_or_die(Trainer *t, const Config *c)
{
    TrainerConf conf = { .recipe = c, .least = LOG_ERROR };
    Status st = trainer_open(t, &conf);
    REQUIRE(!st, "%s", status_text());
}

static double step_or_die(Trainer *t)
{
    StepReport r;
    Status st = trainer_step(t, &r);
    REQUIRE(!st, "%s", status_text());
    return r.sums.total;
}

static int64_t folder_bytes(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *e;
    int64_t sum = 0;
    while (d && (e = readdir(d))) {
        struct stat info;
        Path file;
        if (!path_join(file, path, e->d_name) && !stat(file, &info) && S_ISREG(info.st_mode))
            sum += info.st_size;
    }
    if (d) closedir(d);
    return sum;
}

/* A model in HF form, made by another run: the base model of these runs. */
static const char *make_base(const char *name, int seed)
{
    static char path[4][400];
    static int  at;
    char *out = path[at++ % 4], text[200];
    Config c;
    Trainer t;
    snprintf(text, sizeof text, "train.max_steps=1\ntrain.seed=%d\ncheckpoint.hf=final", seed);
    folder_remove(lab_path(name));
    runlab_recipe(&c, &lab, name, text);
    EXPECT_OK(runlab_train(&c, &t));
    trainer_close(&t), config_close(&c);
    snprintf(out, sizeof path[0], "%s/checkpoint-1", lab_path(name));
    return out;
}

static void adapter_recipe(Config *c, const char *run, const char *base, const char *more)
{
    char text[1024];
    snprintf(text, sizeof text, "model.preset=\"\"\nmodel.path=%s\n%s", base, more);
    runlab_recipe(c, &lab, run, text);
}

/* Runs a training for its checkpoints. */
static void train_adapter(const char *run, const char *base, const char *more)
{
    Config c;
    Trainer t;
    adapter_recipe(&c, run, base, more);
    EXPECT_OK(runlab_train(&c, &t));
    trainer_close(&t), config_close(&c);
}

/* For every kind of adapter, base and optimizer state: a checkpoint holds the adapters only, and the resumed
 * run equals the uninterrupted one bit for bit. */
static void resumes_bit_for_bit(void)
{
    static const char *const kinds[] = {
        "lora.rank=4\nlora.target_modules=[all-linear, mlp.gate, lm_head]\nlora.dropout=0.2",
        "lora.rank=3\nlora.target_modules=[experts]\nlora.expert_a=shared\nmodel.dtype=bfloat16\n"
        "optim.master=split\noptim.state_dtype=int8\nmodel.base_quant=nf4",
        "lora.rank=2\nlora.use_rslora=true\nlora.target_modules=[all-attention]\n"
        "lora.modules_to_save=[embed_tokens, language_model.norm]\nmodel.dtype=bfloat16\nlora.init=gaussian\n"
        "model.base_quant=int8\nmodel.base_quant_weights=[experts, attention, mlp, tower, mergers]\n"
        "memory.optimizer_offload=1",
    };
    const char *base = make_base("base", 1);
    for (int k = 0; k < 3; k++) {
        Config c;
        Trainer t;
        double losses[5];
        char text[600];
        snprintf(text, sizeof text, "%s", kinds[k]);
        adapter_recipe(&c, "whole", base, text);
        open_or_die(&t, &c);
        for (int i = 0; i < 5; i++) losses[i] = step_or_die(&t);
        uint64_t want = runlab_hash(&t);
        int64_t trained = small_trained(&t.engine.model), all = params_count(&t.engine.model.params);
        trainer_close(&t), config_close(&c);
        adapter_recipe(&c, "parts", base, text);
        open_or_die(&t, &c);
        for (int i = 0; i < 2; i++) step_or_die(&t);
        EXPECT_OK(trainer_save(&t, false));
        step_or_die(&t);                                     /* after the save: lost with the process */
        trainer_close(&t), config_close(&c);
        int64_t bytes = folder_bytes(lab_path("parts/checkpoint-2/state"));
        EXPECT(bytes < 12 * trained + 400 * 1024 && bytes > 12 * trained && trained < all / 2,
               "kind %d: %lld bytes of state for %lld of %lld", k, (long long)bytes, (long long)trained,
               (long long)all);
        snprintf(text + strlen(text), sizeof text - strlen(text), "\ncheckpoint.resume_from_checkpoint=auto");
        adapter_recipe(&c, "parts", base, text);
        open_or_die(&t, &c);
        EXPECT(t.step == 2, "resumed after step %lld", (long long)t.step);
        for (int i = 2; i < 5; i++) {
            double loss = step_or_die(&t);
            EXPECT(loss == losses[i], "kind %d, step %d: loss %.9g, not %.9g", k, i + 1, loss, losses[i]);
        }
        EXPECT(runlab_hash(&t) == want, "kind %d: weights or moments differ", k);
        trainer_close(&t), config_close(&c);
        folder_remove(lab_path("whole")), folder_remove(lab_path("parts"));
    }
}

static Status resume_with(const char *base, const char *more)
{
    Config c;
    Trainer t;
    char text[600];
    TrainerConf conf = { .recipe = &c, .least = LOG_ERROR };
    snprintf(text, sizeof text, "%s\ncheckpoint.resume_from_checkpoint=auto", more);
    adapter_recipe(&c, "other", base, text);
    Status st = trainer_open(&t, &conf);
    trainer_close(&t), config_close(&c);
    return st;
}

/* Whether the adapters of "other" were trained on that base. */
static bool trained_on(const char *base)
{
    CheckpointLora was;
    ModelSource  s;
    Config c;
    bool   same = false;
    adapter_recipe(&c, "other", base, "");
    EXPECT_OK(model_source_open(&s, &c.model));
    EXPECT_OK(checkpoint_lora_open(&was, lab_path("other/checkpoint-1")));
    EXPECT_OK(base_model_matches(&same, was.base, &s, 1));
    checkpoint_lora_close(&was), model_source_close(&s), config_close(&c);
    return same;
}

static void other_bases_are_refused(void)
{
    static const char lora[] = "lora.rank=2\nlora.target_modules=[experts]";
    const char *a = make_base("base", 1), *b = make_base("second", 1);
    Config c;
    Trainer t;
    adapter_recipe(&c, "other", a, lora);
    open_or_die(&t, &c);
    step_or_die(&t);
    EXPECT_OK(trainer_save(&t, false));
    trainer_close(&t), config_close(&c);
    EXPECT_OK(resume_with(a, lora));
    EXPECT_OK(resume_with(b, lora));                         /* the same weights in another folder */
    folder_remove(lab_path("second"));
    b = make_base("second", 2);
    EXPECT_FAIL(resume_with(b, lora), E_CONFIG, "second/checkpoint-1");
    EXPECT(strstr(status_text(), "base/checkpoint-1"), "both are named: %s", status_text());
    EXPECT(trained_on(a) && !trained_on(b), "base_model_matches distinguishes the base models");
    EXPECT_FAIL(resume_with(a, "lora.rank=2\nlora.target_modules=[experts]\nmodel.dtype=bfloat16"), E_CONFIG,
                "was loaded as f32 and is now loaded as bf16");
    EXPECT_FAIL(resume_with(a, "lora.rank=2\nlora.target_modules=[experts, q_proj]"), E_CONFIG,
                "layers.0.self_attn.q_proj was trained without an adapter and would now have one");
    EXPECT_FAIL(resume_with(a, "lora.rank=2\nlora.target_modules=[gate_up_proj]"), E_CONFIG,
                "mlp.experts.down_proj was trained with an adapter");
    EXPECT_FAIL(resume_with(a, "lora.rank=2\nlora.target_modules=[experts]\nlora.modules_to_save=[lm_head]"),
                E_CONFIG, "lora.modules_to_save: lm_head was not trained in full");
    EXPECT_FAIL(resume_with(a, "lora.rank=3\nlora.target_modules=[experts]"), E_CONFIG, "lora.rank = 3");
    EXPECT_FAIL(resume_with(a, "lora.rank=2\nlora.target_modules=[experts]\nlora.alpha=8"), E_CONFIG,
                "lora.alpha = 8");
    EXPECT_FAIL(resume_with(a, "lora.rank=2\nlora.target_modules=[experts]\nlora.use_rslora=true"), E_CONFIG,
                "lora.use_rslora");
    EXPECT_FAIL(resume_with(a, "lora.rank=2\nlora.target_modules=[experts]\nlora.expert_a=shared"), E_CONFIG,
                "lora.expert_a");
    EXPECT_FAIL(resume_with(a, "lora.rank=0"), E_CONFIG, "other/checkpoint-1 is a checkpoint of a run with "
    "adapters");
    folder_remove(lab_path("other")), folder_remove(lab_path("second"));
}

/* Opens a run that must fail before it creates its folder and opens its engine. */
static Status refused(const char *run, const char *base, const char *more)
{
    Config c;
    Trainer t;
    TrainerConf conf = { .recipe = &c, .least = LOG_ERROR };
    adapter_recipe(&c, run, base, more);
    Status st = trainer_open(&t, &conf);
    EXPECT(!t.engine.model.params.n, "the engine was opened");
    trainer_close(&t), config_close(&c);
    EXPECT(!file_is(lab_path(run)), "the run folder was created");
    return st;
}

/* Truncates a file to its first `keep` bytes and changes one of them. */
static void damage(const char *path, size_t keep, size_t at)
{
    FILE *f = fopen(path, "r+b");
    REQUIRE(f, "%s", path);
    int c = (fseek(f, (long)at, SEEK_SET), fgetc(f));
    fseek(f, (long)at, SEEK_SET), fputc(c ^ 0x55, f);
    EXPECT(!fflush(f) && !ftruncate(fileno(f), (off_t)keep), "cannot damage %s", path);
    fclose(f);
}

/* Resuming from a checkpoint of the other kind fails and leaves no new folder. */
static void refuses_other_kind(void)
{
    const char *base = make_base("base", 1);
    char text[900];
    train_adapter("adapters", base, "lora.rank=2\nlora.target_modules=[experts]\ntrain.max_steps=1");
    snprintf(text, sizeof text, "checkpoint.resume_from_checkpoint=%s\nlora.rank=2", base);
    EXPECT_FAIL(refused("mixed", base, text), E_CONFIG, "base/checkpoint-1 is a checkpoint of a run without "
    "adapters");
    EXPECT(strstr(status_text(), "lora.rank=0"), "the message names no remedy: %s", status_text());
    snprintf(text, sizeof text, "checkpoint.resume_from_checkpoint=%s\nlora.path=%s", base,
             lab_path("adapters/checkpoint-1"));
    EXPECT_FAIL(refused("mixed", base, text), E_CONFIG, "base/checkpoint-1 is a checkpoint of a run without "
    "adapters");
    snprintf(text, sizeof text, "checkpoint.resume_from_checkpoint=%s", lab_path("adapters/checkpoint-1"));
    EXPECT_FAIL(refused("mixed", base, text), E_CONFIG, "adapters/checkpoint-1 is a checkpoint of a run with "
    "adapters");
    EXPECT(strstr(status_text(), "--merge"), "the message names no remedy: %s", status_text());
    snprintf(text + strlen(text), sizeof text - strlen(text), "\nlora.rank=2\nlora.target_modules=[q_proj]");
    EXPECT_FAIL(refused("mixed", base, text), E_CONFIG, "adapters/checkpoint-1: lora.target_modules");
    damage(lab_path("adapters/checkpoint-1/state/model.safetensors"), 3000, 100);
    EXPECT_FAIL(refused("mixed", base, text), E_DATA, "model.safetensors is damaged: it has 3000 bytes");
    snprintf(text, sizeof text, "checkpoint.resume_from_checkpoint=%s", lab_path("adapters/checkpoint-1"));
    /* before the hashes are checked */
    EXPECT_FAIL(refused("mixed", base, text), E_CONFIG, "of a run with adapters");
    folder_remove(lab_path("adapters"));
}

static void copy_peft_files(const char *from, const char *to)
{
    static const char *const files[] = { PEFT_CONFIG, PEFT_WEIGHTS };
    EXPECT_OK(folder_make(to));
    for (int i = 0; i < 2; i++) {
        Path a, b;
        EXPECT_OK(path_join(a, from, files[i]));
        EXPECT_OK(path_join(b, to, files[i]));
        EXPECT_OK(file_copy(a, b));
    }
}

/* Every error of lora.path names it and leaves no folder that the next attempt would refuse. */
static void bad_paths_make_no_folder(void)
{
    const char *base = make_base("base", 1);
    char donor[300], peft[300], text[900];
    train_adapter("donor", base,
                  "lora.rank=3\nlora.target_modules=[experts, q_proj]\ntrain.max_steps=1\n"
                  "lora.modules_to_save=[language_model.norm]\ncheckpoint.hf=final");
    snprintf(donor, sizeof donor, "%s", lab_path("donor/checkpoint-1"));
    snprintf(peft, sizeof peft, "%s", lab_path("peft"));
    EXPECT_FAIL(refused("bad", base, "lora.path=nowhere"), E_IO,
                "lora.path: nowhere is neither a PEFT folder");
    EXPECT_FAIL(refused("bad", base, "lora.path=/dev/null"), E_IO, "lora.path: /dev/null");
    copy_peft_files(donor, peft);
    damage(lab_path("peft/" PEFT_WEIGHTS), 300, 9);
    snprintf(text, sizeof text, "lora.path=%s", peft);
    EXPECT_FAIL(refused("bad", base, text), E_DATA, "lora.path: ");
    copy_peft_files(donor, peft);
    tiny_write(lab_path("peft/" PEFT_CONFIG), "{\"r\": [[", 8);
    EXPECT_FAIL(refused("bad", base, text), E_DATA, "lora.path: ");
    copy_peft_files(donor, peft);
    snprintf(text, sizeof text, "lora.path=%s\nmodel.freeze_llm=true", peft);
    EXPECT_FAIL(refused("bad", base, text), E_CONFIG, "nothing is left to train");
    snprintf(text, sizeof text, "lora.path=%s", donor);
    damage(lab_path("donor/checkpoint-1/state/model.safetensors"), 3000, 100);
    EXPECT_FAIL(refused("bad", base, text), E_DATA, "lora.path: ");
    tiny_write(lab_path("donor/checkpoint-1/state/adapter.json"), "{\"format\": 2}", 13);
    EXPECT_FAIL(refused("bad", base, text), E_DATA, "lora.path: ");
    folder_remove(peft), folder_remove(lab_path("donor"));
}

/* Adapters of models with one more layer and with another hidden size. */
static void adapters_of_other_models(void)
{
    const char *base = make_base("base", 1);
    char config[sizeof runlab_config + 100], peft[300], text[900], *at;
    Config c;
    Trainer t;
    for (int k = 0; k < 2; k++) {
        snprintf(config, sizeof config, "%s", runlab_config);
        at = strstr(config, k ? "\"moe_intermediate_size\": 24" : "\"num_hidden_layers\": 2");
        REQUIRE(at, "the lab's model has changed");
        at[strcspn(at, "0123456789") + (size_t)k] = '3';
        EXPECT_OK(folder_make(lab_path("wide")));
        tiny_write(lab_path("wide/config.json"), config, strlen(config));
        snprintf(text, sizeof text, "%s/tokenizer.json", lab.model);
        EXPECT_OK(file_copy(text, lab_path("wide/tokenizer.json")));
        runlab_recipe(&c, &lab, "donor", "lora.rank=3\nlora.target_modules=[experts]\ntrain.max_steps=1\n"
                      "checkpoint.hf=final");
        snprintf(text, sizeof text, "model.preset=%s", lab_path("wide"));
        EXPECT_OK(config_set(&c, text));
        EXPECT_OK(runlab_train(&c, &t));
        trainer_close(&t), config_close(&c);
        snprintf(text, sizeof text, "lora.path=%s", lab_path("donor/checkpoint-1"));
        EXPECT_FAIL(refused("bad", base, text), k ? E_DATA : E_CONFIG, "lora.path: ");
        snprintf(peft, sizeof peft, "%s", lab_path("peft"));
        copy_peft_files(lab_path("donor/checkpoint-1"), peft);
        snprintf(text, sizeof text, "lora.path=%s", peft);
        EXPECT_FAIL(refused("bad", base, text), E_DATA, "lora.path: ");
        folder_remove(peft), folder_remove(lab_path("donor")), folder_remove(lab_path("wide"));
    }
}

static uint64_t adapter_hash(const Model *m)
{
    uint64_t h = 1;
    for (int i = 0; i < m->params.n; i++) {
        const Param *p = m->params.p[i];
        if (p->adapter_of || lora_trains_in_full(m, p)) h = tiny_hash(p->shard.w.data,
                                                                      (size_t)t_bytes(p->shard.w), h);
    }
    return h;
}

/* The loss of a model over one batch, through infer/predict.h. */
static double loss_of_model(const char *model, const char *lora, uint64_t *adapters)
{
    static const Budget b = { .tokens = 64, .patches = 0, .docs = 4, .supervised = 60 };
    Config c;
    Predictor p = { 0 };
    Losses l = { 0 };
    config_default(&c);
    c.model.path = model, c.lora.path = lora, c.device.backend = "cpu";
    EXPECT_OK(lora_source_resolve(&c));
    Status st = predict_open(&p, &c);
    if (!st) st = predict_load(&p, &(PredictConf){ .budget = b, .capacity = { 1, 1 } });
    REQUIRE(!st, "%s", status_text());
    StreamShape ss = shape_stream(&p.source.shape);
    ss.bytes = true;
    Stream s;
    int32_t ids[40], targets[40];
    for (int i = 0; i < 40; i++) ids[i] = (i * 37 + 11) % 300, targets[i] = i % 3 ? (i * 17 + 5) % 300 : -1;
    targets[39] = -1;
    Document d = { 40, ids, targets, 0, NULL };
    EXPECT_OK(stream_open(&s, &ss, &b));
    EXPECT_OK(stream_add(&s, &d));
    engine_upload(&p.e, &s);
    engine_evaluate(&p.e, 1.0f);
    EXPECT_OK(engine_read_losses(&p.e, &l));
    if (adapters) *adapters = adapter_hash(&p.e.model);
    stream_close(&s);
    predict_close(&p);
    config_close(&c);
    return l.ce;
}

/* The first loss of a run that trains an adapter further. Resumed after that step, the run needs only its own
 * checkpoint. */
static double train_further(const char *base, const char *adapter, uint64_t want)
{
    char text[900];
    Config c;
    Trainer t;
    snprintf(text, sizeof text, "lora.path=%s\ntrain.seed=5", adapter);
    adapter_recipe(&c, "heir", base, text);
    open_or_die(&t, &c);
    EXPECT(adapter_hash(&t.engine.model) == want, "%s: other weights", adapter);
    double loss = step_or_die(&t);
    EXPECT_OK(trainer_save(&t, false));
    step_or_die(&t);
    uint64_t after = runlab_hash(&t);
    trainer_close(&t), config_close(&c);
    adapter_recipe(&c, "heir", base,
                   "lora.path=nowhere\ntrain.seed=5\ncheckpoint.resume_from_checkpoint=auto");
    open_or_die(&t, &c);
    step_or_die(&t);
    EXPECT(runlab_hash(&t) == after, "the resumed run differs");
    trainer_close(&t), config_close(&c);
    folder_remove(lab_path("heir"));
    return loss;
}

/* A checkpoint and the PEFT files in it can both be trained further and used for inference. */
static void trains_an_adapter_further(void)
{
    const char *base = make_base("base", 1);
    char peft[400], ours[400];
    Config c;
    Trainer t;
    uint64_t hash[3] = { 0 };
    adapter_recipe(&c, "donor", base,
                   "lora.rank=3\nlora.target_modules=[experts, q_proj]\ntrain.max_steps=3\n"
                   "lora.modules_to_save=[language_model.norm]\ncheckpoint.hf=final");
    EXPECT_OK(runlab_train(&c, &t));
    uint64_t want = adapter_hash(&t.engine.model);
    trainer_close(&t), config_close(&c);
    snprintf(ours, sizeof ours, "%s", lab_path("donor/checkpoint-3"));
    snprintf(peft, sizeof peft, "%s", lab_path("peft"));
    copy_peft_files(ours, peft);
    double one = train_further(base, ours, want), other = train_further(base, peft, want);
    EXPECT(one == other, "loss %.9g and %.9g", one, other);
    double with = loss_of_model(base, ours, &hash[0]), folder = loss_of_model(peft, "", &hash[1]),
           mine = loss_of_model(ours, "", &hash[2]);
    EXPECT(with == folder && with == mine && hash[0] == hash[1] && hash[0] == hash[2],
           "asked: %.9g, %.9g, %.9g", with, folder, mine);
    EXPECT(with != loss_of_model(base, "", NULL), "the adapter changes nothing");
    folder_remove(peft), folder_remove(lab_path("donor"));
}

/* Frozen parts of a loaded adapter stay part of it: in the checkpoint, in the PEFT files, after resuming. */
static void keeps_frozen_adapters(void)
{
    const char *base = make_base("base", 1);
    char path[400], text[900];
    Config c;
    Trainer t;
    train_adapter("donor", base,
                  "lora.rank=3\nlora.target_modules=[all-linear]\ntrain.max_steps=3\n"
                  "lora.modules_to_save=[language_model.norm]");
    snprintf(path, sizeof path, "%s", lab_path("donor/checkpoint-3"));
    snprintf(text, sizeof text, "lora.path=%s\nmodel.freeze_llm=true\ncheckpoint.hf=every", path);
    adapter_recipe(&c, "heir", base, text);
    open_or_die(&t, &c);
    step_or_die(&t);
    uint64_t want = adapter_hash(&t.engine.model), got[2];
    EXPECT_OK(trainer_save(&t, false));
    step_or_die(&t);
    uint64_t after = runlab_hash(&t);
    trainer_close(&t), config_close(&c);
    snprintf(path, sizeof path, "%s", lab_path("heir/checkpoint-1"));
    loss_of_model(base, path, &got[0]);
    EXPECT(got[0] == want, "the checkpoint has other weights");
    snprintf(text + strlen(text), sizeof text - strlen(text), "\ncheckpoint.resume_from_checkpoint=auto");
    adapter_recipe(&c, "heir", base, text);
    open_or_die(&t, &c);
    step_or_die(&t);
    EXPECT(runlab_hash(&t) == after, "the resumed run differs");
    trainer_close(&t), config_close(&c);
    EXPECT(!remove(lab_path("heir/checkpoint-1/state/adapter.json")), "only the PEFT files are left");
    loss_of_model(base, path, &got[1]);
    EXPECT(got[1] == want, "the PEFT files have other weights");
    folder_remove(lab_path("donor")), folder_remove(lab_path("heir"));
}

/* A base model of random weights is initialized again from the seed in the checkpoint. */
static void random_base_models(void)
{
    Config c;
    Trainer t;
    runlab_recipe(&c, &lab, "drawn",
                  "lora.rank=2\nlora.target_modules=[experts]\ntrain.max_steps=2\ncheckpoint.hf=final\n"
                  "train.seed=9");
    EXPECT_OK(runlab_train(&c, &t));
    uint64_t want = adapter_hash(&t.engine.model), got;
    trainer_close(&t), config_close(&c);
    loss_of_model(lab_path("drawn/checkpoint-2"), "", &got);
    EXPECT(got == want, "other adapters");
    folder_remove(lab_path("drawn"));
}

/* ---- merged ---- */

static const Budget budget = { .tokens = 120, .patches = 64, .docs = 6, .supervised = 100 };

typedef struct Logits { float *x; int64_t rows, cols; } Logits;

static Logits logits_of(Engine *e)
{
    Logits l = { .rows = engine_batch(e)->T, .cols = e->model.shape.text.V };
    l.x = calloc((size_t)(l.rows * l.cols), sizeof *l.x);
    engine_forward(e, 1.0f);
    for (int64_t at = 0, n; at < l.rows; at += n) {
        n = e->model.head.chunk < l.rows - at ? e->model.head.chunk : l.rows - at;
        int64_t shape[2] = { n, l.cols };
        engine_compute_logits(e, t_wrap(l.x + at * l.cols, F32, 2, shape), at);
    }
    EXPECT_OK(backend_sync(&e->be));
    return l;
}

static void open_engine(Engine *e, const ModelShape *s, const Stream *in, DType d, const LoraConf *lora)
{
    EngineConf conf = small_conf(budget);
    conf.train = false, conf.logits = true, conf.dtype = d;
    if (lora) conf.lora = *lora;
    Status st = engine_open(e, s, &conf, in);
    REQUIRE(!st, "%s", status_text());
}

/* Largest difference over largest logit. */
static double relative_difference(const Logits *a, const Logits *b)
{
    double most = 0, all = 0;
    for (int64_t i = 0; i < a->rows * a->cols; i++) {
        all = fmax(all, fabs((double)a->x[i])), most = fmax(most, fabs((double)a->x[i] - b->x[i]));
        if (!isfinite(a->x[i]) || !isfinite(b->x[i])) return INFINITY;
    }
    return most / all;
}

/* A ParamFillFn: copies the adapters of an engine. */
static Status from_engine(void *self, Model *m, Backend *be, int i)
{
    const Param *p = m->params.p[i], *q = ((Engine *)self)->model.params.p[i];
    dtype_convert(p->shard.w.data, F32, q->shard.w.data, (DType)q->shard.w.dtype, t_count(p->shard.w));
    return OK;
}

/* Logits of a base model with adapters against those of the merged model and of the base alone, and each
 * against the same weights computed in f32. */
typedef struct Apart { double merged, base, exact, merged_exact; } Apart;

static Logits logits_in_f32(const ModelShape *s, const LoraConf *c, Engine *with, const char *base,
                          const Stream *in)
{
    Engine e;
    SafeTensors st;
    open_engine(&e, s, in, F32, c);
    EXPECT_OK(st_open(&st, base));
    EXPECT_OK(weights_load(&e.model, &e.be, &st, NULL));
    st_close(&st);
    for (int i = 0; i < e.model.params.n; i++)
        if (e.model.params.p[i]->adapter_of) EXPECT_OK(from_engine(with, &e.model, &e.be, i));
    engine_publish_weights(&e);
    engine_upload(&e, in);
    Logits l = logits_of(&e);
    engine_close(&e);
    return l;
}

/* Every token goes to all experts, so that rounding cannot change the selection. */
static ModelShape shape_of_all(void)
{
    char config[2048];
    snprintf(config, sizeof config, "%s", small_vl_moe);
    memcpy(strstr(config, "\"num_experts_per_tok\": 2"), "\"num_experts_per_tok\": 5", 24);
    return small_shape(config);
}

/* Adapters with random B, which is zero initially. */
static void randomize_adapters(const Model *m, DType dtype)
{
    for (int i = 0; i < m->params.n; i++) {
        const Param *p = m->params.p[i];
        uint64_t stream = rng_stream(p->piece[0].name);
        for (int64_t k = 0; p->adapter_of && k < t_count(p->shard.w); k++) {
            float x = 0.1f * rng_normal(4, stream, (uint64_t)k);
            dtype_convert((char *)p->shard.w.data + (size_t)k * dtype_size(dtype), dtype, &x, F32, 1);
        }
    }
}

/* Merges the adapters of an engine into the model of `base`. */
static void merge(const char *dir, const char *base, Engine *with, const ModelShape *s, const LoraConf *c,
                  DType dtype)
{
    Model m, adapted;
    SafeTensors st;
    EXPECT_OK(model_open(&m, s, NULL));
    EXPECT_OK(model_open_whole(&adapted, s, NULL, c));
    EXPECT_OK(st_open(&st, base));
    EXPECT_OK(
        peft_merge(&m, &adapted, &with->be, &st, (ParamSource){ from_engine, with, NULL }, dir, dtype, 0));
    st_close(&st);
    model_close(&m), model_close(&adapted);
}

static Apart compare_merged(DType dtype, const LoraConf *c)
{
    ModelShape s = shape_of_all();
    Engine with, plain;
    Stream in;
    SafeTensors st;
    char base[300], dir[300];
    snprintf(base, sizeof base, "%s", lab_path("plain")),
        snprintf(dir, sizeof dir, "%s", lab_path("merged"));
    small_stream(&in, &s, budget, 0, 3, 5);
    open_engine(&with, &s, &in, dtype, c);
    EXPECT_OK(model_init(&with.model, &with.be, 3));
    randomize_adapters(&with.model, dtype);
    engine_publish_weights(&with);
    EXPECT_OK(weights_save(&with.model, &with.be, base, dtype, 0));
    merge(dir, base, &with, &s, c, dtype);
    open_engine(&plain, &s, &in, dtype, NULL);
    Logits got[4];
    for (int k = 0; k < 2; k++) {
        EXPECT_OK(st_open(&st, k ? dir : base));
        EXPECT_OK(weights_load(&plain.model, &plain.be, &st, NULL));
        st_close(&st);
        engine_publish_weights(&plain);
        engine_upload(&plain, &in);
        got[k] = logits_of(&plain);
    }
    engine_upload(&with, &in);
    got[2] = logits_of(&with);
    got[3] = logits_in_f32(&s, c, &with, base, &in);
    Apart x = { .merged       = relative_difference(&got[2], &got[1]),
                .base         = relative_difference(&got[2], &got[0]),
                .exact        = relative_difference(&got[2], &got[3]),
                .merged_exact = relative_difference(&got[1], &got[3]) };
    for (int k = 0; k < 4; k++) free(got[k].x);
    engine_close(&with), engine_close(&plain);
    stream_close(&in);
    folder_remove(base), folder_remove(dir);
    return x;
}

/* In f32 only the order of sums differs. In bf16 a merged weight is rounded once more, by at most 2^-9 of
 * itself, as every activation is: merging may add as much error as computing in bf16 has, with a margin. */
static void merged_equals_unmerged(void)
{
    static const char *const words[] = { "all-linear", "mlp.gate", "lm_head" };
    WordList target = { words, 3 };
    for (int shared = 0; shared < 2; shared++) {
        LoraConf c = { .rank = 4, .alpha = 8, .target = &target, .shared_a = shared };
        Apart x = compare_merged(F32, &c), y = compare_merged(BF16, &c);
        EXPECT(x.merged < 1e-5 && x.base > 0.1, "f32: logits %.2g apart, the base's %.2g", x.merged, x.base);
        EXPECT(y.merged_exact < 3 * y.exact && y.merged < 4 * y.exact && y.base > 10 * y.merged,
               "bf16: merged %.2g from exact, unmerged %.2g, %.2g apart, the base's %.2g", y.merged_exact,
               y.exact, y.merged, y.base);
        printf("  merged and unmerged logits apart: f32 %.1e; bf16 %.1e, of which computing %.1e\n", x.merged,
               y.merged, y.exact);
    }
}

int main(void)
{
    omp_set_num_threads(1);
    runlab_open(&lab, 40);
    RUN(resumes_bit_for_bit);
    RUN(other_bases_are_refused);
    RUN(refuses_other_kind);
    RUN(bad_paths_make_no_folder);
    RUN(adapters_of_other_models);
    RUN(trains_an_adapter_further);
    RUN(keeps_frozen_adapters);
    RUN(random_base_models);
    RUN(merged_equals_unmerged);
    runlab_close(&lab);
    return lab_report();
}
