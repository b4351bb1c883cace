/* tests/fuzz_tokenizer.c -- hostile tokenizer files and hostile texts. For any bytes opening returns an
 * error with a text, or a tokenizer that encodes any text to ids it can decode.
 *
 * Each input is taken as a tokenizer.json and as a text for a good tokenizer, whose ids in plain mode must
 * decode to the repaired, normalised text. */
#include "data/tokenizer_private.h"

#include <stdlib.h>
#include <string.h>

#define GOLD "tests/gold_text"

static void text_check(const Tokenizer *t, TokenScratch *s, ByteSpan text, bool exact)
{
    Ids   ids = { 0 };
    Text  back = { 0 }, buffer = { 0 };
    Nfc   nfc = { 0 };
    ByteSpan want;
    for (int plain = 0; plain < 2; plain++) {
        ids.n = 0, back.n = 0;
        Status st = tokenizer_encode(t, s, &ids, text.v, text.n, plain);
        REQUIRE(!st || (!exact && status_text()[0] && !ids.n), "a text that cannot be encoded: %s",
                status_text());
        REQUIRE(!tokenizer_decode(t, &back, ids.v, ids.n, false), "%s", status_text());
        REQUIRE(utf8_repair(&buffer, text, &want) == OK && nfc_normalise(&nfc, want, &want) == OK, "%s",
                status_text());
        if (exact && plain)
            REQUIRE(back.n == want.n && !memcmp(back.v ? back.v : "", want.v, want.n),
                    "decoded to another text");
    }
    ids_close(&ids);
    text_close(&back);
    text_close(&buffer);
    nfc_close(&nfc);
}

static void sample_check(const Tokenizer *t)
{
    static const char sample[] = "The 3rd stone's <|im_end|>\n\n caf\xc3\xa9 e\xcc\x81   x \t1234 "
                                 "\xe4\xb8\xad\xe6\x96\x87 !!!\r\n";
    TokenScratch *s;
    REQUIRE(!token_scratch_open(&s, t), "%s", status_text());
    text_check(t, s, (ByteSpan){ sample, sizeof sample - 1 }, false);
    token_scratch_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static Tokenizer    *gold; /* opened once: opening takes longer than a run */
    static TokenScratch *scratch;
    Tokenizer *t;
    if (!gold)
        REQUIRE(!tokenizer_open(&gold, GOLD) && !token_scratch_open(&scratch, gold), "%s", status_text());
    char *copy = malloc(size ? size : 1);                     /* of the exact size, for the sanitizer */
    if (size) memcpy(copy, data, size);
    Status st = tokenizer_open_memory(&t, copy, size, "fuzz");
    REQUIRE(st ? status_text()[0] && !t : t != NULL, "an error without text, or half open");
    if (t) sample_check(t);
    tokenizer_close(t);
    if (size < 20000) text_check(gold, scratch, (ByteSpan){ copy, size }, true);
    free(copy);
    return 0;
}

#ifndef TREB_LIBFUZZER
#include "fuzz_driver.h"

static void seed_from(Fuzz *f, const Json *j)
{
    char *text = json_dumps(j, JSON_COMPACT);
    fuzz_add(f, text, strlen(text));
    free(text);
}

/* The gold file, and one of the bytes and three merges, each as strings and as pairs. */
static void fuzz_seeds(Fuzz *f)
{
    Json *j, *model, *key, *next;
    void *at;
    REQUIRE(!json_load(&j, GOLD "/tokenizer.json"), "%s", status_text());
    seed_from(f, j);
    model = json_object_get(j, "model");
    Json *vocab = json_object_get(model, "vocab");
    const char *token;
    json_object_foreach_safe(vocab, at, token, key)
        if (json_integer_value(key) > 255) json_object_del(vocab, token);
    json_object_set_new(vocab, "st", json_integer(256));
    json_object_set_new(vocab, "on", json_integer(257));
    json_object_set_new(vocab, "ston", json_integer(258));
    json_object_set_new(model, "merges", json_pack("[s, s, s]", "s t", "o n", "st on"));
    seed_from(f, j);
    next = json_pack("[[s, s], [s, s], [s, s]]", "s", "t", "o", "n", "st", "on");
    json_object_set_new(model, "merges", next);
    seed_from(f, j);
    json_decref(j);
    fuzz_add(f, "plain text, e\xcc\x81 \xe1\x84\x80\xe1\x85\xa1 <|im_end|> \xff\xfe\xe4\xb8 'LL  \n x", 46);
}
#endif
