/* cli/chat.h -- what the two ways of `treb chat` share: an interactive conversation, and prompts from a
 * file. */
#ifndef CLI_CHAT_H
#define CLI_CHAT_H

#include "cli/ask_model.h"

typedef struct ChatArgs {
    AskModel    m;
    const char *system, *prompts, *out;
    char       *system_own;     /* of /system, or NULL */
    OptionList  image;          /* of the first message */
    int64_t     context, batch; /* tokens of prompts at once; prompts at once */
} ChatArgs;

/* Both are called by all ranks, with the model loaded. */
MUST Status chat_interactive(ChatArgs *c);
MUST Status chat_batch(ChatArgs *c);

#endif
