/* data/chat.h -- a conversation as people store it, and as the model sees it.
 *
 * conversation_read takes one JSON object in any of the forms that are about (messages with <image> marks and an
 * images list, OpenAI content parts, ShareGPT conversations, alpaca, plain text) to one struct; chat_render turns
 * that into ids and targets by the ChatML template with vision tokens. Media are references here: sizes come
 * from picture headers, pixels much later. */
#ifndef DATA_CHAT_H
#define DATA_CHAT_H

#include "base/json.h"
#include "base/keep.h"
#include "data/tokenizer.h"

typedef enum { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL } Role;
typedef enum { ITEM_TEXT, ITEM_IMAGE, ITEM_VIDEO } ItemKind;

typedef struct ChatItem { ItemKind kind; const char *text; size_t len; int media; } ChatItem;    /* media: row of Conversation.media */
typedef struct ChatTurn { Role role; int first, items; int8_t loss; } ChatTurn;                  /* loss: 1, 0, -1 as the recipe says */

/* One picture file: a path as written in the line, or bytes that the line (a data: URI) or its archive brought. */
typedef struct Frame { const char *path; const void *bytes; size_t len; } Frame;
/* A picture is one frame; a video is its frames in order, with the rate they were taken at. */
typedef struct Media { bool video; int first, frames; double fps; } Media;

typedef struct Conversation {
    ChatTurn *turn;
    ChatItem *item;
    Media    *media;
    Frame    *frame;
    int       turns, items, medias, frames;
    bool      plain;                     /* pre-training text: one item, no template, every token supervised */
    Keep      keep;                      /* owns everything above */
} Conversation;

/* The object must outlive c (texts point into it). Errors name the field: "messages[2].content: …". */
MUST Status conversation_read(Conversation *c, const Json *line);
MUST Status conversation_text(Conversation *c, const char *text, size_t len);     /* plain */
void        conversation_close(Conversation *c);

typedef enum { LOSS_ASSISTANT, LOSS_LAST_ROUND, LOSS_ALL } LossSpan;

/* The ids the template needs, looked up once; a tokenizer without them cannot serve conversations. */
typedef struct ChatTokens { int32_t im_start, im_end, vision_start, vision_end, image_pad, video_pad, endoftext; } ChatTokens;
MUST Status chat_tokens(ChatTokens *c, const Tokenizer *t);

/* Grid of a medium in patches after resizing: t slices of h x w. */
typedef struct Grid { int64_t t, h, w; } Grid;

typedef struct Chat {
    const Tokenizer *tokenizer;
    ChatTokens       token;
    LossSpan         loss;
    int64_t          merge;              /* patches per side of a visual token */
    bool             prompt_only;        /* stop before the last assistant turn, with the generation prompt */
} Chat;

/* Appends the whole document: ids and targets (targets[i] is what row i must predict, -1 for nothing). grid has
 * c->medias rows. */
MUST Status chat_render(const Chat *chat, TokenScratch *s, Ids *ids, Ids *targets, const Conversation *c, const Grid *grid);

#endif
