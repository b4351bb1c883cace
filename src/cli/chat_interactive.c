/* cli/chat_interactive.c -- `treb chat MODEL` at a terminal or on a pipe: a line is a message, the answer
 * comes token by token. The whole conversation is the prompt of every answer. Rank 0 reads and prints; the
 * others get the conversation as JSON. */
#include "base/clock.h"
#include "cli/chat.h"
#include "data/image.h"
#include "infer/detokenize.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct Talk {
    ChatArgs     *c;
    bool          tty;
    Json         *messages, *images;
    Text          line; /* of a message while its pictures are taken out */
    StreamPrinter out;
    Status        said; /* of printing */
} Talk;

static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig) { interrupted = 1; }

/* ---- a message ---- */

static bool is_picture(const char *path)
{
    static const char *const suffix[] = { ".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff" };
    const char              *dot      = strrchr(path, '.');
    struct stat              st;
    for (size_t i = 0; dot && i < sizeof suffix / sizeof *suffix; i++)
        if (!strcasecmp(dot, suffix[i])) return !stat(path, &st) && S_ISREG(st.st_mode);
    return false;
}

static Status add_picture(Talk *t, const char *path)
{
    json_array_append_new(t->images, json_string(path));
    return text_push(&t->line, "<image>", 7);
}

/* A word may end with the punctuation of its sentence, and be in quotes, as terminals paste a dropped
 * file. */
static Status add_word(Talk *t, char *word, size_t n)
{
    char  *path = word;
    size_t len  = n;
    while (len && strchr("'\"(", *path)) path++, len--;
    while (len && strchr("'\").,?!:;", path[len - 1]) && len > 1) len--;
    char end     = path[len];
    path[len]    = 0;
    bool   found = is_picture(path);
    Status st    = found ? add_picture(t, path) : OK;
    path[len]    = end;
    return found ? st : text_push(&t->line, word, n);
}

static Status add_words(Talk *t, char *text)
{
    while (*text) {
        size_t gap = strspn(text, " \t"), n = strcspn(text + gap, " \t");
        TRY(text_push(&t->line, text, gap));
        if (n) TRY(add_word(t, text + gap, n));
        text += gap + n;
    }
    return text_push(&t->line, "", 1);
}

static Status add_message(Talk *t, const char *role, const char *text)
{
    Json *m = json_pack("{ss ss}", "role", role, "content", text);
    if (!m) return fail(E_DATA, "a message must be UTF-8 text");
    json_array_append_new(t->messages, m);
    return OK;
}

static Status add_question(Talk *t, char *text)
{
    t->line.n = 0;
    if (!json_array_size(t->images)) /* those of --image */
        for (int i = 0; i < t->c->image.n; i++) TRY(add_picture(t, t->c->image.value[i]));
    TRY(add_words(t, text));
    return add_message(t, "user", t->line.v);
}

static void begin_anew(Talk *t)
{
    json_array_clear(t->messages), json_array_clear(t->images);
    if (t->c->system && add_message(t, "system", t->c->system)) t->c->system = NULL;
}

/* ---- commands ---- */

static const char help[] =
    "/clear         begins a new conversation\n"
    "/system TEXT   begins a new one with this system message\n"
    "/image FILE    shows a picture with the message after it; its path within a message does, too\n"
    "/quit          ends, as Ctrl-D does\n";

/* Whether the line is a command; *end: the conversation is over. *rest: a message that follows /image. */
static bool take_command(Talk *t, char *line, char **rest, bool *end)
{
    if (!strcmp(line, "/quit") || !strcmp(line, "/exit")) return *end = true;
    if (!strcmp(line, "/help")) return fputs(help, stderr), true;
    if (!strcmp(line, "/clear")) return begin_anew(t), true;
    if (!strncmp(line, "/system ", 8)) {
        free(t->c->system_own), t->c->system = t->c->system_own = strdup(line + 8);
        return begin_anew(t), true;
    }
    if (!strncmp(line, "/image ", 7)) *rest = line + 7;
    return false;
}

/* ---- an answer ---- */

static void say(void *self, int64_t doc, int32_t id)
{
    Talk *t = self;
    if (t->c->m.world->rank == 0 && !t->said) t->said = stream_printer_put(&t->out, id);
}

static Status keep_answer(Talk *t, const Ids *ids)
{
    Text   text = { 0 };
    Status st   = detokenize(&text, t->c->m.model.source.tokenizer, ids->v, ids->n);
    if (!st) st = text_push(&text, "", 1);
    if (!st) st = add_message(t, "assistant", text.v);
    text_close(&text);
    return st;
}

static Status answer(Talk *t)
{
    AskModel *m     = &t->c->m;
    Ids       out   = { 0 };
    double    start = clock_now();
    t->out          = (StreamPrinter){ .tokenizer = m->model.source.tokenizer, .out = stdout };
    m->how.on_token = say, m->how.self = t, m->how.stop_now = m->world->size > 1 ? NULL : &interrupted;
    interrupted = 0;
    Status st = ask_model_answer(m, &out), end = stream_printer_end(&t->out);
    if (m->world->rank == 0) putchar('\n'), fflush(stdout);
    if (t->tty && !st)
        fprintf(stderr, "(%lld tokens in, %lld out, %.1f tokens/s)\n", (long long)m->stream.tokens,
                (long long)out.n, (double)out.n / (clock_now() - start + 1e-9));
    if (!st) st = end;
    if (!st && m->world->rank == 0) st = keep_answer(t, &out);
    ids_close(&out);
    return st ? st : t->said;
}

/* Every rank has the conversation; the first replica gets its document. */
static Status add_prompt(Talk *t, const char *json, Prompt *p)
{
    AskModel *m = &t->c->m;
    stream_clear(&m->stream);
    if (!ask_model_has_documents(m)) return OK;
    TRY(prompt_read(p, &m->reader, json, "message"));
    Status st = prompt_add(&m->stream, p, &m->reader);
    if (st != E_FIT) return st;
    return fail(E_FIT,
                "the conversation has %lld tokens and %lld patches of pictures, --context %lld holds %lld "
                "and %lld; /clear begins anew",
                (long long)p->sample.ids.n, (long long)p->sample.size.patches, (long long)t->c->context,
                (long long)m->stream.budget.tokens, (long long)m->stream.budget.patches);
}

static Status answer_json(Talk *t, const char *json)
{
    Prompt p  = { 0 };
    Status st = comm_agree(t->c->m.world, add_prompt(t, json, &p));
    if (!st) st = comm_agree(t->c->m.world, answer(t));
    prompt_close(&p);
    return st;
}

/* ---- the conversation ---- */

static char *dump(const Talk *t)
{
    Json *line = json_pack("{sO sO}", "messages", t->messages, "images", t->images);
    char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
    json_decref(line);
    return text;
}

/* Reads messages until one is a question; NULL: the conversation is over. */
static Status read_question(Talk *t, char **json)
{
    char  *line = NULL, *rest;
    size_t cap  = 0;
    bool   end  = false;
    Status st   = OK;
    for (*json = NULL; !st && !*json && !end;) {
        if (t->tty) fputs("> ", stderr);
        ssize_t n = getline(&line, &cap, stdin);
        if (n < 0) break;
        while (n && strchr("\r\n ", line[n - 1])) line[--n] = 0;
        rest = line;
        if (!n || take_command(t, line, &rest, &end)) continue;
        st = add_question(t, rest);
        if (!st && !(*json = dump(t))) st = fail(E_FIT, "no memory for the conversation");
    }
    free(line);
    return st;
}

/* From rank 0 to all; NULL stays NULL. */
static Status share_text(Comm *world, char **text)
{
    int64_t n = *text ? (int64_t)strlen(*text) + 1 : 0;
    TRY(comm_host_broadcast(world, &n, sizeof n));
    if (world->rank && n && !(*text = malloc((size_t)n)))
        return fail(E_FIT, "no memory for the conversation");
    return n ? comm_host_broadcast(world, *text, (size_t)n) : OK;
}

/* A question that cannot be answered is taken back, and the conversation goes on. */
static void take_back(Talk *t, size_t images)
{
    size_t n = json_array_size(t->messages);
    if (n) json_array_remove(t->messages, n - 1);
    while (json_array_size(t->images) > images) json_array_remove(t->images, images);
}

static Status talk(Talk *t)
{
    Comm *world = t->c->m.world;
    for (;;) {
        char  *json   = NULL;
        size_t images = json_array_size(t->images);
        Status st     = world->rank ? OK : read_question(t, &json);
        st            = comm_agree(world, st);
        if (!st && world->size > 1) st = share_text(world, &json);
        if (st || !json) return free(json), st;
        st = answer_json(t, json);
        free(json);
        if (st && (st != E_DATA && st != E_FIT && st != E_IO)) return st;
        if (st && !world->rank) fprintf(stderr, "treb: %s\n", status_text());
        if (st && !t->tty) return st;
        if (st) take_back(t, images);
    }
}

Status chat_interactive(ChatArgs *c)
{
    struct sigaction act = { .sa_handler = on_interrupt, .sa_flags = SA_RESTART }, was;
    Talk             t   = { .c        = c,
                             .tty      = !c->m.world->rank && isatty(STDIN_FILENO) && isatty(STDERR_FILENO),
                             .messages = json_array(),
                             .images   = json_array() };
    begin_anew(&t);
    if (t.tty) fprintf(stderr, "%s; /help lists commands, Ctrl-D ends\n", c->m.dir);
    if (t.tty) sigaction(SIGINT, &act, &was);
    Status st = talk(&t);
    if (t.tty) sigaction(SIGINT, &was, NULL);
    json_decref(t.messages), json_decref(t.images);
    text_close(&t.line);
    return st;
}
