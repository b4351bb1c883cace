/* data/format_tar.c -- WebDataset shards: tar archives in which adjacent members of one base name are a
 * sample.
 *
 *   000123.json  000123.jpg      a conversation, and the pictures it names (all, in order,
                                                                             when it names none)
 *   000123.txt   000123.png      a caption and its picture
 *   000123.txt                   a text
 *
 * Reads ustar, GNU long names and pax paths and sizes. A sample with a link or a sparse member is bad, by
 * the member's name: the bytes are elsewhere, or not as they were. Every length is checked against the file.
 * Of an archive that is damaged the samples before the damage are used. */
#define _GNU_SOURCE                   /* memmem */
#include "data/format.h"

#include "base/activity.h"
#include "base/grow.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 512, LONGEST_NAME = 1 << 16 };

/* missing: a member whose bytes the archive does not hold as they are, or NULL. */
typedef struct TarSample { int64_t first; int members; const RecordFile *missing; } TarSample;

typedef struct Tar {
    RecordFile *member;
    TarSample  *sample;
    int64_t     members, member_cap, samples, sample_cap;
} Tar;

typedef struct TarWalk {              /* what the headers read so far say about the next member */
    FormatFile *f;
    Tar        *tar;
    size_t      at;
    const char *name;                 /* from a long-name member; NULL: in the header */
    size_t      name_len;
    bool        sized, sparse;        /* by a pax header */
    uint64_t    size;
} TarWalk;

/* Octal with spaces around it, or base 256 after a set high bit. False for anything else. */
static bool number(const unsigned char *s, int width, uint64_t *out)
{
    int i = 0;
    *out = 0;
    if (s[0] & 0x80) {
        *out = s[0] & 0x7f;
        for (i = 1; i < width; i++) {
            if (*out >> 55) return false;
            *out = *out << 8 | s[i];
        }
        return true;
    }
    while (i < width && s[i] == ' ') i++;
    for (; i < width && s[i] >= '0' && s[i] <= '7'; i++) *out = *out << 3 | (uint64_t)(s[i] - '0');
    return i == width || s[i] == 0 || s[i] == ' ';
}

/* Old programs summed signed bytes; both sums are in use. */
static bool sum_is_right(const unsigned char *h)
{
    uint64_t want;
    int64_t  plain = 0, sign = 0;
    for (int i = 0; i < BLOCK; i++) {
        unsigned char c = i >= 148 && i < 156 ? ' ' : h[i];
        plain += c, sign += (signed char)c;
    }
    return number(h + 148, 8, &want) && ((int64_t)want == plain || (int64_t)want == sign);
}

static bool is_zero(const char *block)
{
    for (int i = 0; i < BLOCK; i++)
        if (block[i]) return false;
    return true;
}

static bool damaged(TarWalk *w, const char *what)
{
    snprintf(w->f->damage, sizeof w->f->damage, "%s at byte %zu of the archive", what, w->at);
    return false;
}

/* Records "LENGTH KEY=VALUE\n", of which path and size are used. */
static bool pax_read(TarWalk *w, const char *text, size_t len)
{
    for (size_t at = 0; at < len && text[at];) {
        size_t n = 0, i = at;
        while (i < len && isdigit((unsigned char)text[i]) && n < len) n = n * 10 + (size_t)(text[i++] - '0');
        if (i == len || text[i] != ' ' || n > len - at || at + n <= i + 1 || text[at + n - 1] != '\n')
            return damaged(w, "a broken pax header");
        const char *key = text + i + 1, *end = text + at + n - 1, *eq = memchr(key, '=', (size_t)(end - key));
        if (!eq) return damaged(w, "a pax header without a value");
        size_t key_len = (size_t)(eq - key), value = (size_t)(end - eq - 1);
        bool named = w->sparse && w->name; /* by GNU.sparse.name, which the path of a sparse member is not */
        if (key_len == 4 && !memcmp(key, "path", 4) && !named) w->name = eq + 1, w->name_len = value;
        if (key_len > 11 && !memcmp(key, "GNU.sparse.", 11)) {
            if (key_len == 15 && !memcmp(key + 11, "name", 4)) w->name = eq + 1, w->name_len = value;
            w->sparse = true;
        }
        if (key_len == 4 && !memcmp(key, "size", 4)) {
            w->sized = value > 0 && value < 19, w->size = 0;
            for (size_t k = 1; w->sized && k <= value; k++) {
                w->sized = isdigit((unsigned char)eq[k]);
                w->size  = w->size * 10 + (uint64_t)(eq[k] - '0');
            }
        }
        at += n;
    }
    return true;
}

/* Prefix and name of a ustar header, joined. */
static void header_name(TarWalk *w, const char *h, const char **name, size_t *len)
{
    size_t n = strnlen(h, 100), p = !memcmp(h + 257, "ustar", 5) ? strnlen(h + 345, 155) : 0;
    *name = h, *len = n;
    if (memcmp(h + 257, "ustar  ", 7) == 0) p = 0;           /* GNU tar stores other fields there */
    if (!p) return;
    char *both = mem_pool_alloc(&w->f->keep, p + n + 2);
    memcpy(both, h + 345, p), both[p] = '/', memcpy(both + p + 1, h, n);
    *name = both, *len = p + 1 + n;
}

/* Length of the base name that the members of a sample share: up to the first dot of the last path
 * component; 0: the member belongs to no sample. */
static size_t base_of(const char *name, size_t len)
{
    size_t slash = 0, i;
    for (i = 0; i < len; i++)
        if (name[i] == '/') slash = i + 1;
    if (slash + 1 < len && name[slash] == '.' && name[slash + 1] == '_') return 0; /* macOS metadata */
    for (i = slash; i < len && name[i] != '.'; i++) continue;
    return i < len ? i : 0;
}

/* bytes: NULL where the archive does not hold them. */
static Status member_add(TarWalk *w, const char *name, size_t len, const char *bytes, size_t size)
{
    Tar   *t = w->tar;
    size_t base = base_of(name, len);
    if (!base) return OK;
    if (!GROW(t->member, t->member_cap, t->members + 1) || !GROW(t->sample, t->sample_cap, t->samples + 1))
        return fail(E_FIT, "%s: no memory for its index", w->f->path);
    const RecordFile *last = t->members ? &t->member[t->members - 1] : NULL;
    if (last && base_of(last->name, last->name_len) == base && !memcmp(last->name, name, base))
        t->sample[t->samples - 1].members++;
    else
        t->sample[t->samples++] = (TarSample){ t->members, 1, NULL };
    t->member[t->members++] = (RecordFile){ name, len, bytes, size };
    if (bytes) return OK;
    RecordFile *missing = mem_pool_alloc(&w->f->keep, sizeof *missing);
    *missing = t->member[t->members - 1];
    t->sample[t->samples - 1].missing = missing;
    return OK;
}

/* Bytes of the blocks that an old GNU header of a sparse member goes on in. */
static size_t sparse_blocks(const char *h, size_t left)
{
    size_t n = 0;
    if (h[156] != 'S' || !h[482]) return 0;
    while (left - n >= BLOCK && h[BLOCK + n + 504]) n += BLOCK;
    return left - n >= BLOCK ? n + BLOCK : n;
}

/* One header and its data; false at the end of the readable part. */
static bool walk_one(TarWalk *w, Status *st)
{
    const FormatFile    *f = w->f;
    const char          *h = f->bytes + w->at, *name;
    const unsigned char *u = (const unsigned char *)h;
    uint64_t             size;
    size_t               name_len;
    if (f->len - w->at < BLOCK) return w->at == f->len ? false : damaged(w, "an incomplete header");
    if (is_zero(h)) return w->at += BLOCK, true; /* the end, or the border of two concatenated archives */
    if (!sum_is_right(u)) return damaged(w, "a header with a wrong checksum");
    if (!number(u + 124, 12, &size)) return damaged(w, "a member without a size");
    if (w->sized && h[156] != 'x' && h[156] != 'L') size = w->size;
    if (size > f->len - w->at - BLOCK) return damaged(w, "a member that ends after the end of the file");
    const char *data = h + BLOCK;
    size_t      left = f->len - w->at - BLOCK, step = (size_t)((size + BLOCK - 1) / BLOCK * BLOCK);
    step += sparse_blocks(h, left);
    if ((h[156] == 'L' || h[156] == 'x') && size > LONGEST_NAME) return damaged(w, "a name that is too long");
    if (h[156] == 'L') w->name = data, w->name_len = strnlen(data, (size_t)size);
    else if (h[156] == 'x') {
        if (!pax_read(w, data, (size_t)size)) return false;
    } else {
        header_name(w, h, &name, &name_len);
        if (w->name) name = w->name, name_len = w->name_len;
        if (name_len > 2 && name[0] == '.' && name[1] == '/') name += 2, name_len -= 2;
        if (h[156] == 0 || strchr("0712S", h[156])) {
            bool whole = !w->sparse && (h[156] == 0 || strchr("07", h[156]));
            *st = member_add(w, name, name_len, whole ? data : NULL, whole ? (size_t)size : 0);
        }
        w->name = NULL, w->sized = w->sparse = false;
    }
    w->at += BLOCK + (step < left ? step : left);
    return !*st;
}

static void tar_close(FormatFile *f)
{
    Tar *t = f->self;
    if (t) free(t->member), free(t->sample);
}

/* The last sample before damage may lack members, so it is not used. */
static Status tar_index(FormatFile *f, const FormatConf *conf)
{
    Status st = OK;
    TarWalk w =  { .f = f, .tar = mem_pool_alloc(&f->keep, sizeof *w.tar) };
    f->self = w.tar;
    while (w.at < f->len && walk_one(&w, &st)) activity_mark();
    f->samples = w.tar->samples - (f->damage[0] && w.tar->samples ? 1 : 0);
    return st;
}

static const RecordFile *member_ending(const Tar *t, const TarSample *s, const char *ending)
{
    size_t n = strlen(ending);
    for (int i = 0; i < s->members; i++) {
        const RecordFile *m = &t->member[s->first + i];
        if (m->name_len > n && !memcmp(m->name + m->name_len - n, ending, n)) return m;
    }
    return NULL;
}

/* Many sets have a .json with download metadata beside the caption; it is a conversation only with one of
 * these keys. */
static bool is_conversation(const RecordFile *m)
{
    static const char *const keys[] = { "\"messages\"", "\"conversations\"", "\"instruction\"", "\"text\"" };
    for (int i = 0; i < 4; i++)
        if (memmem(m->bytes, m->len, keys[i], strlen(keys[i]))) return true;
    return false;
}

static Status tar_read(const FormatFile *f, int64_t i, Record *r)
{
    const Tar        *t = f->self;
    const TarSample  *s = &t->sample[i];
    const RecordFile *first = &t->member[s->first], *json = member_ending(t, s, ".json"),
                     *text     = member_ending(t, s, ".txt");
    size_t            base = base_of(first->name, first->name_len);
    int               media = 0;
    snprintf(r->where, sizeof r->where, "%s:%.*s", f->path, base < 160 ? (int)base : 160, first->name);
    if (s->missing)
        return fail(E_DATA,
                    "%.*s: a link or a sparse member, whose bytes are not here; write the archive with tar "
                    "--dereference --hard-dereference, without --sparse",
                    s->missing->name_len < 160 ? (int)s->missing->name_len : 160, s->missing->name);
    for (int k = 0; k < s->members; k++)
        media += record_file_is_picture(&first[k]) || record_file_is_video(&first[k]);
    if (!json && !text) return fail(E_DATA, "none of its %d members is a .json or .txt", s->members);
    if (json && text && !is_conversation(json)) json = NULL;
    r->kind = json ? RECORD_JSON : media ? RECORD_CAPTION : RECORD_TEXT;
    r->text = (json ? json : text)->bytes, r->len = (json ? json : text)->len;
    r->file = first, r->files = s->members;
    return OK;
}

const Format format_tar = {
    .name = "tar", .suffixes = ".tar", .index = tar_index, .read = tar_read, .close = tar_close
};
