/* cli/cmd_config.c -- treb config: the recipe as it would run, or one made from another trainer's file. */
#include "base/config_import.h"
#include "base/folder.h"
#include "cli/commands.h"
#include <stdlib.h>
#include <string.h>

static Status import_file(const char *path)
{
    Import i;
    char  *text;
    size_t len;
    TRY(file_read(path, FOREIGN_MAX_BYTES, &text, &len));
    Status st = config_import(&i, text, len, path);
    free(text);
    if (st) return st;
    config_import_dump(stdout, &i, path);
    config_import_close(&i);
    return OK;
}

static Status cmd_config(int argc, char **argv)
{
    Config cfg;
    if (argc < 2) return fail(E_CONFIG, "config: name a recipe; see treb config --help");
    if (!strcmp(argv[1], "--import"))
        return argc == 3 ? import_file(argv[2]) : fail(E_CONFIG, "--import: one file must follow");
    TRY(config_open_words(&cfg, argc - 1, argv + 1));
    config_dump(stdout, &cfg);
    config_close(&cfg);
    return OK;
}

static const Usage usage = {
    .args    = "[recipe.yaml] [section.key=value ...] [--key value ...]",
    .notes   = "Prints the recipe as it would run: defaults, then the file, then the overrides.",
};

static const Usage usage_import = {
    .args    = "--import FILE",
    .notes   = "Turns arguments of LLaMA-Factory, ms-swift, TRL and transformers, accelerate or Megatron "
               "(YAML, JSON or a shell script) into a recipe, with a line for each that has no counterpart.",
};

const Command command_config = {
    .name     = "config",
    .help     = "check a recipe and print every key of it",
    .run      = cmd_config,
    .usage    = USAGE(&usage, &usage_import),
    .sections = ALL_SECTIONS,
};
