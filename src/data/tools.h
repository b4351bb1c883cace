/* data/tools.h -- tool definitions and tool calls as the chat template writes them.
 *
 * JSON inside them is spelt as Python's json.dumps(x, ensure_ascii=False) spells it: ", " and ": " between
 * things, keys in the order given, shortest decimals. */
#ifndef DATA_TOOLS_H
#define DATA_TOOLS_H

#include "base/json.h"
#include "data/ids.h"

MUST Status python_json(Text *out, const Json *v);
/* The block that follows the system text, from "# Tools" on. tools: a list of definitions. */
MUST Status tools_text(Text *out, const Json *tools);
/* <tool_call> ... </tool_call>; call: {"name", "arguments"}, or that under "function". where: for errors. */
MUST Status tool_call_text(Text *out, const Json *call, const char *where);

#endif
