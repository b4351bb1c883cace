/* data/conversation.c -- reads one line of a dataset, in any of the usual forms, into turns of text,
 * pictures and videos.
 *
 * Knows no template and opens no file. Lines are not trusted: a value of the wrong form is an error that
 * names the field. Unknown keys (ids, sources) are ignored. */
#include "data/chat.h"
#include "data/media_ref.h"
#include "data/video_file.h"
#include "data/chat_tools.h"

#include <stdio.h>
#include <string.h>

/* The images or videos of the line; each placeholder in the text stands for the next of them. */
typedef struct MediaList {
    const char *key, *mark;
    const Json *value;
    bool        single;                  /* the value is one medium, not a list */
    size_t      count, used;
} MediaList;

typedef struct LineReader {
    Conversation *c;
    const Json   *line;
    MediaList     images, videos;
    char          where[96];             /* the field being read */
} LineReader;

/* Makes place for one more row after n. Old arrays stay allocated until the conversation is closed,
 * together less than the last. */
static void *grow(MemPool *k, void *old, int n, size_t size)
{
    if (n < 4 ? n != 0 : (n & (n - 1)) != 0) return old;
    void *more = mem_pool_alloc(k, size * (n ? 2 * (size_t)n : 4));
    if (n) memcpy(more, old, size * (size_t)n);
    return more;
}

static void turn_add(Conversation *c, Role role, int8_t loss)
{
    c->turn = grow(&c->keep, c->turn, c->turns, sizeof *c->turn);
    c->turn[c->turns++] =
        (ChatTurn){ .role = role, .first = c->items, .content_first = c->items, .loss = loss };
}

/* Adds to the last turn; plain text has no turn. */
static void item_add(Conversation *c, ChatItem item)
{
    if (item.kind == ITEM_TEXT && !item.len) return;
    c->item = grow(&c->keep, c->item, c->items, sizeof *c->item);
    c->item[c->items++] = item;
    if (c->turns) c->turn[c->turns - 1].items++, c->turn[c->turns - 1].content++;
}

static void text_add(Conversation *c, const char *text, size_t len)
{
    item_add(c, (ChatItem){ .kind = ITEM_TEXT, .text = text, .len = len });
}

/* Text that is no content of the last turn: its tool calls, its reasoning, the tools of the line. */
static void aside_add(Conversation *c, const char *text, size_t len)
{
    ChatTurn *t       = &c->turn[c->turns - 1];
    int       content = t->content;
    text_add(c, text, len);
    t->content = content;
    if (!content) t->content_first = c->items;
}

static void media_add(Conversation *c, bool video, double fps)
{
    c->media = grow(&c->keep, c->media, c->medias, sizeof *c->media);
    c->media[c->medias] = (Media){ .video = video, .first = c->frames, .fps = fps };
    item_add(c, (ChatItem){ .kind = video ? ITEM_VIDEO : ITEM_IMAGE, .media = c->medias++ });
}

static Status frame_add(LineReader *r, const Json *v, const char *where)
{
    Conversation *c = r->c;
    Frame         f;
    TRY(media_ref_read(&f, &c->keep, v, where));
    c->frame = grow(&c->keep, c->frame, c->frames, sizeof *c->frame);
    c->frame[c->frames++] = f;
    c->media[c->medias - 1].frames++;
    return OK;
}

static Status image_add(LineReader *r, const Json *v)
{
    media_add(r->c, false, 0);
    return frame_add(r, v, r->where);
}

static Status fps_read(double *fps, const Json *v, const char *where)
{
    *fps = 0;
    if (!v || json_is_null(v)) return OK;
    *fps = json_number_value(v);
    if (json_is_number(v) && *fps >= 1e-6 && *fps <= 1e6) return OK;
    return fail(E_DATA, "%s: fps: expected a number above 0", where);
}

/* The path of a video file as a list of one. */
static bool is_file_in_list(const Json *v)
{
    const Json *only = json_array_size(v) == 1 ? json_array_get(v, 0) : NULL;
    return json_is_string(only) && video_file_has_suffix(json_string_value(only), json_string_length(only));
}

static Status video_file_add(LineReader *r, const Json *v, double rate)
{
    media_add(r->c, true, rate);
    r->c->media[r->c->medias - 1].file = true;
    return frame_add(r, v, r->where);
}

/* v: a video file, a list of frames, or {"frames": [...], "fps": ...}; fps: the rate given elsewhere, or
 * NULL. */
static Status video_add(LineReader *r, const Json *v, const Json *fps)
{
    double rate;
    char   where[sizeof r->where + 32];
    if (json_has(v, "fps")) fps = json_object_get(v, "fps");
    if (json_has(v, "frames")) v = json_object_get(v, "frames");
    if (is_file_in_list(v)) v = json_array_get(v, 0);
    TRY(fps_read(&rate, fps, r->where));
    if (!json_is_array(v)) return video_file_add(r, v, rate);
    if (!json_array_size(v)) return fail(E_DATA, "%s: the video has no frames", r->where);
    media_add(r->c, true, rate);
    for (size_t i = 0; i < json_array_size(v); i++) {
        snprintf(where, sizeof where, "%s[%zu]", r->where, i);
        TRY(frame_add(r, json_array_get(v, i), where));
    }
    return OK;
}

/* The keys images or image, videos or video. A value that is not a list is one medium. */
static Status list_open(MediaList *l, const Json *line, const char *many, const char *one, const char *mark)
{
    *l = (MediaList){ .key = json_has(line, one) ? one : many, .mark = mark };
    if (json_has(line, many) && json_has(line, one))
        return fail(E_DATA, "%s: the line has %s too; keep one", many, one);
    const Json *v = l->value = json_object_get(line, l->key), *first = json_array_get(v, 0);
    if (!v || json_is_null(v) || (json_is_string(v) && !json_string_length(v))) return OK;
    bool frames = !strcmp(l->key, "video") && !json_is_array(first) && !json_is_object(first);
    l->single = !json_is_array(v) || frames;
    l->count = l->single ? 1 : json_array_size(v);
    return OK;
}

/* Takes the next of a list. Placeholders beyond its end are only counted, for the message of list_close. */
static Status list_take(LineReader *r, MediaList *l)
{
    size_t i = l->used++;
    if (i >= l->count) return OK;
    const Json *v = l->single ? l->value : json_array_get(l->value, i),
               *fps = json_object_get(r->line, "fps");
    char        saved[sizeof r->where];
    memcpy(saved, r->where, sizeof saved);
    if (l->single) snprintf(r->where, sizeof r->where, "%s", l->key);
    else           snprintf(r->where, sizeof r->where, "%s[%zu]", l->key, i);
    TRY(l == &r->images ? image_add(r, v)
                        : video_add(r, v, json_is_array(fps) ? json_array_get(fps, i) : fps));
    memcpy(r->where, saved, sizeof saved);
    return OK;
}

static Status list_close(const MediaList *l)
{
    if (l->used == l->count) return OK;
    return fail(E_DATA, "%s: %zu listed, but %zu %s in user and tool messages; the numbers must be equal",
                l->key, l->count, l->used, l->mark);
}

/* Text with placeholders; the text around them is unchanged. */
static Status marked_add(LineReader *r, const char *s, size_t len)
{
    const char *end = s + len, *from = s;
    for (const char *p = s; (p = memchr(p, '<', (size_t)(end - p)));) {
        MediaList *l = end - p < 7              ? NULL
                     : !memcmp(p, "<image>", 7) ? &r->images
                     : !memcmp(p, "<video>", 7) ? &r->videos : NULL;
        if (!l) { p++; continue; }
        text_add(r->c, from, (size_t)(p - from));
        TRY(list_take(r, l));
        from = p += 7;
    }
    text_add(r->c, from, (size_t)(end - from));
    return OK;
}

static bool shows_media(Role role) { return role == ROLE_USER || role == ROLE_TOOL; }

static Status string_add(LineReader *r, Role role, const Json *v)
{
    const char *s = json_string_value(v);
    if (shows_media(role)) return marked_add(r, s, json_string_length(v));
    text_add(r->c, s, json_string_length(v));
    return OK;
}

/* The medium of a content part: under its kind's key, or path or url. NULL: the next of the line's list. */
static const Json *part_medium(const Json *part, const char *kind, const char *kind_url)
{
    const char *const keys[] = { kind, kind_url, "path", "url" };
    for (int i = 0; i < 4; i++)
        if (json_has(part, keys[i])) return json_object_get(part, keys[i]);
    return NULL;
}

static Status part_read(LineReader *r, Role role, const Json *part)
{
    const Json *said = json_object_get(part, "type"), *text = json_object_get(part, "text"), *v;
    const char *type = json_is_string(said) ? json_string_value(said)
                     : json_has(part, "image") || json_has(part, "image_url") ? "image"
                     : json_has(part, "video") ? "video" : "text";
    bool image = !strcmp(type, "image") || !strcmp(type, "image_url");
    bool video = !strcmp(type, "video") || !strcmp(type, "video_url");
    if (!image && !video && strcmp(type, "text"))
        return fail(E_DATA, "%s.type: expected text, image, image_url or video", r->where);
    if ((image || video) && !shows_media(role))
        return fail(E_DATA,
                    "%s: a %s in a message of this role; the template shows media only in user and tool "
                    "messages", r->where, image ? "picture" : "video");
    if (image) {
        v = part_medium(part, "image", "image_url");
        return v ? image_add(r, v) : list_take(r, &r->images);
    }
    if (video) {
        const Json *fps = json_object_get(part, json_has(part, "fps") ? "fps" : "sample_fps");
        v = part_medium(part, "video", "video_url");
        return v ? video_add(r, v, fps) : list_take(r, &r->videos);
    }
    if (!json_is_string(text)) return fail(E_DATA, "%s.text: expected a string", r->where);
    text_add(r->c, json_string_value(text), json_string_length(text));
    return OK;
}

/* content: a string with placeholders, or a list of parts; r->where names it. */
static Status content_read(LineReader *r, Role role, const Json *content)
{
    char where[sizeof r->where];
    if (json_is_string(content)) return string_add(r, role, content);
    if (!json_is_array(content)) return fail(E_DATA, "%s: expected a string or a list of parts", r->where);
    memcpy(where, r->where, sizeof where);
    for (size_t i = 0; i < json_array_size(content); i++) {
        const Json *part = json_array_get(content, i);
        snprintf(r->where, sizeof r->where, "%.60s[%zu]", where, i);
        if (!json_is_object(part)) return fail(E_DATA, "%s: expected an object", r->where);
        TRY(part_read(r, role, part));
    }
    return OK;
}

/* Tool calls become text here. Each starts on a new line, except the first of a message without content. */
static Status calls_read(LineReader *r, const Json *calls, bool content, const char *where)
{
    Text   text = { 0 };
    Status st = OK;
    if (!json_is_array(calls)) return fail(E_DATA, "%s.tool_calls: expected a list", where);
    for (size_t i = 0; !st && i < json_array_size(calls); i++) {
        snprintf(r->where, sizeof r->where, "%s.tool_calls[%zu]", where, i);
        if (i || content) st = text_push(&text, "\n", 1);
        if (!st) st = chat_tool_call_text(&text, json_array_get(calls, i), r->where);
    }
    if (!st) aside_add(r->c, mem_pool_copy(&r->c->keep, text.n ? text.v : "", text.n), text.n);
    text_close(&text);
    return st;
}

/* -1: not a role. */
static int role_named(const Json *message)
{
    static const struct { const char *word; Role role; } roles[] = {
        { "user",      ROLE_USER },      { "human", ROLE_USER },      { "system",      ROLE_SYSTEM },
        { "assistant", ROLE_ASSISTANT }, { "gpt",   ROLE_ASSISTANT }, { "observation", ROLE_TOOL },
        { "tool",      ROLE_TOOL },
    };
    const Json *v = json_object_get(message, json_has(message, "role") ? "role" : "from");
    for (size_t i = 0; json_is_string(v) && i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(json_string_value(v), roles[i].word)) return (int)roles[i].role;
    return -1;
}

/* What the message says of its own loss: `loss` (ms-swift) or `weight` (OpenAI: 0 or 1); -1: nothing. */
static Status message_loss(const Json *m, const char *where, int8_t *out)
{
    const Json *loss = json_object_get(m, "loss"), *weight = json_object_get(m, "weight");
    *out = -1;
    if (json_has(m, "loss") && !json_is_boolean(loss))
        return fail(E_DATA, "%s.loss: expected true or false", where);
    if (json_is_boolean(loss)) return *out = json_is_true(loss), OK;
    if (!json_has(m, "weight")) return OK;
    double v = json_number_value(weight);
    if (!json_is_number(weight) || (v != 0 && v != 1))
        return fail(E_DATA, "%s.weight: expected 0 or 1", where);
    return *out = v != 0, OK;
}

const Json *chat_reasoning(const Json *message, const char **key)
{
    static const char *const keys[] = { "reasoning_content", "thinking", "reasoning" };
    for (int i = 0; i < 3; i++)
        if (json_has(message, keys[i])) return *key = keys[i], json_object_get(message, keys[i]);
    return NULL;
}

/* Reasoning beside the content: a block before it, as the templates of reasoning models write it. */
static Status reasoning_read(LineReader *r, const Json *m, int role, const char *where)
{
    const char *key;
    const Json *v = chat_reasoning(m, &key);
    if (!v) return OK;
    if (!json_is_string(v)) return fail(E_DATA, "%s.%s: expected a string", where, key);
    if (!json_string_length(v)) return OK;
    if (role != ROLE_ASSISTANT) return fail(E_DATA, "%s.%s: only the assistant reasons", where, key);
    aside_add(r->c, "<think>\n", 8);
    aside_add(r->c, json_string_value(v), json_string_length(v));
    aside_add(r->c, "\n</think>\n\n", 11);
    return OK;
}

/* One message as {"role", "content"} or {"from", "value"}. */
static Status message_read(LineReader *r, const Json *m, const char *key, size_t i)
{
    char   where[48];
    int8_t loss;
    snprintf(where, sizeof where, "%s[%zu]", key, i);
    if (!json_is_object(m)) return fail(E_DATA, "%s: expected an object", where);
    int role = role_named(m);
    if (role < 0)
        return fail(E_DATA, "%s.%s: expected system, user (human), assistant (gpt) or tool", where,
                    json_has(m, "from") ? "from" : "role");
    const char *field = !json_object_get(m, "content") && json_object_get(m, "value") ? "value" : "content";
    const Json *content = json_object_get(m, field), *calls = json_object_get(m, "tool_calls");
    TRY(message_loss(m, where, &loss));
    turn_add(r->c, (Role)role, loss);
    r->c->turn[r->c->turns - 1].message = m;
    TRY(reasoning_read(r, m, role, where));
    bool calling = calls && !json_is_null(calls) && !(json_is_array(calls) && !json_array_size(calls));
    bool empty = !content || json_is_null(content);
    snprintf(r->where, sizeof r->where, "%s.%s", where, field);
    if (!empty || !calling) TRY(content_read(r, (Role)role, content));
    if (!calling) return OK;
    if (role != ROLE_ASSISTANT) return fail(E_DATA, "%s.tool_calls: only the assistant calls tools", where);
    return calls_read(r, calls, !empty && (json_string_length(content) || json_array_size(content)), where);
}

/* The tools of the line are appended to the system text. */
static Status tools_read(LineReader *r)
{
    const Json   *tools = json_object_get(r->line, "tools");
    Json         *parsed;
    Text          text = { 0 };
    Conversation *c = r->c;
    Status        st = chat_tools_parse(&parsed, &tools);
    if (st) return json_decref(parsed), st;
    if (json_is_array(tools) && json_array_size(tools)) {
        if (c->turns) aside_add(c, "\n\n", 2);
        else          turn_add(c, ROLE_SYSTEM, -1);
        st = chat_tools_text(&text, tools);
        if (!st) aside_add(c, mem_pool_copy(&c->keep, text.v, text.n), text.n);
        c->tools = json_incref((Json *)tools);
    } else if (tools && !json_is_null(tools) && !json_is_array(tools) && !json_is_string(tools))
        st = fail(E_DATA, "tools: expected a list");
    text_close(&text);
    json_decref(parsed);
    return st;
}

/* The system text given beside the messages. */
static Status system_read(LineReader *r)
{
    const Json *v = json_object_get(r->line, "system");
    if (!v || json_is_null(v)) return OK;
    if (!json_is_string(v)) return fail(E_DATA, "system: expected a string");
    if (!json_string_length(v)) return OK;
    turn_add(r->c, ROLE_SYSTEM, -1);
    return string_add(r, ROLE_SYSTEM, v);
}

static Status messages_read(LineReader *r, const char *key)
{
    const Json *list = json_object_get(r->line, key);
    size_t      n = json_array_size(list), i = 0;
    if (!n) return fail(E_DATA, "%s: expected a list of at least one message", key);
    TRY(system_read(r));
    if (role_named(json_array_get(list, 0)) == ROLE_SYSTEM) {
        if (r->c->turns) return fail(E_DATA, "system: %s[0] is a system message too; keep one", key);
        TRY(message_read(r, json_array_get(list, 0), key, i++));
    }
    TRY(tools_read(r));
    for (; i < n; i++) TRY(message_read(r, json_array_get(list, i), key, i));
    return OK;
}

static Status field_read(LineReader *r, Role role, const Json *v, const char *key)
{
    if (!json_is_string(v)) return fail(E_DATA, "%s: expected a string", key);
    return string_add(r, role, v);
}

/* instruction, input and output, after the question-answer pairs of history; input starts a new line. */
static Status alpaca_read(LineReader *r)
{
    const Json *history = json_object_get(r->line, "history"), *input = json_object_get(r->line, "input");
    const Json *instruction = json_object_get(r->line, "instruction");
    TRY(system_read(r));
    if (json_has(r->line, "history") && !json_is_array(history))
        return fail(E_DATA, "history: expected a list of [question, answer]");
    for (size_t i = 0; i < json_array_size(history); i++) {
        const Json *pair = json_array_get(history, i);
        snprintf(r->where, sizeof r->where, "history[%zu]", i);
        if (json_array_size(pair) != 2)
            return fail(E_DATA, "%s: expected [question, answer]", r->where);
        turn_add(r->c, ROLE_USER, -1);
        TRY(field_read(r, ROLE_USER, json_array_get(pair, 0), r->where));
        turn_add(r->c, ROLE_ASSISTANT, -1);
        TRY(field_read(r, ROLE_ASSISTANT, json_array_get(pair, 1), r->where));
    }
    turn_add(r->c, ROLE_USER, -1);
    TRY(field_read(r, ROLE_USER, instruction, "instruction"));
    if (json_has(r->line, "input") && !(json_is_string(input) && !json_string_length(input))) {
        if (json_string_length(instruction)) text_add(r->c, "\n", 1);
        TRY(field_read(r, ROLE_USER, input, "input"));
    }
    turn_add(r->c, ROLE_ASSISTANT, -1);
    return field_read(r, ROLE_ASSISTANT, json_object_get(r->line, "output"), "output");
}

static Status plain_read(LineReader *r)
{
    const Json *v = json_object_get(r->line, "text");
    if (!json_is_string(v) || !json_string_length(v))
        return fail(E_DATA, "text: expected a string that is not empty");
    r->c->plain = true;
    text_add(r->c, json_string_value(v), json_string_length(v));
    return OK;
}

/* The line's own variables of the chat template (TRL, ms-swift): an object, or the JSON of one. */
static Status kwargs_read(LineReader *r)
{
    const Json *v      = json_object_get(r->line, "chat_template_kwargs");
    Json       *parsed = NULL;
    if (!v || json_is_null(v)) return OK;
    if (json_is_string(v) && !json_parse_data(&parsed, json_string_value(v), json_string_length(v), "kwargs"))
        v = parsed;
    if (json_is_object(v)) r->c->kwargs = json_incref((Json *)v);
    json_decref(parsed);
    return r->c->kwargs ? OK : fail(E_DATA, "chat_template_kwargs: expected an object");
}

static Status form_read(LineReader *r)
{
    const Json *line = r->line;
    if (!json_is_object(line)) return fail(E_DATA, "expected a JSON object on each line");
    TRY(kwargs_read(r));
    TRY(list_open(&r->images, line, "images", "image", "<image>"));
    TRY(list_open(&r->videos, line, "videos", "video", "<video>"));
    if (json_has(line, "messages"))           TRY(messages_read(r, "messages"));
    else if (json_has(line, "conversations")) TRY(messages_read(r, "conversations"));
    else if (json_has(line, "instruction"))   TRY(alpaca_read(r));
    else if (json_has(line, "text"))          TRY(plain_read(r));
    else return fail(E_DATA,
                     "the line has none of messages, conversations, instruction (with output) and text");
    TRY(list_close(&r->images));
    return list_close(&r->videos);
}

Status conversation_read(Conversation *c, const Json *line)
{
    LineReader r = { .c = c, .line = line };
    *c = (Conversation){ 0 };
    Status st = form_read(&r);
    if (st) conversation_close(c);
    return st;
}

Status conversation_text(Conversation *c, const char *text, size_t len)
{
    *c = (Conversation){ .plain = true };
    if (!len) return fail(E_DATA, "the text is empty");
    text_add(c, text, len);
    return OK;
}

void conversation_close(Conversation *c)
{
    mem_pool_close(&c->keep);
    json_decref(c->tools), json_decref(c->kwargs);
    *c = (Conversation){ 0 };
}
