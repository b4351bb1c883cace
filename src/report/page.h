/* report/page.h -- the writer of every HTML page: a run, several runs, a plan, samples of a dataset.
 *
 * A page is one file that loads nothing: page.css and page.js, which the build embeds, and one JSON document
 * that page.js draws. A page that is served (`treb watch`) fetches its document again and again, and nothing
 * else. The document is a list of sections, a section a list of blocks; the functions here make
 * blocks, and page.js has a function for each "kind". Text from outside reaches the browser only as a JSON
 * string and is inserted as text, so it cannot become markup; a content security policy lets no script run
 * but the page's own.
 *
 *   Page p;
 *   page_open(&p, "treb report", "the title");
 *   page_section(&p, "memory", "Memory");
 *   Json *panel = page_panel(&p, true);
 *   page_say(block_list(panel, "title"), "b", "Memory by arena");
 *   page_add(&p, block_list(panel, "blocks"), block_table(...));
 *   page_write(&p, path), page_close(&p);
 *
 * Lack of memory is remembered and returned by page_write. */
#ifndef REPORT_PAGE_H
#define REPORT_PAGE_H

#include "base/json.h"
#include "data/ids.h"

typedef struct Page {
    Json  *root;
    Json  *blocks;                    /* of the current section */
    Status status;
} Page;

void        page_open(Page *p, const char *maker, const char *title);
void        page_section(Page *p, const char *id, const char *title);   /* title "": the top of the page */
MUST Status page_write(Page *p, const char *path);            /* writes beside `path`, then renames */
MUST Status page_html(Page *p, const char *live, Text *out);  /* live: the document's address, NULL: a file */
MUST Status page_document(Page *p, Text *out);                /* the document alone, as JSON */
void        page_close(Page *p);                              /* twice is fine */

/* Appends a block to a list; list NULL: to the current section. NULL as the block means no memory. */
void        page_add(Page *p, Json *list, Json *block);

/* A JSON string. Bytes that are not UTF-8, and controls other than tab and newline, become U+FFFD. */
Json       *page_string(const char *text);
Json       *page_bytes(const char *text, size_t n); /* text[n] is 0; zeros before it are replaced */

/* Rich text is a list of strings and {class: text} parts: appends one part, of no class if class is NULL. */
void page_say(Json *rich, const char *class, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
Json       *page_rich(const char *class, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

Json       *page_data_uri(const char *type, const void *bytes, size_t n);        /* type: "image/png" */

/* --- blocks ------------------------------------------------------------------------------------------- */

Json *block_open(const char *kind);                           /* {"kind": kind} */
Json *block_list(Json *block, const char *key);               /* block[key], made if it is not there */
Json *block_text(const char *class, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A figure with a title (rich, "title") and blocks ("blocks") of its own; added to the current section. */
Json *page_panel(Page *p, bool wide);

/* Columns are "class name" words: "num A", "key key", "- metric"; rows are lists of strings or rich texts.
 * fold: the text of a <summary> that hides the table, or NULL. */
Json *block_table(const char *const *columns, int n, const char *fold);
Json *table_row(Json *table);                                 /* a new, empty row */

/* Bars one below the other, each a share of one scale, and inside a bar its parts. */
Json *block_bars(void);
Json *bars_row(Json *bars, const char *name, int color, double from, double width, const char *text);
void  bars_part(Json *row, double share, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* --- numbers as text ----------------------------------------------------------------------------------- */

/* In a buffer of the caller's block: page_say(r, "b", "%s", NUM(v)). What is not finite is a dash. */
enum { NUM_BYTES = 48 };
#define NUM(v)     num_text((char[NUM_BYTES]){ 0 }, v)             /* 0.4123  12.35  1,204  31.2k  1.3e-05 */
#define WHOLE(v)   whole_text((char[NUM_BYTES]){ 0 }, v)           /* 1,204,000 */
#define PERCENT(v) percent_text((char[NUM_BYTES]){ 0 }, v)         /* 0.481 -> 48.1 % */
#define BYTES(v)   bytes_text((char[NUM_BYTES]){ 0 }, v)           /* 1.5 GiB */
#define SPAN(v)    span_text((char[NUM_BYTES]){ 0 }, v)            /* seconds -> 2 h 14 min */
const char *num_text(char buf[NUM_BYTES], double v);
const char *whole_text(char buf[NUM_BYTES], double v);
const char *percent_text(char buf[NUM_BYTES], double v);
const char *bytes_text(char buf[NUM_BYTES], double v);
const char *span_text(char buf[NUM_BYTES], double seconds);

#endif
