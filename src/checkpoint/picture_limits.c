/* checkpoint/picture_limits.c -- see picture_limits.h. */
#include "checkpoint/picture_limits.h"

#include "base/folder.h"
#include "base/json.h"
#include "base/num.h"

/* Tokens that the start, the end and the seconds of one slice of a video take beside its pixels. */
enum { SLICE_TOKENS = 16 };

static const char *const picture_file = "preprocessor_config.json";
static const char *const video_file   = "video_preprocessor_config.json";

/* *out is NULL where no folder has the file. A checkpoint has it in its state/. */
static Status load_first(Json **out, Path path, const char *name, const char *adapter, const char *folder)
{
    *out = NULL;
    Path state;
    TRY(path_join(state, adapter, "state"));
    const char *const dirs[] = { adapter, state, folder };
    for (int i = 0; i < 3; i++) {
        if (!*dirs[i] || (i < 2 && !*adapter)) continue;
        TRY(path_join(path, dirs[i], name));
        if (file_is(path)) return json_load(out, path);
    }
    return OK;
}

static Status read_int(const Config *c, const char *section, const char *key, const Json *o, const char *name,
                       int64_t *out)
{
    return config_is_set(c, section, key) ? OK : json_int(o, name, *out, out);
}

/* size.shortest_edge and size.longest_edge are areas in pixels, as min_pixels and max_pixels are, which win
 * where a file has both. */
static Status read_bounds(const Config *c, const char *section, const Json *o, int64_t *least, int64_t *most)
{
    const Json *size = json_object_get(o, "size");
    if (json_is_object(size)) {
        TRY(read_int(c, section, "min_pixels", size, "shortest_edge", least));
        TRY(read_int(c, section, "max_pixels", size, "longest_edge", most));
    }
    TRY(read_int(c, section, "min_pixels", o, "min_pixels", least));
    TRY(read_int(c, section, "max_pixels", o, "max_pixels", most));
    if (*least > *most && config_is_set(c, section, "max_pixels") && !config_is_set(c, section, "min_pixels"))
        *least = *most;
    if (*least >= 1 && *most >= *least) return OK;
    return fail(E_DATA, "min_pixels = %lld and max_pixels = %lld: not a range of sizes", (long long)*least,
                (long long)*most);
}

static Status same_size(const Json *o, const char *key, int64_t model)
{
    int64_t own;
    TRY(json_int(o, key, model, &own));
    if (own == model) return OK;
    return fail(E_DATA, "%s is %lld, and config.json says %lld; use the processor files of this model", key,
                (long long)own, (long long)model);
}

/* Pixels are scaled to [-1, 1]. */
static Status check_levels(const Json *o, const char *key)
{
    const Json *list = json_object_get(o, key);
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_number_value(json_array_get(list, i)) != 0.5)
            return fail(E_DATA, "%s is %g; pixels are read with 0.5 here", key,
                        json_number_value(json_array_get(list, i)));
    return OK;
}

static Status check_patches(const Json *o, const VisionShape *v)
{
    TRY(same_size(o, "patch_size", v->patch));
    TRY(same_size(o, "merge_size", v->merge));
    TRY(same_size(o, "temporal_patch_size", v->frames));
    TRY(check_levels(o, "image_mean"));
    return check_levels(o, "image_std");
}

static Status read_pictures(Config *c, const Json *o, const VisionShape *v)
{
    TRY(check_patches(o, v));
    return read_bounds(c, "image", o, &c->image.min_pixels, &c->image.max_pixels);
}

static Status read_videos(Config *c, const Json *o, const VisionShape *v)
{
    const Json *fps = json_object_get(o, "fps");
    TRY(check_patches(o, v));
    TRY(read_int(c, "video", "min_frames", o, "min_frames", &c->video.min_frames));
    TRY(read_int(c, "video", "max_frames", o, "max_frames", &c->video.max_frames));
    if (json_is_number(fps) && !config_is_set(c, "video", "fps")) c->video.fps = json_number_value(fps);
    if (!(c->video.fps >= 0.01 && c->video.fps <= 240))
        return fail(E_DATA, "fps = %g: frames are sampled at 0.01 to 240 a second", c->video.fps);
    if (c->video.min_frames < 2 || c->video.max_frames < c->video.min_frames)
        return fail(E_DATA, "min_frames = %lld and max_frames = %lld: not a range from 2 on",
                    (long long)c->video.min_frames, (long long)c->video.max_frames);
    return read_bounds(c, "video", o, &c->video.min_pixels, &c->video.max_pixels);
}

static Status read_file(Config *c, const char *name, const char *folder, const char *adapter,
                        const VisionShape *v, Status (*read)(Config *, const Json *, const VisionShape *))
{
    Path  path;
    Json *o;
    TRY(load_first(&o, path, name, adapter, folder));
    Status st = json_is_object(o) ? read(c, o, v) : OK;
    json_decref(o);
    return st ? wrap(st, "%s", path) : OK;
}

Status picture_limits_read(Config *recipe, const char *folder, const char *adapter, const VisionShape *v)
{
    if (!v->depth) return OK;
    TRY(read_file(recipe, picture_file, folder, adapter, v, read_pictures));
    return read_file(recipe, video_file, folder, adapter, v, read_videos);
}

/* Lowers *value to limit, not below least; true where that changed it. */
static bool lower(const Config *c, const char *section, const char *key, int64_t *value, int64_t limit,
                  int64_t least)
{
    limit = max_i64(limit, least);
    if (config_is_set(c, section, key) || *value <= limit) return false;
    *value = limit;
    return true;
}

/* A picture may take three quarters of the tokens of a sample, the slices of a video half of them and their
 * seconds a quarter; the rest is for text. */
void picture_limits_fit(Config *c, const VisionShape *v, const Log *log)
{
    if (!v->depth) return;
    int64_t tokens = min_i64(c->train.micro_tokens, c->data.max_length), area = v->patch * v->patch;
    int64_t block = v->merge * v->merge, held = c->train.micro_patches / block, before = c->image.max_pixels;
    int64_t picture = min_i64(held, tokens * 3 / 4) * block * area;
    int64_t video = min_i64(held, tokens / 2) * block * area * v->frames;
    bool less = lower(c, "image", "max_pixels", &c->image.max_pixels, picture, c->image.min_pixels);
    lower(c, "video", "max_pixels", &c->video.max_pixels, video, c->video.min_pixels);
    lower(c, "video", "max_frames", &c->video.max_frames, tokens / 4 / SLICE_TOKENS * v->frames,
          c->video.min_frames);
    if (less)
        log_info(log, "pictures     larger ones are reduced to %lld pixels, as a micro-batch and "
                 "data.max_length hold (the model's processor: %lld); image.max_pixels sets it",
                 (long long)c->image.max_pixels, (long long)before);
}
