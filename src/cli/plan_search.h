/* cli/plan_search.h -- treb plan --gpus N …: the layout is not given but looked for. */
#ifndef CLI_PLAN_SEARCH_H
#define CLI_PLAN_SEARCH_H

#include "cli/command.h"

bool        search_asked(int argc, char **argv);            /* --gpus is among them */
extern const Usage usage_plan_search;
MUST Status search_command(int argc, char **argv);

#endif
