/* report/data_page.c -- see data_page.h. */
#define _GNU_SOURCE                   /* memmem */
#include "report/data_page.h"

#include <stdio.h>
#include <string.h>

/* --- runs of tokens ----------------------------------------------------------------------------------- */

static bool is_visual(const SampleConf *c, int32_t id)
{
    return (c->stream.image_token >= 0 && id == c->stream.image_token) ||
           (c->stream.video_token >= 0 && id == c->stream.video_token);
}

/* Row i - 1 predicts token i. */
static TokenRole role_of(const Sample *s, const SampleConf *c, int64_t i)
{
    if (is_visual(c, s->ids.v[i])) return TOKEN_VISUAL;
    return i > 0 && s->targets.v[i - 1] >= 0 ? TOKEN_TRAINED : TOKEN_MASKED;
}

static int64_t visual_tokens(const Sample *s, const SampleConf *c, int64_t slice)
{
    int64_t m = c->stream.merge;
    return slice < s->slices ? s->slice[slice].h / m * (s->slice[slice].w / m) : 1;
}

/* Whether the bytes of n tokens are whole characters; decoding puts U+FFFD where they are not. */
static bool is_whole(const Sample *s, const SampleConf *c, int64_t from, int64_t n)
{
    Text t = { 0 };
    bool whole = !tokenizer_decode(c->chat.tokenizer, &t, s->ids.v + from, n, false) &&
                 !memmem(t.v, t.n, "\xef\xbf\xbd", 3);
    text_close(&t);
    return whole;
}

bool token_run_next(const Sample *s, const SampleConf *c, int64_t *at, int64_t *slice, TokenRun *out)
{
    if (*at >= s->ids.n) return false;
    *out = (TokenRun){ role_of(s, c, *at), *at, 1, -1 };
    if (out->role == TOKEN_VISUAL) {
        out->n = visual_tokens(s, c, *slice), out->slice = (*slice)++;
    } else
        while (out->n < 4 && *at + out->n < s->ids.n && role_of(s, c, *at + out->n) == out->role &&
               !is_whole(s, c, *at, out->n))
            out->n++;
    *at += out->n;
    return true;
}

/* --- the page ----------------------------------------------------------------------------------------- */

void data_page_open(Page *p, const char *title)
{
    char text[160];
    Json *meta = json_array();
    snprintf(text, sizeof text, "%s \xc2\xb7 treb data inspect", title);
    page_open(p, "treb data inspect", text);
    page_say(json_object_get(p->root, "heading"), NULL, "%s", title);
    page_say(meta, "trained", "trained"), page_say(meta, NULL, " "), page_say(meta, "masked", "masked");
    page_say(meta, NULL, " "), page_say(meta, "visual", "visual");
    page_add(p, json_object_get(p->root, "meta"), meta);
    page_section(p, "samples", "");
}

void data_page_border(Page *p, const char *text) { page_add(p, NULL, block_text("border", "%s", text)); }

static Status add_picture(Json *list, const Sample *m, const SampleConf *c, SampleScratch *t, int64_t i)
{
    const RecordSlice *v = &m->slice[i];
    const void        *bytes;
    size_t             len;
    char               size[160];
    int64_t merge = c->stream.merge, patch = c->picture.patch, rows = v->h / merge, columns = v->w / merge;
    TRY(sample_bytes(&bytes, &len, m, t, c, v->a));
    const char *type = image_mime(bytes, len);
    snprintf(size, sizeof size, "%lld x %lld pixels, %d x %d patches, %lld tokens", (long long)(v->w * patch),
             (long long)(v->h * patch), v->w, v->h, (long long)(rows * columns));
    Json *text = page_rich(NULL, "%lld: %s\n%s", (long long)i, sample_frame_name(m, v->a), size);
    json_array_append_new(list, json_pack("{s:o, s:O, s:I, s:I}", "src",
                                          page_data_uri(type ? type : "image/png", bytes, len), "text",
                                          json_array_get(text, 0), "rows", (json_int_t)rows, "columns",
                                          (json_int_t)columns));
    json_decref(text);
    return OK;
}

/* The text of a run; a line break is shown, too. */
static Status decode_run(Text *out, const Sample *m, const SampleConf *c, const TokenRun *r)
{
    Text t = { 0 };
    Status st = tokenizer_decode(c->chat.tokenizer, &t, m->ids.v + r->from, r->n, false);
    for (size_t i = 0; i < t.n && !st; i++)
        st = t.v[i] == '\n' ? text_push(out, "\xe2\x8f\x8e\n", 4) : text_push(out, &t.v[i], 1);
    text_close(&t);
    return st;
}

static Status add_run(Json *list, const Sample *m, const SampleConf *c, const TokenRun *r)
{
    static const char *const roles[] = { "masked", "trained", "visual" };
    Text   title = { 0 }, text = { 0 };
    Status st = text_printf(&title, "row %lld, id %d", (long long)r->from, m->ids.v[r->from]);
    for (int64_t i = 1; r->role != TOKEN_VISUAL && i < r->n && !st; i++)
        st = text_printf(&title, " %d", m->ids.v[r->from + i]);
    if (!st && r->role == TOKEN_VISUAL)
        st = text_printf(&text, "picture %lld: %lld tokens", (long long)r->slice, (long long)r->n);
    else if (!st) st = decode_run(&text, m, c, r);
    if (!st) st = text_push(&title, "", 1);
    if (!st) st = text_push(&text, "", 1);
    if (!st)
        json_array_append_new(list, json_pack("[s, o, o]", roles[r->role], page_string(title.v),
                                              page_bytes(text.v, text.n - 1)));
    text_close(&title), text_close(&text);
    return st;
}

Status data_page_sample(Page *p, const Sample *m, const SampleConf *c, SampleScratch *t, const char *title)
{
    TokenRun r;
    int64_t  at = 0, slice = 0;
    Json    *panel = page_panel(p, true), *b = block_open("sample");
    Json    *pictures = block_list(b, "pictures"), *tokens = block_list(b, "tokens");
    page_say(block_list(panel, "title"), "b", "%s", title);
    page_say(block_list(panel, "legend"), NULL, "%lld tokens, %lld trained, %lld patches",
             (long long)m->size.tokens, (long long)m->size.supervised, (long long)m->size.patches);
    page_add(p, block_list(panel, "blocks"), b);
    for (int64_t i = 0; i < m->slices; i++) TRY(add_picture(pictures, m, c, t, i));
    while (token_run_next(m, c, &at, &slice, &r)) TRY(add_run(tokens, m, c, &r));
    return OK;
}
