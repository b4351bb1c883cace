/* cli/data_show.c -- samples on a terminal, in colours or with brackets, or on a page. */
#include "cli/data_show.h"

#include "report/data_page.h"

static const char *const colours[] = { "\033[90m", "\033[1;32m", "\033[34m" };
static const char *const opens[]   = { "", "[", "{" };
static const char *const closes[]  = { "", "]", "}" };

void show_begin(Show *s, const char *title)
{
    if (s->page) data_page_open(s->page, title);
    else if (s->colour)
        fprintf(s->out, "%s   %strained\033[0m %smasked\033[0m %svisual\033[0m\n", title,
                colours[TOKEN_TRAINED], colours[TOKEN_MASKED], colours[TOKEN_VISUAL]);
    else
        fprintf(s->out, "%s   [trained] masked {visual}\n", title);
}

void show_border(Show *s, const char *text)
{
    if (s->page) data_page_border(s->page, text);
    else         fprintf(s->out, "═══ %s ═══\n", text);
}

void show_note(Show *s, const char *text)
{
    if (s->page) page_add(s->page, NULL, block_text("note wide", "%s", text));
    else         fprintf(s->out, "%s\n", text);
}

/* Control characters are written as escapes: the terminal must not act on them. */
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
    if (r->role == TOKEN_VISUAL) put_visual(s, m, r);
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
    TokenRole last = TOKEN_MASKED;
    int64_t   at = 0, slice = 0;
    if (s->colour) fputs(colours[last], s->out);
    while (token_run_next(m, s->conf, &at, &slice, &r)) {
        if (r.role != last || r.role == TOKEN_VISUAL)
            fprintf(s->out, "%s%s", s->colour ? "\033[0m" : closes[last],
                    s->colour ? colours[r.role] : opens[r.role]);
        last = r.role;
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
        for (int64_t i = r.from; i < r.from + (r.role == TOKEN_VISUAL ? 1 : r.n); i++) {
            fprintf(s->out, "%8lld %8d %8d  %-8s ", (long long)i, m->ids.v[i], m->targets.v[i],
                    words[r.role]);
            if (i == r.from) TRY(put_run(s, m, &r));
            putc('\n', s->out);
        }
    return OK;
}

Status show_sample(Show *s, const Sample *m, int64_t number, const char *channel)
{
    char title[512];
    snprintf(title, sizeof title, "sample %lld: %s%s%s", (long long)number, m->record.where,
             *channel ? ", " : "", channel);
    if (s->page) return data_page_sample(s->page, m, s->conf, s->scratch, title);
    fprintf(s->out, "── %s: %lld tokens, %lld trained, %lld patches ──\n", title, (long long)m->size.tokens,
            (long long)m->size.supervised, (long long)m->size.patches);
    return s->table ? put_table(s, m) : put_flow(s, m);
}
