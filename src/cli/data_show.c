/* cli/data_show.c -- samples on a terminal: colours where there are some, marks where there are none. */
#define _GNU_SOURCE                   /* memmem */
#include "cli/data_show.h"

#include <string.h>

static bool is_visual(const SampleConf *c, int32_t id)
{
    return (c->stream.image_token >= 0 && id == c->stream.image_token) ||
           (c->stream.video_token >= 0 && id == c->stream.video_token);
}

/* Row i - 1 predicts token i. */
static TokenKind kind_of(const Sample *s, const SampleConf *c, int64_t i)
{
    if (is_visual(c, s->ids.v[i])) return TOKEN_VISUAL;
    return i > 0 && s->targets.v[i - 1] >= 0 ? TOKEN_TRAINED : TOKEN_MASKED;
}

static int64_t visual_tokens(const Sample *s, const SampleConf *c, int64_t slice)
{
    int64_t m = c->stream.merge;
    return slice < s->slices ? s->slice[slice].h / m * (s->slice[slice].w / m) : 1;
}

/* Are the bytes of n tokens from `from` on whole characters? Decoding puts U+FFFD where they are not. */
static bool is_whole(const Sample *s, const SampleConf *c, int64_t from, int64_t n)
{
    Text t = { 0 };
    bool whole = !tokenizer_decode(c->chat.tokenizer, &t, s->ids.v + from, n, false) &&
                 !memmem(t.v, t.n, "\xef\xbf\xbd", 3);
    text_close(&t);
    return whole;
}

bool token_run_next(const Sample *s, const SampleConf *c, int64_t *at, int64_t *slice, TokenRun *out)
{
    if (*at >= s->ids.n) return false;
    *out = (TokenRun){ kind_of(s, c, *at), *at, 1, -1 };
    if (out->kind == TOKEN_VISUAL) {
        out->n = visual_tokens(s, c, *slice), out->slice = (*slice)++;
    } else
        while (out->n < 4 && *at + out->n < s->ids.n && kind_of(s, c, *at + out->n) == out->kind &&
               !is_whole(s, c, *at, out->n))
            out->n++;
    *at += out->n;
    return true;
}

static const char *const colours[] = { "\033[90m", "\033[1;32m", "\033[34m" };
static const char *const opens[]   = { "", "[", "{" };
static const char *const closes[]  = { "", "]", "}" };

static void begin(Show *s, const char *title)
{
    if (s->colour)
        fprintf(s->out, "%s   %strained\033[0m %smasked\033[0m %svisual\033[0m\n", title,
                colours[TOKEN_TRAINED], colours[TOKEN_MASKED], colours[TOKEN_VISUAL]);
    else
        fprintf(s->out, "%s   [trained] masked {visual}\n", title);
}

static void border(Show *s, const char *text) { fprintf(s->out, "═══ %s ═══\n", text); }

/* Control characters of a text must not reach the terminal as such. */
static void put_text(FILE *out, const char *v, size_t n, bool flow)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)v[i];
        if (c == '\n')                  fputs(flow ? "⏎\n" : "⏎", out);
        else if (c == '\t')             fputs("→", out);
        else if (c < 0x20 || c == 0x7f) fprintf(out, "\\x%02x", c);
        else                            putc(c, out);
    }
}

static void put_visual(Show *s, const Sample *m, const TokenRun *r)
{
    if (r->slice >= m->slices) return;
    const RecordSlice *v = &m->slice[r->slice];
    fprintf(s->out, "%s: %lld tokens, %d x %d patches", sample_frame_name(m, v->a), (long long)r->n, v->h,
            v->w);
}

static Status put_run(Show *s, const Sample *m, const TokenRun *r)
{
    Text   t = { 0 };
    Status st = OK;
    if (r->kind == TOKEN_VISUAL) put_visual(s, m, r);
    else {
        st = tokenizer_decode(s->conf->chat.tokenizer, &t, m->ids.v + r->from, r->n, false);
        if (!st) put_text(s->out, t.v, t.n, !s->table);
        text_close(&t);
    }
    return st;
}

static Status put_flow(Show *s, const Sample *m)
{
    TokenRun  r;
    TokenKind last = TOKEN_MASKED;
    int64_t   at = 0, slice = 0;
    if (s->colour) fputs(colours[last], s->out);
    while (token_run_next(m, s->conf, &at, &slice, &r)) {
        if (r.kind != last || r.kind == TOKEN_VISUAL)
            fprintf(s->out, "%s%s", s->colour ? "\033[0m" : closes[last],
                    s->colour ? colours[r.kind] : opens[r.kind]);
        last = r.kind;
        TRY(put_run(s, m, &r));
    }
    fprintf(s->out, "%s\n", s->colour ? "\033[0m" : closes[last]);
    return OK;
}

static Status put_table(Show *s, const Sample *m)
{
    static const char *const words[] = { "masked", "trained", "visual" };
    TokenRun r;
    int64_t  at = 0, slice = 0;
    fprintf(s->out, "     row       id   target  kind     text\n");
    while (token_run_next(m, s->conf, &at, &slice, &r))
        for (int64_t i = r.from; i < r.from + (r.kind == TOKEN_VISUAL ? 1 : r.n); i++) {
            fprintf(s->out, "%8lld %8d %8d  %-8s ", (long long)i, m->ids.v[i], m->targets.v[i],
                    words[r.kind]);
            if (i == r.from) TRY(put_run(s, m, &r));
            putc('\n', s->out);
        }
    return OK;
}

static Status sample(Show *s, const Sample *m, int64_t number, const char *channel)
{
    fprintf(s->out, "── sample %lld: %s%s%s: %lld tokens, %lld learnt, %lld patches ──\n", (long long)number,
            m->record.where, *channel ? ", " : "", channel, (long long)m->size.tokens,
            (long long)m->size.supervised, (long long)m->size.patches);
    return s->table ? put_table(s, m) : put_flow(s, m);
}

static void end(Show *s) { fflush(s->out); }

void show_terminal(Show *s)
{
    s->begin = begin, s->border = border, s->sample = sample, s->end = end;
}
