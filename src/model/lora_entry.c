/* model/lora_entry.c -- what an entry of lora.target_modules, exclude_modules or modules_to_save names;
 * see adapters.h. */
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

static bool is_glob(const char *entry) { return strpbrk(entry, "*?[") != NULL; }

/* Equal to the name, or to its end behind a dot. */
static bool names(const char *entry, const char *name)
{
    bool glob = is_glob(entry);
    for (const char *end = name; end; end = strchr(end, '.')) {
        end += *end == '.';
        if (glob ? !fnmatch(entry, end, 0) : !strcmp(entry, end)) return true;
    }
    return false;
}

/* -1: it is no word. */
static int word_reaches(const char *entry, const Param *p)
{
    bool linear = p->linear != LINEAR_NO && p->linear != LINEAR_ROUTER && p->linear != LINEAR_HEAD;
    if (!strcmp(entry, "all-linear"))    return linear;
    if (!strcmp(entry, "all-attention")) return p->linear == LINEAR_ATTENTION;
    if (!strcmp(entry, "experts"))       return p->linear == LINEAR_EXPERTS;
    if (!strcmp(entry, "vision"))        return linear && p->group != G_LLM;
    return -1;
}

/* Routers and the head are asked for by their name: a glob of a whole layer does not mean its router. */
static bool by_name(const char *entry)
{
    const char *last = strrchr(entry, '.');
    return !is_glob(last ? last + 1 : entry);
}

bool lora_entry_targets(const char *entry, const Param *p, int i)
{
    char name[sizeof p->piece->name];
    int word = word_reaches(entry, p);
    if (word >= 0) return word;
    lora_module_name(name, sizeof name, p, i);
    if ((p->linear == LINEAR_ROUTER || p->linear == LINEAR_HEAD) && !by_name(entry)) return false;
    return names(entry, name);
}

bool lora_entry_covers(const char *entry, const Param *p, int i)
{
    char name[sizeof p->piece->name];
    lora_module_name(name, sizeof name, p, i);
    for (char *end = name; end; end = strrchr(name, '.')) {
        if (end != name) *end = 0;
        if (names(entry, name)) return true;
    }
    return false;
}
