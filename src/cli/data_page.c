/* cli/data_page.c -- samples as a page: one HTML file that needs nothing else. Pictures are inside, with
 * the grid of the tokens they become; every text from a dataset is escaped. */
#include "cli/data_show.h"

#include <string.h>

static const char head[] =
    "<!doctype html><meta charset=\"utf-8\"><title>treb data inspect</title><style>"
    "body{font:15px/1.6 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 "
    "1em;color:#222;background:#fff}"
    "h1{font-size:1.2em}h2{font-size:1em;border-top:1px solid #ccc;padding-top:1em;margin-top:2em}"
    ".p{background:#333;color:#fff;padding:.2em .6em;margin-top:2.5em;font-weight:bold}"
    ".t,.m,.v{white-space:pre-wrap;border-radius:2px;box-shadow:inset 0 0 0 1px #fff}"
    ".t{background:#c9f2c9}.m{background:#eee;color:#666}.v{background:#cfe0ff;color:#235}"
    "figure{display:inline-block;margin:.5em 1em .5em 0;vertical-align:top}figure "
    "div{position:relative;display:inline-block}"
    "figure img{display:block;max-width:30em;max-height:24em}figure "
    "svg{position:absolute;inset:0;width:100%;height:100%}"
    "figcaption{font-size:.85em;color:#555;max-width:30em;overflow-wrap:anywhere}"
    "@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}.t{background:#1f4d1f;color:#efe}."
    "m{background:#2a2a2a;color:#999}"
    ".v{background:#1d2f55;color:#cdf}.t,.m,.v{box-shadow:inset 0 0 0 1px #181818}}"
    "</style>\n";

static void put_escaped(FILE *out, const char *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)v[i];
        if (c == '&')                   fputs("&amp;", out);
        else if (c == '<')              fputs("&lt;", out);
        else if (c == '>')              fputs("&gt;", out);
        else if (c == '"')              fputs("&quot;", out);
        else if (c == '\'')             fputs("&#39;", out);
        else if (c == '\n')             fputs("⏎\n", out);
        else if (c < 0x20 && c != '\t') fprintf(out, "\\x%02x", c);
        else                            putc(c, out);
    }
}

static void put_words(FILE *out, const char *text) { put_escaped(out, text, strlen(text)); }

static void put_base64(FILE *out, const unsigned char *v, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t bits =
            (uint32_t)v[i] << 16 | (i + 1 < n ? (uint32_t)v[i + 1] << 8 : 0) | (i + 2 < n ? v[i + 2] : 0);
        putc(digits[bits >> 18], out), putc(digits[bits >> 12 & 63], out);
        putc(i + 1 < n ? digits[bits >> 6 & 63] : '=', out), putc(i + 2 < n ? digits[bits & 63] : '=', out);
    }
}

static const char *kind_of(const unsigned char *v, size_t n)
{
    if (n > 2 && v[0] == 0xff && v[1] == 0xd8) return "image/jpeg";
    return n > 4 && !memcmp(v, "RIFF", 4) ? "image/webp" : "image/png";
}

/* Lines between visual tokens; patches are a merge-th of that. */
static void put_grid(FILE *out, int64_t rows, int64_t columns)
{
    fprintf(out,
            "<svg viewBox=\"0 0 %lld %lld\" preserveAspectRatio=\"none\"><path "
            "vector-effect=\"non-scaling-stroke\" fill=\"none\" stroke=\"#f33\" stroke-opacity=\".55\" d=\"",
            (long long)columns, (long long)rows);
    for (int64_t i = 1; i < rows; i++) fprintf(out, "M0 %lldH%lld", (long long)i, (long long)columns);
    for (int64_t i = 1; i < columns; i++) fprintf(out, "M%lld 0V%lld", (long long)i, (long long)rows);
    fputs("\"/></svg>", out);
}

static Status put_slice(Show *s, const Sample *m, int64_t i)
{
    const RecordSlice *v = &m->slice[i];
    const void        *bytes;
    size_t             len;
    int64_t            merge = s->conf->stream.merge, patch = s->conf->picture.patch;
    TRY(sample_bytes(&bytes, &len, m, s->scratch, s->conf, v->a));
    fprintf(s->out, "<figure><div><img alt=\"\" src=\"data:%s;base64,", kind_of(bytes, len));
    put_base64(s->out, bytes, len);
    fputs("\">", s->out);
    put_grid(s->out, v->h / merge, v->w / merge);
    fprintf(s->out, "</div><figcaption>%lld: ", (long long)i);
    put_words(s->out, sample_frame_name(m, v->a));
    fprintf(s->out, "<br>%lld x %lld pixels, %d x %d patches, %lld tokens</figcaption></figure>\n",
            (long long)(v->w * patch), (long long)(v->h * patch), v->w, v->h,
            (long long)(v->h / merge * (v->w / merge)));
    return OK;
}

static Status put_run(Show *s, const Sample *m, const TokenRun *r)
{
    static const char *const classes[] = { "m", "t", "v" };
    Text   t = { 0 };
    Status st = OK;
    fprintf(s->out, "<span class=\"%s\" title=\"row %lld, id %d", classes[r->kind], (long long)r->from,
            m->ids.v[r->from]);
    for (int64_t i = 1; r->kind != TOKEN_VISUAL && i < r->n; i++)
        fprintf(s->out, " %d", m->ids.v[r->from + i]);
    fputs("\">", s->out);
    if (r->kind == TOKEN_VISUAL)
        fprintf(s->out, "picture %lld: %lld tokens", (long long)r->slice, (long long)r->n);
    else st = tokenizer_decode(s->conf->chat.tokenizer, &t, m->ids.v + r->from, r->n, false);
    if (!st && t.n) put_escaped(s->out, t.v, t.n);
    fputs("</span>", s->out);
    text_close(&t);
    return st;
}

static Status sample(Show *s, const Sample *m, int64_t number, const char *channel)
{
    TokenRun r;
    int64_t  at = 0, slice = 0;
    fprintf(s->out, "<h2>sample %lld: ", (long long)number);
    put_words(s->out, m->record.where);
    if (*channel) fputs(", ", s->out), put_words(s->out, channel);
    fprintf(s->out, "<br>%lld tokens, %lld learnt, %lld patches</h2>\n", (long long)m->size.tokens,
            (long long)m->size.supervised, (long long)m->size.patches);
    for (int64_t i = 0; i < m->slices; i++) TRY(put_slice(s, m, i));
    fputs("<p>", s->out);
    while (token_run_next(m, s->conf, &at, &slice, &r)) TRY(put_run(s, m, &r));
    fputs("</p>\n", s->out);
    return OK;
}

static void begin(Show *s, const char *title)
{
    fputs(head, s->out);
    fputs("<h1>", s->out), put_words(s->out, title);
    fputs("</h1><p><span class=\"t\">trained</span> <span class=\"m\">masked</span> <span "
          "class=\"v\">visual</span></p>\n",
          s->out);
}

static void border(Show *s, const char *text)
{
    fputs("<div class=\"p\">", s->out), put_words(s->out, text), fputs("</div>\n", s->out);
}

static void end(Show *s) { fflush(s->out); }

void show_page(Show *s)
{
    s->begin = begin, s->border = border, s->sample = sample, s->end = end;
}
