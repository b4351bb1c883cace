/* tests/test_conversation.c -- dataset lines in all forms, their renderings, and errors. */
#include "chatlab.h"

#include "data/media_ref.h"
#include "data/chat_tools.h"
#include "data/record_form.h"

static void messages_with_marks(void)
{
    expect_render(
        LINE(USER("<image>\\nA? <b>") ", " ANSWER("It is <image>."), ", 'images': ['a.png'], 'id': 7"),
        LOSS_ASSISTANT, TURN("user", PICTURE(2) "\nA? <b>") TURN("assistant", "It is <image>."),
        "It is <image>." END);
    expect_render(LINE(MESSAGE("system", "S") ", " USER("Hi") ", " ANSWER("Yo") ", " MESSAGE(
                           "system", "again") ", " USER("x<image>y<image>") ", " ANSWER("Z"),
                       ", 'images': ['a', {'path': 'b'}]"),
                  LOSS_ASSISTANT,
                  TURN("system", "S") TURN("user", "Hi") TURN("assistant", "Yo") TURN("system", "again")
                      TURN("user", "x" PICTURE(2) "y" PICTURE(4)) TURN("assistant", "Z"),
                  "Yo" END "|Z" END);
}

static void content_parts(void)
{
    static const char *const lines[] = {
        LINE(PARTS("{'type': 'image', 'image': 'a.png'}, {'type': 'text', 'text': '\\nA?'}") ", " ANSWER("B"),
             ""),
        LINE(PARTS("{'type': 'image_url', 'image_url': {'url': 'file:///a'}}, {'text': '\\nA?'}") ", " ANSWER(
                 "B"),
             ""),
        LINE(PARTS("{'type': 'image_url', 'image_url': 'data:;base64,iVBO'}, {'text': '\\nA?'}") ", " ANSWER(
                 "B"),
             ""),
        LINE(
            PARTS(
                "{'image': 'a.png'}, {'type': 'text', 'text': '\\n', 'image': null}, {'text': 'A?'}") ", "
                                                                                                      "{'"
                                                                                                      "role':"
                                                                                                      " '"
                                                                                                      "assist"
                                                                                                      "ant', "
                                                                                                      "'conte"
                                                                                                      "nt': "
                                                                                                      "[{'"
                                                                                                      "type':"
                                                                                                      " '"
                                                                                                      "text',"
                                                                                                      " '"
                                                                                                      "text':"
                                                                                                      " 'B'}]"
                                                                                                      "}",
            ""),
        LINE(PARTS("{'type': 'image', 'path': 'a.png'}, {'text': '\\nA?'}") ", " ANSWER("B"), ""),
        LINE(PARTS("{'type': 'image'}, {'text': '\\nA?'}") ", " ANSWER("B"), ", 'images': ['a.png']"),
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        expect_render(lines[i], LOSS_ASSISTANT, TURN("user", PICTURE(2) "\nA?") TURN("assistant", "B"),
                      "B" END);
}

#define HUMAN(text) "{'from': 'human', 'value': '" text "'}"
#define GPT(text) "{'from': 'gpt', 'value': '" text "'}"

static void other_forms(void)
{
    const char *seen = TURN("user", PICTURE(2) "\nA?") TURN("assistant", "B");
    expect_render("{'conversations': [" HUMAN("<image>\\nA?") ", " GPT("B") "], 'image': 'a.png'}",
                  LOSS_ASSISTANT, seen, "B" END);
    expect_render("{'conversations': [" HUMAN("<image>\\nA?") ", " GPT("B") "], 'image': ['a.png']}",
                  LOSS_ASSISTANT, seen, "B" END);
    expect_render(
        "{'conversations': [{'from': 'system', 'value': 'S'}, " HUMAN("A") ", " GPT("B") "], 'image': ''}",
        LOSS_ASSISTANT, TURN("system", "S") TURN("user", "A") TURN("assistant", "B"), "B" END);
    expect_render("{'instruction': 'I', 'input': '', 'output': 'O'}", LOSS_ASSISTANT,
                  TURN("user", "I") TURN("assistant", "O"), "O" END);
    expect_render("{'instruction': 'I', 'input': 'N', 'output': 'O', 'system': 'S', 'history': [['q', 'a']]}",
                  LOSS_ASSISTANT,
                  TURN("system", "S") TURN("user", "q") TURN("assistant", "a") TURN("user", "I\nN")
                      TURN("assistant", "O"),
                  "a" END "|O" END);
    expect_render("{'text': 'Once <|im_start|> upon'}", LOSS_ASSISTANT, "Once <|im_start|> upon<|endoftext|>",
                  "nce <|im_start|> upon<|endoftext|>");
}

static void plain_text_from_bytes(void)
{
    Conversation c;
    EXPECT_OK(conversation_text(&c, "ab\0c", 4));
    EXPECT(c.plain && c.items == 1 && c.item[0].len == 4 && c.turns == 0, "items %d", c.items);
    conversation_close(&c);
    EXPECT_FAIL(conversation_text(&c, "", 0), E_DATA, "empty");
    conversation_close(&c);
}

/* The text of the reference, and JSON as Python prints it. */
#define TOOLS(tools)                                                                                         \
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with " \
    "function "                                                                                              \
    "signatures within <tools></tools> XML tags:\n<tools>\n" tools                                           \
    "\n</tools>\n\nFor each function call, return a "                                                        \
    "json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"   \
    "{'name': <function-name>, 'arguments': <args-json-object>}\n</tool_call>"
#define CALL(name, arguments) "<tool_call>\n{'name': '" name "', 'arguments': " arguments "}\n</tool_call>"
#define RESPONSE(text) "\n<tool_response>\n" text "\n</tool_response>"

static void tools_and_calls(void)
{
    const char *calls =
        "{'role': 'assistant', 'content': null, 'tool_calls': [{'function': {'name': 'f', 'arguments': "
        "{'a': 1, 'b': null}}}, {'name': 'g', 'arguments': '{}'}]}";
    const char *last =
        "{'role': 'assistant', 'content': 'done', 'tool_calls': [{'name': 'h', 'arguments': {}}]}";
    char line[1024];
    snprintf(line, sizeof line,
             LINE(USER("Q") ", %s, " MESSAGE("tool", "r1") ", " MESSAGE("tool", "r2") ", %s",
                  ", 'tools': [{'type': 'function', 'x': [1, 2.50, '\\u00e9\\n']}]"),
             calls, last);
    expect_render(line, LOSS_ASSISTANT,
                  TURN("system", TOOLS("{'type': 'function', 'x': [1, 2.5, '\u00e9\\n']}")) TURN("user", "Q")
                      TURN("assistant", CALL("f", "{'a': 1, 'b': null}") "\n" CALL(
                                            "g", "{}")) "<|im_start|>user" RESPONSE("r1")
                          RESPONSE("r2") "<|im_end|>\n" TURN("assistant", "done\n" CALL("h", "{}")),
                  CALL("f", "{'a': 1, 'b': null}") "\n" CALL("g", "{}") END "|done\n" CALL("h", "{}") END);
    expect_render(LINE(MESSAGE("system", "S") ", " USER("Q"), ", 'tools': ['{\\'n\\': 1}']"), LOSS_ASSISTANT,
                  TURN("system", "S\n\n" TOOLS("{'n': 1}")) TURN("user", "Q"), "");
    expect_render(LINE(MESSAGE("system", "S") ", " USER("Q"), ", 'tools': '[{\\'n\\': 1}]'"), LOSS_ASSISTANT,
                  TURN("system", "S\n\n" TOOLS("{'n': 1}")) TURN("user", "Q"), "");
}

/* Expected texts are what Python's json.dumps(x, ensure_ascii=False) prints. */
static void json_as_python_writes_it(void)
{
    const char *want =
        "[0.0, -0.0, 0.1, 1e-05, 0.0001, 1234567.891, 1000000000000000.0, 1e+16, 1.5e+300, 5e-324, "
        "0.30000000000000004, -7, true, {}, [], \"\\u001f\\b\\\"\\\\/\u00fc\x7f\"]";
    Json *v   = NULL;
    Text  out = { 0 };
    EXPECT_OK(json_parse(&v, want, strlen(want), "json"));
    EXPECT_OK(chat_tools_json(&out, v));
    EXPECT(out.n == strlen(want) && !memcmp(out.v, want, out.n), "%.*s", (int)out.n, out.v);
    text_close(&out);
    json_decref(v);
}

static void base64(void)
{
    static const struct {
        const char *text, *bytes;
        int         n;
    } rows[] = {
        { "", "", 0 },
        { "TQ==", "M", 1 },
        { "TWE=", "Ma", 2 },
        { "TWFu", "Man", 3 },
        { "TWE", "Ma", 2 },
        { "/+8=", "\xff\xef", 2 },
        { "TW\r\nFu TWFu", "ManMan", 6 },
        { "T", "", -1 },
        { "TW=u", "", -1 },
        { "T===", "", -1 },
        { "TW-u", "", -1 },
        { "TWFu=", "", -1 },
        { "TWE==", "", -1 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char    bytes[64];
        int64_t n = base64_decode(bytes, rows[i].text, strlen(rows[i].text));
        EXPECT(n == rows[i].n && (n < 1 || !memcmp(bytes, rows[i].bytes, (size_t)n)), "%s: %d", rows[i].text,
               (int)n);
    }
}

static void references(void)
{
    Kit k;
    kit_open(&k, LINE(USER("<image><image><image>"),
                      ", 'images': ['file:///d/a.png', 'DATA:image/png;base64,TWFu', 'odd:name.png']"));
    EXPECT(k.c.frames == 3 && !strcmp(k.c.frame[0].path, "/d/a.png") && !k.c.frame[0].bytes, "a path");
    EXPECT(!k.c.frame[1].path && k.c.frame[1].len == 3 && !memcmp(k.c.frame[1].bytes, "Man", 3), "bytes");
    EXPECT(!strcmp(k.c.frame[2].path, "odd:name.png"), "a path with a colon");
    kit_close(&k);
}

#define IMAGE(reference) LINE(USER("<image>"), ", 'images': ['" reference "']")
#define VIDEO(more) LINE(USER("<video>"), more)
#define CALLS(calls) LINE("{'role': 'assistant', 'tool_calls': " calls "}", "")

static void refusals_name_the_field(void)
{
    static const struct {
        const char *line, *word;
    } rows[] = {
        { "[1]", "object" },
        { "{'prompt': 1}", "the line has none of messages" },
        { LINE("", ""), "messages: expected a list" },
        { "{'messages': {}}", "messages: expected a list" },
        { LINE("1", ""), "messages[0]: expected an object" },
        { LINE("{'content': 'x'}", ""), "messages[0].role" },
        { LINE(MESSAGE("critic", "x"), ""), "messages[0].role: expected system, user" },
        { "{'conversations': [{'from': 'x', 'value': 'x'}]}", "conversations[0].from" },
        { "{'conversations': [{'from': 'gpt', 'value': 1}]}", "conversations[0].value: expected a string" },
        { LINE("{'role': 'user', 'content': null}", ""), "messages[0].content: expected a string" },
        { LINE("{'role': 'user', 'content': 'x', 'loss': 1}", ""), "messages[0].loss" },
        { LINE(PARTS("'x'"), ""), "messages[0].content[0]: expected an object" },
        { LINE(PARTS("{'type': 'audio'}"), ""), "messages[0].content[0].type" },
        { LINE(PARTS("{'type': 'text'}"), ""), "messages[0].content[0].text" },
        { LINE(PARTS("{'type': 'image', 'image': 3}"), ""), "messages[0].content[0]: a picture" },
        { LINE(PARTS("{'image_url': {'url': 'https://x/y'}}"), ""), "download it first" },
        { IMAGE("http://x/y.png"), "images[0]: a http address" },
        { IMAGE("S3://x/y.png"), "images[0]: a S3 address" },
        { IMAGE("data:image/png,abc"), "must say base64" },
        { IMAGE("data:image/png;base64,a*"), "not valid base64" },
        { IMAGE("data:;base64,"), "empty" },
        { IMAGE(""), "images[0]: a picture" },
        { IMAGE("file://"), "images[0]: the path is empty" },
        { LINE(USER("<image>"), ""), "images: 0 listed, but 1 <image>" },
        { LINE(USER("<image><image>"), ", 'images': ['a']"), "images: 1 listed, but 2 <image>" },
        { LINE(USER("hi"), ", 'image': 'a'"), "image: 1 listed, but 0 <image>" },
        { LINE(USER("hi"), ", 'image': 'a', 'images': []"), "images: the line has image too" },
        { "{'text': 'x', 'images': ['a']}", "images: 1 listed, but 0 <image>" },
        { VIDEO(", 'videos': [7]"), "videos[0]: a picture is named by a path" },
        { VIDEO(", 'videos': [[]]"), "videos[0]: the video has no frames" },
        { VIDEO(", 'videos': [['a', 1]]"), "videos[0][1]: a picture" },
        { VIDEO(", 'videos': [['a']], 'fps': 0"), "fps" },
        { VIDEO(", 'videos': [['a']], 'fps': ['x']"), "fps" },
        { LINE(USER("hi"), ", 'tools': {}"), "tools: expected a list" },
        { LINE(USER("hi"), ", 'tools': '['"), "tools" },
        { LINE(USER("hi"), ", 'system': 1"), "system: expected a string" },
        { LINE(MESSAGE("system", "b"), ", 'system': 'a'"), "is a system message too" },
        { LINE("{'role': 'user', 'content': 'x', 'tool_calls': [1]}", ""), "only the assistant" },
        { CALLS("[{'name': 1}]"), "messages[0].tool_calls[0].name" },
        { CALLS("[{'name': 'f'}]"), "tool_calls[0].arguments" },
        { CALLS("{'a': 1}"), "tool_calls: expected a list" },
        { LINE("{'role': 'assistant', 'content': [{'type': 'image', 'image': 'a'}]}", ""),
          "only in user and tool" },
        { "{'instruction': 'x'}", "output: expected a string" },
        { "{'instruction': 1, 'output': 'x'}", "instruction: expected a string" },
        { "{'instruction': 'x', 'output': 'x', 'history': 'a'}", "history: expected a list" },
        { LINE(USER("hi"), ", 'tools': ['f']"), "tools: the JSON of a tool" },
        { "{'instruction': 'x', 'output': 'x', 'history': [['a']]}", "history[0]: expected [question" },
        { "{'text': ''}", "text: expected a string" },
        { "{'text': 5}", "text: expected a string" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Conversation c;
        Json        *line = line_parse(rows[i].line);
        EXPECT_FAIL(conversation_read(&c, line), E_DATA, rows[i].word);
        EXPECT(!c.turn && !c.keep.newest, "%s: not closed", rows[i].line);
        conversation_close(&c);
        json_decref(line);
    }
}

static char *next_line(FILE *f)
{
    char  *line = NULL;
    size_t cap  = 0;
    return getline(&line, &cap, f) > 0 ? line : (free(line), NULL);
}

static void kit_from(Kit *k, const char *line)
{
    kit_open(k, NULL);
    EXPECT_OK(json_parse(&k->line, line, strlen(line), "line"));
    kit_read(k);
    kit_render(k);
}

/* Both forms of the shared question set give the same ids and the same targets. */
static void shared_lines_agree(void)
{
    FILE *a   = fopen("../shared/data/vqa/train.jsonl", "r"),
         *b   = fopen("../shared/data/vqa/train_parts.jsonl", "r");
    int lines = 0;
    if (!a || !b) SKIP("../shared/data/vqa is not here");
    for (char *s, *t; (s = next_line(a)) && (t = next_line(b)); free(s), free(t), lines++) {
        Kit x, y;
        kit_from(&x, s), kit_from(&y, t);
        size_t bytes = (size_t)x.ids.n * sizeof *x.ids.v;
        EXPECT(x.ids.n == y.ids.n && !memcmp(x.ids.v, y.ids.v, bytes), "line %d: ids differ", lines + 1);
        EXPECT(x.ids.n == y.ids.n && !memcmp(x.targets.v, y.targets.v, bytes), "line %d: targets differ",
               lines + 1);
        EXPECT(x.c.frames == y.c.frames && x.supervised.n > 1, "line %d", lines + 1);
        kit_close(&x), kit_close(&y);
    }
    fclose(a), fclose(b);
    EXPECT(lines == 64, "%d lines", lines);
}

/* Hashes of ids and targets of all lines, as transformers 5.17 renders them (pictures of 2, 4, 6, …
 * tokens). */
static void shared_lines_equal_the_reference(void)
{
    FILE      *f      = fopen("../shared/data/vqa/train.jsonl", "r");
    Tokenizer *t      = NULL;
    uint64_t   hash   = 0xcbf29ce484222325;
    int64_t    tokens = 0;
    Kit        k;
    if (!f || tokenizer_open(&t, "../shared/data/tokenizer/tokenizer.json")) {
        if (f) fclose(f);
        SKIP("../shared/data is not here");
    }
    kit_with(&k, t, NULL);
    for (char *line; (line = next_line(f)); free(line)) {
        EXPECT_OK(json_parse(&k.line, line, strlen(line), "line"));
        kit_read(&k), kit_render(&k);
        tokens += k.ids.n;
        for (int64_t i = 0; i < k.ids.n; i++) {
            hash = (hash ^ (uint32_t)k.ids.v[i]) * 0x100000001b3;
            hash = (hash ^ (uint32_t)k.targets.v[i]) * 0x100000001b3;
        }
        conversation_close(&k.c), json_decref(k.line), k.line = NULL;
    }
    EXPECT(tokens == 3835 && hash == 0xe65fa0beeb3951a0, "%d tokens, hash %llx", (int)tokens,
           (unsigned long long)hash);
    kit_close(&k);
    fclose(f);
}

/* Forms of other projects become ours. */
static void foreign_forms(void)
{
    static const struct {
        const char *theirs, *columns, *ours;
    } rows[] = {
        { "{'query': 'q', 'response': 'r', 'id': 1}", "", "{'instruction': 'q', 'output': 'r', 'id': 1}" },
        { "{'prompt': 'q', 'completion': 'r'}", "", "{'instruction': 'q', 'output': 'r'}" },
        { "{'question': 'q', 'answer': 'r'}", "", "{'instruction': 'q', 'output': 'r'}" },
        { "{'prompt': [{'role': 'user', 'content': 'q'}], 'completion': [{'role': 'assistant', 'content': "
          "'r'}]}",
          "", "{'messages': [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'r'}]}" },
        { "{'prompt': [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'r'}], "
          "'completion': [{'role': 'assistant', 'content': 's'}]}",
          "",
          "{'messages': [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'r', 'loss': "
          "false}, {'role': 'assistant', 'content': 's'}]}" },
        { "{'messages': '[{\\'role\\': \\'user\\', \\'content\\': \\'q\\'}]'}", "",
          "{'messages': [{'role': 'user', 'content': 'q'}]}" },
        { "{'conversations': [{'from': 'function_call', 'value': '<think>t</think>\\n{\\'name\\': 1}'}]}", "",
          "{'conversations': [{'from': 'assistant', 'content': '<think>t</think>', 'tool_calls': [{'name': "
          "1}]}]}" },
        { "{'messages': [{'role': 'user', 'content': 'q'}], 'image': 'a'}", "",
          "{'messages': [{'role': 'user', 'content': '<image>q'}], 'image': 'a'}" },
        { "{'messages': [{'role': 'user', 'content': 'q'}], 'video': ['1.png', '2.png']}", "",
          "{'messages': [{'role': 'user', 'content': '<video>q'}], 'video': ['1.png', '2.png']}" },
        { "{'instruction': 'q', 'response': 'r'}", "", "{'instruction': 'q', 'output': 'r'}" },
        { "{'dialog': [{'role': 'user', 'content': 'q'}]}", "messages=dialog",
          "{'messages': [{'role': 'user', 'content': 'q'}]}" },
        { "{'conversations': [{'from': 'bot', 'value': 'x'}, {'from': 'function_call', 'value': "
          "'{\\'name\\': 1}'}]}",
          "",
          "{'conversations': [{'from': 'assistant', 'value': 'x'}, {'from': 'assistant', 'content': null, "
          "'tool_calls': [{'name': 1}]}]}" },
        { "{'messages': [{'role': 'user', 'content': 'q'}], 'images': ['a', 'b']}", "",
          "{'messages': [{'role': 'user', 'content': '<image><image>q'}], 'images': ['a', 'b']}" },
        { "{'messages': [{'role': 'assistant', 'content': 'a', 'train': false}, {'role': 'user', 'content': "
          "'q', "
          "'train': false}, {'role': 'assistant', 'content': 'b', 'loss_scale': 1.0}, {'role': 'assistant', "
          "'content': 'c', 'loss_scale': 0}]}",
          "",
          "{'messages': [{'role': 'assistant', 'content': 'a', 'loss': false}, {'role': 'user', 'content': "
          "'q'}, "
          "{'role': 'assistant', 'content': 'b', 'loss': true}, {'role': 'assistant', 'content': 'c', "
          "'loss': "
          "false}]}" },
        { "{'messages': [{'role': 'assistant', 'content': 'I look.'}, {'role': 'tool_call', 'content': "
          "'{\\'name\\': 1}'}, {'role': 'tool_call', 'content': '{\\'name\\': 2}'}]}",
          "",
          "{'messages': [{'role': 'assistant', 'content': 'I look.', 'tool_calls': [{'name': 1}, {'name': "
          "2}]}]}" },
        { "{'conversation': [{'human': 'q', 'assistant': 'r'}]}", "",
          "{'messages': [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'r'}]}" },
        { "{'instruction': 'q', 'output': 'r', 'images': ['a']}", "",
          "{'instruction': '<image>q', 'output': 'r', 'images': ['a']}" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Json *a = line_parse(rows[i].theirs), *b = line_parse(rows[i].ours);
        EXPECT_OK(record_form(a, rows[i].columns));
        EXPECT(json_equal(a, b), "%s: got %s", rows[i].theirs, json_dumps(a, 0));
        json_decref(a), json_decref(b);
    }
}

static void records_are_refused_by_name(void)
{
    static const struct {
        const char *line, *word;
    } rows[] = {
        { "{'messages': [{'role': 'user', 'content': '<bbox>'}], 'objects': {'bbox': [[1, 2, 3, 4]]}}",
          "objects: grounding" },
        { "{'messages': [{'role': 'user', 'content': '<audio>'}], 'audios': ['a.wav']}",
          "audios: audio is not read" },
        { "{'foo': 1, 'bar': 2}", "the keys foo, bar" },
        { "{'conversations': [{'from': 'function_call', 'value': 'f(1)'}]}", "value of a function_call" },
        { "{'question': 'q', 'answer': 4}", "answer: expected a string" },
        { "{'question': 'q', 'answer': null}", "answer: null" },
        { "{'question': null, 'answer': 'r'}", "question: null" },
        { "{'instruction': 'q', 'answer': 'r'}", "the keys instruction, answer" },
        { "{'prompt': 'q', 'completion': 'r', 'label': false}", "label: false marks" },
        { "{'conversations': [{'from': 'human', 'value': 'q'}], 'kto_tag': false}", "kto_tag: false marks" },
        { "{'messages': [{'role': 'user', 'content': 'q', 'train': true}]}",
          "messages[0].train: only answers" },
        { "{'messages': [{'role': 'assistant', 'content': 'r', 'train': 1}]}",
          "messages[0].train: expected" },
        { "{'messages': [{'role': 'assistant', 'content': 'r', 'train_detail': [{'begin_offset': 0}]}]}",
          "messages[0].train_detail: parts" },
        { "{'messages': [{'role': 'assistant', 'content': [{'type': 'text', 'text': 'r', 'train': false}]}]}",
          "messages[0].content[0].train: parts" },
        { "{'messages': [{'role': 'assistant', 'content': [{'type': 'text', 'text': 'r', 'weight': 0}]}]}",
          "messages[0].content[0].weight: parts" },
        { "{'messages': [{'role': 'assistant', 'content': 'r', 'loss_scale': 2.0}]}",
          "messages[0].loss_scale: a weight" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Json *line = line_parse(rows[i].line);
        EXPECT_FAIL(record_form(line, ""), E_DATA, rows[i].word);
        json_decref(line);
    }
    EXPECT_FAIL(record_columns_check("messages"), E_CONFIG, "data.columns");
}

static void unused_keys_are_counted(void)
{
    UnusedKeys u = { 0 };
    char       text[256];
    Json      *line = line_parse("{'id': 1, 'messages': [{'role': 'user', 'content': 'x', 'name': 'n'}], "
                                      "'rejected_response': 'y'}");
    unused_keys_add(&u, line, NULL);
    unused_keys_add(&u, line, "{{ message.name }}");
    unused_keys_add(&u, line, "{{ message.content }}");
    unused_keys_text(&u, text, sizeof text);
    EXPECT_TEXT(text, "id (3), rejected_response (3), messages[].name (2)");
    json_decref(line);
    line = line_parse("{'messages': [{'role': 'user', 'content': [{'type': 'video', 'video': 'v.mp4', "
                      "'video_end': 5}, {'type': 'image_url', 'image_url': {'url': 'a', "
                      "'detail': 'low'}}]}]}");
    u    = (UnusedKeys){ 0 };
    unused_keys_add(&u, line, "");
    unused_keys_text(&u, text, sizeof text);
    EXPECT_TEXT(text, "messages[].content[].video_end (1), messages[].content[].image_url.detail (1)");
    json_decref(line);
}

/* JSON strings may hold NUL; nothing behind one is lost. */
static void texts_with_nul(void)
{
    static const char text[]   = "{\"question\": \"a\\u0000b<image>\", \"answer\": \"c\\u0000d\", "
                                 "\"images\": [\"x.png\"]}",
                      listed[] = "{\"question\": \"a\\u0000b\", \"answer\": \"c\", "
                                 "\"images\": [\"x.png\"]}";
    Conversation c;
    Json        *line;
    EXPECT_OK(json_parse_data(&line, text, sizeof text - 1, "line"));
    EXPECT_OK(record_form(line, ""));
    EXPECT_OK(conversation_read(&c, line));
    EXPECT(c.items == 3 && c.item[0].len == 3 && !memcmp(c.item[0].text, "a\0b", 3) && c.item[2].len == 3 &&
               !memcmp(c.item[2].text, "c\0d", 3),
           "%d items", c.items);
    conversation_close(&c);
    json_decref(line);
    EXPECT_OK(json_parse_data(&line, listed, sizeof listed - 1, "line"));
    EXPECT_OK(record_form(line, ""));
    EXPECT(json_string_length(json_object_get(line, "instruction")) == 10, "a text is cut at NUL");
    json_decref(line);
}

/* Every JSON line in the documentation is a record that is read. */
static void documented_examples(void)
{
    FILE *f      = fopen("docs/data.md", "r");
    bool  inside = false;
    int   read   = 0;
    EXPECT(f, "docs/data.md");
    for (char *line; f && (line = next_line(f)); free(line)) {
        Conversation c;
        Json        *v = NULL;
        if (!strncmp(line, "```", 3)) {
            inside = !strncmp(line, "```json", 7);
            continue;
        }
        if (!inside) continue;
        EXPECT_OK(json_parse(&v, line, strlen(line), line));
        EXPECT_OK(record_form(v, ""));
        EXPECT_OK(conversation_read(&c, v));
        conversation_close(&c);
        json_decref(v), read++;
    }
    if (f) fclose(f);
    EXPECT(read >= 12, "%d examples", read);
}

int main(void)
{
    RUN(messages_with_marks);
    RUN(content_parts);
    RUN(other_forms);
    RUN(plain_text_from_bytes);
    RUN(tools_and_calls);
    RUN(json_as_python_writes_it);
    RUN(base64);
    RUN(references);
    RUN(refusals_name_the_field);
    RUN(shared_lines_agree);
    RUN(shared_lines_equal_the_reference);
    rmdir(lab_tmp());
    RUN(foreign_forms);
    RUN(records_are_refused_by_name);
    RUN(unused_keys_are_counted);
    RUN(texts_with_nul);
    RUN(documented_examples);
    return lab_report();
}
