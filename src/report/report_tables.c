/* report/report_tables.c -- the recipe, the machine, and what two runs differ in. */
#include "base/config.h"
#include "base/str.h"
#include "report/report_html.h"

#include <stdlib.h>
#include <string.h>

/* Every key with its default, in the words of a recipe. Without memory for it no key counts as changed. */
static void default_pairs(Pairs *p, Keep *keep)
{
    Config cfg;
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    if (!f) return;
    config_default(&cfg);
    config_dump(f, &cfg);
    config_close(&cfg);
    if (!fclose(f) && pairs_from_recipe(p, keep, text, len, "defaults")) pairs_close(p);
    free(text);
}

static void put_value(Html *h, const char *value)
{
    html_put(h, "<td class='mono'>");
    if (!value)       html_put(h, "<small class='note'>absent</small>");
    else if (!*value) html_put(h, "<small class='note'>not set</small>");
    else              html_text(h, value);
    html_put(h, "</td>");
}

static void put_key(Html *h, const char *key) { html_around(h, "<tr><td class='key'>", key, "</td>"); }

/* 1e-4 and 0.0001 are alike. */
static bool unlike(const char *a, const char *b)
{
    double x, y;
    if (!a || !b) return a != b;
    if (str_number(a, &x) && str_number(b, &y)) return x != y;
    return strcmp(a, b) != 0;
}

static void put_run(Html *h, const Runs *r, int i)
{
    if (!two(r)) return;
    html_put(h, "<h3>");
    html_letter(h, i);
    html_around(h, "", r->at[i]->name, "</h3>");
}

/* --- recipe ------------------------------------------------------------------------------------------ */

static void put_changed(Html *h, const Pairs *recipe, const Pairs *def)
{
    html_put(h, "<div class='card scroll'><table><tr><th>key</th><th>this run</th><th>default</th></tr>\n");
    for (int i = 0; i < recipe->n; i++) {
        const Pair *p = &recipe->at[i];
        const char *usual = pairs_find(def, p->key);
        if (!unlike(p->value, usual)) continue;
        put_key(h, p->key), put_value(h, p->value), put_value(h, usual);
        html_put(h, "</tr>\n");
    }
    html_put(h, "</table>");
}

static void put_all(Html *h, const Pairs *recipe)
{
    html_fmt(h, "<details><summary>All %d keys</summary><table>\n", recipe->n);
    for (int i = 0; i < recipe->n; i++) {
        put_key(h, recipe->at[i].key), put_value(h, recipe->at[i].value);
        html_put(h, "</tr>\n");
    }
    html_put(h, "</table></details></div>\n");
}

void part_recipe(Html *h, const Runs *r)
{
    Keep keep = { 0 };
    Pairs def = { 0 };
    default_pairs(&def, &keep);
    html_put(h, "<section id='recipe'><h2>Recipe</h2>");
    for (int i = 0; i < r->n; i++) {
        const Pairs *p = &r->at[i]->recipe;
        put_run(h, r, i);
        if (p->n) put_changed(h, p, &def), put_all(h, p);
        else      html_put(h, "<p class='empty'>No recipe.yaml that could be read.</p>");
    }
    html_put(h, "</section>\n");
    pairs_close(&def);
    keep_close(&keep);
}

/* --- machine ----------------------------------------------------------------------------------------- */

void part_machine(Html *h, const Runs *r)
{
    html_put(h, "<section id='machine'><h2>Machine</h2><div class='grid'>");
    for (int i = 0; i < r->n; i++) {
        const Pairs *p = &r->at[i]->env;
        html_fmt(h, "<div%s>", two(r) ? "" : " class='wide'");
        put_run(h, r, i);
        if (!p->n) html_put(h, "<p class='empty'>No env.json that could be read.</p>");
        else html_put(h, "<div class='card scroll'><table>\n");
        for (int k = 0; k < p->n; k++) {
            put_key(h, p->at[k].key), put_value(h, p->at[k].value);
            html_put(h, "</tr>\n");
        }
        html_put(h, p->n ? "</table></div></div>\n" : "</div>\n");
    }
    html_put(h, "</div></section>\n");
}

/* --- two runs ---------------------------------------------------------------------------------------- */

/* Keys whose values differ: those of A in its order, then what only B has. Returns how many. */
static int put_unlike(Html *h, const Pairs *a, const Pairs *b)
{
    int n = 0;
    for (int side = 0; side < 2; side++) {
        const Pairs *of = side ? b : a;
        for (int i = 0; i < of->n; i++) {
            const char *key = of->at[i].key, *va = pairs_find(a, key), *vb = pairs_find(b, key);
            if ((side && va) || !unlike(va, vb)) continue;
            put_key(h, key), put_value(h, va), put_value(h, vb);
            html_put(h, "</tr>\n");
            n++;
        }
    }
    return n;
}

static void put_differences(Html *h, const char *title, const Pairs *a, const Pairs *b, const char *none)
{
    html_fmt(h, "<h3>%s</h3><div class='card scroll'><table>", title);
    html_put(h, "<tr><th>key</th><th>A</th><th>B</th></tr>\n");
    if (!put_unlike(h, a, b)) html_fmt(h, "<tr><td colspan='3'>%s</td></tr>\n", none);
    html_put(h, "</table></div>\n");
}

void part_differences(Html *h, const Runs *r)
{
    html_put(h, "<section id='differences'><h2>Differences</h2>");
    figures_table(h, r);
    put_differences(h, "Recipe", &r->at[0]->recipe, &r->at[1]->recipe, "The recipes are the same.");
    put_differences(h, "Machine", &r->at[0]->env, &r->at[1]->env, "The machines are the same.");
    html_put(h, "</section>\n");
}
