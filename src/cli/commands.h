/* cli/commands.h -- treb's verbs as a program (cli/command.h). */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "cli/command.h"

extern const Program treb;

#endif
