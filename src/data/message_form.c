/* data/message_form.c -- see message_form.h. */
#define _GNU_SOURCE /* memmem */
#include "data/message_form.h"

#include "data/ids.h"
#include <string.h>

static const char *role_key(const Json *m) { return json_has(m, "role") ? "role" : "from"; }

const char *message_role(const Json *message)
{
    const Json *role = json_object_get(message, role_key(message));
    return json_is_string(role) ? json_string_value(role) : NULL;
}

/* A content that is the JSON of a call, or of a list of calls; a thought in <think> may stand before it. */
static Status call_from_text(Json *m, const char *role)
{
    static const char end[] = "</think>";
    const char       *key   = json_has(m, "value") ? "value" : "content";
    const Json       *text  = json_object_get(m, key);
    const char       *s     = json_is_string(text) ? json_string_value(text) : "", *thought;
    size_t            len = json_is_string(text) ? json_string_length(text) : 0, skip = 0;
    Json             *call = NULL, *calls;
    if (!strncmp(s, "<think>", 7) && (thought = memmem(s, len, end, strlen(end))))
        skip = (size_t)(thought - s) + strlen(end);
    if (json_is_object(text) || json_is_array(text)) call = json_incref((Json *)text);
    else if (json_parse_data(&call, s + skip, len - skip, "call"))
        return fail(E_DATA, "%s of a %s: expected the JSON of a call, or of a list of calls", key, role);
    calls = json_is_array(call) ? json_incref(call) : json_pack("[O]", call);
    json_decref(call);
    Json *content = skip ? json_stringn(s, skip) : json_null();
    json_object_del(m, "value");
    json_object_set_new(m, "content", content);
    json_object_set_new(m, "tool_calls", calls);
    return OK;
}

static Status name_role(Json *m)
{
    static const char *const names[][2] = {
        { "function_call", "assistant" }, { "tool_call", "assistant" }, { "bot", "assistant" },
        { "model", "assistant" },         { "chatgpt", "assistant" },   { "function", "tool" },
        { "tool_response", "tool" },      { "ipython", "tool" },        { "developer", "system" },
    };
    const char *role = message_role(m);
    for (size_t i = 0; role && i < sizeof names / sizeof *names; i++) {
        if (strcmp(role, names[i][0])) continue;
        if (i < 2) TRY(call_from_text(m, names[i][0]));
        return json_object_set_new(m, role_key(m), json_string(names[i][1])), OK;
    }
    return OK;
}

static bool is_assistant(const Json *m)
{
    const char *role = message_role(m);
    return role && (!strcmp(role, "assistant") || !strcmp(role, "gpt"));
}

/* ms-swift's tool_call messages belong to the answer before them. */
static bool join_call(Json *messages, size_t i)
{
    Json *m = json_array_get(messages, i), *before = i ? json_array_get(messages, i - 1) : NULL;
    Json *calls = json_object_get(before, "tool_calls");
    bool  own   = json_has(m, "loss") || json_has(m, "weight");
    if (!is_assistant(before) || own || (calls && !json_is_array(calls))) return false;
    if (!calls) json_object_set_new(before, "tool_calls", json_array());
    json_array_extend(json_object_get(before, "tool_calls"), json_object_get(m, "tool_calls"));
    return json_array_remove(messages, i), true;
}

/* axolotl's `train` and ms-swift's `loss_scale` as `loss`. */
static Status say_loss(Json *m, const char *where)
{
    const Json *train = json_object_get(m, "train"), *scale = json_object_get(m, "loss_scale");
    double      by   = json_number_value(scale);
    int         loss = -1;
    if (json_has(m, "train_detail"))
        return fail(E_DATA,
                    "%s.train_detail: parts of a message cannot be left out of the loss; write loss: "
                    "true or false for all of it",
                    where);
    if (json_has(m, "train") && !json_is_boolean(train))
        return fail(E_DATA, "%s.train: expected true or false", where);
    if (json_has(m, "loss_scale") && (!json_is_number(scale) || (by != 0 && by != 1)))
        return fail(E_DATA,
                    "%s.loss_scale: a weight other than 0 and 1 is not trained; write loss: true or "
                    "false",
                    where);
    if (json_is_boolean(train)) loss = json_is_true(train);
    else if (json_is_number(scale)) loss = by != 0;
    if (json_is_true(train) && !is_assistant(m))
        return fail(E_DATA, "%s.train: only answers are learnt; remove it, or set data.loss=all", where);
    json_object_del(m, "train"), json_object_del(m, "loss_scale");
    if (loss >= 0 && is_assistant(m) && !json_has(m, "loss") && !json_has(m, "weight"))
        json_object_set_new(m, "loss", json_boolean(loss));
    return OK;
}

/* Parts that are not to be learnt. */
static Status check_parts(const Json *m, const char *where)
{
    static const char *const keys[] = { "content", "reasoning_content" };
    for (int k = 0; k < 2; k++) {
        const Json *parts = json_object_get(m, keys[k]);
        for (size_t i = 0; i < json_array_size(parts); i++) {
            const Json *part = json_array_get(parts, i), *weight = json_object_get(part, "weight");
            bool        out = json_is_false(json_object_get(part, "train"));
            if (out || (json_is_number(weight) && json_number_value(weight) != 1))
                return fail(E_DATA,
                            "%s.%s[%zu].%s: parts of a message cannot be left out of the loss; write "
                            "loss: true or false for all of it",
                            where, keys[k], i, out ? "train" : "weight");
        }
    }
    return OK;
}

Status messages_form(Json *messages, const char *key)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        char        where[48];
        Json       *m    = json_array_get(messages, i);
        const char *role = message_role(m);
        bool        call = role && !strcmp(role, "tool_call");
        snprintf(where, sizeof where, "%s[%zu]", key, i);
        TRY(name_role(m));
        TRY(say_loss(m, where));
        TRY(check_parts(m, where));
        if (call && join_call(messages, i)) i--;
    }
    return OK;
}
