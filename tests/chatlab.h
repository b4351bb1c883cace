/* tests/chatlab.h -- one dataset line read, rendered and shown as text, for tests of conversations.
 *
 * Renderings are compared as text: ids decoded, a run of n pads written as <|image_pad|>*n; `supervised`
 * is the decoded targets, with '|' between their runs. The tokenizer is that of tiny_tokenizer.h: bytes,
 * with "\n\n" as the one merge. */
#ifndef TESTS_CHATLAB_H
#define TESTS_CHATLAB_H

#include "lab.h"
#include "tiny_tokenizer.h"

#include "data/chat.h"
#include "data/video.h"

/* Parts of lines and of their renderings. */
#define LINE(messages, more) "{'messages': [" messages "]" more "}"
#define MESSAGE(role, text)  "{'role': '" role "', 'content': '" text "'}"
#define USER(text)           MESSAGE("user", text)
#define ANSWER(text)         MESSAGE("assistant", text)
#define PARTS(parts)         "{'role': 'user', 'content': [" parts "]}"

#define TURN(role, text)     "<|im_start|>" role "\n" text "<|im_end|>\n"
#define PICTURE(n)           "<|vision_start|><|image_pad|>*" #n "<|vision_end|>"
#define SLICE(seconds, n)    "<" seconds " seconds><|vision_start|><|video_pad|>*" #n "<|vision_end|>"
#define END                  "<|im_end|>"

typedef struct Kit {
    Tokenizer    *tokenizer;
    TokenScratch *scratch;
    Chat          chat;
    Json         *line;
    Conversation  c;
    Grid          grid[8];
    Ids           ids, targets;
    Text          seen, supervised;          /* with a NUL at the end */
} Kit;

/* Lines and expected texts are written with ' for ". */
static inline const char *quoted(char *buffer, size_t size, const char *text)
{
    REQUIRE(strlen(text) < size, "%s", text);
    for (size_t i = 0; i <= strlen(text); i++) buffer[i] = text[i] == '\'' ? '"' : text[i];
    return buffer;
}

static inline Json *line_parse(const char *text)
{
    char  buffer[8192];
    Json *line = NULL;
    EXPECT_OK(json_parse(&line, quoted(buffer, sizeof buffer, text), strlen(text), "line"));
    return line;
}

static const VideoRule kit_rule = { .fps = 2, .min_frames = 4, .max_frames = 768, .group = 2 };

/* Media get grids of 2, 4, 6, … tokens a slice. */
static inline void kit_read(Kit *k)
{
    Status st = conversation_read(&k->c, k->line);
    if (!st) st = video_choose(&k->c, &kit_rule);
    EXPECT(!st, "%s", status_text());
    REQUIRE(k->c.medias <= 8, "%d media", k->c.medias);
    for (int i = 0; i < k->c.medias; i++)
        k->grid[i] = (Grid){ k->c.media[i].video ? video_slices(&k->c.media[i], 2) : 1, 2, 4 * (i + 1) };
}

/* Owns the tokenizer from here on. json: the line, or NULL. */
static inline void kit_with(Kit *k, Tokenizer *t, const char *json)
{
    *k = (Kit){ .tokenizer = t };
    k->chat = (Chat){ .tokenizer = k->tokenizer, .merge = 2 };
    EXPECT_OK(chat_tokens(&k->chat.token, k->tokenizer));
    EXPECT_OK(token_scratch_open(&k->scratch, k->tokenizer));
    if (json) k->line = line_parse(json), kit_read(k);
}

static inline void kit_open(Kit *k, const char *json) { kit_with(k, tiny_open(lab_tmp(), TINY_ADDED), json); }

static inline void kit_close(Kit *k)
{
    conversation_close(&k->c);
    conversation_close(&k->c);
    json_decref(k->line);
    ids_close(&k->ids), ids_close(&k->targets);
    text_close(&k->seen), text_close(&k->supervised);
    token_scratch_close(k->scratch);
    tokenizer_close(k->tokenizer);
}

static inline bool is_pad(const Kit *k, int32_t id)
{
    return id == k->chat.token.image_pad || id == k->chat.token.video_pad;
}

/* A letter may be several tokens, so runs of targets are decoded together. */
static inline void kit_texts(Kit *k)
{
    const int32_t *id = k->ids.v, *t = k->targets.v;
    int64_t        n = k->ids.n;
    k->seen.n = k->supervised.n = 0;
    for (int64_t i = 0, run; i < n; i += run) {
        bool pad = is_pad(k, id[i]);
        for (run = 1; i + run < n && (pad ? id[i + run] == id[i] : !is_pad(k, id[i + run]));) run++;
        EXPECT_OK(tokenizer_decode(k->tokenizer, &k->seen, &id[i], pad ? 1 : run, false));
        if (pad) EXPECT_OK(text_printf(&k->seen, "*%d", (int)run));
    }
    for (int64_t i = 0, run; i < n; i += run) {
        for (run = 0; i + run < n && t[i + run] >= 0; run++) {
            EXPECT(i + run + 1 < n && t[i + run] == id[i + run + 1], "target %lld", (long long)(i + run));
            EXPECT(!is_pad(k, t[i + run]), "a pad is supervised at %lld", (long long)(i + run));
        }
        if (run && k->supervised.n) EXPECT_OK(text_push(&k->supervised, "|", 1));
        EXPECT_OK(tokenizer_decode(k->tokenizer, &k->supervised, &t[i], run, false));
        if (!run) run = 1;
    }
    EXPECT_OK(text_push(&k->seen, "", 1));
    EXPECT_OK(text_push(&k->supervised, "", 1));
}

static inline void kit_render(Kit *k)
{
    k->ids.n = k->targets.n = 0;
    EXPECT_OK(chat_render(&k->chat, k->scratch, &k->ids, &k->targets, &k->c, k->grid));
    EXPECT(k->ids.n == k->targets.n, "%lld ids, %lld targets", (long long)k->ids.n, (long long)k->targets.n);
    kit_texts(k);
}

#define EXPECT_TEXT(got, want) EXPECT(!strcmp(got, want), "got  %s\n    want %s", got, want)

static inline void expect_render(const char *json, LossSpan loss, const char *seen, const char *supervised)
{
    Kit  k;
    char want[8192];
    kit_open(&k, json);
    k.chat.loss = loss;
    kit_render(&k);
    EXPECT_TEXT(k.seen.v, quoted(want, sizeof want, seen));
    EXPECT_TEXT(k.supervised.v, quoted(want, sizeof want, supervised));
    kit_close(&k);
}

#endif
