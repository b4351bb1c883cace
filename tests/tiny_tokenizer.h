/* tests/tiny_tokenizer.h -- makes a tokenizer.json of 257 entries: every byte, and "\n\n" as the only
 * merge. Ids of bytes are the bytes; added tokens begin at TINY_FIRST, in the order of tiny_added. */
#ifndef TESTS_TINY_TOKENIZER_H
#define TESTS_TINY_TOKENIZER_H

#include "base/json.h"
#include "data/tokenizer.h"

#include <stdio.h>
#include <unistd.h>

enum { TINY_BREAKS = 256, TINY_FIRST = 300, TINY_ADDED = 9 };

static const char *const tiny_added[TINY_ADDED] = {
    "<|endoftext|>", "<|im_start|>",  "<|im_end|>",  "<|vision_start|>", "<|vision_end|>",
    "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>",
};

/* The printable letter that stands for a byte in such files, as UTF-8. */
static inline void tiny_letter(char utf8[3], int byte)
{
    int code = 256;
    for (int i = 0; i <= byte; i++) {
        bool printable = (i >= 33 && i <= 126) || (i >= 161 && i != 173);
        if (i == byte && printable) code = i;
        else if (i < byte && !printable) code++;
    }
    if (code < 128) utf8[0] = (char)code, utf8[1] = 0;
    else utf8[0] = (char)(0xC0 | code >> 6), utf8[1] = (char)(0x80 | (code & 63)), utf8[2] = 0;
}

/* The first `added` of the added tokens. */
static inline Json *tiny_json(int added)
{
    Json *vocab = json_object(), *list = json_array(), *model, *split;
    char  letter[3];
    for (int b = 0; b < 256; b++) tiny_letter(letter, b), json_object_set_new(vocab, letter, json_integer(b));
    json_object_set_new(vocab, "\xC4\x8A\xC4\x8A", json_integer(TINY_BREAKS));
    for (int i = 0; i < added; i++)
        json_array_append_new(list, json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", TINY_FIRST + i,
                                              "content", tiny_added[i], "single_word", 0, "lstrip", 0,
                                              "rstrip", 0, "normalized", 0, "special", i < 7));
    model = json_pack("{s:s, s:n, s:n, s:s, s:s, s:b, s:b, s:o, s:[s]}", "type", "BPE", "dropout",
                      "unk_token", "continuing_subword_prefix", "", "end_of_word_suffix", "", "fuse_unk", 0,
                      "byte_fallback", 0, "vocab", vocab, "merges", "\xC4\x8A \xC4\x8A");
    split = json_pack("[{s:s, s:{s:s}, s:s, s:b}, {s:s, s:b, s:b, s:b}]", "type", "Split", "pattern", "Regex",
                      "\\s*[\\r\\n]+|\\s+|\\S+", "behavior", "Isolated", "invert", 0, "type", "ByteLevel",
                      "add_prefix_space", 0, "trim_offsets", 0, "use_regex", 0);
    return json_pack("{s:s, s:o, s:{s:s}, s:{s:s, s:o}, s:{s:s}, s:o}", "version", "1.0", "added_tokens",
                     list, "normalizer", "type", "NFC", "pre_tokenizer", "type", "Sequence", "pretokenizers",
                     split, "decoder", "type", "ByteLevel", "model", model);
}

static inline Tokenizer *tiny_open(const char *folder, int added)
{
    char       path[512];
    Tokenizer *t = NULL;
    Json      *file = tiny_json(added);
    snprintf(path, sizeof path, "%s/tokenizer-%ld.json", folder, (long)getpid());
    REQUIRE(file && !json_dump_file(file, path, 0), "cannot write %s", path);
    json_decref(file);
    Status st = tokenizer_open(&t, path);
    unlink(path);
    REQUIRE(!st, "%s", status_text());
    return t;
}

#endif
