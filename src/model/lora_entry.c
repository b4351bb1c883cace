/* model/lora_entry.c -- which modules an entry of lora.target_modules, exclude_modules or modules_to_save
 * selects; see lora.h. */
#include "model/lora_private.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

void lora_module_name(char *out, size_t n, const Param *p, int i)
{
    const char *name = p->piece[i].name, *end = strrchr(name, '.');
    bool tensor = end && (!strcmp(end, ".weight") || !strcmp(end, ".bias"));
    snprintf(out, n, "%.*s", tensor ? (int)(end - name) : (int)strlen(name), name);
}

bool lora_name_ends_in(const char *name, const char *tail)
{
    size_t a = strlen(name), b = strlen(tail);
    return a >= b && !strcmp(name + a - b, tail) && (a == b || name[a - b - 1] == '.');
}

static bool is_glob(const char *entry) { return strpbrk(entry, "*?[") != NULL; }

/* Whether the entry equals the name, or its end after a dot. */
static bool matches_end(const char *entry, const char *name)
{
    bool glob = is_glob(entry);
    for (const char *end = name; end; end = strchr(end, '.')) {
        end += *end == '.';
        if (glob ? !fnmatch(entry, end, 0) : !strcmp(entry, end)) return true;
    }
    return false;
}

/* Whether a keyword selects p; -1: the entry is not a keyword. */
static int keyword_targets(const char *entry, const Param *p)
{
    bool linear = p->linear != LINEAR_NO && p->linear != LINEAR_ROUTER && p->linear != LINEAR_HEAD;
    if (!strcmp(entry, "all-linear"))    return linear;
    if (!strcmp(entry, "all-attention")) return p->linear == LINEAR_ATTENTION;
    if (!strcmp(entry, "experts"))       return p->linear == LINEAR_EXPERTS;
    if (!strcmp(entry, "vision"))        return linear && p->group != G_LLM;
    return -1;
}

/* Whether the last part has no wildcard, as an entry for a router or the head must: a glob for a whole layer
 * does not select its router. */
static bool ends_in_name(const char *entry)
{
    const char *last = strrchr(entry, '.');
    return !is_glob(last ? last + 1 : entry);
}

bool lora_entry_targets(const char *entry, const Param *p, int i)
{
    char name[sizeof p->piece->name];
    int keyword = keyword_targets(entry, p);
    if (keyword >= 0) return keyword;
    lora_module_name(name, sizeof name, p, i);
    if ((p->linear == LINEAR_ROUTER || p->linear == LINEAR_HEAD) && !ends_in_name(entry)) return false;
    return matches_end(entry, name);
}

bool lora_entry_covers(const char *entry, const Param *p, int i)
{
    char name[sizeof p->piece->name];
    lora_module_name(name, sizeof name, p, i);
    for (char *end = name; end; end = strrchr(name, '.')) {
        if (end != name) *end = 0;
        if (matches_end(entry, name)) return true;
    }
    return false;
}
