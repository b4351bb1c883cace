/* data/sample.c -- see sample.h. */
#include "data/sample.h"

#include "base/grow.h"
#include "data/chat_template.h"
#include "data/record_form.h"
#include "data/sample_frames.h"
#include <stdlib.h>
#include <string.h>

Status sample_scratch_open(SampleScratch *t, const Tokenizer *tokenizer)
{
    *t = (SampleScratch){ 0 };
    return tokenizer ? token_scratch_open(&t->token, tokenizer) : OK;
}

void sample_scratch_close(SampleScratch *t)
{
    token_scratch_close(t->token);
    for (int i = 0; i < 2; i++) image_close(&t->decoded[i]), image_close(&t->resized[i]);
    video_file_close(t->video);
    text_close(&t->png);
    free(t->bytes);
    *t = (SampleScratch){ 0 };
}

static Status same_token(const char *name, int64_t model, int32_t tokenizer)
{
    if (model < 0 || tokenizer < 0 || model == tokenizer) return OK;
    return fail(E_CONFIG, "the model has id %lld for %s, the tokenizer %d; name the tokenizer of this model",
                (long long)model, name, tokenizer);
}

/* word: model, chatml, or a file. */
static Status choose_template(Chat *chat, const Tokenizer *t, const char *word)
{
    if (!strcmp(word, "chatml")) return OK;
    return strcmp(word, "model") ? tokenizer_template_file(t, word, &chat->template)
                                 : tokenizer_template(t, &chat->template);
}

Status sample_conf(SampleConf *c, const Config *recipe, const Tokenizer *t, const PatchShape *patch,
                   const StreamShape *stream, const Budget *b)
{
    *c = (SampleConf){ .stream = *stream, .picture = *patch, .frame = *patch, .budget = *b };
    c->chat.tokenizer = t;
    if (t) TRY(choose_template(&c->chat, t, recipe->data.template));
    if (t) chat_tokens_find(&c->chat.token, t);
    else   c->chat.token = (ChatTokens){ -1, -1, -1, -1, -1, -1, -1 };
    TRY(same_token("<|image_pad|>", stream->image_token, c->chat.token.image_pad));
    TRY(same_token("<|video_pad|>", stream->video_token, c->chat.token.video_pad));
    c->chat.loss          = chat_loss_named(recipe->data.loss);
    c->chat.merge         = stream->merge;
    c->picture.min_pixels = recipe->image.min_pixels;
    c->picture.max_pixels = recipe->image.max_pixels;
    c->frame.min_pixels   = recipe->video.min_pixels;
    c->frame.max_pixels   = recipe->video.max_pixels;
    c->video =
        (VideoRule){ recipe->video.fps, recipe->video.min_frames, recipe->video.max_frames, patch->frames };
    c->max_length = recipe->data.max_length < b->tokens ? recipe->data.max_length : b->tokens;
    c->truncation = chat_truncation_named(recipe->data.truncation);
    c->media_dir  = recipe->data.media_dir;
    c->columns    = recipe->data.columns;
    TRY(record_columns_check(c->columns));
    return OK;
}

Status sample_settings(const SampleConf *c, Json **out)
{
    *out = json_pack("{sI sI sI sI sI sI sI sI si}", "vocabulary",
                     (json_int_t)tokenizer_size(c->chat.tokenizer), "image_token",
                     (json_int_t)c->stream.image_token, "video_token", (json_int_t)c->stream.video_token,
                     "patch", (json_int_t)c->picture.patch, "frames", (json_int_t)c->picture.frames, "merge",
                     (json_int_t)c->stream.merge, "min_pixels", (json_int_t)c->picture.min_pixels,
                     "max_pixels", (json_int_t)c->picture.max_pixels, "loss", (int)c->chat.loss);
    if (*out && c->chat.template)
        json_object_set_new(*out, "template", json_integer(c->chat.template->fingerprint));
    return *out ? OK : fail(E_FIT, "no memory for a few settings");
}

static Json *member_names(const Record *r, bool (*wanted)(const RecordFile *))
{
    Json *names = json_array();
    for (int i = 0; i < r->files; i++)
        if (wanted(&r->file[i]))
            json_array_append_new(names, json_stringn(r->file[i].name, r->file[i].name_len));
    return names;
}

static bool lists_media(const Json *line)
{
    return json_has(line, "images") || json_has(line, "image") || json_has(line, "videos") ||
           json_has(line, "video");
}

/* Without a list of media, those of a sample in an archive are its members, in their order. */
static Status json_read(Sample *s, const SampleConf *c)
{
    const Record *r = &s->record;
    TRY(json_parse_data(&s->json, r->text, r->len, "not JSON"));
    TRY(record_form(s->json, c->columns));
    Status st = conversation_read(&s->chat, s->json);
    if (!st || !r->files || lists_media(s->json)) return st;
    json_object_set_new(s->json, "images", member_names(r, record_file_is_picture));
    json_object_set_new(s->json, "videos", member_names(r, record_file_is_video));
    return conversation_read(&s->chat, s->json);
}

static void media_parts(Json *parts, const char *kind, Json *names)
{
    for (size_t i = 0; i < json_array_size(names); i++)
        json_array_append_new(parts, json_pack("{ss sO}", "type", kind, kind, json_array_get(names, i)));
    json_decref(names);
}

/* A caption in an archive: the user shows the media, the assistant answers with the text. */
static Status caption_read(Sample *s)
{
    Json *parts = json_array();
    media_parts(parts, "image", member_names(&s->record, record_file_is_picture));
    media_parts(parts, "video", member_names(&s->record, record_file_is_video));
    s->json = json_pack("{s[{ss so}{ss ss%}]}", "messages", "role", "user", "content", parts, "role",
                        "assistant", "content", s->record.text, s->record.len);
    if (!s->json) return fail(E_DATA, "the caption is not UTF-8 text");
    return conversation_read(&s->chat, s->json);
}

static Status conversation_load(Sample *s, const SampleConf *c)
{
    const Record *r = &s->record;
    if (r->kind == RECORD_TEXT)         TRY(conversation_text(&s->chat, r->text, r->len));
    else if (r->kind == RECORD_CAPTION) TRY(caption_read(s));
    else TRY(json_read(s, c));
    if (s->chat.medias && c->stream.image_token < 0)
        return fail(E_DATA, "%d picture%s, and the model has no vision encoder", s->chat.medias,
                    s->chat.medias == 1 ? "" : "s");
    TRY(video_choose(&s->chat, &c->video));
    sample_find_members(s);
    TRY(sample_open_videos(s, c));
    s->frame = s->chat.frame, s->frames = s->chat.frames, s->medias = s->chat.medias;
    return OK;
}

static Status slice_push(Sample *s, RecordSlice v)
{
    if (!GROW(s->slice, s->slice_cap, s->slices + 1))
        return fail(E_FIT, "no memory for %lld slices", (long long)s->slices);
    s->slice[s->slices++] = v;
    return OK;
}

/* The grid of a medium, and its slices. All frames of a video are resized to the size that follows from
 * its first. */
static Status media_measure(Grid *g, Sample *s, const SampleConf *c, const Media *m)
{
    int64_t h = m->h, w = m->w, patch = c->picture.patch, group = c->video.group;
    if (!m->file) TRY(sample_frame_size(&h, &w, s, c, m->first));
    TRY_CTX(m->video ? video_fit(&h, &w, m->frames, &c->frame) : image_fit(&h, &w, &c->picture), "%s",
            sample_frame_name(s, m->first));
    *g = (Grid){ m->video ? video_slices(m, group) : 1, h / patch, w / patch };
    for (int64_t i = 0; i < g->t; i++) {
        RecordSlice v = { (int32_t)g->h, (int32_t)g->w, m->first, -1 };
        if (m->video) v.a = video_frame(m, i, 0, group), v.b = video_frame(m, i, group - 1, group);
        TRY(slice_push(s, v));
    }
    return OK;
}

static Status over_budget(Sample *s, const SampleConf *c)
{
    const Budget *b = &c->budget;
    s->over = true;
    if (s->size.patches > b->patches)
        return fail(
            E_DATA,
            "its pictures have %lld patches, a micro-batch holds %lld; lower image.max_pixels or raise "
            "train.micro_patches",
            (long long)s->size.patches, (long long)b->patches);
    return fail(E_DATA,
                "%lld tokens, a micro-batch holds %lld; raise train.micro_tokens, or set data.truncation to "
                "delete or right",
                (long long)s->ids.n, (long long)b->tokens);
}

/* The slices of media that truncation cut off are removed. A document without any supervised token after
 * truncation is left out. Long plain texts were cut by their format. */
static Status document_fit(Sample *s, const SampleConf *c, const Grid *grid)
{
    ChatFit    fit;
    int64_t    before = s->ids.n;
    Truncation how = s->record.kind == RECORD_TEXT ? TRUNCATE_RIGHT : c->truncation;
    if (before > c->max_length && how == TRUNCATE_ERROR && c->max_length == c->budget.tokens)
        return over_budget(s, c);
    s->over = before > c->max_length && how == TRUNCATE_ERROR;
    TRY(chat_truncate(&c->chat, &fit, &s->ids, &s->targets, 0, &s->chat, grid, c->max_length, how));
    s->drop = fit.drop || (fit.tokens < before && !fit.supervised);
    s->medias = fit.medias, s->slices = 0;
    s->size = (DocSize){ .tokens = fit.tokens, .supervised = fit.supervised };
    for (int i = 0; i < fit.medias; i++) {
        s->slices       += grid[i].t;
        s->size.patches += grid[i].t * grid[i].h * grid[i].w;
    }
    return OK;
}

/* A document that continues in the next record gets no <|endoftext|>. */
static void remove_endoftext(Sample *s)
{
    s->ids.n--, s->targets.n--;
    if (s->targets.n) s->targets.v[s->targets.n - 1] = -1;
}

static Status document_render(Sample *s, SampleScratch *t, const SampleConf *c, const Grid *grid)
{
    TRY(chat_render(&c->chat, t->token, &s->ids, &s->targets, &s->chat, grid));
    if (s->record.more) remove_endoftext(s);
    return document_fit(s, c, grid);
}

static Status rendered_load(Sample *s, SampleScratch *t, const SampleConf *c)
{
    TRY(conversation_load(s, c));
    Grid  *grid = calloc((size_t)s->chat.medias + 1, sizeof *grid);
    Status st   = grid ? OK : fail(E_FIT, "no memory for %d grids", s->chat.medias);
    for (int i = 0; !st && i < s->chat.medias; i++) st = media_measure(&grid[i], s, c, &s->chat.media[i]);
    for (int i = 0; !st && i < s->chat.medias; i++) s->size.patches += grid[i].t * grid[i].h * grid[i].w;
    if (!st && c->chat.tokenizer) st = document_render(s, t, c, grid);
    free(grid);
    return st;
}

static Status packed_check(const Record *r, const SampleConf *c)
{
    int64_t size = c->chat.tokenizer ? tokenizer_size(c->chat.tokenizer) : INT32_MAX;
    for (int64_t i = 0; i < r->tokens; i++)
        if (r->ids[i] < 0 || r->ids[i] >= size || r->targets[i] < -1 || r->targets[i] >= size)
            return fail(E_DATA, "token %lld is outside the vocabulary of %lld", (long long)i,
                        (long long)size);
    return OK;
}

/* Tokens of a packed file; they were truncated when the file was packed. */
static Status packed_load(Sample *s, const SampleConf *c)
{
    const Record *r = &s->record;
    TRY(packed_check(r, c));
    TRY(ids_push_many(&s->ids, r->ids, r->tokens));
    TRY(ids_push_many(&s->targets, r->targets, r->tokens));
    s->frame = mem_pool_alloc(&s->record.keep, ((size_t)r->files + 1) * sizeof *s->frame);
    for (s->frames = 0; s->frames < r->files; s->frames++)
        s->frame[s->frames] = (Frame){ .bytes = r->file[s->frames].bytes, .len = r->file[s->frames].len };
    s->size.tokens = r->tokens;
    for (int64_t i = 0; i < r->tokens; i++) s->size.supervised += r->targets[i] >= 0;
    for (int64_t i = 0; i < r->slices; i++) {
        TRY(slice_push(s, r->slice[i]));
        s->size.patches += (int64_t)r->slice[i].h * r->slice[i].w;
    }
    s->medias = (int)s->slices;
    s->drop = r->tokens > c->max_length && c->truncation == TRUNCATE_DELETE;
    if (s->drop || r->tokens <= c->max_length) return OK;
    s->over = true;
    return fail(E_DATA,
                "%lld tokens, and data.max_length or the micro-batch allows %lld; pack the data again with "
                "this recipe",
                (long long)r->tokens, (long long)c->max_length);
}

/* A sample too large for an empty micro-batch is an error or is left out. */
static Status budget_check(Sample *s, const SampleConf *c)
{
    if (s->drop || !pack_over_budget(&c->budget, &s->size)) return OK;
    if (c->truncation == TRUNCATE_DELETE) return s->drop = true, OK;
    return over_budget(s, c);
}

Status sample_load(Sample *s, SampleScratch *t, const SampleConf *c, int64_t id)
{
    *s = (Sample){ .id = id };
    t->loads++;
    Status st = dataset_read(c->data, id, &s->record);
    if (!st) st = s->record.kind == RECORD_TOKENS ? packed_load(s, c) : rendered_load(s, t, c);
    if (!st) st = budget_check(s, c);
    if (!st) return OK;
    st = wrap(st, "%s", s->record.where);
    bool over = s->over;
    sample_close(s);
    return s->over = over, st;
}

void sample_close(Sample *s)
{
    ids_close(&s->ids), ids_close(&s->targets);
    free(s->slice);
    conversation_close(&s->chat);
    json_decref(s->json);
    record_close(&s->record);
    *s = (Sample){ 0 };
}

/* Parsed JSON, the texts taken from it and pictures inside it each take about as many bytes as the record. */
size_t sample_host_bytes(const Sample *s)
{
    return sizeof *s + (size_t)(s->ids.cap + s->targets.cap) * sizeof *s->ids.v +
           (size_t)s->slice_cap * sizeof *s->slice + 4 * s->record.len;
}
