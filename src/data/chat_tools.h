/* data/chat_tools.h -- tool definitions and tool calls as the chat template writes them.
 *
 * JSON inside them equals json.dumps(x, ensure_ascii=False) of Python: ", " and ": " as separators, keys
 * in the given order, shortest decimals. */
#ifndef DATA_CHAT_TOOLS_H
#define DATA_CHAT_TOOLS_H

#include "base/json.h"
#include "data/ids.h"

MUST Status chat_tools_json(Text *out, const Json *v);
/* The block that follows the system text, from "# Tools" on. tools: a list of definitions. */
MUST Status chat_tools_text(Text *out, const Json *tools);
/* <tool_call> ... </tool_call>; call: {"name", "arguments"}, or that under "function". where: for errors. */
MUST Status chat_tool_call_text(Text *out, const Json *call, const char *where);

/* *tools, a list or its JSON as a string, becomes a list of objects, also where each tool is the JSON of one.
 * *parsed: what the caller frees, also on failure. Other values stay as they are. */
MUST Status chat_tools_parse(Json **parsed, const Json **tools);

#endif
