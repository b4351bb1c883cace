/* report/report_hang.c -- the records that ranks leave when the watchdog ends a run (comm/hang_file.h): what
 * each rank was doing, and the last calls of a group side by side, a column for each rank. */
#include "report/report_parts.h"

#include "base/folder.h"
#include "comm/hang_file.h"
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { HANG_RANKS = 64, HANG_BYTES = 1 << 20, HANG_ROWS = 16, HANG_TABLES = 8, HANG_MESSAGES = 64 };

/* --- files -------------------------------------------------------------------------------------------- */

static int is_record(const struct dirent *e)
{
    size_t n = strlen(e->d_name);
    return !strncmp(e->d_name, "rank-", 5) && n > 10 && !strcmp(e->d_name + n - 5, ".json");
}

static const char *text_of(const Json *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static int64_t int_of(const Json *o, const char *key)                       /* -1: not a whole number */
{
    const Json *v = json_object_get(o, key);
    return json_is_integer(v) ? json_integer_value(v) : -1;
}

static Status read_record(ReportRun *r, const char *folder, const char *name)
{
    Path path;
    struct stat info;
    Json *o = NULL;
    TRY(path_join(path, folder, name));
    if (stat(path, &info) || !S_ISREG(info.st_mode) || info.st_size > HANG_BYTES)
        return fail(E_DATA, "hang/%s: not a record of a rank", name);
    TRY(json_load(&o, path));
    if (int_of(o, "version") == HANG_VERSION && int_of(o, "rank") >= 0 && json_object_get(o, "calls"))
        return json_array_append_new(r->hang, o) ? fail(E_FIT, "no memory") : OK;
    json_decref(o);
    return fail(E_DATA, "hang/%s: not a record of a rank", name);
}

Status hang_read(ReportRun *r)
{
    Path folder;
    struct dirent **file = NULL;
    Status st = OK;
    TRY(path_join(folder, r->dir, HANG_FOLDER));
    int n = scandir(folder, &file, is_record, alphasort);
    if (n > 0) r->hang = json_array();
    for (int i = 0; i < n; i++) {
        Status one = i < HANG_RANKS && !st ? read_record(r, folder, file[i]->d_name) : OK;
        if (one == E_FIT) st = one;
        else if (one) run_note(r, "%s", status_text());
        free(file[i]);
    }
    if (n > HANG_RANKS) run_note(r, "hang: %d records; the first %d ranks are shown", n, HANG_RANKS);
    free(file);
    return st;
}

/* --- calls -------------------------------------------------------------------------------------------- */

static bool is_message(const Json *call) { return json_is_integer(json_object_get(call, "peer")); }
static bool has_ended(const Json *call)  { return json_is_number(json_object_get(call, "ended")); }

/* Calls that open a group have no number that is the same on all members. */
static bool is_collective(const Json *call)
{
    const char *op = text_of(call, "call");
    return !is_message(call) && strcmp(op, "open") && strcmp(op, "bind");
}

static const Json *group_of(const Json *rank, const char *name)
{
    const Json *groups = json_object_get(rank, "groups");
    for (size_t i = 0; i < json_array_size(groups); i++)
        if (!strcmp(text_of(json_array_get(groups, i), "group"), name)) return json_array_get(groups, i);
    return NULL;
}

static const Json *find_collective(const Json *rank, const char *group, int64_t seq)
{
    const Json *calls = json_object_get(rank, "calls");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const Json *c = json_array_get(calls, i);
        if (is_collective(c) && int_of(c, "seq") == seq && !strcmp(text_of(c, "group"), group)) return c;
    }
    return NULL;
}

/* The latest number of a collective of the group that the rank has started; -1: none is known. */
static int64_t last_collective(const Json *rank, const char *group)
{
    const Json *calls = json_object_get(rank, "calls");
    int64_t last = -1;
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const Json *c = json_array_get(calls, i);
        bool of_group = is_collective(c) && !strcmp(text_of(c, "group"), group);
        if (of_group && int_of(c, "seq") > last) last = int_of(c, "seq");
    }
    return last;
}

static double seconds_of(const Json *call, const char *key)
{
    return json_number_value(json_object_get(call, key));
}

static void say_call(Json *cell, const Json *rank, const Json *call)
{
    int64_t layer = int_of(call, "layer"), micro = int_of(call, "micro_batch");
    bool ended = has_ended(call);
    double until = ended ? seconds_of(call, "ended") : seconds_of(rank, "written");
    page_say(cell, ended ? NULL : "b", "%s", text_of(call, "call"));
    if (layer >= 0) page_say(cell, NULL, ", layer %lld", (long long)layer);
    if (micro >= 0) page_say(cell, NULL, ", micro-batch %lld", (long long)micro);
    page_say(cell, "small", " %s %s s", ended ? "done in" : "not done after",
             NUM(until - seconds_of(call, "began")));
}

/* --- calls of a group, side by side -------------------------------------------------------------------- */

typedef struct HangGroup {
    const char *name;
    const Json *rank[HANG_RANKS];         /* its members that have left a record */
    int         ranks;
    int64_t     first, last;              /* numbers of the calls that are shown */
} HangGroup;

/* Members of the same group list the same members. */
static void find_members(HangGroup *g, const Json *records, const Json *of)
{
    const Json *members = json_object_get(group_of(of, g->name), "members");
    g->ranks = 0, g->last = -1;
    for (size_t i = 0; i < json_array_size(records) && g->ranks < HANG_RANKS; i++) {
        const Json *r = json_array_get(records, i);
        const Json *its = json_object_get(group_of(r, g->name), "members");
        if (!its || !json_equal(its, members)) continue;
        g->rank[g->ranks++] = r;
        if (last_collective(r, g->name) > g->last) g->last = last_collective(r, g->name);
    }
}

/* What a cell says in one letter: done, not done, not reached, or out of the record. */
static char cell_kind(const Json *rank, const char *group, int64_t seq)
{
    const Json *call = find_collective(rank, group, seq);
    if (call) return has_ended(call) ? 'd' : 'w';
    return seq < int_of(group_of(rank, group), "calls") ? 'o' : 'n';
}

static bool rows_differ(const HangGroup *g, int64_t seq)
{
    const char *op = NULL;
    char kind = 0;
    for (int i = 0; i < g->ranks; i++) {
        const Json *call = find_collective(g->rank[i], g->name, seq);
        char k = cell_kind(g->rank[i], g->name, seq);
        if (k == 'o') continue;
        if ((kind && k != kind) || (call && op && strcmp(op, text_of(call, "call")))) return true;
        kind = k;
        if (call) op = text_of(call, "call");
    }
    return kind == 'w';
}

static Json *call_cell(const HangGroup *g, int i, int64_t seq)
{
    const Json *call = find_collective(g->rank[i], g->name, seq);
    Json *cell = json_array();
    if (call) say_call(cell, g->rank[i], call);
    else if (cell_kind(g->rank[i], g->name, seq) == 'o') page_say(cell, "small", "before the record");
    else page_say(cell, "badge warn", "not reached");
    return cell;
}

static void add_call_row(Json *table, const HangGroup *g, int64_t seq, bool highlighted)
{
    Json *row = table_row(table);
    json_array_append_new(row, page_rich(highlighted ? "badge warn" : NULL, "%lld", (long long)seq));
    for (int i = 0; i < g->ranks; i++) json_array_append_new(row, call_cell(g, i, seq));
}

static Json *group_table(const HangGroup *g)
{
    char text[HANG_RANKS + 1][32] = { "num call" };
    const char *columns[HANG_RANKS + 1] = { text[0] };
    for (int i = 0; i < g->ranks; i++) {
        snprintf(text[i + 1], sizeof *text, "- rank %lld", (long long)int_of(g->rank[i], "rank"));
        columns[i + 1] = text[i + 1];
    }
    return block_table(columns, g->ranks + 1, NULL);
}

static void add_group(Report *r, const HangGroup *g)
{
    Json *panel = page_panel(&r->page, true), *table = group_table(g);
    bool found = false;
    page_say(block_list(panel, "title"), "b", "Last calls of group %s", g->name);
    for (int64_t seq = g->first; seq <= g->last; seq++) {
        bool first = !found && rows_differ(g, seq);
        found |= first;
        add_call_row(table, g, seq, first);
    }
    page_add(&r->page, block_list(panel, "blocks"), table);
    page_add(&r->page, block_list(panel, "blocks"), block_text("note", "Marked: the first call in which the "
             "ranks differ."));
}

/* Ends a few rows after the first call in which the members differ. */
static void choose_rows(HangGroup *g)
{
    int64_t at = g->last > HANG_ROWS * 4 ? g->last - HANG_ROWS * 4 : 0;
    while (at < g->last && !rows_differ(g, at)) at++;
    if (g->last > at + 3) g->last = at + 3;
    g->first = g->last > HANG_ROWS ? g->last - HANG_ROWS + 1 : 0;
}

/* Tables of the groups in which a rank has a collective that is not done. */
static void add_groups(Report *r, const Json *records)
{
    const Json *shown[HANG_TABLES];       /* the members of each table; those of two groups may be the same */
    const char *name[HANG_TABLES];
    int tables = 0;
    for (size_t i = 0; i < json_array_size(records); i++) {
        const Json *rank = json_array_get(records, i), *calls = json_object_get(rank, "calls");
        for (size_t k = 0; k < json_array_size(calls) && tables < HANG_TABLES; k++) {
            const Json *c = json_array_get(calls, k);
            HangGroup g = { .name = text_of(c, "group") };
            const Json *members = json_object_get(group_of(rank, g.name), "members");
            bool seen = !members || !is_collective(c) || has_ended(c);
            for (int t = 0; t < tables && !seen; t++)
                seen = !strcmp(name[t], g.name) && json_equal(shown[t], members);
            if (seen) continue;
            shown[tables] = members, name[tables++] = g.name;
            find_members(&g, records, rank);
            choose_rows(&g);
            add_group(r, &g);
        }
    }
}

/* --- messages and ranks --------------------------------------------------------------------------------- */

static const Json *record_of(const Json *records, int64_t rank)
{
    for (size_t i = 0; i < json_array_size(records); i++)
        if (int_of(json_array_get(records, i), "rank") == rank) return json_array_get(records, i);
    return NULL;
}

/* The other side of a message: a recv for a send, with the same number in the same group. */
static const Json *find_match(const Json *peer, const Json *message, int64_t rank)
{
    const Json *calls = json_object_get(peer, "calls");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const Json *c = json_array_get(calls, i);
        if (is_message(c) && int_of(c, "peer") == rank && int_of(c, "seq") == int_of(message, "seq") &&
            !strcmp(text_of(c, "group"), text_of(message, "group")) &&
            strcmp(text_of(c, "call"), text_of(message, "call"))) return c;
    }
    return NULL;
}

static Json *other_side(const Json *records, const Json *message, int64_t rank)
{
    const Json *peer = record_of(records, int_of(message, "peer")), *match = find_match(peer, message, rank);
    Json *cell = json_array();
    if (match) say_call(cell, peer, match);
    else page_say(cell, "badge warn", peer ? "not reached" : "left no record");
    return cell;
}

static void add_message(Json *table, const Json *records, const Json *rank, const Json *call)
{
    Json *row = table_row(table), *own = json_array();
    int64_t number = int_of(rank, "rank");
    say_call(own, rank, call);
    json_array_append_new(row, page_rich(NULL, "%s %lld", text_of(call, "group"),
                                         (long long)int_of(call, "seq")));
    json_array_append_new(row, page_rich(NULL, "%lld", (long long)number));
    json_array_append_new(row, own);
    json_array_append_new(row, page_rich(NULL, "%lld", (long long)int_of(call, "peer")));
    json_array_append_new(row, other_side(records, call, number));
}

static void add_messages(Report *r, const Json *records)
{
    static const char *const columns[] = { "key message", "num rank", "- its call", "num other rank",
                                           "- that rank's call" };
    Json *table = block_table(columns, 5, NULL);
    int rows = 0;
    for (size_t i = 0; i < json_array_size(records); i++) {
        const Json *rank = json_array_get(records, i), *calls = json_object_get(rank, "calls");
        for (size_t k = 0; k < json_array_size(calls) && rows < HANG_MESSAGES; k++) {
            const Json *c = json_array_get(calls, k);
            if (is_message(c) && !has_ended(c)) add_message(table, records, rank, c), rows++;
        }
    }
    if (!rows) { json_decref(table); return; }
    Json *panel = page_panel(&r->page, true);
    page_say(block_list(panel, "title"), "b", "Messages that are not done");
    page_add(&r->page, block_list(panel, "blocks"), table);
}

static void add_ranks(Report *r, int run, const Json *records)
{
    static const char *const columns[] = { "num rank", "- host", "num process", "- was doing", "- in" };
    Json *panel = page_panel(&r->page, true), *title = block_list(panel, "title");
    Json *table = block_table(columns, 5, NULL);
    const Json *first = json_array_get(records, 0);
    say_letter(r, title, run);
    page_say(title, "b", "The watchdog ended the run");
    for (size_t i = 0; i < json_array_size(records); i++) {
        const Json *o = json_array_get(records, i);
        Json *row = table_row(table);
        json_array_append_new(row, page_rich(NULL, "%lld", (long long)int_of(o, "rank")));
        json_array_append_new(row, page_string(text_of(o, "host")));
        json_array_append_new(row, page_rich(NULL, "%lld", (long long)int_of(o, "process")));
        json_array_append_new(row, json_is_true(json_object_get(o, "waits"))
                                       ? page_string(text_of(o, "state"))
                                       : page_rich("b", "%s", text_of(o, "state")));
        json_array_append_new(row, page_string(text_of(o, "place")));
    }
    page_add(&r->page, block_list(panel, "blocks"), block_text("note", "%s", text_of(first, "why")));
    page_add(&r->page, block_list(panel, "blocks"), table);
    long long absent = (long long)int_of(first, "ranks") - (long long)json_array_size(records);
    if (absent > 0)
        page_add(&r->page, block_list(panel, "blocks"),
                 block_text("note", "%lld rank%s left no record.", absent, absent == 1 ? "" : "s"));
}

void part_hang(Report *r)
{
    bool any = false;
    for (int i = 0; i < r->n; i++) any |= json_array_size(r->run[i]->hang) > 0;
    if (!any) return;
    page_section(&r->page, "hang", "Hang");
    for (int i = 0; i < r->n; i++) {
        const Json *records = r->run[i]->hang;
        if (!json_array_size(records)) continue;
        add_ranks(r, i, records);
        add_groups(r, records);
        add_messages(r, records);
    }
}
