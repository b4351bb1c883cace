/* cli/cmd_tokenize.c -- `treb tokenize`: lines of text to lines of ids, or back, from standard input to
 * standard output. */
#include "base/json.h"
#include "cli/commands.h"
#include "data/tokenizer.h"
#include "data/tokenizer_text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Tokenizing {
    const char *path;                    /* of the tokenizer */
    Tokenizer    *tokenizer;
    TokenScratch *scratch;
    bool  decode, plain, skip_special;
    Ids   ids;
    Text  repaired, out;
} Tokenizing;

/* Texts may contain U+0000, which jansson refuses by default. */
static Status parse_line(Json **line, ByteSpan text)
{
    json_error_t e;
    *line = json_loadb(text.v, text.n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &e);
    return *line ? OK : fail(E_DATA, "%s", e.text);
}

static Status put_int(Text *out, int32_t v)
{
    char digits[12], *p = digits + sizeof digits;
    do *--p = (char)('0' + v % 10); while (v /= 10);
    return text_push(out, p, (size_t)(digits + sizeof digits - p));
}

static Status encode_line(Tokenizing *j, const Json *line)
{
    const Json *text = json_object_get(line, "text");
    if (!json_is_string(text)) return fail(E_DATA, "expected an object with a text: {\"text\": \"…\"}");
    j->ids.n = 0;
    TRY(tokenizer_encode(j->tokenizer, j->scratch, &j->ids, json_string_value(text), json_string_length(text),
                         j->plain));
    TRY(text_push(&j->out, "[", 1));
    for (int64_t i = 0; i < j->ids.n; i++) {
        TRY(text_push(&j->out, ",", i > 0));
        TRY(put_int(&j->out, j->ids.v[i]));
    }
    return text_push(&j->out, "]\n", 2);
}

static Status decode_line(Tokenizing *j, const Json *line)
{
    if (!json_is_array(line)) return fail(E_DATA, "expected a list of ids: [1, 2, 3]");
    j->ids.n = 0;
    for (size_t i = 0; i < json_array_size(line); i++) {
        const Json *v = json_array_get(line, i);
        json_int_t  id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id > INT32_MAX)
            return fail(E_DATA, "number %zu of the list is not a token id", i);
        TRY(ids_push(&j->ids, (int32_t)id));
    }
    TRY(tokenizer_decode(j->tokenizer, &j->out, j->ids.v, j->ids.n, j->skip_special));
    Json *text = json_stringn(j->out.v ? j->out.v : "", j->out.n), *object = json_pack("{s:o}", "text", text);
    char *dump = json_dumps(object, JSON_COMPACT);
    json_decref(object);
    if (!dump) return fail(E_FIT, "no memory for %zu bytes of text", j->out.n);
    j->out.n = 0;
    Status s = text_push(&j->out, dump, strlen(dump));
    free(dump);
    return s ? s : text_push(&j->out, "\n", 1);
}

static Status do_line(Tokenizing *j, ByteSpan bytes)
{
    Json *line = NULL;
    ByteSpan text;
    j->out.n = 0;
    TRY(utf8_repair(&j->repaired, bytes, &text));
    Status s = parse_line(&line, text);
    if (!s) s = j->decode ? decode_line(j, line) : encode_line(j, line);
    json_decref(line);
    if (!s && fwrite(j->out.v, 1, j->out.n, stdout) != j->out.n)
        s = fail(E_IO, "standard output: %s", strerror(errno));
    return s;
}

static Status do_lines(Tokenizing *j)
{
    char   *line = NULL;
    size_t  cap = 0;
    Status  s = OK;
    int64_t number = 1;
    for (ssize_t n; !s && (n = getline(&line, &cap, stdin)) >= 0; number++) {
        if (strspn(line, " \t\r\n") == (size_t)n) continue;
        s = do_line(j, (ByteSpan){ line, (size_t)n });
        if (s) s = wrap(s, "standard input: line %lld", (long long)number);
    }
    free(line);
    if (!s && ferror(stdin)) s = fail(E_IO, "standard input: %s", strerror(errno));
    if (fflush(stdout) && !s) s = fail(E_IO, "standard output: %s", strerror(errno));
    return s;
}

static const Option options[] = {
    OPTION_TEXT(Tokenizing, path, "--tokenizer", "FILE", "a tokenizer.json or a model's folder (required)"),
    OPTION_FLAG(Tokenizing, decode, "--decode", "lines of ids to lines of text"),
    OPTION_FLAG(Tokenizing, plain, "--plain", "take added tokens such as <|im_end|> as ordinary text"),
    OPTION_FLAG(Tokenizing, skip_special, "--skip-special", "with --decode: leave special tokens out"),
    OPTION_END
};

static Status cmd_tokenize(int argc, char **argv)
{
    Tokenizing job = { 0 };
    TRY(options_parse(argc, argv, options, &job, NULL));
    if (!job.path)
        return fail(E_CONFIG, "--tokenizer FILE is missing: a tokenizer.json or a model folder");
    Status s = tokenizer_open(&job.tokenizer, job.path);
    if (!s) s = token_scratch_open(&job.scratch, job.tokenizer);
    if (!s) s = do_lines(&job);
    ids_close(&job.ids);
    text_close(&job.out);
    text_close(&job.repaired);
    token_scratch_close(job.scratch);
    tokenizer_close(job.tokenizer);
    return s;
}

static const Usage usage = {
    .args    = "--tokenizer FILE < lines",
    .options = options,
    .notes   = "Lines are {\"text\": ...}; each becomes a line with a list of ids, or with --decode the "
               "reverse.",
};

const Command command_tokenize = {
    .name     = "tokenize",
    .help     = "turn lines of text into lines of token ids, and back",
    .run      = cmd_tokenize,
    .usage    = USAGE(&usage),
};
