/* base/config_words.c -- the words of a command line as a recipe and overrides on top of it.
 *
 * A recipe comes first or not at all. After it come section.key=value and, as other trainers write them,
 * --key value and --key=value: the key with its section, alone where only one section has it, or another
 * trainer's name for it. A flag needs no value; lists take every word up to the next key. */
#include "base/config_table.h"

#include "base/str.h"
#include <string.h>

typedef struct Words {
    Config      *cfg;
    int          n, at;
    char *const *word;
} Words;

static bool is_dashed(const char *word) { return !strncmp(word, "--", 2) && word[2]; }

bool config_is_override(const char *word)
{
    const char *equals = strchr(word, '='), *slash = strchr(word, '/');
    return equals && !is_dashed(word) && (!slash || equals < slash);
}

static bool is_value(const Words *w)
{
    return w->at < w->n && !is_dashed(w->word[w->at]) && !config_is_override(w->word[w->at]);
}

/* Puts "max-steps" of --max-steps=5 into name and what follows '=' into *value, NULL without. */
static Status split_dashed(const char *word, char *name, size_t size, const char **value)
{
    const char *equals = strchr(word, '=');
    size_t len = equals ? (size_t)(equals - word) : strlen(word);
    *value = equals ? equals + 1 : NULL;
    if (len - 2 >= size) return fail(E_CONFIG, "%.100s: a key is not as long", word);
    for (size_t i = 2; i < len; i++) name[i - 2] = word[i] == '-' ? '_' : word[i];
    name[len - 2] = 0;
    return OK;
}

static Status find_row(char *name, const ConfigRow **row)
{
    char *key = strchr(name, '.');
    if (!key) return config_find_word(name, row);
    *key++ = 0;
    if (!config_has_section(name)) return wrap(config_unknown_section(name), "--%s.%s", name, key);
    *row = config_row(config_section_rows(name), key);
    return *row ? OK : config_unknown_key(name, key);
}

static Status set_row(Config *cfg, const ConfigRow *row, int index, const char *value)
{
    char text[4096], entry[16] = "";
    if (index >= 0) snprintf(entry, sizeof entry, "[%d]", index);
    int n = snprintf(text, sizeof text, "%s.%s%s=%s", row->section, row->key, entry, value);
    if (n >= (int)sizeof text) return fail(E_CONFIG, "%s.%s: the value is too long", row->section, row->key);
    return config_set(cfg, text);
}

/* Every word up to the next key: entries of data.train, or a list. */
static Status set_several(Words *w, const ConfigRow *row, const char *value)
{
    char   list[3072] = "[";
    size_t used = 1;
    for (int i = 0; value; i++, value = is_value(w) ? w->word[w->at++] : NULL) {
        if (row->kind == K_SOURCES) TRY(set_row(w->cfg, row, i, value));
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", value);
        if (used + 2 > sizeof list)
            return fail(E_CONFIG, "%s.%s: the list is too long", row->section, row->key);
    }
    strcpy(list + used, "]");
    return row->kind == K_SOURCES ? OK : set_row(w->cfg, row, -1, list);
}

static Status set_dashed(Words *w)
{
    char name[100];
    const ConfigRow *row;
    const char *value, *word = w->word[w->at++];
    TRY(split_dashed(word, name, sizeof name, &value));
    TRY(find_row(name, &row));
    if (!value && is_value(w)) value = w->word[w->at++];
    if (!value && row->kind == K_FLAG) value = "true";
    if (!value) return fail(E_CONFIG, "%s: a value must follow", word);
    bool open = (row->kind == K_LIST || row->kind == K_SOURCES) && *value != '[' && *value != '{';
    return open ? set_several(w, row, value) : set_row(w->cfg, row, -1, value);
}

Status config_open_words(Config *cfg, int n, char *const *word)
{
    Words  w = { cfg, n, 0, word };
    bool   named = n && !is_dashed(word[0]) && !config_is_override(word[0]);
    TRY(config_open(cfg, named ? word[w.at++] : NULL, 0, NULL));
    Status st = OK;
    while (!st && w.at < n) st = is_dashed(word[w.at]) ? set_dashed(&w) : config_set(cfg, word[w.at++]);
    config_settle(cfg);
    if (st) config_close(cfg);
    return st;
}
