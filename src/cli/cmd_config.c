/* cli/cmd_config.c -- treb config recipe.yaml [section.key=value ...]: the recipe as it would run. */
#include "base/config.h"

Status cmd_config(int argc, char **argv)
{
    Config cfg;
    if (argc < 2) return fail(E_CONFIG, "config: name a recipe; see treb config --help");
    TRY(config_open(&cfg, argv[1], argc - 2, argv + 2));
    config_dump(stdout, &cfg);
    config_close(&cfg);
    return OK;
}
