/* tests/fuzz_jsonl.c -- hostile lines. For any bytes a file of lines or an array opens; each of its
 * records lies inside the file and is read or refused with a text. fuzz_conversation.c tests the content
 * of conversations. */
#include "data/format.h"

#include <stdlib.h>
#include <string.h>

static void record_check(const FormatFile *f, int64_t i)
{
    Record       r;
    Json        *line;
    Conversation c;
    REQUIRE(!format_read(f, i, &r) && r.where[0], "a line that cannot be read");
    REQUIRE(r.text >= f->bytes && r.text + r.len <= f->bytes + f->len, "outside");
    Status st = json_parse(&line, r.text, r.len, r.where);
    REQUIRE(!st || status_text()[0], "an error without text");
    if (!st && !conversation_read(&c, line)) conversation_close(&c);
    json_decref(line);
    record_close(&r);
}

static void file_check(const uint8_t *bytes, size_t len, const char *format)
{
    FormatFile f;
    FormatConf conf = { 0 };
    uint8_t   *copy = malloc(len ? len : 1);
    if (len) memcpy(copy, bytes, len);
    Status st = format_open_memory(&f, format, copy, len, "fuzz", &conf);
    REQUIRE(!st || st == E_DATA, "status %d", st);
    for (int64_t i = 0; i < f.samples; i++) record_check(&f, i);
    format_close(&f);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    file_check(data, size, "jsonl");
    file_check(data, size, "json");
    file_check(data, size, "text");
    return 0;
}

#ifndef TREB_LIBFUZZER
#include "fuzz_driver.h"

static void fuzz_seeds(Fuzz *f)
{
    static const char *const lines[] = {
        "{\"messages\":[{\"role\":\"user\",\"content\":\"<image>?\"},{\"role\":\"assistant\",\"content\":\"!"
        "\"}],\"images\":[\"a.png\"]}\n\n",
        "{\"text\":\"plain "
        "\\u00e9\"}\r\n{\"conversations\":[{\"from\":\"human\",\"value\":\"a\"},{\"from\":\"gpt\",\"value\":"
        "\"b\"}]}",
        "[{\"instruction\":\"a\",\"input\":\"[}\\\"\",\"output\":\"b\"},{\"text\":\"x\"}, [], 3]",
        "one document\n<|endoftext|>\nanother one\n<|endoftext|>\n",
        "\xef\xbb\xbf\n",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) fuzz_add(f, lines[i], strlen(lines[i]));
}
#endif
