/* base/foreign_shell.c -- arguments in a shell script, by reading its words.
 *
 * Words are split as a shell does: quotes, backslashes, comments, ends of commands. --key begins an argument
 * and the words up to the next key, or the end of the command, are its values. NAME=value is kept as a
 * variable; a quoted text that itself has arguments is read as words again. */
#include "base/foreign_args.h"
#include "base/foreign_number.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { WORD_MAX = 4096, DEPTH_MAX = 3, NESTED_MAX = 8 };

typedef struct Shell {
    ForeignArgs *out;
    const char  *at, *end;
    int          line, depth, nested;  /* nested: ${ } and $( ) around the text */
    bool         open;                 /* values belong to the last argument */
    char         word[WORD_MAX];
    size_t       n;
    bool         quoted;               /* some of the word was in quotes */
} Shell;

static void append_text(Shell *s, const char *text, size_t n)
{
    if (n > WORD_MAX - 1 - s->n) n = WORD_MAX - 1 - s->n;
    memcpy(s->word + s->n, text, n);
    s->word[s->n += n] = 0;
}

/* The last value that the script gave the variable; NULL: none. */
static const ForeignArg *find_variable(const ForeignArgs *a, const char *name, size_t len)
{
    const ForeignArg *found = NULL;
    for (const ForeignArg *x = a->first; x; x = x->next)
        if (x->variable && x->n && strlen(x->key) == len && !memcmp(x->key, name, len)) found = x;
    return found;
}

static size_t name_length(const char *p, const char *end)
{
    size_t n = 0;
    while (p + n < end && (isalnum((unsigned char)p[n]) || p[n] == '_')) n++;
    return n;
}

static void expand(Shell *s);

/* A text inside ${ } or $( ): its quotes go, its variables are replaced. */
static void append_expanded(Shell *s, const char *from, const char *to)
{
    const char *at = s->at, *end = s->end;
    s->at = from, s->end = to, s->nested++;
    while (s->at < s->end) {
        if (*s->at == '$' && s->nested < NESTED_MAX) expand(s);
        else if (*s->at == '"' || *s->at == '\'') s->at++;
        else append_text(s, s->at++, 1);
    }
    s->at = at, s->end = end, s->nested--;
}

/* The bracket that closes the one at p; NULL: there is none. */
static const char *closing(const char *p, const char *end, char open, char close)
{
    int depth = 0;
    for (; p < end; p++) {
        if (*p == open) depth++;
        if (*p == close && !--depth) return p;
    }
    return NULL;
}

/* Names of variables without a $, as $(( )) has them. */
static void append_names(Shell *s, const char *text)
{
    for (size_t n; *text; text += n) {
        n = name_length(text, text + strlen(text));
        const ForeignArg *x = n ? find_variable(s->out, text, n) : NULL;
        if (x) append_text(s, x->value[0], strlen(x->value[0]));
        else append_text(s, text, n ? n : (n = 1));
    }
}

/* $((a * b)) and $(expr a / b) as a number; another command stays as it is written, as one word. */
static void expand_command(Shell *s)
{
    const char *from = s->at, *close = closing(from + 1, s->end, '(', ')');
    size_t      before = s->n;
    char        text[256], *p = text;
    int64_t     number;
    if (!close) {
        append_text(s, s->at++, 1);
        return;
    }
    append_expanded(s, from + 2, close);
    snprintf(text, sizeof text, "%s", s->word + before);
    s->word[s->n = before] = 0;
    s->at = close + 1;
    bool known = *p == '(' || !strncmp(p, "expr ", 5);
    append_names(s, p + (*p == '(' ? 0 : 5 * known));
    snprintf(text, sizeof text, "%s", s->word + before);
    s->word[s->n = before] = 0;
    if (known && foreign_number(text, &number))
        append_text(s, text, (size_t)snprintf(text, sizeof text, "%lld", (long long)number));
    else append_text(s, from, (size_t)(s->at - from));
}

/* The default of ${NAME:-default} and of its other forms; NULL: there is none. */
static const char *fallback_of(const char *rest, const char *close)
{
    rest += close - rest > 1 && *rest == ':';
    return rest < close && (*rest == '-' || *rest == '=') ? rest + 1 : NULL;
}

/* $NAME, ${NAME}, ${NAME:-default}; what the script does not set stays as it is written. */
static void expand(Shell *s)
{
    const char *p = s->at + 1, *from = s->at;
    if (p < s->end && *p == '(') {
        expand_command(s);
        return;
    }
    bool brace = p < s->end && *p == '{';
    const char *name = p + brace;
    size_t len = name_length(name, s->end);
    const char *close = brace ? closing(p, s->end, '{', '}') : name + len;
    if (!close || !len) {
        append_text(s, s->at++, 1);
        return;
    }
    const ForeignArg *x = find_variable(s->out, name, len);
    const char *fallback = brace ? fallback_of(name + len, close) : NULL;
    s->at = close + brace;
    if (x)             append_text(s, x->value[0], strlen(x->value[0]));
    else if (fallback) append_expanded(s, fallback, close);
    else               append_text(s, from, (size_t)(s->at - from));
}

static void read_quoted(Shell *s, char quote)
{
    s->quoted = true;
    for (s->at++; s->at < s->end && *s->at != quote;) {
        if (*s->at == '\n') s->line++;
        if (quote == '"' && *s->at == '\\' && s->at + 1 < s->end) {
            s->at++;
            if (*s->at == '\n') s->at++, s->line++, append_text(s, " ", 1);
            else append_text(s, s->at++, 1);
        } else if (quote == '"' && *s->at == '$') expand(s);
        else append_text(s, s->at++, 1);
    }
    if (s->at < s->end) s->at++;
}

static bool ends_command(char c) { return c == '\n' || c == ';' || c == '|' || c == '&' || c == ')'; }

/* The next word; false at the end of a command, which is consumed. */
static bool next_word(Shell *s)
{
    s->n = 0, s->word[0] = 0, s->quoted = false;
    for (; s->at < s->end; s->at++) {
        if (*s->at == '\\' && s->at + 1 < s->end && s->at[1] == '\n') s->at++, s->line++;
        else if (*s->at == '\n' || (!isspace((unsigned char)*s->at) && *s->at != '(')) break;
    }
    if (s->at < s->end && *s->at == '#') while (s->at < s->end && *s->at != '\n') s->at++;
    if (s->at >= s->end) return false;
    if (ends_command(*s->at)) return s->line += *s->at++ == '\n', false;
    while (s->at < s->end && !isspace((unsigned char)*s->at) && !ends_command(*s->at)) {
        if (*s->at == '"' || *s->at == '\'') read_quoted(s, *s->at);
        else if (*s->at == '$') expand(s);
        else if (*s->at == '(' && s->n && s->word[s->n - 1] == '=') break;
        else if (*s->at == '\\' && s->at + 1 < s->end) {
            if (s->at[1] == '\n') break;
            append_text(s, s->at + 1, 1), s->at += 2;
        } else append_text(s, s->at++, 1);
    }
    return true;
}

static size_t assigned_name(const char *word)
{
    size_t n = name_length(word, word + strlen(word));
    return n && !isdigit((unsigned char)*word) && (word[n] == '=' || !strncmp(word + n, "+=", 2)) ? n : 0;
}

static Status read_words(Shell *s);

/* Words of a quoted text, once more; its lines count from where it ended. */
static Status read_inner(const Shell *s, const char *text)
{
    if (s->depth == DEPTH_MAX) return OK;
    Shell inner = { .out = s->out, .at = text, .end = text + strlen(text), .line = s->line,
                    .depth = s->depth + 1 };
    return read_words(&inner);
}

static bool has_arguments(const char *text) { return strstr(text, " --") || !strncmp(text, "--", 2); }

static Status take_assignment(Shell *s, size_t name)
{
    const char *value = strchr(s->word, '=') + 1;
    if (s->quoted && has_arguments(value)) {
        char *copy = mem_pool_copy(&s->out->keep, value, strlen(value));
        return read_inner(s, copy);
    }
    foreign_args_add(s->out, s->word, name, s->line)->variable = true;
    if (*value) foreign_args_value(s->out, value, strlen(value));
    s->open = false;
    return OK;
}

static Status take_argument(Shell *s)
{
    const char *equals = strchr(s->word, '=');
    foreign_args_add(s->out, s->word, equals ? (size_t)(equals - s->word) : s->n, s->line);
    if (equals) foreign_args_value(s->out, equals + 1, strlen(equals + 1));
    s->open = !equals;
    return OK;
}

static Status take_word(Shell *s)
{
    size_t name = assigned_name(s->word);
    if (name) return take_assignment(s, name);
    if (!strncmp(s->word, "--", 2) && isalpha((unsigned char)s->word[2]) && !strchr(s->word, ' '))
        return take_argument(s);
    if (s->quoted && has_arguments(s->word))
        return read_inner(s, mem_pool_copy(&s->out->keep, s->word, s->n));
    if (s->open && (s->n || s->quoted) && !strstr(s->word, "[@]")) foreign_args_value(s->out, s->word, s->n);
    return OK;
}

static Status read_words(Shell *s)
{
    while (s->at < s->end)
        if (next_word(s)) TRY(take_word(s));
        else if (!s->depth) s->open = false;
    return OK;
}

Status foreign_shell_read(ForeignArgs *a, const char *text, size_t len)
{
    Shell s = { .out = a, .at = text, .end = text + len, .line = 1 };
    return read_words(&s);
}
