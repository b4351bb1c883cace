/* tests/test_chat.c -- the chat template: supervised tokens, prompts, videos, truncation. */
#include "base/folder.h"
#include "chatlab.h"
#include "data/chat_template.h"

static void loss_spans(void)
{
    static const struct { LossSpan loss; const char *at_d, *more, *supervised;
    } rows[] = {
        { LOSS_ASSISTANT, "", "", "b" END "|d" END "|e" END },
        { LOSS_ASSISTANT, ", 'loss': false", "", "b" END "|e" END },
        { LOSS_LAST_ROUND, "", "", "d" END "|e" END },
        { LOSS_LAST_ROUND, ", 'loss': false", "", "e" END },
        { LOSS_LAST_ROUND, "", ", {'role': 'user', 'content': 'f', 'loss': true}",
          "d" END "|e" END "|f" END },
        { LOSS_ALL, "", "",
          "user\na" END
          "\n" TURN("assistant", "b") "<|im_start|>user\n<|vision_start|>|<|vision_end|>c" END "\n" TURN(
              "assistant", "d") TURN("user", "<tool_response>\nt\n</tool_response>") TURN("assistant", "e") },
        { LOSS_ALL, ", 'loss': false", "",
          "user\na" END "\n" TURN("assistant", "b") "<|im_start|>user\n<|vision_start|>|<|vision_end|>c" END
                                                    "\n|" TURN("user", "<tool_response>\nt\n</tool_response>")
                                                        TURN("assistant", "e") },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char line[1024];
        Kit  k;
        snprintf(line, sizeof line, LINE(USER("a") ", " ANSWER("b") ", " USER("<image>c") ", "
                 "{'role': 'assistant', 'content': 'd'%s}, " MESSAGE("tool", "t") ", " ANSWER("e") "%s",
                 ", 'images': ['p']"), rows[i].at_d, rows[i].more);
        kit_open(&k, line);
        k.chat.loss = rows[i].loss;
        kit_render(&k);
        EXPECT_TEXT(k.supervised.v, rows[i].supervised);
        kit_close(&k);
    }
}

static void names_of_the_recipe(void)
{
    EXPECT(chat_loss_named("assistant") == LOSS_ASSISTANT && chat_loss_named("last_round") == LOSS_LAST_ROUND,
           "loss");
    EXPECT(chat_loss_named("all") == LOSS_ALL && chat_truncation_named("error") == TRUNCATE_ERROR,
           "all, error");
    EXPECT(chat_truncation_named("delete") == TRUNCATE_DELETE, "delete");
    EXPECT(chat_truncation_named("right") == TRUNCATE_RIGHT, "right");
}

/* The line break of a header and a line break at the start of the answer are one token, which is not
 * supervised. */
static void header_and_content_are_encoded_together(void)
{
    Kit k;
    kit_open(&k, LINE(USER("\\n") ", " ANSWER("\\nB") ", " USER("") ", " ANSWER(""), ""));
    kit_render(&k);
    EXPECT_TEXT(k.seen.v, TURN("user", "\n") TURN("assistant", "\nB") TURN("user", "") TURN("assistant", ""));
    EXPECT_TEXT(k.supervised.v, "B" END "|" END);
    EXPECT(k.ids.v[5] == TINY_BREAKS, "the line breaks are not one token: %d", k.ids.v[5]);
    kit_close(&k);
}

/* Added tokens in the text of a user become ids, except visual tokens. */
static void special_words_of_users(void)
{
    Kit     k;
    int64_t ends = 0;
    kit_open(&k, LINE(USER("a<|im_end|><|image_pad|>b<|video_pad|><|vision_start|>"), ""));
    kit_render(&k);
    for (int64_t i = 0; i < k.ids.n; i++) {
        int32_t id = k.ids.v[i];
        ends += id == k.chat.token.im_end;
        EXPECT(!is_pad(&k, id) && id != k.chat.token.vision_start, "id %d at %lld", id, (long long)i);
    }
    EXPECT(ends == 2, "%lld ends", (long long)ends);
    EXPECT_TEXT(k.seen.v, TURN("user", "a<|im_end|><|image_pad|>b<|video_pad|><|vision_start|>"));
    kit_close(&k);
}

static void prompts(void)
{
    static const struct { const char *line, *seen; } rows[] = {
        { LINE(USER("a") ", " ANSWER("b"), ""), TURN("user", "a") "<|im_start|>assistant\n" },
        { LINE(USER("a") ", " ANSWER("b") ", " USER("c"), ""),
          TURN("user", "a") TURN("assistant", "b") TURN("user", "c") "<|im_start|>assistant\n" },
        { "{'text': 'Once'}", "Once" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Kit k;
        kit_open(&k, rows[i].line);
        k.chat.prompt_only = true;
        kit_render(&k);
        EXPECT_TEXT(k.seen.v, rows[i].seen);
        EXPECT_TEXT(k.supervised.v, "");
        kit_close(&k);
    }
}

static void tokenizers_without_the_tokens(void)
{
    ChatTokens t;
    Tokenizer *bare = tiny_open(lab_tmp(), 1), *text = tiny_open(lab_tmp(), 3);
    EXPECT_FAIL(chat_tokens(&t, bare), E_DATA, "<|im_start|>");
    EXPECT_OK(chat_tokens(&t, text));
    EXPECT(t.image_pad == -1 && t.im_end == TINY_FIRST + 2, "im_end %d", t.im_end);
    Kit k;
    kit_open(&k, LINE(USER("<image>"), ", 'image': 'a'"));
    k.chat.token.image_pad = -1;
    EXPECT_FAIL(chat_render(&k.chat, k.scratch, &k.ids, &k.targets, &k.c, k.grid), E_DATA,
                "no vision tokens");
    EXPECT(k.ids.n == 0 && k.targets.n == 0, "a part of the document is left");
    kit_close(&k);
    tokenizer_close(bare), tokenizer_close(text);
}

/* Goldens of the specification's section 6.6. */
static void video_sampling(void)
{
    static const int64_t want[] = { 0, 14, 28, 42, 57, 71, 85, 99 };
    static const char *const seconds[] = { "0.3", "1.4", "2.6", "3.7" };
    int64_t n = video_count(100, 25, &kit_rule);
    EXPECT(n == 8, "%lld frames", (long long)n);
    for (int64_t i = 0; i < 8; i++)
        EXPECT(video_index(i, 8, 100) == want[i], "frame %lld", (long long)video_index(i, 8, 100));
    for (int64_t s = 0; s < 4; s++) {
        char text[32];
        snprintf(text, sizeof text, "%.1f", video_seconds(s, 8, 100, 25, 2));
        EXPECT_TEXT(text, seconds[s]);
    }
    EXPECT(video_count(3, 25, &kit_rule) == 3 && video_count(5, 25, &kit_rule) == 4, "few frames");
    EXPECT(video_count(7, 0, &kit_rule) == 7 && video_count(9, 1e-6, &kit_rule) == 9, "taken as they are");
    EXPECT(video_count(100000, 25, &kit_rule) == 768 && video_count(100000, 0, &kit_rule) == 768,
           "many frames");
    EXPECT(video_index(0, 1, 9) == 0, "one frame");
}

static void video_sizes(void)
{
    static const struct { int64_t n, h, w, H, W; } rows[] = {
        { 16, 720, 1280, 704, 1280 }, { 120, 720, 1280, 320, 608 }, { 768, 1080, 1920, 128, 224 },
        { 5,  360, 640,  352, 640 },  { 2,   10,  10,   64,  64 },
    };
    const PatchShape p = { .patch = 16, .frames = 2, .merge = 2, .channels = 3,
                           .min_pixels = 4096, .max_pixels = 25165824 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t h = rows[i].h, w = rows[i].w;
        EXPECT_OK(video_fit(&h, &w, rows[i].n, &p));
        EXPECT(h == rows[i].H && w == rows[i].W, "%lld x %lld", (long long)h, (long long)w);
    }
    int64_t h = 32, w = 32 * 201, zero = 0;
    EXPECT_FAIL(video_fit(&h, &w, 4, &p), E_DATA, "200");
    EXPECT_FAIL(video_fit(&h, &zero, 4, &p), E_DATA, "cannot");
    EXPECT_FAIL(video_fit(&h, &h, 1, &p), E_DATA, "cannot");
}

/* Ten frames at 4 a second, sampled at 2: frames 0, 2, 4 (4.5 goes to even), 7, 9; the last slice repeats
 * 9. */
static void video_in_a_conversation(void)
{
    Kit k;
    kit_open(&k, LINE(USER("x<video>What?<image>"), ", 'images': ['p'], 'fps': 4, "
                      "'videos': [['0', '1', '2', '3', '4', '5', '6', '7', '8', '9']]"));
    const Media *m = &k.c.media[0];
    EXPECT(m->frames == 5 && !strcmp(k.c.frame[m->first + 1].path, "2"), "%d frames", m->frames);
    EXPECT(video_slices(m, 2) == 3 && video_frame(m, 2, 1, 2) == m->first + 4,
           "the last frame is not repeated");
    kit_render(&k);
    EXPECT_TEXT(k.seen.v,
                TURN("user", "x" SLICE("0.2", 2) SLICE("1.4", 2) SLICE("2.2", 2) "What?" PICTURE(4)));
    k.chat.video_outer = true;
    kit_render(&k);
    EXPECT_TEXT(k.seen.v, TURN("user", "x<|vision_start|>" SLICE("0.2", 2) SLICE("1.4", 2) SLICE("2.2", 2)
                               "<|vision_end|>What?" PICTURE(4)));
    kit_close(&k);
}

static void spellings_of_videos(void)
{
    static const char *const same[] = {
        LINE(USER("<video>"), ", 'videos': [['a', 'b', 'c']]"),
        LINE(USER("<video>"), ", 'videos': [{'frames': ['a', 'b', 'c'], 'fps': 2}]"),
        LINE(USER("<video>"), ", 'video': ['a', 'b', 'c']"),
        LINE(PARTS("{'type': 'video', 'video': ['a', 'b', 'c'], 'fps': 2.0}"), ""),
        LINE(PARTS("{'type': 'video'}"), ", 'videos': [['a', 'b', 'c']], 'fps': [2]"),
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        expect_render(same[i], LOSS_ASSISTANT, TURN("user", SLICE("0.2", 2) SLICE("1.0", 2)), "");
    Json        *line = line_parse(LINE(USER("<video>"), ", 'videos': [['a']]"));
    Conversation c;
    EXPECT_OK(conversation_read(&c, line));
    EXPECT_FAIL(video_choose(&c, &kit_rule), E_DATA, "at least 2");
    conversation_close(&c), json_decref(line);
}

#define FIRST  TURN("user", PICTURE(2) "a") TURN("assistant", "bb")       /* 28 tokens: 6 + 4 + 3, 11 + 4 */
#define SECOND "<|im_start|>user\n" PICTURE(4)                            /* to row 40 */

static void truncation(void)
{
    static const struct { int64_t max; const char *seen, *supervised; int medias; } rows[] = {
        { 56, FIRST SECOND END "\n" TURN("assistant", "d"),             "bb" END "|d" END, 2 },
        { 55, FIRST SECOND END "\n<|im_start|>assistant\nd" END,        "bb" END "|d" END, 2 },
        { 54, FIRST SECOND END "\n<|im_start|>assistant\nd",            "bb" END, 2 },
        { 40, FIRST SECOND,                                             "bb" END, 2 },
        { 39, FIRST "<|im_start|>user\n",                               "bb" END, 1 },
        { 35, FIRST "<|im_start|>user\n",                               "bb" END, 1 },
        { 34, FIRST "<|im_start|>user\n",                               "bb" END, 1 },
        { 33, FIRST "<|im_start|>user",                                 "bb" END, 1 },
        { 26, TURN("user", PICTURE(2) "a") "<|im_start|>assistant\nbb", "", 1 },
        { 25, TURN("user", PICTURE(2) "a") "<|im_start|>assistant\nb",  "", 1 },
        { 9,  "<|im_start|>user\n",                                     "", 0 },
        { 6,  "<|im_start|>user\n",                                     "", 0 },
        { 3,  "<|im_start|>us",                                         "", 0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Kit     k;
        ChatFit fit;
        kit_open(&k, LINE(USER("<image>a") ", " ANSWER("bb") ", " USER("<image>") ", " ANSWER("d"),
                          ", 'images': ['p', 'q']"));
        kit_render(&k);
        EXPECT(k.ids.n == 56, "%lld tokens", (long long)k.ids.n);
        EXPECT_OK(chat_truncate(&k.chat, &fit, &k.ids, &k.targets, 0, &k.c, k.grid, rows[i].max,
                                TRUNCATE_RIGHT));
        kit_texts(&k);
        EXPECT_TEXT(k.seen.v, rows[i].seen);
        EXPECT_TEXT(k.supervised.v, rows[i].supervised);
        EXPECT(fit.medias == rows[i].medias && fit.tokens == k.ids.n && !fit.drop, "%d media left",
               fit.medias);
        EXPECT((fit.supervised == 0) == !*rows[i].supervised, "%lld supervised", (long long)fit.supervised);
        kit_close(&k);
    }
}

static void truncation_by_rule(void)
{
    Kit     k;
    ChatFit fit;
    kit_open(&k, "{'text': 'abcdef'}");
    kit_render(&k);
    EXPECT_OK(chat_truncate(&k.chat, &fit, &k.ids, &k.targets, 0, &k.c, k.grid, 7, TRUNCATE_ERROR));
    EXPECT(fit.tokens == 7 && fit.supervised == 6, "%lld", (long long)fit.tokens);
    EXPECT_FAIL(chat_truncate(&k.chat, &fit, &k.ids, &k.targets, 0, &k.c, k.grid, 6, TRUNCATE_ERROR), E_DATA,
                "7 tokens");
    EXPECT_OK(chat_truncate(&k.chat, &fit, &k.ids, &k.targets, 0, &k.c, k.grid, 6, TRUNCATE_DELETE));
    EXPECT(fit.drop && k.ids.n == 7, "%lld", (long long)k.ids.n);
    EXPECT_OK(
        chat_render(&k.chat, k.scratch, &k.ids, &k.targets, &k.c, k.grid)); /* a second document after it */
    EXPECT_OK(chat_truncate(&k.chat, &fit, &k.ids, &k.targets, 7, &k.c, k.grid, 4, TRUNCATE_RIGHT));
    EXPECT(fit.tokens == 4 && fit.supervised == 3 && k.ids.n == 11, "%lld", (long long)fit.supervised);
    EXPECT(k.targets.v[10] == -1 && k.targets.v[5] == k.chat.token.endoftext, "targets at the cut");
    kit_close(&k);
}

/* A cut between two slices moves to the start of the video. */
static void truncation_of_a_video(void)
{
    Kit     k;
    ChatFit fit;
    kit_open(&k, LINE(USER("<video>hello"), ", 'video': ['a', 'b', 'c', 'd']"));
    kit_render(&k);
    EXPECT_OK(chat_truncate(&k.chat, &fit, &k.ids, &k.targets, 0, &k.c, k.grid, k.ids.n - 12,
                            TRUNCATE_RIGHT));
    kit_texts(&k);
    EXPECT_TEXT(k.seen.v, "<|im_start|>user\n<0.2 seconds>");
    EXPECT(fit.medias == 0 && fit.supervised == 0, "%d media", fit.medias);
    kit_close(&k);
}

/* A folder with the tiny tokenizer and a chat template of our own. */
static Tokenizer *templated_open(const char *source, const char *config)
{
    Path path, folder;
    EXPECT_OK(path_join(folder, lab_tmp(), "templated"));
    EXPECT_OK(folder_make(folder));
    EXPECT_OK(path_join(path, folder, "chat_template.jinja"));
    EXPECT_OK(file_write(path, source, strlen(source)));
    EXPECT_OK(path_join(path, folder, "tokenizer_config.json"));
    EXPECT_OK(file_write(path, config, strlen(config)));
    return tiny_open(folder, TINY_ADDED);
}

static void expect_templated(const char *source, const char *json, LossSpan loss, const char *seen,
                             const char *supervised)
{
    Kit k;
    const ChatTemplate *template;
    Tokenizer *t =
        templated_open(source, "{\"bos_token\": {\"content\": \"[B]\"}, \"eos_token\": \"<|endoftext|>\"}");
    kit_with(&k, t, json);
    EXPECT_OK(tokenizer_template(t, &template));
    k.chat.template = template, k.chat.loss = loss;
    kit_render(&k);
    EXPECT_TEXT(k.seen.v, seen);
    EXPECT_TEXT(k.supervised.v, supervised);
    kit_close(&k);
}

static const char OWN[] =
    "{{ bos_token }}{% if tools %}T{{ tools | tojson }}{% endif %}{% for m in messages %}{% if m.role == "
    "'assistant' %}"
    "<a>{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}{% for c in "
    "m.tool_calls or [] %}"
    "!{{ c.function.arguments | tojson }}{% endfor %}{{ eos_token }}\n{% else %}<{{ m.role[0] }}>{% if "
    "m.content is string %}"
    "{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% else "
    "%}<|vision_start|>"
    "<|{{ p.type }}_pad|><|vision_end|>{% endif %}{% endfor %}{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}";

/* The loss follows the assistant's messages, less the generation prompt and the line break after the end
 * token. */
static void own_templates(void)
{
    expect_templated(
        OWN,
        LINE(MESSAGE("system", "S") ", " USER("q") ", " ANSWER("a b") ", " USER("r") ", " ANSWER("c"), ""),
        LOSS_ASSISTANT, "[B]<s>S<u>q<a>a b<|endoftext|>\n<u>r<a>c<|endoftext|>\n",
        "a b<|endoftext|>|c<|endoftext|>");
    expect_templated(OWN, LINE(USER("q") ", " ANSWER("a") ", " USER("r") ", " ANSWER("c"), ""),
                     LOSS_LAST_ROUND, "[B]<u>q<a>a<|endoftext|>\n<u>r<a>c<|endoftext|>\n", "c<|endoftext|>");
    expect_templated(
        OWN,
        LINE(USER("q") ", {'role': 'assistant', 'content': 'a', 'weight': 0}, " USER("r") ", " ANSWER("c"),
             ""),
        LOSS_ASSISTANT, "[B]<u>q<a>a<|endoftext|>\n<u>r<a>c<|endoftext|>\n", "c<|endoftext|>");
    expect_templated(
        OWN, LINE(USER("q") ", {'role': 'assistant', 'content': 'a', 'reasoning_content': 'why'}", ""),
        LOSS_ASSISTANT, "[B]<u>q<a>(why)a<|endoftext|>\n", "(why)a<|endoftext|>");
    expect_templated(
        OWN,
        LINE(USER("q") ", {'role': 'assistant', 'tool_calls': [{'name': 'f', 'arguments': '{\\'x\\': 1}'}]}",
             ", 'tools': [{'n': 1}]"),
        LOSS_ASSISTANT, "[B]T[{\"n\": 1}]<u>q<a>!{\"x\": 1}<|endoftext|>\n", "!{\"x\": 1}<|endoftext|>");
}

/* Media take the places that the template gives them; a text that spells their tokens stays text. */
static void own_templates_show_media(void)
{
    expect_templated(OWN, LINE(USER("<image>x<|image_pad|>") ", " ANSWER("y"), ", 'images': ['a.png']"),
                     LOSS_ASSISTANT,
                     "[B]<u><|vision_start|><|image_pad|>*2<|vision_end|>x<|image_pad|><a>y<|endoftext|>\n",
                     "y<|endoftext|>");
    expect_templated(
        OWN, LINE(USER("<video>") ", " ANSWER("y"), ", 'videos': [['1', '2', '3', '4']]"), LOSS_ASSISTANT,
        "[B]<u><0.2 seconds><|vision_start|><|video_pad|>*2<|vision_end|><1.2 seconds><|vision_start|>"
        "<|video_pad|>*2<|vision_end|><a>y<|endoftext|>\n",
        "y<|endoftext|>");
}

static void templates_mark_generation(void)
{
    expect_templated(
        "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }};"
        "{% endgeneration %}.{% else %}{{ m.content }}{% endif %}{% endfor %}",
        LINE(USER("q") ", " ANSWER("e\\u0301a"), ""), LOSS_ASSISTANT,
        "user:qassistant:\xc3\xa9"
        "a;.",
        "\xc3\xa9"
        "a;");
}

static void unread_templates_are_refused(void)
{
    const ChatTemplate *template;
    Tokenizer *t = templated_open("a\n{% include 'b' %}", "{}");
    EXPECT_FAIL(tokenizer_template(t, &template), E_DATA, "chat_template.jinja:2");
    EXPECT_FAIL(tokenizer_template(t, &template), E_DATA, "data.template=chatml");
    tokenizer_close(t);
}

int main(void)
{
    RUN(loss_spans);
    RUN(names_of_the_recipe);
    RUN(header_and_content_are_encoded_together);
    RUN(special_words_of_users);
    RUN(prompts);
    RUN(tokenizers_without_the_tokens);
    RUN(video_sampling);
    RUN(video_sizes);
    RUN(video_in_a_conversation);
    RUN(spellings_of_videos);
    RUN(truncation);
    RUN(truncation_by_rule);
    RUN(truncation_of_a_video);
    rmdir(lab_tmp());
    RUN(own_templates);
    RUN(own_templates_show_media);
    RUN(templates_mark_generation);
    RUN(unread_templates_are_refused);
    return lab_report();
}
