/* tests/test_tokenizer.c -- the tokenizer against recorded ids of the reference, in every form of its files;
 * errors; and texts of difficult sizes. */
#include "data/tokenizer_private.h"

#include "base/clock.h"
#include "base/rng.h"
#include "base/str.h"
#include "lab.h"
#include <utf8proc.h>

#define GOLD   "tests/gold_text"
#define SHARED "../shared/data"
#define REAL_HASH 0x9debc245196646c0u      /* FNV-1a over the ids of tinyshakespeare.txt, checked by sha256 */

static Tokenizer    *tok;                 /* of GOLD, open for the whole program */
static TokenScratch *scratch;

static void open_gold(void)
{
    EXPECT_OK(tokenizer_open(&tok, GOLD));
    if (tok) EXPECT_OK(token_scratch_open(&scratch, tok));
    if (!scratch) exit(1);
}

static Json *gold_json(void)
{
    Json *j;
    EXPECT_OK(json_load(&j, GOLD "/tokenizer.json"));
    return j;
}

static void save(const char *name, const char *text, size_t len)
{
    char  path[512];
    snprintf(path, sizeof path, "%s/%s", lab_tmp(), name);
    FILE *f = fopen(path, "wb");
    EXPECT(f && fwrite(text, 1, len, f) == len, "%s cannot be written", path);
    if (f) fclose(f);
}

static void drop(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", lab_tmp(), name);
    unlink(path);
}

static void save_json(const char *name, const Json *j)
{
    char *text = json_dumps(j, 0);
    save(name, text, strlen(text));
    free(text);
}

static Status open_json(Tokenizer **t, const Json *j)
{
    char  *text = json_dumps(j, 0);
    Status s = tokenizer_open_memory(t, text, strlen(text), "test");
    free(text);
    return s;
}

static bool read_line(FILE *f, Json **line)
{
    char   *text = NULL;
    size_t  cap = 0;
    ssize_t n = getline(&text, &cap, f);
    *line = n > 0 ? json_loadb(text, (size_t)n, JSON_ALLOW_NUL, NULL) : NULL;
    free(text);
    return *line;
}

/* One recorded line: encode, compare, decode, compare with the normal form (which holds for each segment
 * between added tokens, so only for lines without them). */
static void check_vector(const Tokenizer *t, TokenScratch *s, const Json *line)
{
    const Json *text = json_object_get(line, "text"), *want = json_object_get(line, "ids");
    ByteSpan in = { json_string_value(text), json_string_length(text) }, normal;
    Ids   ids = { 0 };
    Text  back = { 0 };
    Nfc   nfc = { 0 };
    EXPECT_OK(tokenizer_encode(t, s, &ids, in.v, in.n, false));
    EXPECT(ids.n == (int64_t)json_array_size(want), "%.60s: %lld ids", in.v, (long long)ids.n);
    for (int64_t i = 0; i < ids.n; i++) {
        int32_t id = (int32_t)json_integer_value(json_array_get(want, (size_t)i));
        if (ids.v[i] == id) continue;
        EXPECT(false, "%.60s: number %lld is %d, should be %d", in.v, (long long)i, ids.v[i], id);
        break;
    }
    EXPECT_OK(tokenizer_decode(t, &back, ids.v, ids.n, false));
    EXPECT_OK(nfc_normalise(&nfc, in, &normal));
    if (!strstr(in.v, "|>"))
        EXPECT(back.n == normal.n && !memcmp(back.v ? back.v : "", normal.v, normal.n),
               "%.60s: decoded to %.*s", in.v, (int)back.n, back.v);
    ids_close(&ids);
    text_close(&back);
    nfc_close(&nfc);
}

static void check_vectors(const Tokenizer *t, const char *path, int want)
{
    TokenScratch *s;
    FILE *f = fopen(path, "rb");
    int   n = 0;
    EXPECT_OK(token_scratch_open(&s, t));
    for (Json *line; f && read_line(f, &line); n++) {
        check_vector(t, s, line);
        json_decref(line);
    }
    EXPECT(n >= want, "%s: %d lines read", path, n);
    token_scratch_close(s);
    if (f) fclose(f);
}

static void recorded_ids(void) { check_vectors(tok, GOLD "/vectors.jsonl", 120); }

static void merges_as_pairs(void)
{
    Json *j = gold_json(), *model = json_object_get(j, "model"), *pairs = json_array(), *m;
    size_t i;
    json_array_foreach(json_object_get(model, "merges"), i, m) {
        const char *text = json_string_value(m), *space = strchr(text, ' ');
        json_array_append_new(pairs, json_pack("[s%, s]", text, (size_t)(space - text), space + 1));
    }
    json_object_set_new(model, "merges", pairs);
    Tokenizer *t;
    EXPECT_OK(open_json(&t, j));
    if (t) check_vectors(t, GOLD "/vectors.jsonl", 120);
    tokenizer_close(t);
    json_decref(j);
}

/* The members in another order, and every letter as a \u escape. */
static void order_and_escapes(void)
{
    Json *j = gold_json(), *model = json_object_get(j, "model");
    Json *vocab = json_incref(json_object_get(model, "vocab")),
         *merges = json_incref(json_object_get(model, "merges"));
    json_object_del(model, "merges");
    json_object_del(model, "vocab");
    json_object_set_new(model, "merges", merges);
    json_object_set_new(model, "vocab", vocab);
    char      *text = json_dumps(j, JSON_ENSURE_ASCII | JSON_INDENT(7));
    Tokenizer *t;
    EXPECT_OK(tokenizer_open_memory(&t, text, strlen(text), "test"));
    if (t) check_vectors(t, GOLD "/vectors.jsonl", 120);
    tokenizer_close(t);
    free(text);
    json_decref(j);
}

/* vocab.json, merges.txt and tokenizer_config.json say the same. */
static void save_older(const char *first_line)
{
    Json  *j = gold_json(), *model = json_object_get(j, "model"), *map = json_object(), *v;
    Text   merges = { 0 };
    size_t i;
    EXPECT_OK(text_printf(&merges, "%s", first_line));
    json_array_foreach(json_object_get(model, "merges"), i, v)
        EXPECT_OK(text_printf(&merges, "%s\n", json_string_value(v)));
    json_array_foreach(json_object_get(j, "added_tokens"), i, v) {
        char id[16];
        snprintf(id, sizeof id, "%d", (int)json_integer_value(json_object_get(v, "id")));
        json_object_set(map, id, v);
        json_object_del(v, "id");
    }
    Json *config = json_pack("{s:s, s:o}", "tokenizer_class", "Qwen2Tokenizer", "added_tokens_decoder", map);
    save_json("vocab.json", json_object_get(model, "vocab"));
    save("merges.txt", merges.v, merges.n);
    save_json("tokenizer_config.json", config);
    text_close(&merges);
    json_decref(config);
    json_decref(j);
}

static void older_files(void)
{
    const char *first[] = { "", "#version: 0.2\n" };
    for (int i = 0; i < 2; i++) {
        Tokenizer *t;
        save_older(first[i]);
        EXPECT_OK(tokenizer_open(&t, lab_tmp()));
        if (t) check_vectors(t, GOLD "/vectors.jsonl", 120);
        tokenizer_close(t);
    }
    Tokenizer *t;
    save("merges.txt", "no such\npair\n", 13);
    EXPECT_FAIL(tokenizer_open(&t, lab_tmp()), E_DATA, "merges.txt: line 1");
    save("tokenizer_config.json", "{}", 2);
    EXPECT_FAIL(tokenizer_open(&t, lab_tmp()), E_DATA, "tokenizer_class");
    drop("tokenizer_config.json");
    EXPECT_FAIL(tokenizer_open(&t, lab_tmp()), E_IO, "tokenizer_config.json");
    drop("vocab.json");
    drop("merges.txt");
    EXPECT_FAIL(tokenizer_open(&t, lab_tmp()), E_IO, "tokenizer.json");
    EXPECT_FAIL(tokenizer_open(&t, "no/such/file"), E_IO, "no/such/file");
    EXPECT(!t, "half open");
}

static void encode_is(const char *text, size_t len, bool plain, const int32_t *want, int n)
{
    Ids ids = { 0 };
    EXPECT_OK(tokenizer_encode(tok, scratch, &ids, text, len, plain));
    EXPECT(ids.n == n && (!n || !memcmp(ids.v, want, (size_t)n * sizeof *want)), "%s: %lld ids, the first %d",
           text, (long long)ids.n, ids.n ? ids.v[0] : -1);
    ids_close(&ids);
}

#define ENCODE_IS(text, plain, ...) do {                                                          \
        const int32_t want_[] = { __VA_ARGS__ };                                                  \
        encode_is(text, sizeof(text) - 1, plain, want_, sizeof want_ / sizeof *want_);            \
    } while (0)

static void added_tokens(void)
{
    int32_t end = tokenizer_id(tok, "<|im_end|>");
    EXPECT(end == 576 && tokenizer_id(tok, "<|endoftext|>") == 574, "ids");
    EXPECT(tokenizer_id(tok, "stone") == -1 && tokenizer_id(tok, "") == -1, "only added tokens have names");
    EXPECT(tokenizer_size(tok) == 600, "size %lld", (long long)tokenizer_size(tok));
    ENCODE_IS("<|im_end|>", false, end);
    Ids  plain = { 0 };
    Text back = { 0 };
    EXPECT_OK(tokenizer_encode(tok, scratch, &plain, "<|im_end|>", 10, true));
    for (int64_t i = 0; i < plain.n; i++) EXPECT(plain.v[i] != end, "an added token in plain text");
    EXPECT_OK(tokenizer_decode(tok, &back, plain.v, plain.n, true));
    EXPECT(back.n == 10 && !memcmp(back.v, "<|im_end|>", 10), "%.*s", (int)back.n, back.v);
    ids_close(&plain);
    text_close(&back);
}

static void decode_is(const int32_t *ids, int64_t n, bool skip, const char *want)
{
    Text out = { 0 };
    EXPECT_OK(text_push(&out, ">", 1));
    EXPECT_OK(tokenizer_decode(tok, &out, ids, n, skip));
    EXPECT(out.n == 1 + strlen(want) && !memcmp(out.v + 1, want, out.n - 1), "%.*s", (int)out.n, out.v);
    text_close(&out);
}

static void decoding(void)
{
    const int32_t think = tokenizer_id(tok, "<think>"), end = tokenizer_id(tok, "<|im_end|>"), e2 = 159,
                  lone = 101;
    const int32_t mixed[] = { 64, think, 65, end }, half[] = { 64, e2, 65 }, bad[] = { 64, 600 }, minus = -1;
    Text out = { 0 };
    decode_is(NULL, 0, false, "");
    decode_is(mixed, 4, false, "a<think>b<|im_end|>");
    decode_is(mixed, 4, true, "a<think>b");                      /* added, but not special */
    decode_is(&end, 1, true, "");
    decode_is(half, 3, false, "a\xef\xbf\xbd" "b");
    decode_is(&lone, 1, false, "\xef\xbf\xbd");
    EXPECT_FAIL(tokenizer_decode(tok, &out, bad, 2, false), E_DATA, "600");
    EXPECT_FAIL(tokenizer_decode(tok, &out, &minus, 1, false), E_DATA, "-1");
    EXPECT(out.n == 0, "an error leaves the output unchanged");
    text_close(&out);
}

/* Bytes that are not UTF-8 become U+FFFD, one for each prefix of a code point, as in Unicode. */
static void broken_utf8(void)
{
    static const struct { const char *in; int n; const char *out; } rows[] = {
        { "ab", 2, "ab" },                     { "a\x80z", 3, "a?z" },          { "\xff\xfe", 2, "??" },
        { "\xe4\xb8", 2, "?" },                { "\xe4\xb8z", 3, "?z" },
        { "\xe4\xb8\xad", 3, "\xe4\xb8\xad" }, { "\xc0\xaf", 2, "??" },
        { "\xed\xa0\x80", 3, "???" },    { "\xf0\x9f\x98", 3, "?" }, { "\xf4\x90\x80\x80", 4, "????" },
        { "\xe0\x80\xaf", 3, "???" }, { "\xf0\x9f\x98\x80\xc3", 5, "\xf0\x9f\x98\x80?" },
        { "a\0\xc3", 3, "a" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Text cap = { 0 }, want = { 0 };
        ByteSpan out;
        for (const char *p = rows[i].out; *p; p++)
            EXPECT_OK(text_push(&want, *p == '?' ? "\xef\xbf\xbd" : p, *p == '?' ? 3 : 1));
        if (i == sizeof rows / sizeof *rows - 1) EXPECT_OK(text_push(&want, "\0\xef\xbf\xbd", 4));
        EXPECT_OK(utf8_repair(&cap, (ByteSpan){ rows[i].in, (size_t)rows[i].n }, &out));
        EXPECT(out.n == want.n && !memcmp(out.v, want.v, want.n), "row %zu: %.*s", i, (int)out.n, out.v);
        text_close(&cap);
        text_close(&want);
    }
}

/* Normalising segment by segment equals normalising the whole text. */
static void nfc_in_segments(void)
{
    static const int32_t codes[] = { 'a', 'e', 0xe9, 0x301, 0x323, 0x30a, 0x41, 0x212b, 0x1100, 0x1161,
                                     0x11a8, 0xac00, 0x4e2d, 0x915, 0x93c, 0x958, 0x9c7, 0x9be, 0x1ebf, 0x344,
                                     0x1f600, ' ', 0x5d0, 0x5b7, 0x5bc };
    enum { CODES = sizeof codes / sizeof *codes };
    const utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    for (uint64_t run = 0; run < 3000; run++) {
        char   text[256];
        size_t n = 0;
        for (uint64_t i = 0, len = rng_below(7, run, 99, 40); i < len; i++)
            n += (size_t)utf8proc_encode_char(codes[rng_below(7, run, i, CODES)], (uint8_t *)text + n);
        Nfc      nfc = { 0 };
        ByteSpan    got;
        uint8_t *want = NULL;
        utf8proc_ssize_t len = utf8proc_map((uint8_t *)text, (utf8proc_ssize_t)n, &want, options);
        EXPECT_OK(nfc_normalise(&nfc, (ByteSpan){ text, n }, &got));
        EXPECT(len == (utf8proc_ssize_t)got.n && !memcmp(got.v, want, got.n), "run %llu: %.*s",
               (unsigned long long)run, (int)n, text);
        free(want);
        nfc_close(&nfc);
    }
}

/* Naive BPE: searches the best pair from the start every time. */
static void naive(const Tokenizer *t, Ids *out, ByteSpan piece)
{
    for (size_t i = 0; i < piece.n; i++) EXPECT_OK(ids_push(out, t->byte_id[(unsigned char)piece.v[i]]));
    for (;;) {
        int64_t best = -1;
        int32_t rank = INT32_MAX, id = 0;
        for (int64_t i = 0; i + 1 < out->n; i++) {
            const BpeMerge *m = merge_slot(&t->merges, out->v[i], out->v[i + 1]);
            if (m->rank >= 0 && m->rank < rank) best = i, rank = m->rank, id = m->id;
        }
        if (best < 0) return;
        out->v[best] = id;
        memmove(out->v + best + 1, out->v + best + 2, (size_t)(--out->n - best - 1) * sizeof *out->v);
    }
}

static void short_and_long_pieces(void)
{
    Bpe *bpe;
    EXPECT_OK(bpe_open(&bpe));
    for (uint64_t run = 0; run < 2000; run++) {
        char   text[300];
        size_t n = 1 + rng_below(3, run, 999, run % 2 ? 299 : 70);
        for (size_t i = 0; i < n; i++) text[i] = "aeinorst rcl"[rng_below(3, run, i, 12)];
        Ids want = { 0 }, got = { 0 };
        naive(tok, &want, (ByteSpan){ text, n });
        for (int twice = 0; twice < 2; twice++) {                 /* the second time from the cache */
            got.n = 0;
            EXPECT_OK(bpe_encode(bpe, tok, &got, (ByteSpan){ text, n }));
            EXPECT(got.n == want.n && !memcmp(got.v, want.v, (size_t)got.n * sizeof *got.v), "%.*s", (int)n,
                   text);
        }
        ids_close(&want);
        ids_close(&got);
    }
    bpe_close(bpe);
}

/* Long lines of letters, spaces, signs, or marks in the worst order: time stays near linear. */
static void long_lines(void)
{
    static const char *const units[] = { "a", "stone", " ", "\n", "!", " \t", "\xcc\x81\xcc\xa3",
                                         "\xe4\xb8\xad", "<|im", "<|im_end|>", "1", "'s" };
    enum { BYTES = 1 << 20 };
    char *text = malloc(BYTES + 16);
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        size_t unit = strlen(units[u]), n = 0;
        for (; n < BYTES; n += unit) memcpy(text + n, units[u], unit);
        text[n] = 'x';
        Ids    ids = { 0 };
        double start = clock_now();
        EXPECT_OK(tokenizer_encode(tok, scratch, &ids, text, n + 1, false));
        EXPECT(clock_now() - start < 20, "%s: %.1f s", units[u], clock_now() - start);
        EXPECT(ids.n > 0, "%s: no ids", units[u]);
        ids_close(&ids);
    }
    Ids ids = { 0 };
    const size_t many = (size_t)TOKENIZER_MAX_TEXT + 1;
    EXPECT_FAIL(tokenizer_encode(tok, scratch, &ids, text, many, false), E_DATA, "split it");
    free(text);
}

/* -- refusals: the gold file with one thing changed */

static void refuses(const char *section, const char *key, Json *value, const char *word)
{
    Json *j = gold_json(), *o = j;
    size_t len;
    for (const char *rest = section, *item; (item = str_item(&rest, '.', &len));) {
        bool index = *item >= '0' && *item <= '9';
        o = index ? json_array_get(o, (size_t)(*item - '0')) : json_object_getn(o, item, len);
    }
    Tokenizer *t;
    json_object_set_new(o, key, value);
    EXPECT_FAIL(open_json(&t, j), E_DATA, word);
    EXPECT(!t, "half open");
    json_decref(j);
}

static void refusals(void)
{
    refuses("model", "type", json_string("Unigram"), "Unigram");
    refuses("model", "dropout", json_real(0.1), "dropout");
    refuses("model", "unk_token", json_string("<unk>"), "unk_token");
    refuses("model", "continuing_subword_prefix", json_string("##"), "continuing_subword_prefix");
    refuses("model", "end_of_word_suffix", json_string("</w>"), "end_of_word_suffix");
    refuses("model", "byte_fallback", json_true(), "byte_fallback");
    refuses("model", "vocab", json_object(), "byte 0 has no token");
    refuses("model", "vocab", json_array(), "expected an object");
    refuses("model", "vocab", json_pack("{s:i, s:i}", "a", 1, "b", 1), "id 1 is both");
    refuses("model", "vocab", json_pack("{s:I}", "a", (json_int_t)1 << 40), "1099511627776");
    refuses("model", "vocab", json_pack("{s:i}", "a b", 3), "byte-level letters");
    refuses("model", "vocab", json_pack("{s:s}", "a", "3"), "whole number");
    refuses("model", "vocab", json_pack("{s:i}", "", 3), "empty");
    refuses("model", "merges", json_null(), "expected a list");
    refuses("model", "merges", json_pack("[s]", "ab"), "merge 0");
    refuses("model", "merges", json_pack("[s, s]", "e r", "a b c"), "merge 1");
    refuses("model", "merges", json_pack("[[s]]", "a"), "expected a pair");
    refuses("model", "merges", json_pack("[[s,s,s]]", "a", "b", "c"), "expected a pair");
    refuses("model", "merges", json_pack("[s]", "qqq q"), "parts are not");
    refuses("model", "merges", json_pack("[s]", "q q"), "its result is not");
    refuses("normalizer", "type", json_string("NFKC"), "NFKC");
    refuses("pre_tokenizer", "type", json_string("Whitespace"), "Sequence");
    refuses("pre_tokenizer.pretokenizers.0", "behavior", json_string("Removed"), "Removed");
    refuses("pre_tokenizer.pretokenizers.0", "invert", json_true(), "invert");
    refuses("pre_tokenizer.pretokenizers.0", "pattern", json_pack("{s:s}", "String", " "), "Regex");
    refuses("pre_tokenizer.pretokenizers.0", "pattern", json_pack("{s:s}", "Regex", "(a"), "parenthesis");
    refuses("pre_tokenizer.pretokenizers.0", "pattern", json_pack("{s:s}", "Regex", "a*"),
            "match the empty string");
    refuses("pre_tokenizer.pretokenizers.0", "pattern", json_pack("{s:s}", "Regex", "[\\S]"), "\\S");
    refuses("pre_tokenizer.pretokenizers.0", "pattern", json_pack("{s:s}", "Regex", "\\w+"), "\\w");
    refuses("pre_tokenizer.pretokenizers.0", "pattern", json_pack("{s:s}", "Regex", "^a"), "^a");
    refuses("pre_tokenizer.pretokenizers.0", "pattern", json_pack("{s:s}", "Regex", "[a-z&&[aeiou]]"), "&&");
    refuses("pre_tokenizer.pretokenizers.0", "pattern", json_pack("{s:s}", "Regex", "[^[:alpha:]]"),
            "[:alpha");
    refuses("pre_tokenizer.pretokenizers.0", "type", json_string("Punctuation"), "Punctuation");
    refuses("pre_tokenizer.pretokenizers.1", "add_prefix_space", json_true(), "add_prefix_space");
    refuses("post_processor", "type", json_string("TemplateProcessing"), "TemplateProcessing");
    refuses("decoder", "type", json_string("WordPiece"), "WordPiece");
    refuses("added_tokens.0", "lstrip", json_true(), "lstrip");
    refuses("added_tokens.0", "single_word", json_true(), "single_word");
    refuses("added_tokens.0", "content", json_string(""), "content");
    refuses("added_tokens.0", "id", json_integer(-5), "-5");
    refuses("added_tokens.0", "id", json_integer(5), "id 5 is both");
}

/* Every truncation of the file is an error with a text. */
static void truncated(void)
{
    Json *j = gold_json();
    char *text = json_dumps(j, JSON_COMPACT);
    for (size_t n = 0; n < strlen(text); n += 1 + n / 40) {
        Tokenizer *t;
        char      *exact = malloc(n ? n : 1); /* so that a sanitizer sees reads past the end */
        memcpy(exact, text, n);
        EXPECT_FAIL(tokenizer_open_memory(&t, exact, n, "cut"), E_DATA, "cut");
        EXPECT(!t, "half open after %zu bytes", n);
        free(exact);
    }
    free(text);
    json_decref(j);
}

/* An added token that is matched in normalised text. */
static void normalized_added_token(void)
{
    Json *j = gold_json(), *list = json_object_get(j, "added_tokens");
    json_array_append_new(list, json_pack("{s:i, s:s, s:b, s:b}", "id", 700, "content", "caf\xc3\xa9",
                                          "normalized", 1, "special", 0));
    Tokenizer    *t;
    TokenScratch *s;
    Ids ids = { 0 };
    EXPECT_OK(open_json(&t, j));
    EXPECT_OK(token_scratch_open(&s, t));
    EXPECT_OK(tokenizer_encode(t, s, &ids, "cafe\xcc\x81!", 7, false));
    EXPECT(ids.n == 2 && ids.v[0] == 700 && ids.v[1] == 0, "%lld ids", (long long)ids.n);
    EXPECT(tokenizer_id(t, "caf\xc3\xa9") == 700 && tokenizer_size(t) == 701, "ids");
    ids_close(&ids);
    token_scratch_close(s);
    tokenizer_close(t);
    json_decref(j);
}

/* -- the real vocabulary, where it is available */

static bool at_hand(const char *path) { return !access(path, R_OK); }

static void real_vocabulary(void)
{
    const char *const files[] = { SHARED "/tokenizer/tokenizer.json",
                                  SHARED "/tokenizer/tokenizer_pairs.json" };
    if (!at_hand(files[0])) SKIP("no %s", files[0]);
    for (int i = 0; i < 2; i++) {
        Tokenizer *t;
        EXPECT_OK(tokenizer_open(&t, files[i]));
        EXPECT(t && tokenizer_size(t) == 151669 && tokenizer_id(t, "<|image_pad|>") == 151655, "ids");
        if (t) check_vectors(t, SHARED "/tokenizer/vectors.jsonl", 37);
        tokenizer_close(t);
    }
}

static void real_text(void)
{
    const char *path = SHARED "/text/tinyshakespeare.txt";
    if (!at_hand(path)) SKIP("no %s", path);
    char  *text = malloc(2 << 20);
    FILE  *f = fopen(path, "rb");
    size_t n = fread(text, 1, 2 << 20, f);
    fclose(f);
    Tokenizer    *t;
    TokenScratch *s;
    Ids      ids = { 0 };
    uint64_t h = 0xcbf29ce484222325u;
    EXPECT_OK(tokenizer_open(&t, SHARED "/tokenizer"));
    EXPECT_OK(token_scratch_open(&s, t));
    EXPECT_OK(tokenizer_encode(t, s, &ids, text, n, false));
    for (int64_t i = 0; i < ids.n; i++) h = (h ^ (uint32_t)ids.v[i]) * 0x100000001b3u;
    EXPECT(ids.n == 301829 && h == REAL_HASH, "%lld ids, hash %llx", (long long)ids.n, (unsigned long long)h);
    ids_close(&ids);
    token_scratch_close(s);
    tokenizer_close(t);
    free(text);
}

int main(void)
{
    open_gold();
    RUN(recorded_ids);
    RUN(merges_as_pairs);
    RUN(order_and_escapes);
    RUN(older_files);
    RUN(added_tokens);
    RUN(decoding);
    RUN(broken_utf8);
    RUN(nfc_in_segments);
    RUN(short_and_long_pieces);
    RUN(long_lines);
    RUN(refusals);
    RUN(truncated);
    RUN(normalized_added_token);
    RUN(real_vocabulary);
    RUN(real_text);
    token_scratch_close(scratch);
    tokenizer_close(tok);
    rmdir(lab_tmp());
    return lab_report();
}
