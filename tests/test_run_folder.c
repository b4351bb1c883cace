/* The folder of a run and its checkpoints: failed starts, planted links, a folder that is removed,
 * checkpoints as models, their size, and steps that have nothing to learn. */
#include "runlab.h"
#include "base/str.h"
#include "infer/predict.h"

#include <math.h>
#include <omp.h>
#include <unistd.h>

static RunLab lab;

static Status try_open(const char *run, const char *overrides)
{
    Config      c;
    Trainer     t;
    TrainerConf conf = { .recipe = &c, .least = LOG_ERROR };
    runlab_recipe(&c, &lab, run, overrides);
    Status st = trainer_open(&t, &conf);
    trainer_close(&t), config_close(&c);
    return st;
}

static Status train(const char *run, const char *overrides)
{
    Config  c;
    Trainer t;
    runlab_recipe(&c, &lab, run, overrides);
    Status st = runlab_train(&c, &t);
    trainer_close(&t), config_close(&c);
    return st;
}

static void write_file(const char *run, const char *name)
{
    Path path;
    EXPECT_OK(path_join(path, lab_path(run), name));
    EXPECT_OK(file_write(path, "x", 1));
}

static bool has(const char *run, const char *name) { return folder_has(lab_path(run), name); }

/* What is left of a start that failed is not in the way of the next one; files of others are. */
static void failed_starts_count_as_empty(void)
{
    EXPECT_FAIL(try_open("typo", "data.train[0].path=nowhere.jsonl"), E_IO, "nowhere.jsonl");
    EXPECT(has("typo", "train.log"), "the error is in train.log");
    EXPECT_OK(train("typo", "train.max_steps=1"));
    EXPECT_FAIL(try_open("typo", ""), E_CONFIG, "not empty");
    EXPECT_FAIL(try_open("other", "data.train[0].path=nowhere.jsonl"), E_IO, "nowhere.jsonl");
    write_file("other", "thesis.tex");
    EXPECT_FAIL(try_open("other", ""), E_CONFIG, "not empty");
    EXPECT(has("other", "thesis.tex") && has("other", "recipe.yaml"), "nothing is removed");
    EXPECT_OK(folder_make(lab_path("mine")));
    write_file("mine", "recipe.yaml");
    EXPECT_FAIL(try_open("mine", ""), E_CONFIG, "not empty");
}

static int64_t bytes_of(const char *path)
{
    struct stat st;
    return stat(path, &st) ? -1 : (int64_t)st.st_size;
}

/* A link in the folder of a run leads nowhere: what it points to keeps its bytes. */
static void planted_links_are_not_followed(void)
{
    static const char *const replaced[] = { "recipe.yaml", ".recipe.yaml.tmp", ".plan.json.tmp",
                                            ".expert_load.json.tmp", "plan.json" };
    static const char *const refused[]  = { "train.log", "metrics.jsonl" };
    Path                     target, link;
    snprintf(target, sizeof target, "%s", lab_path("victim"));
    EXPECT_OK(file_write(target, "untouched", 9));
    EXPECT_OK(folder_make(lab_path("links")));
    for (int i = 0; i < 5; i++) {
        EXPECT_OK(path_join(link, lab_path("links"), replaced[i]));
        EXPECT(!symlink(target, link), "%s", link);
    }
    EXPECT_OK(train("links", "train.max_steps=1\ncheckpoint.resume_from_checkpoint=auto"));
    EXPECT(bytes_of(target) == 9, "%lld bytes", (long long)bytes_of(target));
    for (int i = 0; i < 2; i++) {
        folder_remove(lab_path("links"));
        EXPECT_OK(folder_make(lab_path("links")));
        EXPECT_OK(path_join(link, lab_path("links"), refused[i]));
        EXPECT(!symlink(target, link), "%s", link);
        Status st = train("links", "train.max_steps=1\ncheckpoint.resume_from_checkpoint=auto");
        EXPECT(!st || strstr(status_text(), "symbolic link"), "%s", status_text());
        EXPECT(bytes_of(target) == 9, "%s: %lld bytes", refused[i], (long long)bytes_of(target));
    }
}

static Status remove_folder(void *self, Trainer *t, double *accuracy)
{
    *accuracy = NAN;
    if (t->step == 2) folder_remove(t->folder.dir);
    return OK;
}

static bool file_says(const char *run, const char *name, const char *word)
{
    Path   path;
    char  *text = NULL;
    size_t n;
    bool   found =
        !path_join(path, lab_path(run), name) && !file_load(&text, &n, path, 1 << 20) && strstr(text, word);
    free(text);
    return found;
}

/* The folder is removed after step 2: the run goes on in a new one, and its log says at the end what is
 * gone. */
static void a_removed_folder_is_made_again(void)
{
    Config      c;
    Trainer     t;
    TrainerConf conf = { .recipe  = &c,
                         .least   = LOG_WARN,
                         .answers = { .run = remove_folder, .docs = 1, .tokens = 4 } };
    runlab_recipe(&c, &lab, "removed", "eval.split=0.2\neval.eval_steps=2\ntrain.max_steps=4");
    EXPECT_OK(trainer_open(&t, &conf));
    EXPECT_OK(trainer_run(&t));
    EXPECT(t.folder_lost == 2, "found after step %lld", (long long)t.folder_lost);
    trainer_close(&t), config_close(&c);
    EXPECT(has("removed", "last") && has("removed", "best") && has("removed", "recipe.yaml"), "its files");
    EXPECT(file_says("removed", "metrics.jsonl", "\"step\": 4"), "metrics go on");
    EXPECT(file_says("removed", "train.log", "up to step 2 are not in it"), "the log says so");
}

/* Weights of a checkpoint without the model in HF form, opened as a model of another run. */
static void any_checkpoint_is_a_model(void)
{
    Config      c, d;
    Trainer     t, u;
    TrainerConf conf = { .recipe = &d, .least = LOG_ERROR };
    char        path[400];
    runlab_recipe(&c, &lab, "native", "train.max_steps=2");
    EXPECT_OK(runlab_train(&c, &t));
    snprintf(path, sizeof path, "model.path=%s/last\nmodel.preset=null", lab_path("native"));
    runlab_recipe(&d, &lab, "again", path);
    EXPECT_OK(trainer_open(&u, &conf));
    for (int i = 0; i < t.engine.model.params.n; i++) {
        Tensor a = t.engine.model.params.p[i]->shard.w, b = u.engine.model.params.p[i]->shard.w;
        EXPECT(!memcmp(a.data, b.data, (size_t)t_bytes(a)), "%s", t.engine.model.params.p[i]->piece[0].name);
    }
    EXPECT(u.source.is_checkpoint && tokenizer_size(u.source.tokenizer) > 0, "its tokenizer");
    trainer_close(&t), trainer_close(&u);
    snprintf(path, sizeof path, "%s/last", lab_path("native"));
    Config    asked;
    Predictor p;
    config_default(&asked);
    asked.model.path = path;
    EXPECT_OK(predict_open(&p, &asked));
    EXPECT(asked.image.max_pixels == 4096, "%lld pixels, as trained", (long long)asked.image.max_pixels);
    predict_close(&p), config_close(&asked);
    config_close(&c), config_close(&d);
}

static void models_alone_are_not_resumed(void)
{
    EXPECT_OK(train("alone", "train.max_steps=2\ncheckpoint.save_steps=1\ncheckpoint.save_only_model=true"));
    EXPECT(has("alone", "checkpoint-1/model.safetensors") && has("alone", "last/tokenizer.json"), "a model");
    EXPECT(!has("alone", "checkpoint-1/state"), "no state");
    EXPECT_FAIL(train("alone", "train.max_steps=3\ncheckpoint.resume_from_checkpoint=auto"), E_CONFIG,
                "save_only_model");
}

/* A checkpoint with a damaged manifest is not loaded, and the run does not start over in silence. */
static void damaged_checkpoints_are_not_replaced(void)
{
    Path manifest;
    EXPECT_OK(train("torn", "train.max_steps=2\ncheckpoint.save_steps=2"));
    EXPECT_OK(path_join(manifest, lab_path("torn"), "checkpoint-2/MANIFEST.json"));
    EXPECT_OK(file_write(manifest, "{}", 2));
    EXPECT_FAIL(try_open("torn", "train.max_steps=4\ncheckpoint.resume_from_checkpoint=auto"), E_DATA,
                "none of its 1 checkpoints is whole");
    EXPECT(has("torn", "checkpoint-2") && has("torn", "metrics.jsonl"), "nothing is removed");
}

static void space_is_counted(void)
{
    struct cfg_checkpoint c = {
        .output_dir = "run", .hf = "final", .save_total_limit = 3, .check_space = true
    };
    SaveSpace s = { .state = 12e6, .hf = 2e6 };
    char      text[STR_BYTES];
    save_space_count(&s, &c, 10, true);
    EXPECT(s.each == 12e6 && s.final == 14e6 && s.most == 14e6 && s.peak == 14e6 + 4 * 12e6, "%g", s.peak);
    s.left = 13e6;
    EXPECT_FAIL(save_space_check(&s, &c), E_IO, "takes 13.4 MiB and the disk has 12.4 MiB left");
    c.check_space = false;
    EXPECT_OK(save_space_check(&s, &c));
    c.save_only_model = true, s.state = 4e6;
    save_space_count(&s, &c, 1, false);
    EXPECT(s.each == 2e6 && s.most == 6e6 && s.peak == 6e6, "%g %g", s.each, s.peak);
    EXPECT(!strcmp(str_bytes(text, 900), "900 bytes") && !strcmp(str_bytes(text, 3e12), "2.7 TiB"), "%s",
           text);
}

/* `best` of steps that a run was taken back from is not a checkpoint of this run. */
static void best_is_rewound(void)
{
    char resume[400];
    Path link, target;
    EXPECT_OK(train("best",
                    "eval.split=0.2\neval.max_new_tokens=0\neval.eval_steps=1\ncheckpoint.save_steps=1\n"
                    "train.max_steps=3"));
    snprintf(resume, sizeof resume,
             "eval.split=0.2\neval.max_new_tokens=0\neval.eval_steps=0\ntrain.max_steps=3\n"
             "checkpoint.resume_from_checkpoint=%s/checkpoint-1",
             lab_path("best"));
    EXPECT_OK(try_open("best", resume));
    EXPECT_OK(path_join(link, lab_path("best"), "best"));
    ssize_t n = readlink(link, target, sizeof target - 1);
    EXPECT(n == 12 && !memcmp(target, "checkpoint-1", 12), "%.*s", (int)n, target);
}

static void spikes_need_history(void)
{
    Guard g = { .spike = 10, .history = 3 };
    for (int i = 0; i < 3; i++) {
        EXPECT(guard_classify(&g, 1e3, 1, 9) == STEP_GOOD, "%d steps are too few to compare with", i);
        EXPECT_OK(guard_record(&g, STEP_GOOD, 0.1, 1));
    }
    EXPECT(guard_classify(&g, 1e3, 1, 9) == STEP_SPIKE, "ten times the highest of three");
    EXPECT(guard_spike_factor(&(Guard){ .spike = 10, .history = 3, .taken = 1 }, 1) == 0 &&
               guard_spike_factor(&(Guard){ .spike = 10, .history = 3, .taken = 1 }, 2) == 10,
           "steps in flight count");
}

static void nothing_to_learn_stops(void)
{
    char       set[600];
    const char line[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
                        "\"content\": \"b\", \"loss\": false}]}\n";
    tiny_write(lab_path("masked.jsonl"), line, sizeof line - 1);
    snprintf(set, sizeof set, "data.train=[%s]\ntrain.max_steps=30", lab_path("masked.jsonl"));
    EXPECT_FAIL(train("masked", set), E_DATA, "nothing to learn");
    EXPECT(!has("masked", "last"), "nothing is saved");
}

int main(void)
{
    omp_set_num_threads(1);
    runlab_open(&lab, 20);
    RUN(failed_starts_count_as_empty);
    RUN(planted_links_are_not_followed);
    RUN(a_removed_folder_is_made_again);
    RUN(any_checkpoint_is_a_model);
    RUN(models_alone_are_not_resumed);
    RUN(damaged_checkpoints_are_not_replaced);
    RUN(space_is_counted);
    RUN(best_is_rewound);
    RUN(spikes_need_history);
    RUN(nothing_to_learn_stops);
    runlab_close(&lab);
    return lab_report();
}
