/* cli/cmd_data.c -- `treb data`: the sub-verbs about datasets, one file each. */
#include "cli/commands.h"

extern const Usage usage_data_check, usage_data_inspect, usage_data_pack, usage_data_render;

static const Usage usage_synth = {
    .args    = "--out DIR [option ...]",
    .notes   = "Draws the demo's visual questions; `treb data synth --help` lists the options.",
    .sub     = "synth",
    .program = "treb-demo",
};

const Command command_data = {
    .name     = "data",
    .help     = "check, inspect, render, pack and draw datasets",
    .usage    = USAGE(&usage_data_check, &usage_data_inspect, &usage_data_render, &usage_data_pack,
                      &usage_synth),
    .sections = "data,image,video",
};
