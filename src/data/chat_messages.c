/* data/chat_messages.c -- a conversation as the messages that chat templates read; see chat_template.h. */
#include "data/chat_template.h"

#include <string.h>

static const char *const reserved[] = { "<|vision_start|>", "<|image_pad|>", "<|video_pad|>" };

/* The next text at or after p that spells a token of media. */
static const char *reserved_at(const char *p, const char *end)
{
    for (; (p = memchr(p, '<', (size_t)(end - p))); p++)
        for (int i = 0; i < 3; i++) {
            size_t n = strlen(reserved[i]);
            if ((size_t)(end - p) >= n && !memcmp(p, reserved[i], n)) return p;
        }
    return NULL;
}

static Json *guard_text(const char *s, size_t len)
{
    const char *end = s + len, *hit = reserved_at(s, end);
    Text        text = { 0 };
    Status      st   = OK;
    if (!hit) return json_stringn_nocheck(s, len);
    for (; !st && hit; s = hit + 1, hit = reserved_at(s, end)) {
        st = text_push(&text, s, (size_t)(hit - s));
        if (!st) st = text_push(&text, CHAT_GUARD, strlen(CHAT_GUARD));
    }
    if (!st) st = text_push(&text, s, (size_t)(end - s));
    Json *out = st ? NULL : json_stringn_nocheck(text.v, text.n);
    text_close(&text);
    return out;
}

Json *chat_template_guard(const Json *v)
{
    const char *key;
    Json       *value, *out;
    size_t      i;
    if (json_is_string(v)) return guard_text(json_string_value(v), json_string_length(v));
    if (json_is_array(v)) {
        out = json_array();
        json_array_foreach((Json *)v, i, value) json_array_append_new(out, chat_template_guard(value));
        return out;
    }
    if (!json_is_object(v)) return json_incref((Json *)v);
    out = json_object();
    json_object_foreach((Json *)v, key, value) json_object_set_new(out, key, chat_template_guard(value));
    return out;
}

static Json *part_of(const ChatItem *it)
{
    if (it->kind != ITEM_TEXT) return json_pack("{ss}", "type", it->kind == ITEM_IMAGE ? "image" : "video");
    return json_pack("{ssso}", "type", "text", "text", guard_text(it->text, it->len));
}

/* One string, or a list of parts where media are among them. */
static Json *content_of(const Conversation *c, const ChatTurn *t)
{
    Json *parts = json_array(), *out;
    Text  text  = { 0 };
    bool  media = false;
    for (int i = 0; i < t->content; i++) {
        const ChatItem *it = &c->item[t->content_first + i];
        media              = media || it->kind != ITEM_TEXT;
        json_array_append_new(parts, part_of(it));
        if (it->kind == ITEM_TEXT && text_push(&text, it->text, it->len)) break;
    }
    out = media ? json_incref(parts) : guard_text(text.v ? text.v : "", text.n);
    json_decref(parts);
    text_close(&text);
    return out;
}

/* {"type": "function", "function": {"name", "arguments"}}; arguments that are the text of an object become
 * it. */
static Json *call_of(const Json *call)
{
    const Json *f =
        json_is_object(json_object_get(call, "function")) ? json_object_get(call, "function") : call;
    Json *out = json_object(), *function = json_object(), *parsed = NULL,
         *arguments = json_object_get(f, "arguments");
    if (json_is_string(arguments) &&
        !json_parse_data(&parsed, json_string_value(arguments), json_string_length(arguments), "arguments") &&
        json_is_object(parsed))
        arguments = parsed;
    if (call != f) json_object_update(out, (Json *)call);
    json_object_update(function, (Json *)f);
    json_object_set(function, "arguments", arguments);
    json_object_set_new(out, "type", json_string("function"));
    json_object_set_new(out, "function", function);
    json_decref(parsed);
    return out;
}

static Json *calls_of(const Json *calls)
{
    Json *out = json_array();
    for (size_t i = 0; i < json_array_size(calls); i++)
        json_array_append_new(out, call_of(json_array_get(calls, i)));
    return out;
}

static Json *message_of(const Conversation *c, const ChatTurn *t)
{
    static const char *const roles[] = { "system", "user", "assistant", "tool" };
    static const char *const ours[]  = { "from", "value", "loss", "weight", NULL };
    Json *out = json_object(), *calls = json_object_get(t->message, "tool_calls"), *guarded;
    json_object_set_new(out, "role", json_string(roles[t->role]));
    json_object_set_new(out, "content", json_null());
    if (t->message) json_object_update(out, (Json *)t->message);
    const char *key;
    Json       *reasoning = (Json *)chat_reasoning(t->message, &key);
    if (reasoning) {
        json_object_set(out, "reasoning_content", reasoning);
        if (!json_has(out, "thinking")) json_object_set(out, "thinking", reasoning);
    }
    for (int i = 0; ours[i]; i++) json_object_del(out, ours[i]);
    json_object_set_new(out, "role", json_string(roles[t->role]));
    if (json_array_size(calls)) json_object_set_new(out, "tool_calls", calls_of(calls));
    else json_object_del(out, "tool_calls");
    json_object_del(out, "content");
    void *next;
    Json *value;
    json_object_foreach_safe(out, next, key, value) if (json_is_null(value)) json_object_del(out, key);
    guarded = chat_template_guard(out);
    json_decref(out);
    json_object_set_new(guarded, "content", content_of(c, t));
    return guarded;
}

int chat_template_first(const Conversation *c)
{
    const ChatTurn *t = c->turn;
    return c->turns && c->tools && t->role == ROLE_SYSTEM && !t->message && !t->content;
}

Json *chat_template_messages(const Conversation *c, int turns)
{
    Json *out = json_array();
    for (int i = chat_template_first(c); i < turns; i++)
        json_array_append_new(out, message_of(c, &c->turn[i]));
    return out;
}
