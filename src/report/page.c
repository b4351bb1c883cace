/* report/page.c -- see page.h. */
#define _GNU_SOURCE                   /* vasprintf */
#include "report/page.h"

#include "base/str.h"
#include "base/folder.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static const char page_css[] =
#include "page_css.inc"
    ;
static const char page_js[] =
#include "page_js.inc"
    ;

/* --- text --------------------------------------------------------------------------------------------- */

static bool is_control(uint32_t c) { return (c < 32 && c != '\n' && c != '\t') || (c >= 127 && c < 160); }

Json *page_bytes(const char *text, size_t n)
{
    char *copy = malloc(3 * n + 1), *to = copy;
    const char *end = text + n;
    if (!copy) return NULL;
    while (text < end) {
        uint32_t code = 0;
        int len = *text ? str_utf8(text, &code) : 0;
        bool good = len > 0 && len <= end - text && !is_control(code);
        memcpy(to, good ? text : "\xef\xbf\xbd", good ? (size_t)len : 3);
        to += good ? len : 3;
        text += len > 0 ? len : 1;
    }
    Json *s = json_stringn(copy, (size_t)(to - copy));
    free(copy);
    return s;
}

Json *page_string(const char *text) { return page_bytes(text, strlen(text)); }

static Json *format_string(const char *fmt, va_list ap)
{
    char *text = NULL;
    if (vasprintf(&text, fmt, ap) < 0) return NULL;
    Json *s = page_string(text);
    free(text);
    return s;
}

static void append_rich_text(Json *rich, const char *class, const char *fmt, va_list ap)
{
    Json *text = format_string(fmt, ap);
    json_array_append_new(rich, class ? json_pack("{s:o}", class, text) : text);
}

void page_say(Json *rich, const char *class, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    append_rich_text(rich, class, fmt, ap);
    va_end(ap);
}

Json *page_rich(const char *class, const char *fmt, ...)
{
    Json *rich = json_array();
    va_list ap;
    va_start(ap, fmt);
    append_rich_text(rich, class, fmt, ap);
    va_end(ap);
    return rich;
}

/* --- pictures ------------------------------------------------------------------------------------------ */

static char *encode_base64(char *to, const uint8_t *b, size_t n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v =
            (uint32_t)b[i] << 16 | (i + 1 < n ? (uint32_t)b[i + 1] << 8 : 0) | (i + 2 < n ? b[i + 2] : 0);
        for (size_t d = 0; d < 4; d++) *to++ = i + d > n ? '=' : digit[v >> (18 - 6 * d) & 63];
    }
    return to;
}

Json *page_data_uri(const char *type, const void *bytes, size_t n)
{
    char *text = malloc(64 + (n + 2) / 3 * 4);
    if (!text) return NULL;
    int head = snprintf(text, 64, "data:%s;base64,", type);
    Json *s = json_stringn(text, (size_t)(encode_base64(text + head, bytes, n) - text));
    free(text);
    return s;
}

/* --- blocks ------------------------------------------------------------------------------------------- */

Json *block_open(const char *kind) { return json_pack("{s:s}", "kind", kind); }

Json *block_list(Json *block, const char *key)
{
    if (!json_object_get(block, key)) json_object_set_new(block, key, json_array());
    return json_object_get(block, key);
}

Json *block_text(const char *class, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    Json *text = format_string(fmt, ap);
    va_end(ap);
    return json_pack("{s:s, s:s, s:[o]}", "kind", "text", "class", class, "text", text);
}

Json *block_table(const char *const *columns, int n, const char *fold)
{
    Json *t = block_open("table"), *list = block_list(t, "columns");
    for (int i = 0; i < n; i++) {
        const char *space = strchr(columns[i], ' ');
        json_array_append_new(list, json_pack("[s#, s]", columns[i], (int)(space - columns[i]), space + 1));
    }
    if (fold) json_object_set_new(t, "fold", page_string(fold));
    block_list(t, "rows");
    return t;
}

static Json *append_item(Json *list, Json *item)
{
    return json_array_append_new(list, item) ? NULL : item;
}

Json *table_row(Json *table) { return append_item(block_list(table, "rows"), json_array()); }

Json *block_bars(void) { return block_open("bars"); }

Json *bars_row(Json *bars, const char *name, int color, double from, double width, const char *text)
{
    Json *row = json_pack("{s:o, s:i, s:f, s:f, s:s}", "name", page_string(name), "color", color, "from",
                          from, "width", width, "text", text);
    return append_item(block_list(bars, "rows"), row);
}

void bars_part(Json *row, double share, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    json_array_append_new(block_list(row, "parts"), json_pack("[f, o]", share, format_string(fmt, ap)));
    va_end(ap);
}

/* --- the page ----------------------------------------------------------------------------------------- */

void page_open(Page *p, const char *maker, const char *title)
{
    p->root = json_pack("{s:s, s:o, s:[], s:[], s:[], s:[]}", "maker", maker, "title", page_string(title),
                        "heading", "meta", "sections", "footer");
    p->blocks = NULL;
    p->status = p->root ? OK : E_FIT;
}

void page_section(Page *p, const char *id, const char *title)
{
    Json *s = json_pack("{s:s, s:s, s:[]}", "id", id, "title", title, "blocks");
    if (json_array_append_new(json_object_get(p->root, "sections"), s)) p->status = E_FIT;
    p->blocks = json_object_get(s, "blocks");
}

void page_add(Page *p, Json *list, Json *block)
{
    if (json_array_append_new(list ? list : p->blocks, block)) p->status = E_FIT;
}

Json *page_panel(Page *p, bool wide)
{
    Json *panel = json_pack("{s:s, s:b, s:[], s:[]}", "kind", "panel", "wide", (int)wide, "title", "blocks");
    page_add(p, NULL, panel);
    return panel;
}

void page_close(Page *p)
{
    json_decref(p->root);
    *p = (Page){ 0 };
}

/* Inside a script element only these three could end it or begin another; in JSON they occur in strings. */
static int push_escaped(const char *v, size_t n, void *out)
{
    size_t from = 0;
    Status st = OK;
    for (size_t i = 0; i < n && !st; i++) {
        if (v[i] != '<' && v[i] != '>' && v[i] != '&') continue;
        st = text_push(out, v + from, i - from);
        if (!st) st = text_printf(out, "\\u%04x", v[i]);
        from = i + 1;
    }
    if (!st) st = text_push(out, v + from, n - from);
    return st ? -1 : 0;
}

/* The title is the one text outside the document. */
static Status push_title(Text *out, const char *s)
{
    for (; *s; s++) {
        if (strchr("<>&", *s)) TRY(text_printf(out, "&#%d;", *s));
        else                   TRY(text_push(out, s, 1));
    }
    return OK;
}

enum { DOCUMENT_STYLE = JSON_COMPACT | JSON_REAL_PRECISION(6) };

static Status draw_nonce(char hex[33])
{
    uint8_t b[16];
    if (getrandom(b, sizeof b, 0) != sizeof b)
        return fail(E_OTHER, "the page needs random numbers: %s", strerror(errno));
    for (size_t i = 0; i < sizeof b; i++) snprintf(hex + 2 * i, 3, "%02x", b[i]);
    return OK;
}

/* What a browser may load: a served page its document, a file nothing. */
static Status push_policy(Text *out, const char *nonce, const char *live)
{
    return text_printf(out, "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; "
                       "img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
                       "%sscript-src 'nonce-%s'\">\n", live ? "connect-src 'self'; " : "", nonce);
}

static Status push_head(Text *out, const Page *p, const char *nonce, const char *live)
{
    TRY(text_printf(out, "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>\n"));
    TRY(push_policy(out, nonce, live));
    TRY(text_printf(out, "<meta name='viewport' content='width=device-width,initial-scale=1'>\n"
                    "<meta name='referrer' content='no-referrer'>\n<title>"));
    TRY(push_title(out, json_string_value(json_object_get(p->root, "title"))));
    TRY(text_printf(out, "</title>\n<style>\n"));
    TRY(text_push(out, page_css, sizeof page_css - 1));
    return text_printf(out, "</style></head>");
}

static Status push_script(Text *out, const Page *p, const char *nonce, const char *live)
{
    TRY(text_printf(out, "<script nonce='%s'>\n", nonce));
    TRY(text_push(out, page_js, sizeof page_js - 1));
    TRY(text_printf(out, live ? "watchPage('%s', " : "drawPage(", live));
    if (json_dump_callback(p->root, push_escaped, out, DOCUMENT_STYLE))
        return fail(E_FIT, "no memory for a page of %zu bytes", out->n);
    return text_printf(out, ");\n</script>");
}

Status page_html(Page *p, const char *live, Text *out)
{
    char nonce[33];
    if (p->status) return fail(p->status, "no memory for the page");
    TRY(draw_nonce(nonce));
    TRY(push_head(out, p, nonce, live));
    TRY(text_printf(out, "<body>\n<nav><div class='top'><div class='links'></div>"
                    "<button id='theme' title='light or dark' aria-label='light or dark'>"
                    "<svg viewBox='0 0 16 16'><circle cx='8' cy='8' r='6'/><path d='M8 2a6 6 0 0 1 0 12z'/>"
                    "</svg></button></div></nav>\n<main></main>\n"
                    "<noscript><p>A script inside this file draws the page; please allow it to run."
                    "</p></noscript>\n"));
    TRY(push_script(out, p, nonce, live));
    return text_printf(out, "</body></html>\n");
}

static int push_plain(const char *v, size_t n, void *out) { return text_push(out, v, n) ? -1 : 0; }

Status page_document(Page *p, Text *out)
{
    if (p->status || json_dump_callback(p->root, push_plain, out, DOCUMENT_STYLE))
        return fail(E_FIT, "no memory for the page");
    return OK;
}

Status page_write(Page *p, const char *path)
{
    Text   out = { 0 };
    Status st = page_html(p, NULL, &out);
    if (!st) st = file_replace(path, out.v, out.n);
    text_close(&out);
    return st;
}
