/* data/message_form.h -- brings the messages of other projects into the form that conversation_read reads. */
#ifndef DATA_MESSAGE_FORM_H
#define DATA_MESSAGE_FORM_H

#include "base/json.h"

/* Changes the messages in place: roles by other names, calls that a message of their own holds
 * (LLaMA-Factory's function_call, ms-swift's tool_call), and what they say of their loss (`train`,
 * `loss_scale`). `key` names the list in messages. What cannot be honoured is refused by name. */
MUST Status messages_form(Json *messages, const char *key);
/* The role of a message as a text, by the key that has it; NULL: it is none. */
const char *message_role(const Json *message);

#endif
