/* data/chat_template.h -- the chat template of a model's folder: chat_template.jinja, chat_template.json or
 * the key chat_template of tokenizer_config.json, with the special tokens of that file as its variables.
 *
 * chat_template_ids renders a conversation by it, encodes the text as one, and flags what the loss counts:
 * what the template writes for an assistant's message, less the generation prompt before it and the white
 * space after its last added token; or what stands inside {% generation %}, where a template has such
 * blocks. */
#ifndef DATA_CHAT_TEMPLATE_H
#define DATA_CHAT_TEMPLATE_H

#include "data/chat.h"
#include "jinja/jinja.h"

typedef struct ChatTemplate {
    JinjaTemplate *jinja;
    char          *source;
    Json          *tokens;      /* bos_token, eos_token, ... */
    char          *prompt;      /* the generation prompt: what add_generation_prompt appends; or "" */
    uint32_t       fingerprint; /* of the source */
} ChatTemplate;

MUST Status chat_template_open(ChatTemplate **t, const char *folder); /* *t is NULL where there is none */
/* The template of a file (Jinja, or JSON with the key chat_template), with the special tokens of the
 * folder. */
MUST Status chat_template_open_file(ChatTemplate **t, const char *folder, const char *path);
void        chat_template_close(ChatTemplate *t);                     /* NULL is fine */

/* The messages of c as the template reads them: role, content (a string, or parts where media are shown),
 * tool_calls with their arguments as objects, and every other key of a message. The caller releases them. */
Json *chat_template_messages(const Conversation *c, int turns);
/* The turn of message 0: a system turn that only holds the line's tools is no message. */
int   chat_template_first(const Conversation *c);
/* A copy of v in which texts do not spell the tokens of media; chat_template_ids writes them as plain
 * text. */
Json *chat_template_guard(const Json *v);
#define CHAT_GUARD "\xef\xb7\x90" /* U+FDD0, a noncharacter: stands for the < of such a token */

/* Appends ids, and a flag for each (supervised or not). */
MUST Status chat_template_ids(const Chat *chat, TokenScratch *s, Ids *ids, Ids *flags, const Conversation *c,
                              const Grid *grid);

#endif
