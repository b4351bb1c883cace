/* data/chat_spans.c -- conversations by a model's own chat template: text, ids and loss mask; see
 * chat_template.h.
 *
 * The rendered text is encoded as one, as in the reference, except that media cut it: the template writes one
 * pad for each, which becomes as many as its patches make. A token is supervised when its first byte is. */
#include "data/chat_template.h"

#include "data/chat_private.h"
#include "data/tokenizer_text.h"
#include <string.h>

typedef struct Span {
    size_t from, to;
} Span;

typedef struct SpanRender {
    const Chat         *chat;
    const Conversation *c;
    Render              r;
    JinjaText           text;
    Span               *span;           /* supervised bytes of the text, in order */
    int                 spans, at;      /* at: the first that does not end before the byte that is encoded */
    int                 images, videos; /* media met so far */
    bool                exact; /* normalisation changes nothing: bytes of tokens are bytes of the text */
} SpanRender;

static bool ends_header(char c) { return c == '\n' || c == '>' || c == ']' || c == ' '; }

/* Bytes of the generation prompt that an answer begins with. Where it has only a part of it (a prompt that
 * opens a block of reasoning), that part ends at a line break or a bracket. */
static size_t header_bytes(const char *prompt, const char *text, size_t n)
{
    size_t same = 0, all = strlen(prompt);
    while (same < all && same < n && prompt[same] == text[same]) same++;
    if (same == all) return same;
    while (same && !ends_header(text[same - 1])) same--;
    return same;
}

static bool turn_counts(const SpanRender *s, int i, int question)
{
    const ChatTurn *t = &s->c->turn[i];
    if (t->loss >= 0) return t->loss;
    return s->chat->loss == LOSS_ALL || (t->role == ROLE_ASSISTANT && i > question);
}

static void span_add(SpanRender *s, size_t from, size_t to)
{
    if (from >= to) return;
    if (s->spans && s->span[s->spans - 1].to == from) {
        s->span[s->spans - 1].to = to;
        return;
    }
    s->span[s->spans++] = (Span){ from, to };
}

/* The supervised bytes of what was written for one message. */
static void span_choose(SpanRender *s, const JinjaSpan *j, size_t from, size_t to, int question)
{
    bool blocks = jinja_marks_generation(s->chat->template->jinja), all = s->chat->loss == LOSS_ALL;
    int  turn = j->item + chat_template_first(s->c);
    if (j->item < 0 || turn >= s->c->turns) {
        if (all) span_add(s, from, to);
        return;
    }
    if (!turn_counts(s, turn, question)) return;
    if (all || s->c->turn[turn].role != ROLE_ASSISTANT) {
        span_add(s, from, to);
        return;
    }
    if (blocks) {
        if (j->generation) span_add(s, from, to);
        return;
    }
    span_add(s, from + header_bytes(s->chat->template->prompt, s->text.text + from, to - from), to);
}

/* Spans of one message that follow each other are one, unless generation blocks tell them apart. */
static void spans_choose(SpanRender *s)
{
    const JinjaText *t        = &s->text;
    bool             blocks   = jinja_marks_generation(s->chat->template->jinja);
    int              question = s->chat->loss == LOSS_LAST_ROUND ? chat_last_question(s->c) : -1;
    s->span                   = mem_pool_alloc(&s->r.keep, ((size_t)t->spans + 1) * sizeof *s->span);
    for (int i = 0, end; i < t->spans; i = end) {
        for (end = i + 1; !blocks && end < t->spans && t->span[end].item == t->span[i].item; end++) {}
        span_choose(s, &t->span[i], t->span[i].from, t->span[end - 1].to, question);
    }
}

static bool is_supervised(SpanRender *s, size_t byte)
{
    while (s->at < s->spans && s->span[s->at].to <= byte) s->at++;
    return s->at < s->spans && s->span[s->at].from <= byte;
}

/* Encodes text[from, to) and flags its tokens. */
static Status encode_run(SpanRender *s, size_t from, size_t to)
{
    Render *r     = &s->r;
    int64_t first = r->ids->n;
    TRY(tokenizer_encode(s->chat->tokenizer, r->scratch, r->ids, s->text.text + from, to - from, false));
    for (int64_t i = first; i < r->ids->n; i++) {
        TRY(ids_push(r->supervised, is_supervised(s, from)));
        from += tokenizer_token_bytes(s->chat->tokenizer, r->ids->v[i]);
    }
    return OK;
}

/* Where normalisation changes the text, it is cut where supervision begins and ends. */
static Status encode_text(SpanRender *s, size_t from, size_t to)
{
    while (!s->exact && from < to) {
        bool   in   = is_supervised(s, from);
        size_t end  = s->at >= s->spans ? to : in ? s->span[s->at].to : s->span[s->at].from;
        int    keep = s->at;
        if (end > to) end = to;
        int64_t first = s->r.ids->n;
        TRY(encode_run(s, from, end));
        for (int64_t i = first; i < s->r.ids->n; i++) s->r.supervised->v[i] = in;
        s->at = keep, from = end;
    }
    return from < to ? encode_run(s, from, to) : OK;
}

static bool text_is(const SpanRender *s, size_t at, const char *word)
{
    size_t n = strlen(word);
    return s->text.len - at >= n && !memcmp(s->text.text + at, word, n);
}

/* The next medium of a kind in the order of the conversation; -1: there is none. */
static int next_media(const SpanRender *s, bool video, int skip)
{
    for (int i = 0; i < s->c->medias; i++)
        if (s->c->media[i].video == video && skip-- == 0) return i;
    return -1;
}

static Status fail_media(bool video)
{
    return fail(E_DATA, "the chat template shows more %s than the sample has", video ? "videos" : "pictures");
}

/* The pad at `at`: *from is where the text goes on behind it. The start and end tokens around a video's pad
 * are replaced with it. */
static Status put_medium(SpanRender *s, size_t *from, size_t at, bool video)
{
    int    i     = next_media(s, video, video ? s->videos++ : s->images++);
    size_t start = strlen("<|vision_start|>"), pad = strlen("<|image_pad|>");
    bool   around = video && at >= *from + start && text_is(s, at - start, "<|vision_start|>") &&
                  text_is(s, at + pad, "<|vision_end|>");
    if (i < 0) return fail_media(video);
    TRY(encode_text(s, *from, around ? at - start : at));
    s->r.content = is_supervised(s, at);
    TRY(chat_put_media(&s->r, i, around));
    *from = at + pad + (around ? strlen("<|vision_end|>") : 0);
    return OK;
}

/* A text of a message that spells a token of media stays text. */
static Status put_guarded(SpanRender *s, size_t *from, size_t at)
{
    const char *p        = s->text.text + at + strlen(CHAT_GUARD);
    const char *end      = memchr(p, '>', s->text.len - (size_t)(p - s->text.text));
    size_t      n        = end ? (size_t)(end + 1 - p) : 0;
    char        word[32] = "<";
    TRY(encode_text(s, *from, at));
    if (n > 20) n = 0;
    memcpy(word + 1, p, n);
    bool in = is_supervised(s, at);
    TRY(tokenizer_encode(s->chat->tokenizer, s->r.scratch, s->r.ids, word, n + 1, true));
    *from = at + strlen(CHAT_GUARD) + n;
    return ids_repeat(s->r.supervised, in, s->r.ids->n - s->r.supervised->n);
}

static Status put_all(SpanRender *s)
{
    size_t from = 0;
    for (size_t at = 0; at < s->text.len;) {
        bool image = text_is(s, at, "<|image_pad|>"), video = text_is(s, at, "<|video_pad|>");
        if (image || video) {
            TRY(put_medium(s, &from, at, video));
            at = from;
        } else if (text_is(s, at, CHAT_GUARD)) {
            TRY(put_guarded(s, &from, at));
            at = from;
        } else at++;
    }
    TRY(encode_text(s, from, s->text.len));
    if (s->images + s->videos == s->c->medias) return OK;
    return fail(E_DATA,
                "the chat template shows %d of the sample's %d pictures and videos as <|image_pad|> or "
                "<|video_pad|>; other markers of pictures are not read: data.template=chatml writes these",
                s->images + s->videos, s->c->medias);
}

static bool is_blank(const Text *t)
{
    for (size_t i = 0; i < t->n; i++)
        if (!t->v[i] || !strchr(" \n\r\t", t->v[i])) return false;
    return true;
}

/* White space after the last added token of an answer is written for the next turn. */
static Status trim_answers(SpanRender *s, int64_t first)
{
    const Ids *ids   = s->r.ids;
    Ids       *flags = s->r.supervised;
    for (int64_t i = ids->n - 1, end; i >= first; i = end - 1) {
        for (end = i; end > first && flags->v[end - 1] == flags->v[i]; end--) {}
        if (!flags->v[i]) continue;
        int64_t last = i;
        while (last >= end) {
            s->r.decoded.n = 0;
            TRY(tokenizer_decode(s->chat->tokenizer, &s->r.decoded, ids->v + last, 1, false));
            if (!is_blank(&s->r.decoded)) break;
            last--;
        }
        if (last < end || !tokenizer_is_added(s->chat->tokenizer, ids->v[last])) continue;
        while (i > last) flags->v[i--] = 0;
    }
    return OK;
}

static Status render_text(SpanRender *s)
{
    const ChatTemplate *t     = s->chat->template;
    int                 turns = s->c->turns;
    Json               *v     = json_object();
    if (s->chat->prompt_only && turns && s->c->turn[turns - 1].role == ROLE_ASSISTANT) turns--;
    json_object_update(v, t->tokens);
    Json *own = s->c->kwargs ? chat_template_guard(s->c->kwargs) : NULL;
    if (own) json_object_update(v, own);
    json_decref(own);
    json_object_set_new(v, "messages", chat_template_messages(s->c, turns));
    json_object_set_new(v, "tools",
                        json_array_size(s->c->tools) ? chat_template_guard(s->c->tools) : json_null());
    json_object_set_new(v, "add_generation_prompt", json_boolean(s->chat->prompt_only));
    Status st = jinja_render(t->jinja, &(JinjaInput){ .variables = v, .items = "messages" }, &s->text);
    json_decref(v);
    return st ? wrap(st, "the chat template refuses the sample") : OK;
}

static Status ids_from_text(SpanRender *s)
{
    Nfc      nfc  = { 0 };
    ByteSpan text = { s->text.text, s->text.len }, normal = text;
    Status   st = nfc_normalise(&nfc, text, &normal);
    s->exact    = !st && normal.v == text.v;
    nfc_close(&nfc);
    int64_t first = s->r.ids->n;
    spans_choose(s);
    if (!st) st = put_all(s);
    return st || s->chat->loss == LOSS_ALL ? st : trim_answers(s, first);
}

Status chat_template_ids(const Chat *chat, TokenScratch *scratch, Ids *ids, Ids *flags, const Conversation *c,
                         const Grid *grid)
{
    SpanRender s = { .chat = chat, .c = c };
    s.r = (Render){ .chat = chat, .scratch = scratch, .c = c, .grid = grid, .ids = ids, .supervised = flags };
    Status st = render_text(&s);
    if (!st) st = ids_from_text(&s);
    jinja_text_close(&s.text);
    chat_render_close(&s.r);
    return st;
}
