/* data/chat_tools.c -- see chat_tools.h. */
#include "data/chat_tools.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static Status push(Text *out, const char *s) { return text_push(out, s, strlen(s)); }

static Status string_push(Text *out, const char *s, size_t len)
{
    static const char *const named[32] = {
        ['\b'] = "\\b", ['\t'] = "\\t", ['\n'] = "\\n", ['\f'] = "\\f", ['\r'] = "\\r",
    };
    TRY(push(out, "\""));
    for (size_t i = 0, from = 0; i <= len; i++) {
        unsigned char c = i < len ? (unsigned char)s[i] : 0;
        if (i < len && c >= 32 && c != '"' && c != '\\') continue;
        TRY(text_push(out, s + from, i - from));
        from = i + 1;
        if (i == len) break;
        if (c >= 32) TRY(text_printf(out, "\\%c", c));
        else if (named[c]) TRY(push(out, named[c]));
        else TRY(text_printf(out, "\\u%04x", c));
    }
    return push(out, "\"");
}

/* The fewest digits that read back as v; an exponent below 1e-4 and from 1e16 on. */
static Status real_push(Text *out, double v)
{
    char text[40];
    int  digits = 1;
    while (snprintf(text, sizeof text, "%.*e", digits - 1, v), digits < 17 && strtod(text, NULL) != v)
        digits++;
    int exponent = atoi(strchr(text, 'e') + 1), decimals = digits - 1 - exponent;
    if (exponent >= -4 && exponent < 16) return text_printf(out, "%.*f", decimals > 1 ? decimals : 1, v);
    return push(out, text);
}

static Status object_push(Text *out, const Json *v)
{
    const char *key, *comma = "{";
    size_t      len;
    Json       *value;
    json_object_keylen_foreach((Json *)v, key, len, value) {
        TRY(push(out, comma));
        TRY(string_push(out, key, len));
        TRY(push(out, ": "));
        TRY(chat_tools_json(out, value));
        comma = ", ";
    }
    return push(out, *comma == '{' ? "{}" : "}");
}

Status chat_tools_json(Text *out, const Json *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:  return object_push(out, v);
    case JSON_STRING:  return string_push(out, json_string_value(v), json_string_length(v));
    case JSON_INTEGER: return text_printf(out, "%lld", (long long)json_integer_value(v));
    case JSON_REAL:    return real_push(out, json_real_value(v));
    case JSON_TRUE:    return push(out, "true");
    case JSON_FALSE:   return push(out, "false");
    case JSON_NULL:    return push(out, "null");
    case JSON_ARRAY:   break;
    }
    TRY(push(out, "["));
    for (size_t i = 0; i < json_array_size(v); i++) {
        if (i) TRY(push(out, ", "));
        TRY(chat_tools_json(out, json_array_get(v, i)));
    }
    return push(out, "]");
}

Status chat_tools_text(Text *out, const Json *tools)
{
    TRY(push(out, "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
                  "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"));
    for (size_t i = 0; i < json_array_size(tools); i++) {
        TRY(push(out, "\n"));
        TRY(chat_tools_json(out, json_array_get(tools, i)));
    }
    return push(out, "\n</tools>\n\nFor each function call, return a json object with function name and "
                     "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
                     "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>");
}

/* The name, and arguments that are a string, are inserted unquoted, as the template does. */
Status chat_tool_call_text(Text *out, const Json *call, const char *where)
{
    if (json_has(call, "function")) call = json_object_get(call, "function");
    const Json *name = json_object_get(call, "name"), *args = json_object_get(call, "arguments");
    if (!json_is_string(name)) return fail(E_DATA, "%s.name: expected a string", where);
    if (!args) return fail(E_DATA, "%s.arguments: expected an object, or its JSON as a string,", where);
    TRY(push(out, "<tool_call>\n{\"name\": \""));
    TRY(text_push(out, json_string_value(name), json_string_length(name)));
    TRY(push(out, "\", \"arguments\": "));
    if (json_is_string(args)) TRY(text_push(out, json_string_value(args), json_string_length(args)));
    else TRY(chat_tools_json(out, args));
    return push(out, "}\n</tool_call>");
}

/* Each tool is an object, or its JSON as a string. */
static Status tools_parse_each(Json **out, const Json *tools)
{
    *out = json_array();
    for (size_t i = 0; i < json_array_size(tools); i++) {
        Json       *tool = json_array_get(tools, i), *parsed;
        const char *s    = json_string_value(tool);
        if (!s) {
            json_array_append(*out, tool);
            continue;
        }
        TRY(json_parse_data(&parsed, s, json_string_length(tool), "tools: the JSON of a tool"));
        json_array_append_new(*out, parsed);
    }
    return OK;
}

Status chat_tools_parse(Json **parsed, const Json **tools)
{
    Json *whole = NULL, *each = NULL;
    *parsed     = NULL;
    if (json_is_string(*tools) && json_string_length(*tools)) {
        TRY(json_parse_data(&whole, json_string_value(*tools), json_string_length(*tools), "tools"));
        *tools = *parsed = whole;
    }
    if (!json_is_array(*tools)) return OK;
    Status st = tools_parse_each(&each, *tools);
    json_decref(whole);
    *tools = *parsed = each;
    return st;
}
