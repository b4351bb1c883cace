/* plan/models.c -- models.def as a table, and the many spellings of a name. */
#include "base/str.h"
#include "plan/analytic.h"

#include <string.h>
#include <strings.h>

#define ROW(id, built, others, ...) { .name = id, .preset = built, .also = others, __VA_ARGS__ },
static const ModelRow rows[] = {
#include "plan/models.def"
};
enum { ROWS = sizeof rows / sizeof *rows };

/* Length of `name` if `asked` is the name or begins with it and a '-'; else 0. */
static size_t covers(const char *asked, const char *name, size_t n)
{
    if (strncasecmp(asked, name, n)) return 0;
    return asked[n] == 0 || asked[n] == '-' ? n : 0;
}

const ModelRow *model_row(const char *name)
{
    const char *slash = strrchr(name, '/'), *asked = slash ? slash + 1 : name;
    const ModelRow *best = NULL;
    size_t most = 0, n, got;
    for (int i = 0; i < ROWS; i++) {
        const char *rest = rows[i].also, *word;
        if ((got = covers(asked, rows[i].name, strlen(rows[i].name))) > most) most = got, best = &rows[i];
        while ((word = str_item(&rest, ',', &n)))
            if (n && (got = covers(asked, word, n)) > most) most = got, best = &rows[i];
    }
    return best;
}

const ModelRow *model_row_at(int i) { return i >= 0 && i < ROWS ? &rows[i] : NULL; }
