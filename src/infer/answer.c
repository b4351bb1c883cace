/* infer/answer.c -- see answer.h. */
#include "infer/answer.h"

#include "data/chat_template.h"
#include "data/media.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const char *prompt_of(const ChatTokens *token, const Tokenizer *t)
{
    const ChatTemplate *template = NULL;
    if (token->im_start >= 0 && token->im_end >= 0) return "<|im_start|>assistant\n";
    return tokenizer_template(t, &template) || !template ? "" : template->prompt;
}

static void add_stop(AnswerFinder *m, int32_t id)
{
    if (id >= 0) m->stop[m->stops++] = id;
}

Status answer_finder_open(AnswerFinder *m, const Tokenizer *t)
{
    TokenScratch *s = NULL;
    ChatTokens    token;
    *m = (AnswerFinder){ .tokenizer = t };
    chat_tokens_find(&token, t);
    add_stop(m, token.im_end), add_stop(m, token.endoftext), add_stop(m, tokenizer_end(t));
    const char *prompt = prompt_of(&token, t);
    TRY(token_scratch_open(&s, t));
    Status st = tokenizer_encode(t, s, &m->header, prompt, strlen(prompt), false);
    token_scratch_close(s);
    if (st) answer_finder_close(m);
    return st;
}

void answer_finder_close(AnswerFinder *m)
{
    ids_close(&m->header);
    *m = (AnswerFinder){ 0 };
}

static bool stops(const AnswerFinder *m, int32_t id)
{
    for (int i = 0; i < m->stops; i++)
        if (m->stop[i] == id) return true;
    return false;
}

bool answer_find(const AnswerFinder *m, const Ids *ids, int64_t *prompt, int64_t *end)
{
    int64_t n = m->header.n;
    for (int64_t i = ids->n - n; n && i >= 0; i--) {
        if (memcmp(ids->v + i, m->header.v, (size_t)n * sizeof *ids->v)) continue;
        *prompt = *end = i + n;
        while (*end < ids->n && !stops(m, ids->v[*end])) ++*end;
        return *end < ids->n && *end > *prompt;              /* a truncated answer cannot be compared */
    }
    return false;
}

typedef struct Bytes { const char *v; size_t n; } Bytes;

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static Bytes trim(const Text *t)
{
    Bytes b = { t->v, t->n };
    while (b.n && is_space(b.v[b.n - 1])) b.n--;
    while (b.n && is_space(b.v[0])) b.v++, b.n--;
    return b;
}

bool answer_equals(const Text *a, const Text *b)
{
    Bytes x = trim(a), y = trim(b);
    return x.n == y.n && (!x.n || !memcmp(x.v, y.v, x.n));
}

static Json *text_json(const Text *t)
{
    Bytes b = trim(t);
    return json_stringn(b.n ? b.v : "", b.n);
}

/* Appends the text of the user's last turn; if the sample consists of ids only, its whole prompt. */
static Status append_question(Text *out, const AnswerFinder *m, const Sample *s)
{
    const Conversation *c = &s->chat;
    int64_t prompt, end;
    for (int i = c->turns - 1; i >= 0; i--) {
        const ChatTurn *t = &c->turn[i];
        if (t->role != ROLE_USER) continue;
        for (int k = t->first; k < t->first + t->items; k++)
            if (c->item[k].kind == ITEM_TEXT) TRY(utf8_push(out, c->item[k].text, c->item[k].len, NULL));
        return OK;
    }
    return answer_find(m, &s->ids, &prompt, &end) ? detokenize(out, m->tokenizer, s->ids.v, prompt) : OK;
}

static Status add_image(Json *list, const Sample *s, const SampleConf *c, int frame)
{
    char path[PATH_MAX], real[PATH_MAX];
    if (!s->frame[frame].path || s->frame[frame].bytes) return OK;
    TRY(media_path(path, sizeof path, s->frame[frame].path, c->media_dir,
                   dataset_file(c->data, s->id)->file.path));
    if (!realpath(path, real)) return OK;
    Json *name = json_string(real);
    if (name) json_array_append_new(list, name);             /* NULL: the path is not UTF-8 */
    return OK;
}

Status answer_json(Json **out, const AnswerFinder *m, const Sample *s, const SampleConf *c,
                   const char *channel, const Text *answer, const Text *expected, bool correct)
{
    Text   asked = { 0 };
    Json  *images = json_array();
    Status st = append_question(&asked, m, s);
    for (int64_t i = 0; !st && i < s->slices; i++) st = add_image(images, s, c, s->slice[i].a);
    *out = st ? NULL
              : json_pack("{s:o, s:o, s:o, s:b, s:O, s:s}", "question", text_json(&asked), "answer",
                          text_json(answer), "expected", text_json(expected), "correct", correct, "images",
                          images, "channel", channel);
    json_decref(images);
    text_close(&asked);
    if (!st && !*out) st = fail(E_DATA, "%s: the answer cannot be written as JSON", s->record.where);
    return st;
}
