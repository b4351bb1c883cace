/* base/config_unknown.c -- a word that is not a key, and what was probably meant by it.
 *
 * In order: a spelling that has an answer of its own; another trainer's name for one of our keys; a key that
 * lives in another section; the nearest spelling; else the way to the list. */
#include "base/config_table.h"

#include "base/str.h"
#include <limits.h>
#include <string.h>

static const struct { const char *spellings, *text; } answers[] = {
#define ANSWER(spellings, text) { spellings, text },
#include "base/config_answers.def"
#undef ANSWER
};

static const char *find_answer(const char *word)
{
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        if (str_lists_like(answers[i].spellings, ',', word)) return answers[i].text;
    return NULL;
}

static const ConfigRow *find_foreign(ConfigRows rows, const char *word)
{
    for EACH_ROW(r, rows)
        if (str_lists_like(r->also, ',', word)) return r;
    return NULL;
}

/* "image.max_pixels or video.max_pixels"; false when no section has the key. */
static bool find_homes(char *buf, size_t size, const char *word)
{
    size_t used = 0;
    for EACH_ROW(r, config_rows())
        if (!strcmp(r->key, word) && used < size)
            used += (size_t)snprintf(buf + used, size - used, "%s%s.%s", used ? " or " : "", r->section,
                                     word);
    return used > 0;
}

/* The row spelt most like word; at equal likeness one of the section at hand. A row of another section than
 * the one that was written differs by one letter at most in a short word. */
static const ConfigRow *find_nearest(ConfigRows rows, const char *section, const char *word)
{
    const ConfigRow *best = NULL;
    int least = INT_MAX;
    for EACH_ROW(r, rows) {
        int unlike = str_unlike(word, r->key);
        bool other  = strcmp(r->section, section) != 0;
        if (unlike == INT_MAX || (other && *section && unlike > 1 && strlen(word) < 8)) continue;
        int score = 2 * unlike + other;
        if (score < least) least = score, best = r;
    }
    return best;
}

/* Explains an unknown key or section by the causes that both share; OK: none applies, no message is set. */
static Status explain_unknown(const char *said, const char *word)
{
    char homes[256];
    const char *text = find_answer(word);
    const ConfigRow *r = find_foreign(config_rows(), word);
    if (text) return fail(E_CONFIG, "%s: not a key here. %s", said, text);
    if (r)    return fail(E_CONFIG, "%s: not a key here. Use %s.%s.", said, r->section, r->key);
    bool lives = find_homes(homes, sizeof homes, word);
    return lives ? fail(E_CONFIG, "%s: not a key here. It is %s.", said, homes) : OK;
}

static const ConfigRow *find_only(const char *word)
{
    const ConfigRow *found = config_has_section(word) ? config_row(config_section_rows(word), "path") : NULL;
    int n = found != NULL;
    for EACH_ROW(r, config_rows())
        if (!strcmp(r->key, word)) found = r, n++;
    return n == 1 ? found : NULL;
}

static Status refuse_word(const char *word)
{
    char said[120];
    snprintf(said, sizeof said, "--%.100s", word);
    TRY(explain_unknown(said, word));
    const ConfigRow *r = find_nearest(config_rows(), "", word);
    if (r) return fail(E_CONFIG, "%s: not a key. Did you mean --%s.%s?", said, r->section, r->key);
    return fail(E_CONFIG, "%s: not a key. `treb help config` lists the keys there are.", said);
}

Status config_find_word(const char *word, const ConfigRow **row)
{
    *row = find_only(word);
    if (!*row && !find_answer(word)) *row = find_foreign(config_rows(), word);
    return *row ? OK : refuse_word(word);
}

Status config_unknown_key(const char *section, const char *word)
{
    char said[160];
    snprintf(said, sizeof said, "%s.%.100s", section, word);
    TRY(explain_unknown(said, word));
    const ConfigRow *r = find_nearest(config_rows(), section, word);
    if (r) return fail(E_CONFIG, "%s: not a key. Did you mean %s.%s?", said, r->section, r->key);
    return fail(E_CONFIG, "%s: not a key. `treb help %s` lists the keys there are.", said, section);
}

Status config_unknown_section(const char *word)
{
    int n, least = INT_MAX;
    const ConfigSection *s = config_sections(&n), *best = NULL;
    for (int i = 0; i < n; i++) {
        if (str_lists_like(s[i].also, ',', word))
            return fail(E_CONFIG, "%.100s: not a section here. Use %s.", word, s[i].name);
        int unlike = str_unlike(word, s[i].name);
        if (unlike < least) least = unlike, best = &s[i];
    }
    char said[120];
    snprintf(said, sizeof said, "%.100s", word);
    TRY(explain_unknown(said, word));
    if (best) return fail(E_CONFIG, "%s: not a section. Did you mean %s?", said, best->name);
    const ConfigRow *r = find_nearest(config_rows(), "", word);
    if (r) return fail(E_CONFIG, "%s: not a section. Did you mean %s.%s?", said, r->section, r->key);
    return fail(E_CONFIG, "%s: not a section. `treb help` lists sections, `treb help SECTION` their keys.",
                said);
}

Status config_unknown_field(const char *entry, const char *word)
{
    ConfigRows rows = config_source_rows();
    const ConfigRow *r = find_foreign(rows, word);
    if (r) return fail(E_CONFIG, "%s.%.100s: not a key here. Use %s.", entry, word, r->key);
    r = find_nearest(rows, rows.row->section, word);
    if (r) return fail(E_CONFIG, "%s.%.100s: not a key. Did you mean %s?", entry, word, r->key);
    return fail(E_CONFIG, "%s.%.100s: not a key. `treb help data` lists those of an entry.", entry, word);
}
