/* cli/cmd_config.c -- treb config recipe.yaml [section.key=value ...]: the recipe as it would run. */
#include "base/config.h"
#include "cli/commands.h"

static Status cmd_config(int argc, char **argv)
{
    Config cfg;
    if (argc < 2) return fail(E_CONFIG, "config: name a recipe; see treb config --help");
    TRY(config_open_words(&cfg, argc - 1, argv + 1));
    config_dump(stdout, &cfg);
    config_close(&cfg);
    return OK;
}

static const Usage usage = {
    .args    = "[recipe.yaml] [section.key=value ...] [--key value ...]",
    .notes   = "Prints the recipe as it would run: defaults, then the file, then the overrides.",
};

const Command command_config = {
    .name     = "config",
    .help     = "check a recipe and print every key of it",
    .run      = cmd_config,
    .usage    = USAGE(&usage),
    .sections = ALL_SECTIONS,
};
