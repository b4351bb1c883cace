/* data/tokenizer_spaces.c -- SentencePiece-style tokenizer.json (Mixtral, Llama 2): BPE over characters,
 * spaces spelled as U+2581, characters without a token as the tokens of their bytes.
 *
 * Supported are the two ways in which files say so: a normaliser of Prepend and Replace without a
 * pre-tokeniser, or a Metaspace pre-tokeniser; and the decoders that undo them. */
#include "data/tokenizer_private.h"

#include <stdio.h>
#include <string.h>

static bool text_is(const Json *o, const char *key, const char *want)
{
    const char *v = json_string_value(json_object_get(o, key));
    return v && !strcmp(v, want);
}

static bool replaces(const Json *o, const char *from, const char *to)
{
    return !strcmp(rules_type(o), "Replace") && text_is(json_object_get(o, "pattern"), "String", from) &&
           text_is(o, "content", to);
}

/* Prepend, then Replace; or Replace alone. */
static Status read_normalizer(Spaces *s, const Json *n)
{
    const Json *list = json_object_get(n, "normalizers"), *first = json_array_get(list, 0);
    size_t      k = json_array_size(list);
    bool        prepends = !strcmp(rules_type(first), "Prepend") && text_is(first, "prepend", SPACE_LETTER);
    if (strcmp(rules_type(n), "Sequence") || k != 1 + (size_t)prepends ||
        !replaces(json_array_get(list, k - 1), " ", SPACE_LETTER))
        return fail(E_DATA, "normalizer %.40s: with byte_fallback only Prepend and Replace of spaces by "
                            "U+2581 "
                    "are supported", rules_type(n));
    s->prefix = prepends ? PREFIX_SEGMENT : PREFIX_NONE;
    return OK;
}

static Status read_metaspace(Spaces *s, const Json *p)
{
    const char *scheme;
    TRY(json_str(p, "prepend_scheme", "always", &scheme));
    if (strcmp(rules_type(p), "Metaspace") || !text_is(p, "replacement", SPACE_LETTER))
        return fail(E_DATA, "pre_tokenizer %.40s: with byte_fallback only Metaspace with U+2581 is supported",
                    rules_type(p));
    s->prefix = !strcmp(scheme, "always") ? PREFIX_MISSING : !strcmp(scheme, "first") ? PREFIX_FIRST
                                                                                     : PREFIX_NONE;
    return json_flag(p, "split", true, &s->split);
}

/* Replace, ByteFallback, Fuse, and Strip of one space at the start; or Metaspace. */
static Status read_decoder(Spaces *s, const Json *d)
{
    static const char *const types[] = { "Replace", "ByteFallback", "Fuse", "Strip" };
    const Json *list = json_object_get(d, "decoders");
    size_t      k = json_array_size(list);
    int64_t     start = 0, stop = 0;
    bool        good = !strcmp(rules_type(d), "Sequence") && (k == 3 || k == 4);
    s->strip = s->prefix != PREFIX_NONE;
    if (!strcmp(rules_type(d), "Metaspace")) return OK;
    for (size_t i = 0; good && i < k; i++) good = !strcmp(rules_type(json_array_get(list, i)), types[i]);
    good = good && replaces(json_array_get(list, 0), SPACE_LETTER, " ");
    const Json *strip = json_array_get(list, 3);
    if (good && strip) TRY(json_int(strip, "start", 0, &start));
    if (good && strip) TRY(json_int(strip, "stop", 0, &stop));
    if (!good || start < 0 || start > 1 || stop || (strip && !text_is(strip, "content", " ")))
        return fail(E_DATA, "decoder %.40s: with byte_fallback only Replace, ByteFallback, Fuse and Strip "
                            "of a "
                    "space at the start are supported", rules_type(d));
    s->strip = start == 1;
    return OK;
}

Status spaces_read(Tokenizer *t, const Json *file)
{
    const Json *n = json_object_get(file, "normalizer"), *p = json_object_get(file, "pre_tokenizer");
    bool        has_n = n && !json_is_null(n), has_p = p && !json_is_null(p);
    t->spaces = (Spaces){ .on = true };
    if (has_n == has_p)
        return fail(E_DATA, "with byte_fallback either a normalizer or a pre_tokenizer must say how spaces "
                            "are "
                    "spelled");
    if (has_n) TRY(read_normalizer(&t->spaces, n));
    else TRY(read_metaspace(&t->spaces, p));
    return read_decoder(&t->spaces, json_object_get(file, "decoder"));
}

Status spaces_index_bytes(Tokenizer *t, const char *name)
{
    for (int b = 0; b < 256; b++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", b);
        t->byte_id[b] = vocab_find(&t->vocab, (ByteSpan){ text, 6 });
        if (t->byte_id[b] < 0)
            return fail(E_DATA, "%s: byte %d has no token %s, so some texts could not be encoded", name, b,
                text);
    }
    return OK;
}

static bool wants_prefix(const Spaces *s, ByteSpan segment, bool first)
{
    bool has = segment.v[0] == ' ' || (segment.n >= 3 && !memcmp(segment.v, SPACE_LETTER, 3));
    if (s->prefix == PREFIX_SEGMENT) return true;
    return !has && (s->prefix == PREFIX_MISSING || (s->prefix == PREFIX_FIRST && first));
}

Status spaces_put(const Spaces *s, Text *out, ByteSpan segment, bool first)
{
    out->n = 0;
    if (!segment.n) return OK;
    if (wants_prefix(s, segment, first)) TRY(text_push(out, SPACE_LETTER, 3));
    for (size_t i = 0; i < segment.n; i++)
        TRY(segment.v[i] == ' ' ? text_push(out, SPACE_LETTER, 3) : text_push(out, &segment.v[i], 1));
    return OK;
}

/* The byte that a token stands for; -1: it is spelled. */
static int byte_of(const Tokenizer *t, int32_t id)
{
    ByteSpan b = vocab_bytes(&t->vocab, id);
    unsigned value;
    char     text[8] = "";
    if (b.n != 6 || memcmp(b.v, "<0x", 3)) return -1;
    memcpy(text, b.v, 6);
    return sscanf(text, "<0x%2X>", &value) == 1 && t->byte_id[value & 255] == id ? (int)value : -1;
}

Status spaces_decode(const Tokenizer *t, Text *out, int32_t id)
{
    ByteSpan b = vocab_bytes(&t->vocab, id);
    int      byte = byte_of(t, id);
    char     one = (char)byte;
    if (byte >= 0) return text_push(out, &one, 1);
    for (size_t i = 0; i < b.n;) {
        bool space = b.n - i >= 3 && !memcmp(b.v + i, SPACE_LETTER, 3);
        TRY(text_push(out, space ? " " : b.v + i, 1));
        i += space ? 3 : 1;
    }
    return OK;
}

size_t spaces_length(const Tokenizer *t, int32_t id)
{
    ByteSpan b = vocab_bytes(&t->vocab, id);
    size_t   n = b.n;
    if (byte_of(t, id) >= 0) return 1;
    for (size_t i = 0; i + 3 <= b.n; i++) n -= memcmp(b.v + i, SPACE_LETTER, 3) ? 0 : 2;
    return n;
}
