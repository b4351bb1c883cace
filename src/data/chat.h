/* data/chat.h -- a conversation as people store it, and as the model sees it.
 *
 * conversation_read takes one JSON object in any of the forms that are about (messages with <image> marks and
 * an images list, OpenAI content parts, ShareGPT conversations, alpaca, plain text) to one struct;
 * chat_render turns that into ids and targets by the ChatML template with vision tokens. Media are references
 * here: sizes come from picture headers, pixels much later. The steps of one line:
 *
 *   conversation_read    turns, items, media; every frame that the line lists
 *   video_choose         (data/video.h) the frames that will be used and the seconds of their slices
 *   chat_render          with the grid of each medium: ids and targets
 *   chat_truncate        what data.max_length and data.truncation leave of them */
#ifndef DATA_CHAT_H
#define DATA_CHAT_H

#include "base/json.h"
#include "base/keep.h"
#include "data/tokenizer.h"

typedef enum { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL } Role;
typedef enum { ITEM_TEXT, ITEM_IMAGE, ITEM_VIDEO } ItemKind;

/* media: row of Conversation.media. loss: 1, 0, or -1 as the recipe says. */
typedef struct ChatItem { ItemKind kind; const char *text; size_t len; int media; } ChatItem;
typedef struct ChatTurn { Role role; int first, items; int8_t loss; } ChatTurn;

/* One picture file: a path as the line has it, or bytes that the line (a data: URI) or its archive
 * brought. */
typedef struct Frame { const char *path; const void *bytes; size_t len; } Frame;
/* A picture is one frame; a video is its frames in order, with the rate they were taken at (0: not said).
 * seconds: one per slice of a video, set by video_choose. */
typedef struct Media { bool video; int first, frames; double fps; const double *seconds; } Media;

typedef struct Conversation {
    ChatTurn *turn;
    ChatItem *item;
    Media    *media;                     /* in the order in which the template shows them */
    Frame    *frame;
    int       turns, items, medias, frames;
    bool      plain;                     /* pre-training text: one item, no turn, every token supervised */
    Keep      keep;                      /* owns everything above */
} Conversation;

/* The object must outlive c (texts and paths point into it). Errors name the field: "messages[2].content: …".
 * On failure c is closed. Pictures belong to user and tool messages; <image> elsewhere is ordinary text. */
MUST Status conversation_read(Conversation *c, const Json *line);
MUST Status conversation_text(Conversation *c, const char *text, size_t len); /* plain; text must outlive c */
void        conversation_close(Conversation *c);                                /* twice is fine */

/* assistant: every answer and its <|im_end|>. last_round: only answers to the last user message. all: every
 * token, headers too. A message's own `loss` goes before the recipe. */
typedef enum { LOSS_ASSISTANT, LOSS_LAST_ROUND, LOSS_ALL } LossSpan;
typedef enum { TRUNCATE_ERROR, TRUNCATE_DELETE, TRUNCATE_RIGHT } Truncation;
LossSpan   chat_loss_named(const char *word);           /* of data.loss; the recipe has checked the word */
Truncation chat_truncation_named(const char *word);     /* of data.truncation */

/* The ids the template needs, looked up once. A tokenizer without the first three cannot serve conversations;
 * those of vision are -1 where it has none, and then a conversation with pictures is refused. */
typedef struct ChatTokens {
    int32_t im_start, im_end, endoftext, vision_start, vision_end, image_pad, video_pad;
} ChatTokens;
MUST Status chat_tokens(ChatTokens *c, const Tokenizer *t);

/* Grid of a medium in patches after resizing: t slices of h x w. */
typedef struct Grid { int64_t t, h, w; } Grid;

typedef struct Chat {
    const Tokenizer *tokenizer;
    ChatTokens       token;
    LossSpan         loss;
    int64_t          merge;              /* patches per side of a visual token */
    bool             prompt_only;        /* no closing assistant turn, but the generation prompt */
    bool             video_outer;        /* one more vision_start … vision_end around a video (5.x) */
} Chat;

/* Appends the whole document: ids and targets (targets[i] is what row i must predict, -1 for nothing; all -1
 * with prompt_only). grid has c->medias rows. On failure nothing is appended.
 * Added tokens that stand in somebody's text become their ids, as in the reference; but <|vision_start|>,
 * <|image_pad|> and <|video_pad|> stay ordinary text, since only media may make visual tokens. */
MUST Status chat_render(const Chat *chat, TokenScratch *s, Ids *ids, Ids *targets, const Conversation *c,
                        const Grid *grid);

/* What is left of a document. supervised 0: nothing can be learnt from it. */
typedef struct ChatFit { bool drop; int medias; int64_t tokens, supervised; } ChatFit;

/* Holds the document that chat_render appended at row `from` to max_length tokens. A longer one is an error,
 * or fit->drop is set and nothing is changed (delete), or its end is cut off (right). A cut inside a picture
 * or a video moves to before it; fit->medias says how many media are left, the first ones. An answer that
 * lost its <|im_end|> is not learnt from, as the reference scripts have it; plain text and LOSS_ALL learn up
 * to the cut. */
MUST Status chat_truncate(const Chat *chat, ChatFit *fit, Ids *ids, Ids *targets, int64_t from,
                          const Conversation *c, const Grid *grid, int64_t max_length, Truncation how);

#endif
