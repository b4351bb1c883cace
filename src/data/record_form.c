/* data/record_form.c -- see record_form.h. */
#define _GNU_SOURCE /* memmem */
#include "data/record_form.h"

#include "base/str.h"
#include "data/ids.h"
#include "data/message_form.h"
#include <stdio.h>
#include <string.h>

/* One "ours=theirs" of data.columns; false: it is malformed. */
static bool column_pair(const char *item, size_t len, char ours[64], char theirs[64])
{
    const char *sign = memchr(item, '=', len);
    if (!sign || sign == item || sign + 1 == item + len || len > 126) return false;
    size_t a = (size_t)(sign - item), b = len - a - 1;
    if (a > 63 || b > 63) return false;
    memcpy(ours, item, a), memcpy(theirs, sign + 1, b);
    return ours[a] = theirs[b] = 0, true;
}

Status record_columns_check(const char *columns)
{
    char        ours[64], theirs[64];
    size_t      len;
    const char *rest = columns;
    for (const char *s; *columns && (s = str_item(&rest, ',', &len));)
        if (!column_pair(s, len, ours, theirs))
            return fail(E_CONFIG,
                        "data.columns: expected pairs as messages=dialog,images=pictures (ours=theirs), "
                        "got %.*s",
                        (int)len, s);
    return OK;
}

static void rename_columns(Json *record, const char *columns)
{
    char        ours[64], theirs[64];
    size_t      len;
    const char *rest = columns;
    for (const char *s; *columns && (s = str_item(&rest, ',', &len));) {
        if (!column_pair(s, len, ours, theirs) || !json_object_get(record, theirs)) continue;
        json_object_set(record, ours, json_object_get(record, theirs));
        json_object_del(record, theirs);
    }
}

static Json *messages_of(const Json *record)
{
    Json *m = json_object_get(record, json_has(record, "messages") ? "messages" : "conversations");
    return json_is_array(m) ? m : NULL;
}

static bool is_empty(const Json *v)
{
    return !v || json_is_null(v) || (json_is_array(v) && !json_array_size(v)) ||
           (json_is_object(v) && !json_object_size(v)) || (json_is_string(v) && !json_string_length(v));
}

static Status refuse_unread(const Json *record)
{
    static const struct {
        const char *key, *text;
    } rows[] = {
        { "objects", "grounding boxes are not filled in; write their coordinates into the messages" },
        { "audios", "audio is not read; remove the samples that have it" },
        { "audio", "audio is not read; remove the samples that have it" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!is_empty(json_object_get(record, rows[i].key)))
            return fail(E_DATA, "%s: %s", rows[i].key, rows[i].text);
    const char *const marks[] = { "label", "kto_tag" };
    for (int i = 0; i < 2; i++)
        if (json_is_false(json_object_get(record, marks[i])))
            return fail(E_DATA,
                        "%s: false marks an answer that is not wanted, and it would be learnt; remove the "
                        "sample",
                        marks[i]);
    return OK;
}

static bool is_answer(const Json *m)
{
    const char *role = message_role(m);
    return role && str_lists("assistant,gpt,bot,model,chatgpt,function_call,tool_call", ',', role);
}

/* prompt and completion as lists of messages: answers within the prompt are not learnt, as in TRL. */
static void join_messages(Json *record, const char *question, const char *answer)
{
    Json *all = json_array(), *asked = json_object_get(record, question);
    for (size_t i = 0; i < json_array_size(asked); i++) {
        Json *m = json_array_get(asked, i);
        if (is_answer(m) && !json_has(m, "loss") && !json_has(m, "weight"))
            json_object_set_new(m, "loss", json_false());
    }
    json_array_extend(all, asked);
    json_array_extend(all, json_object_get(record, answer));
    json_object_set_new(record, "messages", all);
    json_object_del(record, question);
    json_object_del(record, answer);
}

static void rename_key(Json *record, const char *from, const char *to)
{
    json_object_set(record, to, json_object_get(record, from));
    json_object_del(record, from);
}

static bool has_form(const Json *record)
{
    return json_has(record, "messages") || json_has(record, "conversations") ||
           json_has(record, "instruction") || json_has(record, "text");
}

enum { PAIRS = 4 };
static const char *const pairs[PAIRS][2] = {
    { "query", "response" },
    { "prompt", "completion" },
    { "question", "answer" },
    { "prompt", "response" },
};

/* Values that are no strings are refused here, by the name that the record gives them. */
static Status rename_pair(Json *record, const char *question, const char *answer)
{
    const char *const keys[] = { question, answer };
    for (int i = 0; i < 2; i++)
        if (!json_is_string(json_object_get(record, keys[i])))
            return fail(E_DATA, "%s: expected a string", keys[i]);
    rename_key(record, question, "instruction");
    rename_key(record, answer, "output");
    return OK;
}

/* ms-swift's rounds of {"human", "assistant"}. */
static void split_rounds(Json *record)
{
    static const char *const sides[] = { "human", "assistant" };
    const Json              *rounds  = json_object_get(record, "conversations"), *round;
    Json                    *all     = json_array();
    size_t                   i;
    json_array_foreach((Json *)rounds, i, round) for (int k = 0; k < 2; k++)
        json_array_append_new(all, json_pack("{sssO?}", "role", k ? "assistant" : "user", "content",
                                             json_object_get(round, sides[k])));
    const Json *first = json_array_get(rounds, 0);
    if (!json_has(record, "messages") && json_has(first, "human") && json_has(first, "assistant")) {
        json_object_set(record, "messages", all);
        json_object_del(record, "conversations");
    }
    json_decref(all);
}

static Status rename_form(Json *record)
{
    if (!has_form(record) && json_is_array(json_object_get(record, "conversation")))
        rename_key(record, "conversation", "conversations");
    split_rounds(record);
    bool answered = json_object_get(record, "output") || !json_has(record, "response");
    if (json_has(record, "instruction") && !answered) rename_key(record, "response", "output");
    for (size_t i = 0; i < PAIRS && !has_form(record); i++) {
        const char *question = pairs[i][0], *answer = pairs[i][1];
        if (!json_has(record, question) || !json_has(record, answer)) continue;
        if (json_is_array(json_object_get(record, question)) &&
            json_is_array(json_object_get(record, answer))) {
            join_messages(record, question, answer);
            continue;
        }
        TRY(rename_pair(record, question, answer));
    }
    return OK;
}

static void list_keys(const Json *record, char keys[256])
{
    const char *key;
    Json       *value;
    *keys = 0;
    json_object_foreach((Json *)record, key, value)
    {
        size_t at = strlen(keys);
        if (at + strlen(key) + 3 < 256) snprintf(keys + at, 256 - at, "%s%s", at ? ", " : "", key);
    }
}

/* An instruction whose answer has another name. */
static Status check_answer(const Json *record)
{
    char keys[256];
    if (messages_of(record) || !json_has(record, "instruction") || json_object_get(record, "output"))
        return OK;
    list_keys(record, keys);
    return fail(E_DATA,
                "output: expected a string; the record has the keys %s; data.columns renames the answer "
                "(output=THEIRS)",
                keys);
}

static Status fail_form(const Json *record)
{
    char keys[256];
    for (int i = 0; i < PAIRS; i++)
        if (json_object_get(record, pairs[i][0]) && json_object_get(record, pairs[i][1]))
            return fail(E_DATA, "%s: null; expected a string", pairs[i][!json_has(record, pairs[i][1])]);
    list_keys(record, keys);
    return fail(
        E_DATA,
        "no form of record is known that has the keys %s; expected messages, conversations, instruction "
        "and output, query and response, prompt and completion, question and answer, or text; data.columns "
        "renames columns (messages=THEIRS)",
        *keys ? keys : "(none)");
}

static bool is_user(const Json *m)
{
    const char *role = message_role(m);
    return role && (!strcmp(role, "user") || !strcmp(role, "human"));
}

/* Whether a text or a list of parts shows a medium. */
static bool shows(const Json *content, const char *mark, const char *type)
{
    if (json_is_string(content))
        return memmem(json_string_value(content), json_string_length(content), mark, strlen(mark));
    for (size_t i = 0; i < json_array_size(content); i++) {
        const Json *part = json_array_get(content, i), *said = json_object_get(part, "type");
        if (json_has(part, type) ||
            (json_is_string(said) && !strncmp(json_string_value(said), type, strlen(type))))
            return true;
    }
    return false;
}

static const char *content_key(const Json *m) { return json_has(m, "content") ? "content" : "value"; }

static bool record_shows(const Json *record, const char *mark, const char *type)
{
    const Json *messages = messages_of(record);
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const Json *m = json_array_get(messages, i);
        if (shows(json_object_get(m, content_key(m)), mark, type)) return true;
    }
    return shows(json_object_get(record, "instruction"), mark, type) ||
           shows(json_object_get(record, "input"), mark, type) || json_has(record, "text");
}

static Status put_marks(Json *owner, const char *key, const char *mark, size_t n)
{
    const Json *old  = json_object_get(owner, key);
    Text        text = { 0 };
    Status      st   = OK;
    for (size_t i = 0; !st && i < n; i++) st = text_push(&text, mark, strlen(mark));
    if (!st) st = text_push(&text, json_string_value(old), json_string_length(old));
    if (!st) json_object_set_new(owner, key, json_stringn(text.v, text.n));
    text_close(&text);
    return st;
}

static Status put_in_front(Json *owner, const char *key, const char *mark, const char *type, size_t n)
{
    Json *old = json_object_get(owner, key);
    if (json_is_string(old)) return put_marks(owner, key, mark, n);
    for (size_t i = 0; json_is_array(old) && i < n; i++)
        json_array_insert_new(old, i, json_pack("{ss}", "type", type));
    return OK;
}

/* The media of a line under `many` or, one or more of them, under `type`: a list of frames is one video. */
static size_t count_media(const Json *record, const char *many, const char *type)
{
    const Json *media  = json_object_get(record, json_has(record, type) ? type : many);
    const Json *first  = json_array_get(media, 0);
    bool        frames = !strcmp(type, "video") && json_has(record, type) && json_is_string(first);
    if (is_empty(media)) return 0;
    return json_is_array(media) && !frames ? json_array_size(media) : 1;
}

/* Media that the line lists and no placeholder shows stand before the first question. */
static Status show_media(Json *record, const char *list, const char *mark, const char *type)
{
    Json  *messages = messages_of(record);
    size_t n        = count_media(record, list, type);
    if (!n || n > 4096 || record_shows(record, mark, type)) return OK;
    if (json_is_string(json_object_get(record, "instruction")))
        TRY(put_in_front(record, "instruction", mark, type, n));
    for (size_t i = 0; i < json_array_size(messages); i++) {
        Json *m = json_array_get(messages, i);
        if (!is_user(m)) continue;
        return put_in_front(m, content_key(m), mark, type, n);
    }
    return OK;
}

/* Messages that are the JSON of their list, as tables without nested columns have them. */
static void parse_lists(Json *record)
{
    static const char *const keys[] = { "messages", "conversations" };
    for (int i = 0; i < 2; i++) {
        const Json *text = json_object_get(record, keys[i]);
        Json       *list = NULL;
        if (json_is_string(text) &&
            !json_parse_data(&list, json_string_value(text), json_string_length(text), keys[i]) &&
            json_is_array(list))
            json_object_set(record, keys[i], list);
        json_decref(list);
    }
}

Status record_form(Json *record, const char *columns)
{
    if (!json_is_object(record)) return fail(E_DATA, "expected a JSON object");
    rename_columns(record, columns);
    parse_lists(record);
    TRY(refuse_unread(record));
    TRY(rename_form(record));
    if (!has_form(record)) return fail_form(record);
    TRY(check_answer(record));
    Json *messages = messages_of(record);
    TRY(messages_form(messages, json_has(record, "messages") ? "messages" : "conversations"));
    TRY(show_media(record, "images", "<image>", "image"));
    return show_media(record, "videos", "<video>", "video");
}

static void count_name(UnusedKeys *u, const char *name, int64_t n)
{
    for (int i = 0; i < u->n; i++)
        if (!strcmp(u->name[i], name)) {
            u->count[i] += n;
            return;
        }
    if (u->n == UNUSED_KEYS) {
        u->others += n;
        return;
    }
    snprintf(u->name[u->n], UNUSED_NAME, "%s", name);
    u->count[u->n++] = n;
}

static void count_key(UnusedKeys *u, const char *prefix, const char *key)
{
    char name[UNUSED_NAME];
    snprintf(name, sizeof name, "%s%s", prefix, key);
    count_name(u, name, 1);
}

void unused_keys_join(UnusedKeys *u, const UnusedKeys *more)
{
    for (int i = 0; i < more->n; i++) count_name(u, more->name[i], more->count[i]);
    u->others += more->others;
}

static void count_unlisted(UnusedKeys *u, const Json *o, const char *prefix, const char *used)
{
    const char *key;
    Json       *value;
    json_object_foreach((Json *)o, key, value) if (!json_is_null(value) && !str_lists(used, ',', key))
        count_key(u, prefix, key);
}

/* Parts of a content are read by these keys alone, whatever the template. */
static void count_parts(UnusedKeys *u, const Json *content)
{
    for (size_t i = 0; i < json_array_size(content); i++) {
        const Json *part = json_array_get(content, i);
        count_unlisted(u, part, "messages[].content[].",
                       "type,text,image,image_url,video,video_url,path,url,fps,sample_fps");
        count_unlisted(u, json_object_get(part, "image_url"), "messages[].content[].image_url.", "url,path");
    }
}

/* A key that the source of the template names may be read. */
static void count_message(UnusedKeys *u, const Json *m, const char *template)
{
    const char *key;
    Json       *value;
    count_parts(u, json_object_get(m, content_key(m)));
    json_object_foreach((Json *)m, key, value)
    {
        bool used = str_lists(
            "role,from,content,value,loss,weight,tool_calls,reasoning_content,reasoning,thinking", ',', key);
        if (!json_is_null(value) && !used && !(template && strstr(template, key)))
            count_key(u, "messages[].", key);
    }
}

void unused_keys_add(UnusedKeys *u, const Json *record, const char *template)
{
    bool chat   = json_has(record, "messages") || json_has(record, "conversations");
    bool alpaca = !chat && json_has(record, "instruction");
    if (!template && json_has(record, "chat_template_kwargs")) count_key(u, "", "chat_template_kwargs");
    count_unlisted(
        u, record, "",
        chat ? (json_has(record, "messages")
                    ? "messages,images,image,videos,video,fps,tools,system,chat_template_kwargs"
                    : "conversations,images,image,videos,video,fps,tools,system,chat_template_kwargs")
        : alpaca
            ? "instruction,input,output,history,system,images,image,videos,video,fps,chat_template_kwargs"
            : "text");
    const Json *list = messages_of(record);
    for (size_t i = 0; chat && i < json_array_size(list); i++)
        count_message(u, json_array_get(list, i), template);
}

void unused_keys_text(const UnusedKeys *u, char *out, size_t cap)
{
    *out = 0;
    for (int i = 0; i < u->n; i++) {
        size_t at = strlen(out);
        snprintf(out + at, cap - at, "%s%s (%lld)", i ? ", " : "", u->name[i], (long long)u->count[i]);
    }
    size_t at = strlen(out);
    if (u->others) snprintf(out + at, cap - at, " and others");
}
