/* cli/cmd_data.c -- `treb data`: the verbs about datasets, one file each. */
#include "cli/data.h"
#include "cli/program.h"

#include <string.h>

/* The pictures of the demo are drawn by a program of their own; its sources are in demo/. */
static Status data_synth(int argc, char **argv) { return program_exec_sibling("treb-demo", argc, argv); }

static const struct { const char *name; Status (*run)(int argc, char **argv); } verbs[] = {
    { "check", data_check }, { "inspect", data_inspect }, { "pack", data_pack }, { "synth", data_synth },
};

Status cmd_data(int argc, char **argv);

Status cmd_data(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof verbs / sizeof *verbs; i++)
        if (!strcmp(argv[1], verbs[i].name)) return verbs[i].run(argc - 1, argv + 1);
    return fail(E_CONFIG, "data: check, inspect, pack or synth? See treb help data");
}
