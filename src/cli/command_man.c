/* cli/command_man.c -- the man page of a program, in man(7) macros, from its table of verbs. */
#include "cli/command.h"

#include <string.h>

/* Text of a page: '-' and '\' have other meanings in roff, and so has a '.' or '\'' that begins a line. */
static void put_text(FILE *out, const char *text)
{
    for (const char *c = text; *c; c++) {
        bool starts = c == text || c[-1] == '\n';
        if (starts) while (*c == ' ') c++;
        if (starts && (*c == '.' || *c == '\'')) fputs("\\&", out);
        if (*c == '-') fputs("\\-", out);
        else if (*c == '\\') fputs("\\e", out);
        else if (*c) putc(*c, out);
        else return;
    }
}

static void put_option(FILE *out, const Option *o)
{
    fputs(".TP\n.B ", out);
    put_text(out, o->name);
    if (o->arg) putc(' ', out), put_text(out, o->arg);
    putc('\n', out), put_text(out, o->help), putc('\n', out);
}

static void put_form(FILE *out, const Program *p, const Command *c, const Usage *u)
{
    fprintf(out, ".PP\n.B %s %s%s%s\n", p->name, c->name, u->sub ? " " : "", u->sub ? u->sub : "");
    put_text(out, u->args), putc('\n', out);
    if (u->notes) fputs(".PP\n", out), put_text(out, u->notes), putc('\n', out);
    for (const Option *o = u->options; o && o->name; o++) put_option(out, o);
}

void command_man(FILE *out, const Program *p)
{
    fprintf(out,
            ".TH %s 1\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.B %s\n\\fIverb\\fR [recipe.yaml] "
            "[section.key=value ...]\n"
            ".SH VERBS\n",
            p->name, p->name, p->about, p->name);
    for (const Command *const *v = p->verbs; *v; v++) {
        fprintf(out, ".SS %s\n", (*v)->name);
        put_text(out, (*v)->help), putc('\n', out);
        for (const Usage *const *u = (*v)->usage; *u; u++) put_form(out, p, *v, *u);
    }
    fputs(".SH EXIT STATUS\n0 success, 1 other failure, 2 bad use or configuration, 3 does not fit in "
          "memory, 4 bad data "
          "or file, 5 device, 6 communication, 7 stopped by a check.\n",
          out);
}
