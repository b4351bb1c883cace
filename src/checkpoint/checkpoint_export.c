/* checkpoint/checkpoint_export.c -- the model in HF form inside a checkpoint, which transformers, vLLM and
 * SGLang load as it is; for a run with adapters, the adapters as PEFT files. It is assembled from the state
 * that was just written, one parameter at a time, so it needs no memory for a whole model.
 * preprocessor_config.json gets the pixel bounds of the training run, so that images are resized as in
 * training. */
#include "checkpoint/checkpoint_private.h"

#include "model/peft.h"

#include <stdlib.h>
#include <string.h>

#define FILE_BYTES ((int64_t)5000000000) /* size at which a new safetensors file begins, as in hub models */

/* The image processor of Qwen3-VL, for models that come without preprocessor_config.json. */
static Json *default_processor(const VisionShape *v)
{
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:[f,f,f], s:[f,f,f], s:i, s:f, s:b, s:b, s:b, s:b}",
                     "image_processor_type", "Qwen2VLImageProcessorFast", "processor_class",
                     "Qwen3VLProcessor", "patch_size", (json_int_t)v->patch, "temporal_patch_size",
                     (json_int_t)v->frames, "merge_size", (json_int_t)v->merge, "image_mean", 0.5, 0.5, 0.5,
                     "image_std", 0.5, 0.5, 0.5, "resample", 3, "rescale_factor", 1.0 / 255, "do_convert_rgb",
                     1, "do_normalize", 1, "do_rescale", 1, "do_resize", 1);
}

static Status save_processor(const char *folder, const SaveJob *j, const VisionShape *v)
{
    Path path;
    Json *o = NULL;
    TRY(path_join(path, folder, "preprocessor_config.json"));
    if (file_is(path)) TRY(json_load(&o, path));
    else o = default_processor(v);
    json_object_set_new(o, "size", json_pack("{s:I, s:I}", "shortest_edge", (json_int_t)j->min_pixels,
                                             "longest_edge", (json_int_t)j->max_pixels));
    json_object_del(o, "min_pixels"), json_object_del(o, "max_pixels"); /* old keys, which override size */
    char *text = json_dumps(o, JSON_INDENT(2));
    Status st = text ? file_write(path, text, strlen(text)) : fail(E_FIT, "%s: no memory to write it", path);
    free(text);
    json_decref(o);
    return st;
}

static Status save_weights(const char *folder, const SaveJob *j)
{
    const bool frozen[GROUP_N] = { true, true, true };
    Backend be = { 0 };
    Model m = { 0 };
    Status st = backend_open(&be, "cpu");
    if (!st) st = model_open(&m, &j->shape, frozen);
    if (!st) st = checkpoint_assemble(folder, &m, &be, folder, j->dtype, FILE_BYTES, NULL);
    model_close(&m);
    backend_close(&be);
    return st;
}

/* In f32, the type of their master weights, whatever type they are computed in. */
static Status save_adapters(const char *folder, const SaveJob *j)
{
    CheckpointWeights from = { .dtype = F32 };
    Backend be = { 0 };
    Model m = { 0 };
    Status st = backend_open(&be, "cpu");
    if (!st) st = model_open_whole(&m, &j->shape, j->frozen, j->lora);
    if (!st) st = shards_open(&from.s, folder);
    if (!st) st = peft_save(&m, &be, (ParamSource){ checkpoint_weights_fill, &from, NULL }, folder, j->base);
    shards_close(&from.s);
    model_close(&m);
    backend_close(&be);
    return st;
}

static Status add_companions(const char *folder, const SaveJob *j)
{
    TRY(weights_copy_companions(j->companions, folder));
    return j->shape.vision.depth && j->max_pixels ? save_processor(folder, j, &j->shape.vision) : OK;
}

Status checkpoint_add_files(const char *folder, const SaveJob *j)
{
    Path state;
    TRY(path_join(state, folder, "state"));
    return add_companions(state, j);
}

Status checkpoint_export(const char *folder, const SaveJob *j)
{
    TRY(j->lora ? save_adapters(folder, j) : save_weights(folder, j));
    TRY(add_companions(folder, j));
    return j->lora ? OK : weights_write_config(j->hf_config, folder, j->dtype);
}
