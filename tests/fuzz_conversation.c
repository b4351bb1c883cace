/* tests/fuzz_conversation.c -- hostile dataset lines. For any bytes reading gives an error with a text, or
 * a conversation whose rows are all in range; it then renders, with as many pads as its media have, and
 * truncates.
 *
 * Edits of bytes mostly break the JSON. So each input is run twice: as a line, and as edits of a valid
 * line: the first byte selects the line, then pairs of bytes select a value and its replacement. */
#include "data/chat.h"
#include "data/video.h"
#include "tiny_tokenizer.h"

#include <stdlib.h>
#include <string.h>

/* With ' for ", to be readable. */
static const char *const LINES[] = {
    "{'id': 1, 'messages': [{'role': 'system', 'content': 'S'}, {'role': 'user', 'content': '<image>\\nA "
    "<image>?'}, "
    "{'role': 'assistant', 'content': 'B', 'loss': true}, {'role': 'user', 'content': '<video>C'}, "
    "{'role': 'assistant', 'content': '\\nD'}], 'images': ['a.png', 'data:image/png;base64,iVBORw0KGgo='], "
    "'videos': [['1.png', '2.png', '3.png']], 'fps': 2.5}",
    "{'messages': [{'role': 'user', 'content': [{'type': 'image', 'image': 'a.png'}, {'type': 'text', "
    "'text': 'A'}, "
    "{'type': 'image_url', 'image_url': {'url': 'file:///b.png'}}, {'type': 'video', 'video': ['c', 'd'], "
    "'fps': 1}, "
    "{'type': 'image'}]}, {'role': 'assistant', 'content': [{'type': 'text', 'text': 'B'}]}], 'images': "
    "['e']}",
    "{'tools': [{'name': 'f', 'p': {'x': [1.5, null, true]}}], 'messages': [{'role': 'user', 'content': "
    "'Q'}, "
    "{'role': 'assistant', 'content': null, 'tool_calls': [{'function': {'name': 'f', 'arguments': {'a': "
    "1e-7}}}, "
    "{'name': 'g', 'arguments': '{}'}]}, {'role': 'tool', 'content': 'r'}, {'role': 'tool', 'content': 's'}, "
    "{'role': 'assistant', 'content': '<|image_pad|>'}]}",
    "{'conversations': [{'from': 'human', 'value': '<image>\\nA'}, {'from': 'gpt', 'value': 'B'}], 'image': "
    "'a.png'}",
    "{'conversations': [{'from': 'human', 'value': '<video>A'}, {'from': 'gpt', 'value': 'B'}], "
    "'video': ['1', '2', '3', '4'], 'system': 'S'}",
    "{'instruction': 'I <image>', 'input': 'N', 'output': 'O', 'history': [['q', 'a']], 'images': ['a']}",
    "{'text': 'Once <|vision_start|> upon <|im_end|> a time'}",
};
enum { LINES_N = sizeof LINES / sizeof *LINES, LINE_MAX_LEN = 1024 };

static size_t line_text(char buffer[LINE_MAX_LEN], int i)
{
    size_t n = strlen(LINES[i]);
    REQUIRE(n < LINE_MAX_LEN, "line %d", i);
    for (size_t k = 0; k <= n; k++) buffer[k] = LINES[i][k] == '\'' ? '"' : LINES[i][k];
    return n;
}

static void rows_check(const Conversation *c)
{
    int items = 0;
    for (int i = 0; i < c->turns; i++) {
        REQUIRE(c->turn[i].first == items && c->turn[i].items >= 0, "turn %d begins at %d", i,
                c->turn[i].first);
        items += c->turn[i].items;
    }
    REQUIRE(c->plain ? c->turns == 0 && c->items == 1 : items == c->items && c->turns > 0, "%d items",
            c->items);
    for (int i = 0, media = 0; i < c->items; i++) {
        const ChatItem *it = &c->item[i];
        if (it->kind == ITEM_TEXT) REQUIRE(it->len && !memchr(it->text, 0, it->len), "text of item %d", i);
        else {
            REQUIRE(it->media == media && media < c->medias, "medium of item %d", i);
            REQUIRE(c->media[media++].video == (it->kind == ITEM_VIDEO), "kind of item %d", i);
        }
    }
    for (int i = 0; i < c->medias; i++) {
        const Media *m = &c->media[i];
        REQUIRE(m->frames > 0 && m->first >= 0 && m->first + m->frames <= c->frames, "frames of medium %d",
                i);
        for (int k = 0; k < m->frames; k++) {
            const Frame *f = &c->frame[m->first + k];
            REQUIRE(f->path ? *f->path && !f->bytes : f->bytes && f->len, "frame %d", m->first + k);
        }
    }
}

static void targets_check(const Chat *chat, const Ids *ids, const Ids *targets, int64_t pads)
{
    REQUIRE(ids->n == targets->n && ids->n > 0, "%lld ids", (long long)ids->n);
    for (int64_t i = 0; i < ids->n; i++) {
        int32_t t = targets->v[i];
        pads -= ids->v[i] == chat->token.image_pad || ids->v[i] == chat->token.video_pad;
        REQUIRE(t == -1 || (i + 1 < ids->n && t == ids->v[i + 1]), "target %lld", (long long)i);
        REQUIRE(t != chat->token.image_pad && t != chat->token.video_pad, "a pad is supervised at %lld",
                (long long)i);
    }
    REQUIRE(pads == 0, "%lld pads too few", (long long)pads);
}

static int64_t pads_of(const Grid *g, int n)
{
    int64_t pads = 0;
    for (int i = 0; i < n; i++) pads += g[i].t * g[i].h * g[i].w / 4;
    return pads;
}

static void render_check(Chat *chat, TokenScratch *scratch, const Conversation *c, unsigned how)
{
    Ids     ids = { 0 }, targets = { 0 };
    Grid   *grid = calloc((size_t)c->medias + 1, sizeof *grid);
    ChatFit fit;
    for (int i = 0; i < c->medias; i++)
        grid[i] = (Grid){ c->media[i].video ? video_slices(&c->media[i], 2) : 1, 2, 2 * (1 + i % 3) };
    chat->loss = (LossSpan)(how % 3), chat->video_outer = how & 4, chat->prompt_only = how & 8;
    REQUIRE(!chat_render(chat, scratch, &ids, &targets, c, grid), "%s", status_text());
    targets_check(chat, &ids, &targets, pads_of(grid, c->medias));
    int64_t max = 1 + (int64_t)how % (ids.n + 1);
    REQUIRE(!chat_truncate(chat, &fit, &ids, &targets, 0, c, grid, max, TRUNCATE_RIGHT), "%s", status_text());
    REQUIRE(fit.tokens == ids.n && ids.n <= max && fit.medias <= c->medias, "cut to %lld", (long long)ids.n);
    targets_check(chat, &ids, &targets, pads_of(grid, fit.medias));
    ids_close(&ids), ids_close(&targets);
    free(grid);
}

static void line_check(const Json *line, unsigned how)
{
    static Chat          chat;                    /* opened once: the tokenizer is not under test */
    static TokenScratch *scratch;
    const VideoRule      rule = { .fps = 2, .min_frames = 4, .max_frames = 6, .group = 2 };
    Conversation         c;
    if (!scratch) {
        const char *tmp = getenv("TMPDIR");
        Tokenizer  *t = tiny_open(tmp && *tmp ? tmp : "/tmp", TINY_ADDED);
        chat = (Chat){ .tokenizer = t, .merge = 2 };
        REQUIRE(!chat_tokens(&chat.token, t) && !token_scratch_open(&scratch, t), "%s", status_text());
    }
    Status st = conversation_read(&c, line);
    REQUIRE(!st || (status_text()[0] && !c.turn && !c.keep.newest), "an error without text, or half open");
    if (!st) rows_check(&c);
    if (!st) st = video_choose(&c, &rule);
    for (int i = 0; !st && i < c.medias; i++)
        if (c.media[i].file) st = video_choose_file(&c, i, &(VideoInfo){ 90, 64, 96, 23.976 }, &rule);
    if (!st) rows_check(&c), render_check(&chat, scratch, &c, how);
    conversation_close(&c);
    conversation_close(&c);
}

/* Replacements of a value: numbers and texts at the limits of what a reader accepts. */
static Json *value_new(unsigned what, Json *old)
{
    static const char *const texts[] = {
        "", "\n", "<", "\xC3\xA9", "<image>", "<video><image>", "<|im_end|>", "<|video_pad|>",
        "<|image_pad|><|vision_start|>", "user", "tool", "assistant", "system", "image", "video", "text",
        "http://x/y", "file://", "data:,", "data:;base64,TWE", "data:;base64,!",
    };
    static const double numbers[] = { 0, -1, 1e-300, 1e300, 0.5, 3 };
    switch (what % 8) {
    case 0:  return json_null();
    case 1:  return json_boolean(what & 8);
    case 2:  return json_real(numbers[what / 8 % 6]);
    case 3:  return json_array();
    case 4:  return json_object();
    case 5:  return json_pack("[O, O]", old, old);
    case 6:  return json_pack("{s:O}", what & 8 ? "frames" : "function", old);
    default: return json_string(texts[what / 8 % (sizeof texts / sizeof *texts)]);
    }
}

/* Edits the value `at` steps from here in depth-first order; returns the steps that are left. */
static int value_edit(Json *v, int at, unsigned what)
{
    size_t      i;
    const char *key;
    void       *next;
    Json       *child;
    json_array_foreach(v, i, child) {
        if (at == 0) return json_array_set_new(v, i, value_new(what, child)), -1;
        if ((at = value_edit(child, at - 1, what)) < 0) return -1;
    }
    json_object_foreach_safe(v, next, key, child) {
        if (at == 0 && what == 255) return json_object_del(v, key), -1;
        if (at == 0) return json_object_set_new(v, key, value_new(what, child)), -1;
        if ((at = value_edit(child, at - 1, what)) < 0) return -1;
    }
    return at;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Json    *line = NULL;
    unsigned how = 0;
    for (size_t i = 0; i < size; i++) how = how * 31 + data[i];
    if (!json_parse(&line, (const char *)data, size, "line")) line_check(line, how);
    json_decref(line);
    if (!size) return 0;
    char   whole[LINE_MAX_LEN];
    size_t len = line_text(whole, data[0] % LINES_N);
    REQUIRE(!json_parse(&line, whole, len, "line"), "%s", status_text());
    for (size_t i = 1; i + 1 < size && i < 9; i += 2) value_edit(line, data[i] % 64, data[i + 1]);
    line_check(line, how);
    json_decref(line);
    return 0;
}

#ifndef TREB_LIBFUZZER
#include "fuzz_driver.h"

static void fuzz_seeds(Fuzz *f)
{
    char line[LINE_MAX_LEN];
    for (int i = 0; i < LINES_N; i++) fuzz_add(f, line, line_text(line, i));
    for (int i = 0; i < 64; i++) {
        uint8_t edits[5] = { (uint8_t)i, (uint8_t)(7 * i), (uint8_t)(i * i), (uint8_t)(i + 3),
                             (uint8_t)(31 * i) };
        fuzz_add(f, edits, sizeof edits);
    }
}
#endif
