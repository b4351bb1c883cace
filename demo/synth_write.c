/* demo/synth_write.c -- the demo set as files: pictures first, on all cores, then the lines, then synth.json.
 * A folder with synth.json has a complete set. */
#include "demo/synth.h"

#include "base/folder.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "data/image_encode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RULES = 2 };                 /* version of the generator: a seed gives another set when it changes */

static const char *const split_names[SYNTH_SPLITS] = { "train", "eval" };

/* The line of an item. */
typedef struct SynthRow {
    const char *channel;
    SynthTurn   turn[SYNTH_TURNS];
    int         turns, pictures;
    char        image[SYNTH_PICTURES][40];       /* relative to the set's folder */
} SynthRow;

typedef struct SynthJob { const SynthConf *conf; SynthSplit split; SynthRow *row; } SynthJob;

static Status write_picture(const SynthJob *job, SynthRow *r, const SynthItem *it, int64_t number, int i)
{
    Path path;
    const Canvas *c = &it->picture[i];
    snprintf(r->image[i], sizeof r->image[i], "images/%s/%06lld%s.%s", split_names[job->split],
             (long long)number, it->pictures == 1 ? "" : i ? "b" : "a", it->quality[i] ? "jpg" : "png");
    TRY(path_join(path, job->conf->dir, r->image[i]));
    if (it->quality[i]) return image_encode_jpeg_file(path, c->rgb, c->h, c->w, it->quality[i]);
    return image_encode_png_file(path, c->rgb, c->h, c->w);
}

static Status draw_one(void *arg, int64_t number)
{
    const SynthJob *job = arg;
    SynthRow       *r = &job->row[number];
    SynthItem  it = { 0 };
    Status     st = synth_item(&it, &job->conf->set, job->split, number);
    r->channel = it.channel, r->pictures = it.pictures;
    r->turns = job->split == SYNTH_TRAIN ? it.turns : 1;
    memcpy(r->turn, it.turn, sizeof r->turn);
    for (int i = 0; i < it.pictures && !st; i++) st = write_picture(job, r, &it, number, i);
    synth_item_close(&it);
    return st;
}

/* ---- lines ---- */

static void add_message(Json *list, const char *role, const char *marks, const char *text)
{
    json_array_append_new(list, json_pack("{s:s, s:s+}", "role", role, "content", marks, text));
}

/* The questions of r over the pictures of `shown`. */
static Status put_line(Text *out, const SynthRow *r, const SynthRow *shown)
{
    char marks[SYNTH_PICTURES * 8 + 1] = "";
    Json *images = json_array(), *messages = json_array();
    for (int i = 0; i < shown->pictures; i++) {
        strcat(marks, "<image>");
        json_array_append_new(images, json_string(shown->image[i]));
    }
    for (int i = 0; i < r->turns; i++) {
        add_message(messages, "user", i ? "" : marks, r->turn[i].question);
        add_message(messages, "assistant", "", r->turn[i].answer);
    }
    Json *o = json_pack("{s:o, s:o, s:s}", "messages", messages, "images", images, "channel", r->channel);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    Status st = text ? text_push(out, text, strlen(text)) : fail(E_OTHER, "no memory for a line");
    if (!st) st = text_push(out, "\n", 1);
    free(text);
    json_decref(o);
    return st;
}

static Status put_file(const SynthConf *conf, const char *name, const Text *t)
{
    Path path;
    TRY(path_join(path, conf->dir, name));
    return file_replace(path, t->v, t->n);
}

static Status write_lines(const SynthConf *conf, SynthSplit split, const SynthRow *row)
{
    char name[32];
    Text t = { 0 };
    Status st = OK;
    snprintf(name, sizeof name, "%s.jsonl", split_names[split]);
    for (int64_t i = 0; i < conf->items[split] && !st; i++) st = put_line(&t, &row[i], &row[i]);
    if (!st) st = put_file(conf, name, &t);
    text_close(&t);
    return st;
}

/* The control with mismatched images: every held-out question with the pictures of another item of its
 * channel, half of the channel further on. That item is in another block of answers, so the answers agree
 * only by chance. */
static Status write_mismatched(const SynthConf *conf, const SynthRow *row)
{
    int64_t n = conf->items[SYNTH_EVAL], channels = synth_channels(&conf->set.choice);
    Text t = { 0 };
    Status st = OK;
    for (int64_t i = 0; i < n && !st; i++) {
        int64_t c = i % channels, of_channel = (n - c + channels - 1) / channels;
        int64_t k = (i / channels + of_channel / 2) % of_channel;
        if (row[i].pictures) st = put_line(&t, &row[i], &row[c + k * channels]);
    }
    if (!st) st = put_file(conf, "eval_blind.jsonl", &t);
    text_close(&t);
    return st;
}

/* ---- synth.json ---- */

static void add_colours(Json *o, const char *key, uint32_t bits)
{
    char text[COLOURS_CAP];
    if (bits) json_object_set_new(o, key, json_string(colours_text(text, bits)));
}

static Json *describe(const SynthConf *conf)
{
    const SynthChoice *choice = &conf->set.choice;
    Json *list = json_array();
    for (int i = 0; i < synth_channels(choice); i++) {
        int answers, pictures;
        const char *name = synth_channel(choice, i, &answers, &pictures);
        json_array_append_new(list, json_pack("{s:s, s:i, s:i, s:f}", "channel", name, "pictures", pictures,
                                              "answers", answers, "chance", 1.0 / answers));
    }
    Json *o = json_pack("{s:i, s:I, s:I, s:I, s:o}", "rules", RULES, "seed", (json_int_t)conf->set.seed,
                        "train", (json_int_t)conf->items[SYNTH_TRAIN], "eval",
                        (json_int_t)conf->items[SYNTH_EVAL], "channels", list);
    add_colours(o, "without", choice->without);
    add_colours(o, "about", choice->about);
    return o;
}

/* *same: the folder has exactly this set. Any other content is an error. */
static Status check_folder(const SynthConf *conf, bool *same)
{
    Path path;
    bool empty;
    Json *old = NULL;
    *same = false;
    TRY(folder_is_empty(conf->dir, &empty));
    TRY(path_join(path, conf->dir, "synth.json"));
    if (empty) return OK;
    if (!file_is(path))
        return fail(E_CONFIG, "%s: not empty and without synth.json; name another folder", conf->dir);
    TRY(json_load(&old, path));
    Json *want = describe(conf);
    *same = json_equal(old, want);
    json_decref(old), json_decref(want);
    if (*same) return OK;
    return fail(E_CONFIG, "%s: holds another set (see its synth.json); name another folder or remove it",
                conf->dir);
}

static Status write_description(const SynthConf *conf)
{
    Json *o = describe(conf);
    char *text = o ? json_dumps(o, JSON_INDENT(2)) : NULL;
    Text  t = { .v = text, .n = text ? strlen(text) : 0 };
    Status st = text ? put_file(conf, "synth.json", &t) : fail(E_OTHER, "no memory for synth.json");
    free(text);
    json_decref(o);
    return st;
}

static Status write_split(const SynthConf *conf, SynthSplit split, ThreadPool *pool)
{
    Path path;
    char name[32];
    SynthJob  job = { conf, split, calloc((size_t)conf->items[split] + 1, sizeof(SynthRow)) };
    if (!job.row) return fail(E_OTHER, "no memory for %lld items", (long long)conf->items[split]);
    snprintf(name, sizeof name, "images/%s", split_names[split]);
    Status st = path_join(path, conf->dir, name);
    if (!st) st = folder_make(path);
    if (!st) st = thread_pool_run(pool, conf->items[split], draw_one, &job);
    if (!st) st = write_lines(conf, split, job.row);
    if (!st && split == SYNTH_EVAL) st = write_mismatched(conf, job.row);
    free(job.row);
    return st;
}

Status synth_write(const SynthConf *conf, bool *drawn)
{
    ThreadPool pool = { 0 };
    bool same;
    *drawn = false;
    TRY(colours_check(&conf->set.choice));
    int least = 2 * synth_channels(&conf->set.choice);
    if (conf->items[SYNTH_EVAL] < least)
        return fail(E_CONFIG, "--eval %lld: the control with mismatched images needs at least %d items",
                    (long long)conf->items[SYNTH_EVAL], least);
    TRY(check_folder(conf, &same));
    if (same) return OK;
    TRY(thread_pool_open(&pool, cpu_count() - 1));
    Status st = OK;
    for (int s = 0; s < SYNTH_SPLITS && !st; s++) st = write_split(conf, (SynthSplit)s, &pool);
    thread_pool_close(&pool);
    TRY(st);
    TRY(write_description(conf));
    return *drawn = true, OK;
}
