/* data/chat_private.h -- what both ways of rendering a conversation share. */
#ifndef DATA_CHAT_PRIVATE_H
#define DATA_CHAT_PRIVATE_H

#include "data/chat.h"

typedef struct Render {
    const Chat         *chat;
    TokenScratch       *scratch;
    const Conversation *c;
    const Grid         *grid;
    Ids                *ids, *supervised;
    Text                text; /* not encoded yet; its first `head` bytes are the header of a turn */
    size_t              head;
    bool                frame, content; /* whether headers, and what follows them, are supervised */
    Text                decoded;
    MemPool             keep;
} Render;

void        chat_render_close(Render *r);
/* The pads of a medium. whole: with the tokens around it; a video always has them around each slice. */
MUST Status chat_put_media(Render *r, int media, bool whole);
int chat_last_question(const Conversation *c); /* the last user turn before the last answer; -1: none */

#endif
