/* bench/main.c -- the program treb-bench, which is also `treb bench`: how fast, against a ceiling measured in
 * the same run. */
#include "cli/command.h"
#include "cli/program.h"

#include <stdio.h>

/* In the order that `treb bench --help` lists them; each has a file of its own. */
#define BENCHES(B) B(ops) B(step) B(calibrate) B(decode) B(loader) B(dispatch)

#define B(name) extern const Command bench_##name;
BENCHES(B)
#undef B

static const Command *const verbs[] = {
#define B(name) &bench_##name,
    BENCHES(B)
#undef B
    NULL,
};

static const Program bench = { "treb bench", "measures ops and steps against their ceilings", verbs };

static Status refuse_empty(void)
{
#define B(name) " " #name
    return fail(E_CONFIG, "bench: name one of" BENCHES(B) "; see treb help bench");
#undef B
}

int main(int argc, char **argv)
{
    program_start(argv);
    setvbuf(stdout, NULL, _IOLBF, 0);                        /* a row is shown once it is measured */
    return program_finish(argc < 2 ? refuse_empty() : program_run(&bench, argc, argv));
}
