/* report/report_tables.c -- the recipe, the machine and build, and the differences between two runs. */
#include "base/config.h"
#include "report/contract.h"
#include "report/report_parts.h"

#include <stdlib.h>
#include <string.h>

/* Every key with its default, as a recipe spells it. Without memory for it no key counts as changed. */
static void default_keys(KeyValues *p, MemPool *keep)
{
    Config cfg;
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    if (!f) return;
    config_default(&cfg);
    config_dump(f, &cfg);
    config_close(&cfg);
    if (!fclose(f) && keys_from_recipe(p, keep, text, len, "defaults")) keys_close(p);
    free(text);
}

static Json *value_cell(const char *value)
{
    if (!value) return page_rich("small", "absent");
    return *value ? page_string(value) : page_rich("small", "not set");
}

static void add_row(Json *table, const char *key, const char *a, const char *b)
{
    Json *row = table_row(table);
    json_array_append_new(row, page_string(key));
    json_array_append_new(row, value_cell(a));
    json_array_append_new(row, value_cell(b));
}

static Json *run_panel(Report *r, int i, bool wide)
{
    Json *panel = page_panel(&r->page, wide), *title = block_list(panel, "title");
    if (two(r)) say_letter(r, title, i), page_say(title, "b", "%s", r->run[i]->name);
    return panel;
}

static Json *all_keys(const KeyValues *p, const char *fold)
{
    static const char *const columns[] = { "key ", "mono " };
    Json *table = block_table(columns, 2, fold);
    for (int i = 0; i < p->n; i++) {
        Json *row = table_row(table);
        json_array_append_new(row, page_string(p->at[i].key));
        json_array_append_new(row, value_cell(p->at[i].value));
    }
    return table;
}

static void add_recipe(Report *r, int i, const KeyValues *def)
{
    static const char *const columns[] = { "key key", "mono this run", "mono default" };
    const KeyValues *p = &r->run[i]->recipe;
    char fold[40];
    Json *blocks = block_list(run_panel(r, i, true), "blocks"), *table = block_table(columns, 3, NULL);
    for (int k = 0; k < p->n; k++) {
        const char *usual = keys_find(def, p->at[k].key);
        if (values_differ(p->at[k].value, usual)) add_row(table, p->at[k].key, p->at[k].value, usual);
    }
    snprintf(fold, sizeof fold, "All %d keys", p->n);
    page_add(&r->page, blocks, table);
    page_add(&r->page, blocks, all_keys(p, fold));
}

void part_recipe(Report *r)
{
    MemPool keep = { 0 };
    KeyValues def = { 0 };
    default_keys(&def, &keep);
    page_section(&r->page, "recipe", "Recipe");
    for (int i = 0; i < r->n; i++) {
        if (r->run[i]->recipe.n) add_recipe(r, i, &def);
        else page_add(&r->page, NULL, block_text("empty wide", "No recipe.yaml that could be read."));
    }
    keys_close(&def);
    mem_pool_close(&keep);
}

void part_machine(Report *r)
{
    page_section(&r->page, "machine", "Machine and build");
    for (int i = 0; i < r->n; i++) {
        const KeyValues *p = &r->run[i]->env;
        Json *blocks = block_list(run_panel(r, i, !two(r)), "blocks");
        page_add(&r->page, blocks, p->n ? all_keys(p, NULL)
                                        : block_text("note", "No env.json that could be read."));
    }
}

/* Keys whose values differ: keys of A in its order, then keys that only B has. */
static void add_differences(Report *r, const char *title, const KeyValues *a, const KeyValues *b,
                            const char *none)
{
    static const char *const columns[] = { "key key", "mono A", "mono B" };
    Json *panel = page_panel(&r->page, true), *table = block_table(columns, 3, NULL);
    page_say(block_list(panel, "title"), "b", "%s", title);
    for (int side = 0; side < 2; side++) {
        const KeyValues *of = side ? b : a;
        for (int i = 0; i < of->n; i++) {
            const char *key = of->at[i].key, *va = keys_find(a, key), *vb = keys_find(b, key);
            if (!(side && va) && values_differ(va, vb)) add_row(table, key, va, vb);
        }
    }
    if (!json_array_size(block_list(table, "rows")))
        json_array_append_new(table_row(table), page_string(none));
    page_add(&r->page, block_list(panel, "blocks"), table);
}

void part_differences(Report *r)
{
    const ReportRun *a = r->run[0], *b = r->run[1];
    page_section(&r->page, "differences", "Differences");
    figures_table(r);
    add_differences(r, "Recipe", &a->recipe, &b->recipe, "The recipes are the same.");
    add_differences(r, "Machine and build", &a->env, &b->env, "The machines are the same.");
}
