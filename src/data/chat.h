/* data/chat.h -- conversations: from the JSON of a dataset to ids and targets.
 *
 * conversation_read reads one JSON object in any of the usual forms (messages with <image> placeholders
 * and an images list, OpenAI content parts, ShareGPT conversations, alpaca, plain text); chat_render
 * renders it by the model's chat template (data/chat_template.h) or by ChatML with vision tokens. Media are
 * references here: their sizes come from file headers, and pixels are decoded much later. The steps of one
 * line:
 *
 *   conversation_read    turns, items, media; every frame that the line lists
 *   video_choose         (data/video.h) the frames that are used and the seconds of their slices
 *   chat_render          with the grid of each medium: ids and targets
 *   chat_truncate        applies data.max_length and data.truncation */
#ifndef DATA_CHAT_H
#define DATA_CHAT_H

#include "base/json.h"
#include "base/mem_pool.h"
#include "data/tokenizer.h"

typedef enum { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL } Role;
typedef enum { ITEM_TEXT, ITEM_IMAGE, ITEM_VIDEO } ItemKind;

/* media: row of Conversation.media. loss: 1, 0, or -1 for the setting of the recipe. */
typedef struct ChatItem { ItemKind kind; const char *text; size_t len; int media; } ChatItem;
/* first, items: all rows as ChatML writes them; content_first, content: those of the message's content,
 * without tool calls and reasoning. message: the message of the line, or NULL where the turn has none. */
typedef struct ChatTurn {
    Role        role;
    int         first, items, content_first, content;
    int8_t      loss;
    const Json *message;
} ChatTurn;

/* One picture file: a path as in the line, or bytes from the line (a data: URI) or its archive. nth: a frame
 * of a video file, counted from 1; 0: a picture file, or a video file as a whole. */
typedef struct Frame { const char *path; const void *bytes; size_t len; int64_t nth; } Frame;
/* A picture is one frame; a video is its frames in order, with their rate (0: not given). A video file is one
 * frame until video_choose has replaced that by the frames that are used; fps is then the rate to sample at.
 * seconds: one for each slice of a video, set by video_choose. */
typedef struct Media {
    bool          video, file;
    int           first, frames;
    double        fps;
    int64_t       h, w;                  /* of a video file's frames */
    const double *seconds;
} Media;

typedef struct Conversation {
    ChatTurn *turn;
    ChatItem *item;
    Media    *media;                     /* in the order of the template */
    Frame    *frame;
    int       turns, items, medias, frames;
    Json        *tools;                     /* definitions of the line's tools; NULL: none */
    Json        *kwargs;                    /* the line's own variables of the template; NULL: none */
    bool      plain;                     /* pre-training text: one item, no turn, every token supervised */
    MemPool      keep;                      /* owns everything above */
} Conversation;

/* The object must outlive c (texts and paths point into it). Errors name the field: "messages[2].content: …".
 * On failure c is closed. Media occur in user and tool messages; <image> elsewhere is ordinary text. */
MUST Status conversation_read(Conversation *c, const Json *line);
MUST Status conversation_text(Conversation *c, const char *text, size_t len); /* plain; text must outlive c */
void        conversation_close(Conversation *c);                                /* twice is fine */
/* The reasoning of a message, under the first of the names that it may have; NULL: none. */
const Json *chat_reasoning(const Json *message, const char **key);

/* assistant: every answer and its <|im_end|>. last_round: only answers to the last user message. all: every
 * token, headers too. The `loss` of a message overrides the recipe. */
typedef enum { LOSS_ASSISTANT, LOSS_LAST_ROUND, LOSS_ALL } LossSpan;
typedef enum { TRUNCATE_ERROR, TRUNCATE_DELETE, TRUNCATE_RIGHT } Truncation;
LossSpan   chat_loss_named(const char *word);           /* a value of data.loss, already checked */
Truncation chat_truncation_named(const char *word);     /* a value of data.truncation */

/* The ids of the template, looked up once. ChatML needs the first three, which chat_tokens checks. The vision
 * ids are -1 where the tokenizer has none; a conversation with pictures is then refused. */
typedef struct ChatTokens {
    int32_t im_start, im_end, endoftext, vision_start, vision_end, image_pad, video_pad;
} ChatTokens;
void        chat_tokens_find(ChatTokens *c, const Tokenizer *t); /* -1 for a token that there is not */
MUST Status chat_tokens(ChatTokens *c, const Tokenizer *t);
int32_t     chat_text_end(const ChatTokens *c, const Tokenizer *t); /* ends plain texts; -1: nothing does */

/* Grid of a medium in patches after resizing: t slices of h x w. */
typedef struct Grid { int64_t t, h, w; } Grid;

typedef struct Chat {
    const Tokenizer *tokenizer;
    const struct ChatTemplate *template; /* the model's own; NULL: ChatML */
    ChatTokens       token;
    LossSpan         loss;
    int64_t          merge;              /* patches per side of a visual token */
    bool             prompt_only;        /* the generation prompt instead of a closing assistant turn */
    bool             video_outer;  /* one more vision_start … vision_end around a video (transformers 5) */
} Chat;

/* Appends the whole document: ids and targets (targets[i] is what row i must predict, -1 for nothing; all
 * -1 with prompt_only). grid has c->medias rows. On failure nothing is appended. Added tokens in the text
 * of a message become their ids, as in the reference; but <|vision_start|>, <|image_pad|> and
 * <|video_pad|> stay ordinary text, since only media may make visual tokens. */
MUST Status chat_render(const Chat *chat, TokenScratch *s, Ids *ids, Ids *targets, const Conversation *c,
                        const Grid *grid);

/* What is left of a document after truncation. */
typedef struct ChatFit { bool drop; int medias; int64_t tokens, supervised; } ChatFit;

/* Limits the document that chat_render appended at row `from` to max_length tokens. A longer document is
 * an error, or sets fit->drop and stays unchanged (delete), or loses its end (right). A cut inside a
 * picture or a video moves to its start; the first fit->medias media are left. An answer that lost its
 * <|im_end|> is not supervised, as in the reference; plain text and LOSS_ALL are supervised up to the cut. */
MUST Status chat_truncate(const Chat *chat, ChatFit *fit, Ids *ids, Ids *targets, int64_t from,
                          const Conversation *c, const Grid *grid, int64_t max_length, Truncation how);

#endif
