/* cli/command_completion.c -- completion scripts for bash, zsh and fish, from a program's table of verbs:
 * verbs first, then sub-verbs, options and files. */
#include "cli/command.h"

#include <string.h>

/* Words that may follow a verb: its sub-verbs and every option of its forms. */
static void put_words(FILE *out, const Command *c)
{
    for (const Usage *const *u = c->usage; *u; u++) {
        if ((*u)->sub) fprintf(out, " %s", (*u)->sub);
        for (const Option *o = (*u)->options; o && o->name; o++) fprintf(out, " %s", o->name);
    }
}

static void put_verbs(FILE *out, const Program *p)
{
    for (const Command *const *v = p->verbs; *v; v++) fprintf(out, " %s", (*v)->name);
}

static void put_bash(FILE *out, const Program *p)
{
    fputs("_treb_words() {\n    case \"$1\" in\n", out);
    for (const Command *const *v = p->verbs; *v; v++) {
        fprintf(out, "    %s) echo \"", (*v)->name);
        put_words(out, *v);
        fputs("\" ;;\n", out);
    }
    fputs("    esac\n}\n_treb() {\n    local word=${COMP_WORDS[COMP_CWORD]} words\n"
          "    if [ \"$COMP_CWORD\" = 1 ]; then words=\"", out);
    put_verbs(out, p);
    fprintf(out,
            "\"; else words=$(_treb_words \"${COMP_WORDS[1]}\"); fi\n"
            "    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n}\ncomplete -o default -F _treb %s\n",
            p->name);
}

static void put_zsh(FILE *out, const Program *p)
{
    fprintf(out, "#compdef %s\nif (( CURRENT == 2 )); then compadd --", p->name);
    put_verbs(out, p);
    fputs("; return; fi\ncase $words[2] in\n", out);
    for (const Command *const *v = p->verbs; *v; v++) {
        fprintf(out, "%s) compadd --", (*v)->name);
        put_words(out, *v);
        fputs(" ;;\n", out);
    }
    fputs("esac\n_files\n", out);
}

static void put_fish(FILE *out, const Program *p)
{
    for (const Command *const *v = p->verbs; *v; v++) {
        fprintf(out, "complete -c %s -n __fish_use_subcommand -a %s -d \"%s\"\n", p->name, (*v)->name,
                (*v)->help);
        fprintf(out, "complete -c %s -n \"__fish_seen_subcommand_from %s\" -a \"", p->name, (*v)->name);
        put_words(out, *v);
        fputs("\"\n", out);
    }
}

Status command_completion(FILE *out, const Program *p, const char *shell)
{
    if (!strcmp(shell, "fish"))      put_fish(out, p);
    else if (!strcmp(shell, "zsh"))  put_zsh(out, p);
    else if (!strcmp(shell, "bash")) put_bash(out, p);
    else return fail(E_CONFIG, "--completion %s: bash, zsh or fish", shell);
    return OK;
}
