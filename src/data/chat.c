/* data/chat.c -- the ChatML template with vision tokens: a conversation to ids and targets.
 *
 * The text between two special tokens is encoded in one call: "user\n" and the words after it belong
 * together, as in the reference, which encodes the whole rendered string. So `text` collects text until
 * the next special token. While rendering, targets hold one flag per token (supervised or not); at the end
 * the flags become shifted targets. */
#include "data/chat_private.h"
#include "data/chat_template.h"

#include <string.h>

LossSpan chat_loss_named(const char *word)
{
    if (!strcmp(word, "all")) return LOSS_ALL;
    return !strcmp(word, "last_round") ? LOSS_LAST_ROUND : LOSS_ASSISTANT;
}

Truncation chat_truncation_named(const char *word)
{
    if (!strcmp(word, "right")) return TRUNCATE_RIGHT;
    return !strcmp(word, "delete") ? TRUNCATE_DELETE : TRUNCATE_ERROR;
}

void chat_tokens_find(ChatTokens *c, const Tokenizer *t)
{
    *c = (ChatTokens){
        .im_start     = tokenizer_id(t, "<|im_start|>"),
        .im_end       = tokenizer_id(t, "<|im_end|>"),
        .endoftext    = tokenizer_id(t, "<|endoftext|>"),
        .vision_start = tokenizer_id(t, "<|vision_start|>"),
        .vision_end   = tokenizer_id(t, "<|vision_end|>"),
        .image_pad    = tokenizer_id(t, "<|image_pad|>"),
        .video_pad    = tokenizer_id(t, "<|video_pad|>"),
    };
}

Status chat_tokens(ChatTokens *c, const Tokenizer *t)
{
    chat_tokens_find(c, t);
    if (c->im_start < 0 || c->im_end < 0 || c->endoftext < 0)
        return fail(E_DATA, "the tokenizer has no %s among its added tokens: without a chat template in "
                            "the model's folder conversations need <|im_start|>, <|im_end|> and "
                            "<|endoftext|>; put the model's chat_template.jinja there",
                    c->im_start < 0 ? "<|im_start|>" : c->im_end < 0 ? "<|im_end|>" : "<|endoftext|>");
    return OK;
}

int32_t chat_text_end(const ChatTokens *c, const Tokenizer *t)
{
    return c->endoftext >= 0 ? c->endoftext : tokenizer_end(t);
}

/* Flags the ids that have no flag yet. */
static Status flag(Render *r, bool supervised)
{
    return ids_repeat(r->supervised, supervised, r->ids->n - r->supervised->n);
}

/* The next text at or after p of a token that only media may make, and its length. */
static const char *reserved_find(const char *p, const char *end, size_t *len)
{
    static const char *const reserved[] = { "<|vision_start|>", "<|image_pad|>", "<|video_pad|>" };
    for (; (p = memchr(p, '<', (size_t)(end - p))); p++)
        for (int i = 0; i < 3; i++) {
            *len = strlen(reserved[i]);
            if ((size_t)(end - p) >= *len && !memcmp(p, reserved[i], *len)) return p;
        }
    return NULL;
}

static Status encode(Render *r, const char *text, size_t n)
{
    const Tokenizer *t = r->chat->tokenizer;
    const char      *end = text + n;
    size_t           len;
    for (const char *p = text, *hit; p < end; p = hit ? hit + len : end) {
        hit = reserved_find(p, end, &len);
        TRY(tokenizer_encode(t, r->scratch, r->ids, p, (size_t)((hit ? hit : end) - p), false));
        if (hit) TRY(tokenizer_encode(t, r->scratch, r->ids, hit, len, true));
    }
    return OK;
}

/* Counts the tokens from row `from` on that start inside the header. The last may reach into the content
 * ("\n" and a content that starts with a line break are often one token); it is not supervised, because no
 * generation prompt ends with it. */
static Status header_tokens(Render *r, int64_t from, int64_t *n)
{
    r->decoded.n = 0;
    for (*n = 0; from + *n < r->ids->n && r->decoded.n < r->head; ++*n)
        TRY(tokenizer_decode_next(r->chat->tokenizer, &r->decoded, r->ids->v + from + *n, 1, false));
    return OK;
}

/* Encodes the collected text. */
static Status flush_text(Render *r)
{
    int64_t from = r->ids->n, header = 0;
    if (r->text.n) TRY(encode(r, r->text.v, r->text.n));
    if (r->head && r->frame != r->content) TRY(header_tokens(r, from, &header));
    TRY(ids_repeat(r->supervised, r->frame, header));
    r->text.n = r->head = 0;
    return flag(r, r->content);
}

static Status put_special(Render *r, int32_t id, bool supervised)
{
    TRY(flush_text(r));
    TRY(ids_push(r->ids, id));
    return flag(r, supervised);
}

static Status put_text(Render *r, const char *s) { return text_push(&r->text, s, strlen(s)); }

static Status put_header(Render *r, const char *role)
{
    TRY(put_special(r, r->chat->token.im_start, r->frame));
    TRY(put_text(r, role));
    r->head = r->text.n;
    return OK;
}

/* The line break after a turn is supervised where headers are; the next special token encodes it. */
static Status put_footer(Render *r)
{
    TRY(put_special(r, r->chat->token.im_end, r->content));
    r->content = r->frame;
    return put_text(r, "\n");
}

static Status put_pads(Render *r, int32_t pad, int64_t n)
{
    TRY(put_special(r, r->chat->token.vision_start, r->content));
    TRY(ids_repeat(r->ids, pad, n));
    TRY(flag(r, false));
    return put_special(r, r->chat->token.vision_end, r->content);
}

static int64_t slice_tokens(const Chat *chat, const Grid *g)
{
    int64_t m = chat->merge;
    REQUIRE(m > 0 && g->t > 0 && g->h > 0 && g->w > 0 && g->h % m == 0 && g->w % m == 0,
            "grid (%lld, %lld, %lld), merge %lld", (long long)g->t, (long long)g->h, (long long)g->w,
            (long long)m);
    return g->h / m * (g->w / m);
}

static Status put_video(Render *r, const Media *m, const Grid *g, int64_t n)
{
    const ChatTokens *t = &r->chat->token;
    REQUIRE(m->seconds, "a video without seconds: video_choose comes before chat_render");
    if (r->chat->video_outer) TRY(put_special(r, t->vision_start, r->content));
    for (int64_t s = 0; s < g->t; s++) {
        TRY(text_printf(&r->text, "<%.1f seconds>", m->seconds[s]));
        TRY(put_pads(r, t->video_pad, n));
    }
    return r->chat->video_outer ? put_special(r, t->vision_end, r->content) : OK;
}

Status chat_put_media(Render *r, int media, bool whole)
{
    const ChatTokens *t = &r->chat->token;
    const Media      *m   = &r->c->media[media];
    int32_t           pad = m->video ? t->video_pad : t->image_pad;
    if (t->vision_start < 0 || t->vision_end < 0 || pad < 0)
        return fail(E_DATA, "the sample has pictures, and the tokenizer has no vision tokens");
    const Grid *g = &r->grid[media];
    int64_t     n = slice_tokens(r->chat, g);
    if (m->video) return put_video(r, m, g, n);
    if (whole) return put_pads(r, pad, g->t * n);
    TRY(ids_repeat(r->ids, pad, g->t * n));
    return flag(r, false);
}

static Status put_item(Render *r, const ChatItem *it)
{
    if (it->kind == ITEM_TEXT) return text_push(&r->text, it->text, it->len);
    return chat_put_media(r, it->media, true);
}

static bool role_at(const Conversation *c, int i, Role role)
{
    return i >= 0 && i < c->turns && c->turn[i].role == role;
}

/* Consecutive tool answers share one user turn; the `loss` of the first applies to all. */
static Status put_turn(Render *r, int i, bool content)
{
    static const char *const headers[] = { "system\n", "user\n", "assistant\n", "user" };
    const Conversation *c = r->c;
    const ChatTurn     *t = &c->turn[i];
    bool                tool = t->role == ROLE_TOOL;
    if (!tool || !role_at(c, i - 1, ROLE_TOOL)) {
        TRY(flush_text(r));
        r->content = content, r->frame = r->chat->loss == LOSS_ALL && t->loss != 0;
        TRY(put_header(r, headers[t->role]));
    }
    if (tool) TRY(put_text(r, "\n<tool_response>\n"));
    for (int k = 0; k < t->items; k++) TRY(put_item(r, &c->item[t->first + k]));
    if (tool) TRY(put_text(r, "\n</tool_response>"));
    return tool && role_at(c, i + 1, ROLE_TOOL) ? OK : put_footer(r);
}

int chat_last_question(const Conversation *c)
{
    int i = c->turns - 1;
    while (i >= 0 && c->turn[i].role != ROLE_ASSISTANT) i--;
    while (i >= 0 && c->turn[i].role != ROLE_USER) i--;
    return i;
}

static Status put_turns(Render *r)
{
    const Conversation *c = r->c;
    const Chat         *chat = r->chat;
    ChatTokens          wanted;
    TRY(chat_tokens(&wanted, chat->tokenizer));
    int                 n = c->turns, question = chat->loss == LOSS_LAST_ROUND ? chat_last_question(c) : -1;
    if (chat->prompt_only && role_at(c, n - 1, ROLE_ASSISTANT)) n--;
    for (int i = 0; i < n; i++) {
        const ChatTurn *t = &c->turn[i];
        bool answer = t->role == ROLE_ASSISTANT && i > question;
        TRY(put_turn(r, i, t->loss >= 0 ? t->loss : answer || chat->loss == LOSS_ALL));
    }
    if (chat->prompt_only) TRY(put_header(r, "assistant\n"));
    return flush_text(r);
}

static Status put_plain(Render *r)
{
    const Tokenizer *t = r->chat->tokenizer;
    int32_t          begin = tokenizer_begin(t), end = chat_text_end(&r->chat->token, t);
    r->content = r->frame = true;
    if (end < 0)
        return fail(E_DATA, "the tokenizer has neither <|endoftext|> among its added tokens nor an "
                            "eos_token in tokenizer_config.json: nothing ends plain texts");
    if (begin >= 0) TRY(put_special(r, begin, false));
    TRY(put_item(r, &r->c->item[0]));
    return r->chat->prompt_only ? flush_text(r) : put_special(r, end, true);
}

/* Row i predicts token i + 1, where that is supervised. */
static void shift_targets(const Ids *ids, Ids *targets, int64_t from, bool none)
{
    for (int64_t i = from; i < ids->n; i++)
        targets->v[i] = i + 1 < ids->n && targets->v[i + 1] && !none ? ids->v[i + 1] : -1;
}

void chat_render_close(Render *r)
{
    text_close(&r->text);
    text_close(&r->decoded);
    mem_pool_close(&r->keep);
}

Status chat_render(const Chat *chat, TokenScratch *s, Ids *ids, Ids *targets, const Conversation *c,
                   const Grid *grid)
{
    Render  r = { .chat = chat, .scratch = s, .c = c, .grid = grid, .ids = ids, .supervised = targets };
    int64_t from = ids->n;
    REQUIRE(targets->n == from, "%lld ids and %lld targets", (long long)from, (long long)targets->n);
    bool   own = chat->template && !c->plain;
    Status st  = c->plain ? put_plain(&r)
                 : own    ? chat_template_ids(chat, s, ids, targets, c, grid)
                          : put_turns(&r);
    if (st) ids->n = targets->n = from;
    else    shift_targets(ids, targets, from, chat->prompt_only);
    chat_render_close(&r);
    return st;
}

/* The row to cut at, so that no medium is cut. Visual tokens come from media only, so their runs in the
 * document are the slices of the media in order. */
static int64_t cut_find(const Chat *chat, int *medias, const Ids *ids, int64_t from, int64_t cut,
                        const Conversation *c, const Grid *grid)
{
    int64_t i = from;
    for (*medias = 0; *medias < c->medias; ++*medias) {
        const Grid *g = &grid[*medias];
        int64_t     n = slice_tokens(chat, g), runs = c->media[*medias].video ? g->t : 1, first = -1;
        if (runs == 1) n *= g->t;
        for (int64_t k = 0; k < runs; k++) {
            while (i < ids->n && ids->v[i] != chat->token.image_pad && ids->v[i] != chat->token.video_pad)
                i++;
            if (first < 0) first = i - 1;
            i += n;
        }
        if (i < cut) continue;                            /* the vision_end at row i is inside too */
        return first < cut ? first : cut;
    }
    return cut;
}

/* An answer without its end is not supervised: clears the run of targets before the cut. */
static void clear_open_answer(Ids *targets, int64_t from, int64_t cut)
{
    for (int64_t i = cut; i-- > from && targets->v[i] >= 0;) targets->v[i] = -1;
}

Status chat_truncate(const Chat *chat, ChatFit *fit, Ids *ids, Ids *targets, int64_t from,
                     const Conversation *c, const Grid *grid, int64_t max_length, Truncation how)
{
    int64_t n = ids->n - from, cut = from + max_length;
    *fit = (ChatFit){ .medias = c->medias };
    if (n > max_length && how == TRUNCATE_ERROR)
        return fail(E_DATA, "%lld tokens, and data.max_length is %lld; raise it, or set data.truncation to "
                            "delete or right", (long long)n, (long long)max_length);
    if (n > max_length && how == TRUNCATE_DELETE) fit->drop = true;
    if (n > max_length && how == TRUNCATE_RIGHT) {
        cut = cut_find(chat, &fit->medias, ids, from, cut, c, grid);
        /* the last row lost the token that it predicts */
        bool open = cut > from && targets->v[cut - 1] >= 0;
        if (open && !c->plain && chat->loss != LOSS_ALL) clear_open_answer(targets, from, cut);
        else if (open) targets->v[cut - 1] = -1;
        ids->n = targets->n = cut;
    }
    fit->tokens = ids->n - from;
    for (int64_t i = from; i < targets->n; i++) fit->supervised += targets->v[i] >= 0;
    return OK;
}
