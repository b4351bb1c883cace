/* cli/main.c -- where treb starts; its verbs are listed in commands.c. */
#include "cli/commands.h"
#include "cli/program.h"

int main(int argc, char **argv)
{
    program_start(argv);
    return program_finish(program_run(&treb, argc, argv));
}
