/* parallel/pipe_layout.c -- see pipe_layout.h. */
#include "parallel/pipe_layout.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LETTERS = 1 << 16, SHOWN = 96 };       /* letters of an expanded string; of it in a message */
enum { RULE_SPLIT = 25, RULE_ONE_WAY = 26, RULE_CHUNKS = 28, RULE_LETTERS = 29 };

typedef struct Letters { char text[MAX_LETTERS + 1]; int n; } Letters;

/* Fails with a message and records the rule that is violated. */
__attribute__((format(printf, 3, 4))) static Status violated(PipeLayout *l, int rule, const char *fmt, ...)
{
    char text[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    l->rule = rule;
    return fail(E_CONFIG, "%s", text);
}

/* Reads the number after a '*' at *at and moves *at past it; -1: there is none or it is too large. */
static int read_count(const char *text, int *at)
{
    int n = 0, digits = 0;
    while (text[*at] >= '0' && text[*at] <= '9' && n < MAX_LETTERS) {
        n = 10 * n + text[(*at)++] - '0';
        digits++;
    }
    return digits && n < MAX_LETTERS ? n : -1;
}

static bool push(Letters *s, const char *text, int n, int times)
{
    for (; times > 0; times--) {
        if (n > MAX_LETTERS - s->n) return false;
        memcpy(s->text + s->n, text, (size_t)n);
        s->n += n;
        if (!n) break;
    }
    s->text[s->n] = 0;
    return true;
}

static const char *const too_long = "more than 65536 letters when expanded";

/* Expands every (…)*n. NULL: done; else what is wrong. */
static const char *expand_parts(Letters *out, const char *in)
{
    for (int at = 0; in[at];) {
        if (in[at] == ')') return "a ) without its (";
        if (in[at] != '(') {
            if (!push(out, in + at++, 1, 1)) return too_long;
            continue;
        }
        if (at && in[at - 1] == '*') return "a number below 65536 must follow *";
        int from = at + 1, n = (int)strcspn(in + from, "()");
        if (in[from + n] != ')') return in[from + n] ? "parts do not nest" : "a ( without its )";
        at = from + n + 1;
        int times = in[at] == '*' ? (at++, read_count(in, &at)) : -1;
        if (times < 0) return "a part (…) must be followed by * and a number below 65536";
        if (!push(out, in + from, n, times)) return too_long;
    }
    return NULL;
}

/* Expands every x*n. */
static const char *expand_letters(Letters *out, const char *in)
{
    for (int at = 0; in[at];) {
        char letter = in[at++];
        if (letter == ',') continue;
        if (!strchr("EtmL|", letter)) return "it may hold E t m L | , ( ) * and numbers only";
        int times = 1;
        if (in[at] == '*') {
            at++;
            if ((times = read_count(in, &at)) < 0) return "a number below 65536 must follow *";
        }
        if (!push(out, &letter, 1, times)) return too_long;
    }
    return NULL;
}

static int count(const Letters *s, char letter)
{
    int n = 0;
    for (int i = 0; i < s->n; i++) n += s->text[i] == letter;
    return n;
}

/* The error in the letters; NULL: they are right. */
static const char *check_letters(const Letters *s, int layers, char *text, size_t size)
{
    int t = count(s, 't'), first = (int)strspn(s->text, "|"), last = s->n - 1;
    while (last >= 0 && s->text[last] == '|') last--;
    if (count(s, 'm')) return "m is a multi-token-prediction layer and no model here has one; leave it out";
    if (count(s, 'E') != 1 || s->text[first] != 'E') return "there must be one E, before everything else";
    if (count(s, 'L') != 1 || s->text[last] != 'L') return "there must be one L, after everything else";
    if (t == layers) return NULL;
    snprintf(text, size, "it has %d t and the model has %d layers", t, layers);
    return text;
}

static Status fill_by_letters(PipeLayout *l, const Letters *s)
{
    int layer = 0;
    PipeLayoutChunk *p = l->piece;
    *p = (PipeLayoutChunk){ 0 };
    for (int i = 0; i < s->n; i++) {
        if (s->text[i] == 't') p->to = ++layer;
        if (s->text[i] == 'E') p->embedding = true;
        if (s->text[i] == 'L') p->loss = true;
        if (s->text[i] == '|') *++p = (PipeLayoutChunk){ .from = layer, .to = layer };
    }
    return OK;
}

static Status allocate(PipeLayout *l, int layers, int stages, int chunks)
{
    *l = (PipeLayout){ .layers = layers, .stages = stages, .chunks = chunks };
    l->piece = calloc((size_t)stages * (size_t)chunks, sizeof *l->piece);
    return l->piece ? OK : fail(E_FIT, "no host memory for a pipeline of %d x %d chunks", stages, chunks);
}

static Status cut_by_letters(PipeLayout *l, const PipeLayoutSpec *a, const Letters *s)
{
    char text[96], better[128];
    int total = count(s, '|') + 1, chunks = total / a->stages;
    const char *wrong = check_letters(s, a->layers, text, sizeof text);
    pipe_layout_suggest(better, sizeof better, a->layers, a->stages, a->chunks);
    if (wrong)
        return violated(l, RULE_LETTERS, "parallel.layout = %.*s%s: %s; for example %s", SHOWN, s->text,
                      s->n > SHOWN ? "…" : "", wrong, better);
    if (total % a->stages || (a->chunks > 1 && chunks != a->chunks))
        return violated(l, RULE_CHUNKS,
                      "parallel.layout has %d chunks: parallel.pp = %d stages of parallel.vpp = %d need %d; "
                      "for example %s", total, a->stages, a->chunks, a->stages * a->chunks, better);
    TRY(allocate(l, a->layers, a->stages, chunks));
    return fill_by_letters(l, s);
}

static Status cut_by_string(PipeLayout *l, const PipeLayoutSpec *a)
{
    char better[128];
    Letters *parts = calloc(2, sizeof *parts);
    if (!parts) return fail(E_FIT, "no host memory to read parallel.layout");
    const char *wrong = expand_parts(&parts[0], a->string);
    if (!wrong) wrong = expand_letters(&parts[1], parts[0].text);
    pipe_layout_suggest(better, sizeof better, a->layers, a->stages, a->chunks);
    Status st = wrong ? violated(l, RULE_LETTERS, "parallel.layout = %.*s: %s; for example %s", SHOWN,
                                 a->string, wrong, better)
                      : cut_by_letters(l, a, &parts[1]);
    free(parts);
    return st;
}

/* Chunks of these sizes on the first, the middle and the last stage; the first and the last chunk of the
 * model have one layer less where `less` is set. */
static Status cut_by_sizes(PipeLayout *l, const PipeLayoutSpec *a, const int size[3], const bool less[2])
{
    int n = a->stages * a->chunks, layer = 0;
    TRY(allocate(l, a->layers, a->stages, a->chunks));
    for (int i = 0; i < n; i++) {
        int stage = i % a->stages, layers = size[stage == 0 ? 0 : stage == a->stages - 1 ? 2 : 1];
        if (i == 0)     layers -= less[0];
        if (i == n - 1) layers -= less[1];
        l->piece[i] = (PipeLayoutChunk){ layer, layer + layers, i == 0, i == n - 1 };
        layer += layers;
    }
    REQUIRE(layer == a->layers, "%d layers of %d", layer, a->layers);
    return OK;
}

static Status cut_evenly(PipeLayout *l, const PipeLayoutSpec *a)
{
    char better[128];
    int extra = a->count_embedding + a->count_loss, n = a->stages * a->chunks, each = (a->layers + extra) / n;
    bool less[2] = { a->count_embedding, a->count_loss };
    if ((a->layers + extra) % n == 0 && (n == 1 ? a->layers > 0 : each > 0))
        return cut_by_sizes(l, a, (int[3]){ each, each, each }, less);
    pipe_layout_suggest(better, sizeof better, a->layers, a->stages, a->chunks);
    return violated(l, RULE_SPLIT,
                  "%d layers%s are not a multiple of parallel.pp = %d x vpp = %d; set parallel.layout = %s",
                  a->layers, extra == 2 ? " and the embedding and the loss, which count as one each,"
                             : less[0]  ? " and the embedding, which counts as one,"
                             : less[1]  ? " and the loss, which counts as one," : "",
                    a->stages, a->chunks, better);
}

/* The first and the last stage as given, the stages between alike. */
static Status cut_by_ends(PipeLayout *l, const PipeLayoutSpec *a)
{
    char better[128];
    int between = a->stages - (a->first > 0) - (a->last > 0), left = a->layers - a->first - a->last;
    int each = between > 0 ? left / between : 0;
    bool whole = between > 0 ? left >= 0 && left % between == 0 : between == 0 && left == 0;
    int first = a->first ? a->first : each, last = a->last ? a->last : each;
    if (whole && first % a->chunks == 0 && last % a->chunks == 0 && each % a->chunks == 0)
        return cut_by_sizes(l, a, (int[3]){ first / a->chunks, each / a->chunks, last / a->chunks },
                            (bool[2]){ 0, 0 });
    pipe_layout_suggest(better, sizeof better, a->layers, a->stages, a->chunks);
    return violated(l, RULE_SPLIT,
                  "%d layers with parallel.first_layers = %d and last_layers = %d leave %d for %d stages of "
                  "parallel.vpp = %d, which is no multiple; set parallel.layout = %s",
                  a->layers, a->first, a->last, left, between, a->chunks, better);
}

Status pipe_layout_open(PipeLayout *l, const PipeLayoutSpec *a)
{
    bool string = a->string && *a->string, ends = a->first || a->last;
    *l = (PipeLayout){ 0 };
    REQUIRE(a->stages > 0 && a->chunks > 0, "%d stages, %d chunks", a->stages, a->chunks);
    if (string + ends + (a->count_embedding || a->count_loss) > 1)
        return violated(l, RULE_ONE_WAY,
                      "parallel.layout, first_layers with last_layers, count_embedding with count_loss are "
                      "three ways to cut a pipeline; set one of them");
    return string ? cut_by_string(l, a) : ends ? cut_by_ends(l, a) : cut_evenly(l, a);
}

void pipe_layout_close(PipeLayout *l)
{
    free(l->piece);
    l->piece = NULL;
}

/* "t" or "tt"; more as "t*n". */
static void suggest_layers(FILE *f, int n)
{
    if (n <= 2) fputs(n == 2 ? "tt" : n == 1 ? "t" : "", f);
    else        fprintf(f, "t*%d", n);
}

static void suggest_chunks(FILE *f, int total, int layers)
{
    if (total > 1) putc('(', f);
    if (total > 0) suggest_layers(f, layers), putc('|', f);
    if (total > 1) fprintf(f, ")*%d", total);
}

void pipe_layout_suggest(char *text, size_t size, int layers, int stages, int chunks)
{
    int n = stages * chunks, each = layers / n, more = layers % n;
    FILE *f = fmemopen(text, size, "w");
    if (!f) {
        text[0] = 0;
        return;
    }
    putc('E', f);
    if (n > 1) {
        suggest_layers(f, each), putc('|', f);
        suggest_chunks(f, more < n - 1 ? more : n - 2, each + 1);
        suggest_chunks(f, more < n - 1 ? n - 2 - more : 0, each);
    }
    suggest_layers(f, each + (more == n - 1 && n > 1));
    putc('L', f);
    fclose(f);
}

/* "E 0-5", "6", "42-47 L", or "-" for an empty chunk. */
static int chunk_text(char *text, size_t size, const PipeLayoutChunk *p)
{
    char layers[32] = "";
    int n = p->to - p->from;
    if (n == 1) snprintf(layers, sizeof layers, "%d", p->from);
    if (n > 1)  snprintf(layers, sizeof layers, "%d-%d", p->from, p->to - 1);
    return snprintf(text, size, "%s%s%s%s%s", p->embedding ? "E" : "", p->embedding && n ? " " : "",
                    n || p->embedding || p->loss ? layers : "-", p->loss && (n || p->embedding) ? " " : "",
                    p->loss ? "L" : "");
}

void pipe_layout_print(FILE *out, const PipeLayout *l)
{
    char text[48];
    int width = 2;
    for (int i = 0; i < l->stages * l->chunks; i++) {
        int n = chunk_text(text, sizeof text, &l->piece[i]);
        if (width < n) width = n;
    }
    fprintf(out, "%d layers over %d stages; E: embedding and vision, L: norm and loss", l->layers, l->stages);
    fprintf(out, "\n  %5s ", "stage");
    for (int c = 0; c < l->chunks; c++) fprintf(out, "  %-*d", width, c);
    for (int p = 0; p < l->stages; p++) {
        fprintf(out, "\n  %5d ", p);
        for (int c = 0; c < l->chunks; c++) {
            chunk_text(text, sizeof text, pipe_layout_at(l, p, c));
            fprintf(out, "  %-*s", width, text);
        }
    }
    putc('\n', out);
}
