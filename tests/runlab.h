/* tests/runlab.h -- a whole run in a folder: a small vision-language MoE without weights, its tokenizer, a
 * tiny set of questions with pictures, and a recipe over them. */
#ifndef TESTS_RUNLAB_H
#define TESTS_RUNLAB_H

#include "lab.h"
#include "tinyset.h"
#include "checkpoint/checkpoint.h"
#include "train/trainer.h"

static const char runlab_config[] =
    "{\"model_type\": \"qwen3_vl_moe\", \"image_token_id\": 305, \"video_token_id\": 306, \"dtype\": "
    "\"float32\","
    " \"tie_word_embeddings\": false,"
    " \"text_config\": {\"vocab_size\": 320, \"hidden_size\": 40, \"num_hidden_layers\": 2, "
    "\"num_attention_heads\": 4,"
    "  \"num_key_value_heads\": 2, \"head_dim\": 12, \"intermediate_size\": 56,"
    "  \"moe_intermediate_size\": 24,"
    "  \"num_experts\": 4, \"num_experts_per_tok\": 2, \"rope_theta\": 10000.0, \"initializer_range\": 0.05,"
    "  \"rope_scaling\": {\"rope_type\": \"default\", \"mrope_section\": [2, 2, 2]}},"
    " \"vision_config\": {\"depth\": 2, \"hidden_size\": 24, \"intermediate_size\": 36, \"num_heads\": 2,"
    "  \"patch_size\": 4, \"num_position_embeddings\": 25, \"out_hidden_size\": 40, "
    "\"deepstack_visual_indexes\": [0]}}";

typedef struct RunLab {
    TinySet set;
    char    model[300], text[300];       /* folders of the model; a JSONL of plain text */
} RunLab;

static inline void runlab_open(RunLab *l, int lines)
{
    char path[400];
    Json *tokenizer = tiny_json(TINY_ADDED);
    tiny_set_open(&l->set, lab_tmp(), lines);
    snprintf(l->model, sizeof l->model, "%s/model", lab_tmp());
    snprintf(l->text, sizeof l->text, "%s/text.jsonl", lab_tmp());
    mkdir(l->model, 0777);
    snprintf(path, sizeof path, "%s/config.json", l->model);
    tiny_write(path, runlab_config, strlen(runlab_config));
    snprintf(path, sizeof path, "%s/tokenizer.json", l->model);
    REQUIRE(tokenizer && !json_dump_file(tokenizer, path, 0), "cannot write %s", path);
    json_decref(tokenizer);
    const char text[] = "{\"text\": \"the quick brown fox\"}\n{\"text\": \"jumps over the lazy dog\"}\n";
    tiny_write(l->text, text, sizeof text - 1);
}

static inline void runlab_close(RunLab *l)
{
    tiny_set_close(&l->set);
    folder_remove(lab_tmp());
}

/* Overrides are given one a line, over a recipe of two micro-batches a step. */
static inline void runlab_recipe(Config *c, const RunLab *l, const char *run, const char *overrides)
{
    char text[2048], line[256];
    snprintf(text, sizeof text,
             "model: {preset: %s}\ndata: {train: [%s], max_length: 400}\n"
             "image: {min_pixels: 1024, max_pixels: 4096}\nvideo: {max_pixels: 8192}\n"
             "train: {max_steps: 6, micro_tokens: 450, micro_patches: 800, global_tokens: 900}\n"
             "optim: {learning_rate: 3.0e-3, warmup_steps: 2}\n"
             "checkpoint: {output_dir: %s, save_steps: 0, hf: none}\nlog: {report_to: [jsonl]}\n",
             l->model, l->set.path, lab_path(run));
    config_default(c);
    Status st = config_parse(c, text, strlen(text), "recipe");
    for (const char *p = overrides; !st && *p; p += strcspn(p, "\n") + (p[strcspn(p, "\n")] == '\n')) {
        snprintf(line, sizeof line, "%.*s", (int)strcspn(p, "\n"), p);
        st = config_set(c, line);
    }
    REQUIRE(!st, "%s", status_text());
}

static inline Status runlab_train(const Config *c, Trainer *t)         /* opens and runs; the caller closes */
{
    TrainerConf conf = { .recipe = c, .least = LOG_ERROR };
    Status st = trainer_open(t, &conf);
    return st ? st : trainer_run(t);
}

/* Weights, master weights and moments, as one number. */
static inline uint64_t runlab_hash(const Trainer *t)
{
    uint64_t h = 1;
    for (int i = 0; i < t->engine.model.params.n; i++) {
        const Param *p = t->engine.model.params.p[i];
        const Tensor all[] = { p->shard.w, p->shard.master, p->shard.m, p->shard.v, p->shard.m_scale,
                               p->shard.v_scale };
        for (int k = 0; k < 6; k++)
            if (t_has(all[k])) h = tiny_hash(all[k].data, (size_t)t_bytes(all[k]), h);
    }
    return h;
}

#endif
