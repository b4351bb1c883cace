/* cli/plan_search.h -- treb plan --gpus N …: searches for a layout. */
#ifndef CLI_PLAN_SEARCH_H
#define CLI_PLAN_SEARCH_H

#include "cli/command.h"

bool        search_asked(int argc, char **argv);            /* --gpus is given */
extern const Usage usage_plan_search;
MUST Status search_command(int argc, char **argv);

#endif
