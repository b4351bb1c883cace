/* cli/chat_batch.c -- `treb chat MODEL --prompts FILE`: conversations from JSON lines, several at once, each
 * written with its answer in the order of the file. A line that cannot be answered is written with its
 * error. */
#include "base/clock.h"
#include "base/log.h"
#include "cli/chat.h"
#include "infer/detokenize.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Item {
    Json   *line; /* as it was read; answer or error is added */
    char   *text; /* as a record of a dataset */
    Prompt  prompt;
    int64_t doc, number; /* of the stream, -1: the line has an error; of the line, from 1 */
} Item;

typedef struct ChatBatch {
    ChatArgs *c;
    FILE     *in, *out; /* out: on rank 0 */
    Item     *item;     /* (c->batch + 1), the last one waits for the next batch */
    int       n;
    bool      waits, ended;
    Ids      *answer;
    int64_t   lines, bad, tokens;
} ChatBatch;

static void set_error(Item *x, const char *path, const char *text)
{
    char   full[1024], first[512];
    size_t n = (size_t)snprintf(first, sizeof first, "%s:1: ", path); /* a record is a file of one line */
    if (n < sizeof first && !strncmp(text, first, n)) text += n;
    snprintf(full, sizeof full, "%s:%lld: %s", path, (long long)x->number, text);
    Json *v = json_string(full);
    json_object_set_new(x->line, "error", v ? v : json_string("not UTF-8"));
    x->doc = -1;
}

/* `prompt` as a string is one message of the user; other forms are those of a dataset. */
static char *record_of(const ChatArgs *c, const Json *line)
{
    const Json *prompt = json_object_get(line, "prompt"), *images = json_object_get(line, "images");
    const char *one = json_string_value(json_object_get(line, "image"));
    if (!json_is_string(prompt)) return json_dumps(line, JSON_COMPACT);
    Json *messages = json_array();
    if (c->system)
        json_array_append_new(messages, json_pack("{ss ss}", "role", "system", "content", c->system));
    json_array_append_new(messages, json_pack("{ss sO}", "role", "user", "content", prompt));
    Json *o = json_pack("{so}", "messages", messages);
    if (images) json_object_set(o, "images", (Json *)images);
    else if (one) json_object_set_new(o, "images", json_pack("[s]", one));
    char *text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    return text;
}

static void close_item(Item *x)
{
    prompt_close(&x->prompt);
    json_decref(x->line);
    free(x->text);
    *x = (Item){ 0 };
}

/* The next line that is not blank; x->line NULL: there is none. */
static Status read_line(ChatBatch *b, Item *x)
{
    char        *line = NULL;
    size_t       cap  = 0;
    json_error_t why;
    *x = (Item){ 0 };
    while (getline(&line, &cap, b->in) >= 0) {
        b->lines++;
        if (!line[strspn(line, " \t\r\n")]) continue;
        x->line   = json_loads(line, 0, &why);
        bool bad  = !json_is_object(x->line);
        x->number = b->lines;
        if (bad) json_decref(x->line), x->line = json_object();
        if (bad) set_error(x, b->c->prompts, "not a JSON object");
        break;
    }
    free(line);
    if (x->line && !x->doc && !(x->text = record_of(b->c, x->line)))
        set_error(x, b->c->prompts, "not a conversation");
    return ferror(b->in) ? fail(E_IO, "%s: %s", b->c->prompts, strerror(errno)) : OK;
}

/* E_FIT: the batch is full, and x waits for the next one. */
static Status add_item(ChatBatch *b, Item *x)
{
    AskModel *m = &b->c->m;
    if (x->doc < 0) return OK;
    Status st = x->prompt.data.files ? OK : prompt_read(&x->prompt, &m->reader, x->text, b->c->prompts);
    if (!st) st = prompt_add(&m->stream, &x->prompt, &m->reader);
    if (!st) return x->doc = m->stream.docs - 1, OK;
    if (st == E_FIT && m->stream.docs) return st;
    return set_error(x, b->c->prompts, status_text()), OK;
}

/* Fills the stream with the lines that come next, on every rank: replicas answer the same documents. */
static Status fill(ChatBatch *b)
{
    stream_clear(&b->c->m.stream);
    if (b->waits) b->item[0] = b->item[b->n];
    for (b->n = 0; b->n < b->c->batch; b->n++, b->waits = false) {
        Item *x = &b->item[b->n];
        if (!b->waits) TRY(read_line(b, x));
        if (!x->line) return b->ended = true, OK;
        Status st = add_item(b, x);
        if (st == E_FIT) return b->waits = true, OK;
        TRY(st);
    }
    return OK;
}

static Status put_answer(ChatBatch *b, Item *x)
{
    Text text = { 0 };
    Ids *ids  = &b->answer[x->doc];
    TRY(detokenize(&text, b->c->m.model.source.tokenizer, ids->v, ids->n));
    Json *v = json_stringn(text.n ? text.v : "", text.n);
    text_close(&text);
    json_object_set_new(x->line, "answer", v);
    b->tokens += ids->n;
    return v ? OK : fail(E_FIT, "no memory for an answer");
}

static Status write_item(ChatBatch *b, Item *x)
{
    if (x->doc >= 0) TRY(put_answer(b, x));
    else b->bad++;
    if (!b->out) return OK;
    json_dumpf(x->line, b->out, JSON_COMPACT);
    if (fputc('\n', b->out) == EOF || fflush(b->out)) return fail(E_IO, "%s: %s", b->c->out, strerror(errno));
    return OK;
}

static Status answer(ChatBatch *b)
{
    AskModel *m = &b->c->m;
    for (int64_t i = 0; i < b->c->batch; i++) b->answer[i].n = 0;
    if (m->stream.docs) TRY(ask_model_answer(m, b->answer));
    m->how.first += m->stream.docs;
    for (int i = 0; i < b->n; i++) {
        TRY(write_item(b, &b->item[i]));
        close_item(&b->item[i]);
    }
    return OK;
}

static Status open_files(ChatBatch *b)
{
    b->item   = calloc((size_t)b->c->batch + 1, sizeof *b->item);
    b->answer = calloc((size_t)b->c->batch, sizeof *b->answer);
    if (!b->item || !b->answer) return fail(E_FIT, "no memory for %lld prompts", (long long)b->c->batch);
    b->in = fopen(b->c->prompts, "re");
    if (!b->in) return fail(E_IO, "%s: %s", b->c->prompts, strerror(errno));
    if (b->c->m.world->rank) return OK;
    b->out = b->c->out ? fopen(b->c->out, "we") : stdout;
    return b->out ? OK : fail(E_IO, "%s: %s", b->c->out, strerror(errno));
}

static Status close_files(ChatBatch *b, Status st)
{
    for (int64_t i = 0; b->item && i <= b->c->batch; i++) close_item(&b->item[i]);
    for (int64_t i = 0; b->answer && i < b->c->batch; i++) ids_close(&b->answer[i]);
    if (b->in) fclose(b->in);
    if (b->out && b->out != stdout && fclose(b->out) && !st)
        st = fail(E_IO, "%s: %s", b->c->out, strerror(errno));
    free(b->item), free(b->answer);
    return st;
}

Status chat_batch(ChatArgs *c)
{
    ChatBatch b     = { .c = c };
    Comm     *world = c->m.world;
    double    start = clock_now();
    Status    st    = comm_agree(world, open_files(&b));
    while (!st && !b.ended) {
        st = comm_agree(world, fill(&b));
        if (!st) st = comm_agree(world, answer(&b));
    }
    double seconds = clock_now() - start;
    st             = close_files(&b, st);
    if (!st && !world->rank)
        fprintf(stderr, "%lld prompts, %lld answered, %lld tokens, %.1f tokens/s\n",
                (long long)(c->m.how.first + b.bad), (long long)c->m.how.first, (long long)b.tokens,
                (double)b.tokens / (seconds + 1e-9));
    if (!st && b.bad)
        st = fail(E_DATA, "%lld lines of %s could not be answered; their `error` says why", (long long)b.bad,
                  c->prompts);
    return st;
}
