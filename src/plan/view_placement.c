/* plan/view_placement.c -- rank placement: nodes and their ranks, each by its index on the axes. */
#include "plan/view.h"

#include "parallel/rules.h"

#include <string.h>

enum { ROWS = 12, ACROSS = 8 };

static const struct { MeshAxis axis; char letter; } letters[] = {
    { AX_TP, 't' }, { AX_CP, 'c' }, { AX_DP, 'd' }, { AX_PP, 'p' }, { AX_ETP, 'x' }, { AX_EP, 'e' },
};
enum { LETTERS = sizeof letters / sizeof *letters };

const char *placement_text(char buf[PLACEMENT_BYTES], const Mesh *m)
{
    size_t at = 0;
    *buf = 0;
    for (int i = 0; i < LETTERS; i++)
        if (m->size[letters[i].axis] > 1)
            at += (size_t)snprintf(buf + at, PLACEMENT_BYTES - at, "%s%c%d", at ? " " : "", letters[i].letter,
                                   m->at[letters[i].axis]);
    return buf;
}

MeshLayout view_layout(const DryRun *d)
{
    RuleInput x = rules_input(&d->recipe, &d->shape, d->ranks, d->per_node);
    return rules_layout(&x);
}

static size_t widest(const DryRun *d, const MeshLayout *l)
{
    Mesh m;
    char text[PLACEMENT_BYTES];
    mesh_place(&m, d->ranks - 1, d->ranks, l);
    size_t n = strlen(placement_text(text, &m));
    return n ? n : 1;
}

static void print_row(FILE *out, const DryRun *d, const MeshLayout *l, int first, int n, size_t width)
{
    Mesh m;
    char text[PLACEMENT_BYTES];
    if (first % d->per_node == 0) fprintf(out, "  node %-4d", first / d->per_node);
    else                          fprintf(out, "  %9s", "");
    for (int r = first; r < first + n; r++) {
        mesh_place(&m, r, d->ranks, l);
        fprintf(out, " |%-*s", (int)width, placement_text(text, &m));
    }
    fprintf(out, " |\n");
}

/* Prints the first and the last rows, if there are many. */
void placement_print(FILE *out, const DryRun *d)
{
    MeshLayout l = view_layout(d);
    size_t width = widest(d, &l);
    int    across = (width + 2) * ACROSS > 98 ? ACROSS / 2 : ACROSS;
    int    of_node = (d->per_node + across - 1) / across, nodes = (d->ranks + d->per_node - 1) / d->per_node;
    int    rows = of_node * nodes, skip = rows > ROWS ? rows - ROWS : 0, left = rows - skip;
    fprintf(out,
            "\nrank placement: %d node%s of %d; t tp, c cp, d dp, p stage, x etp, e ep; axes of size 1 are "
            "left out\n",
            nodes, nodes > 1 ? "s" : "", d->per_node);
    for (int row = 0; row < rows; row++) {
        if (skip && row == left - left / 4) {
            fprintf(out, "  … %d more rows\n", skip);
            row += skip;
        }
        int first = row / of_node * d->per_node + row % of_node * across, n = across;
        int end = (row / of_node + 1) * d->per_node;
        if (end > d->ranks) end = d->ranks;
        if (first + n > end) n = end - first;
        if (n > 0) print_row(out, d, &l, first, n, width);
    }
}
