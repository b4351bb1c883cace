/* Tokenizers of other models than Qwen: pipelines of published files, trained here on a few sentences,
 * against recorded ids and texts of Hugging Face tokenizers; ends of texts; what is refused. */
#include "data/tokenizer_private.h"

#include "data/chat.h"
#include "infer/answer.h"
#include "lab.h"

#include <dirent.h>
#include <sys/stat.h>

#define GOLD "tests/gold_text"

static void check_line(const Tokenizer *t, TokenScratch *s, const Json *line, const char *name)
{
    const char *text = json_string_value(json_object_get(line, "text"));
    const char *decoded = json_string_value(json_object_get(line, "decoded"));
    const Json *want = json_object_get(line, "ids");
    Ids  ids = { 0 };
    Text back = { 0 };
    EXPECT_OK(tokenizer_encode(t, s, &ids, text, strlen(text), false));
    bool same = ids.n == (int64_t)json_array_size(want);
    for (int64_t i = 0; same && i < ids.n; i++)
        same = json_integer_value(json_array_get(want, (size_t)i)) == ids.v[i];
    EXPECT(same, "%s: \"%s\" has other ids", name, text);
    EXPECT_OK(tokenizer_decode(t, &back, ids.v, ids.n, true));
    EXPECT(back.n == strlen(decoded) && (!back.n || !memcmp(back.v, decoded, back.n)),
           "%s: \"%s\" is decoded as \"%.*s\"", name, text, (int)back.n, back.v ? back.v : "");
    ids_close(&ids), text_close(&back);
}

static void check_folder(const char *name)
{
    char          path[600], *line = NULL;
    size_t        cap = 0;
    Tokenizer    *t;
    TokenScratch *s = NULL;
    int           n = 0;
    snprintf(path, sizeof path, GOLD "/%s", name);
    EXPECT_OK(tokenizer_open(&t, path));
    if (!t) return;
    EXPECT_OK(token_scratch_open(&s, t));
    snprintf(path, sizeof path, GOLD "/%s/vectors.jsonl", name);
    FILE *f = fopen(path, "r");
    while (f && getline(&line, &cap, f) > 0) {
        Json *o = json_loads(line, 0, NULL);
        check_line(t, s, o, name);
        json_decref(o);
        n++;
    }
    EXPECT(n >= 30, "%s: %d texts", name, n);
    if (f) fclose(f);
    free(line);
    token_scratch_close(s);
    tokenizer_close(t);
}

static void recorded_pipelines(void)
{
    struct dirent *e;
    DIR *d = opendir(GOLD);
    int  n = 0;
    while (d && (e = readdir(d))) {
        char path[600];
        snprintf(path, sizeof path, GOLD "/%s/vectors.jsonl", e->d_name);
        if (e->d_name[0] == '.' || access(path, R_OK)) continue;
        check_folder(e->d_name);
        n++;
    }
    if (d) closedir(d);
    EXPECT(n >= 8, "%d pipelines", n);
}

/* Token by token the text is the same as at once: a space is stripped from its start alone. */
static void decoding_in_parts(void)
{
    Tokenizer    *t;
    TokenScratch *s;
    Ids  ids = { 0 };
    Text whole = { 0 }, parts = { 0 };
    const char text[] = "The dog and\xc2\xa0the fox \xf0\x9f\x99\x82";
    EXPECT_OK(tokenizer_open(&t, GOLD "/prepend"));
    EXPECT_OK(token_scratch_open(&s, t));
    EXPECT_OK(tokenizer_encode(t, s, &ids, text, sizeof text - 1, false));
    EXPECT_OK(tokenizer_decode(t, &whole, ids.v, ids.n, true));
    size_t bytes = 0;
    for (int64_t i = 0; i < ids.n; i++) {
        bytes += tokenizer_token_bytes(t, ids.v[i]);
        EXPECT_OK(i ? tokenizer_decode_next(t, &parts, &ids.v[i], 1, true)
                    : tokenizer_decode(t, &parts, &ids.v[i], 1, true));
    }
    EXPECT(whole.n == sizeof text - 1 && !memcmp(whole.v, text, whole.n), "\"%.*s\"", (int)whole.n, whole.v);
    EXPECT(bytes == whole.n + 1, "%zu bytes of tokens", bytes);
    EXPECT(parts.n > 11 && !memcmp(parts.v, text, 11), "\"%.*s\"", (int)parts.n, parts.v);
    ids_close(&ids), text_close(&whole), text_close(&parts);
    token_scratch_close(s);
    tokenizer_close(t);
}

/* A folder with a copy of a tokenizer.json and a tokenizer_config.json of the given text. */
static const char *folder_with(const char *from, const char *config)
{
    static char dir[400];
    char cmd[1200];
    snprintf(dir, sizeof dir, "%s/tok", lab_tmp());
    mkdir(dir, 0777);
    snprintf(cmd, sizeof cmd, "cp " GOLD "/%s/tokenizer.json '%s' && cat > '%s/tokenizer_config.json' "
                                         "<<'END'\n%s\nEND",
             from, dir, dir, config);
    EXPECT(!system(cmd), "cannot write %s", dir);
    return dir;
}

static void ends_of_texts(void)
{
    Tokenizer *t;
    EXPECT_OK(tokenizer_open(&t, folder_with("llama3", "{\"eos_token\": {\"content\": \"<|end|>\"}}")));
    EXPECT(tokenizer_begin(t) == 1 && tokenizer_end(t) == 3, "%d %d", tokenizer_begin(t), tokenizer_end(t));
    tokenizer_close(t);
    EXPECT_OK(tokenizer_open(&t, folder_with("deepseek", "{\"eos_token\": \"</s>\", \"bos_token\": \"<s>\", "
                                                         "\"add_bos_token\": true}")));
    EXPECT(tokenizer_begin(t) == 1 && tokenizer_end(t) == 2, "%d %d", tokenizer_begin(t), tokenizer_end(t));
    ChatTokens token;
    chat_tokens_find(&token, t);
    EXPECT(chat_text_end(&token, t) == 2, "the end of a text is %d", chat_text_end(&token, t));
    EXPECT_FAIL(chat_tokens(&token, t), E_DATA, "<|im_start|>");         /* never ChatML in silence */
    tokenizer_close(t);
}

/* An answer begins after the generation prompt of the folder's template and ends with eos_token. */
static void answers_of_templates(void)
{
    static const char config[] =
        "{\"eos_token\": \"</s>\", \"chat_template\": \"{% for m in messages %}{{ '<|end|>' + m['role'] + "
        "'\\n' + "
        "m['content'] }}{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|end|>assistant\\n' }}{% endif %}\"}";
    static const char chat[] = "<|end|>user\nthe dog?<|end|>assistant\nthe fox</s>";
    Tokenizer    *t;
    TokenScratch *s;
    AnswerFinder  m;
    Ids  ids = { 0 };
    Text text = { 0 };
    int64_t from, end;
    EXPECT_OK(tokenizer_open(&t, folder_with("deepseek", config)));
    EXPECT_OK(token_scratch_open(&s, t));
    EXPECT_OK(answer_finder_open(&m, t));
    EXPECT_OK(tokenizer_encode(t, s, &ids, chat, sizeof chat - 1, false));
    EXPECT(m.stops == 1 && m.stop[0] == 2, "%d stops", m.stops);
    EXPECT(answer_find(&m, &ids, &from, &end), "no answer");
    EXPECT_OK(tokenizer_decode(t, &text, ids.v + from, end - from, false));
    EXPECT(text.n && !strncmp(text.v + (text.v[0] == ' '), "the fox", 7), "\"%.*s\"", (int)text.n, text.v);
    ids_close(&ids), text_close(&text);
    answer_finder_close(&m);
    token_scratch_close(s);
    tokenizer_close(t);
}

static void other_files_are_refused(void)
{
    Tokenizer *t;
    char dir[400], cmd[900];
    snprintf(dir, sizeof dir, "%s/kimi", lab_tmp());
    snprintf(cmd, sizeof cmd, "mkdir -p '%s' && touch '%s/tiktoken.model'", dir, dir);
    EXPECT(!system(cmd), "cannot write %s", dir);
    EXPECT_FAIL(tokenizer_open(&t, dir), E_DATA, "tiktoken, of Kimi");
}

static void refuses(const char *from, const char *key, Json *value, const char *why)
{
    char       path[200], *text;
    Json      *j = NULL;
    Tokenizer *t;
    snprintf(path, sizeof path, GOLD "/%s/tokenizer.json", from);
    EXPECT_OK(json_load(&j, path));
    json_object_set_new(j, key, value);
    text = json_dumps(j, 0);
    EXPECT_FAIL(tokenizer_open_memory(&t, text, strlen(text), "test"), E_DATA, why);
    free(text);
    json_decref(j);
}

static void other_rules_are_refused(void)
{
    refuses("prepend", "normalizer", json_null(), "how spaces are spelled");
    refuses("prepend", "normalizer", json_pack("{s:s}", "type", "NFKC"), "NFKC");
    refuses("prepend", "decoder", json_pack("{s:s}", "type", "ByteLevel"), "ByteLevel");
    refuses("metaspace-first", "pre_tokenizer", json_pack("{s:s}", "type", "Whitespace"), "Whitespace");
    refuses("metaspace-first", "pre_tokenizer",
            json_pack("{s:s, s:s}", "type", "Metaspace", "replacement", "_"), "U+2581");
    refuses("llama3", "post_processor", json_pack("{s:s}", "type", "BertProcessing"), "BertProcessing");
    refuses("llama3", "post_processor", json_pack("{s:s, s:[]}", "type", "TemplateProcessing", "single"),
            "no text");
    refuses("neox", "pre_tokenizer", json_pack("{s:s, s:[]}", "type", "Sequence", "pretokenizers"),
        "Sequence");
}

int main(void)
{
    RUN(recorded_pipelines);
    RUN(decoding_in_parts);
    RUN(ends_of_texts);
    RUN(answers_of_templates);
    RUN(other_files_are_refused);
    RUN(other_rules_are_refused);
    char rm[400];
    snprintf(rm, sizeof rm, "rm -rf '%s'", lab_tmp());
    if (system(rm)) perror(rm);
    return lab_report();
}
