/* cli/cmd_bench.c -- `treb bench` is a program of its own, treb-bench; its sources are in bench/. */
#include "cli/commands.h"

static const Usage usage = {
    .args  = "ops|step|calibrate|decode|loader|dispatch [option ...]",
    .notes = "Runs treb-bench, which lies beside treb; `treb bench step --help` lists the options of one.",
};

const Command command_bench = {
    .name    = "bench",
    .help    = "measure ops and whole steps against ceilings of the same run",
    .usage   = USAGE(&usage),
    .program = "treb-bench",
};
