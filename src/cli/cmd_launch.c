/* cli/cmd_launch.c -- treb launch -n N verb ...: starts the ranks of a run with mpirun, each bound to its
 * cores and its GPU, and starts them again when one is lost. */
#include "base/config.h"
#include "cli/commands.h"
#include "comm/comm.h"
#include "launch/launch.h"

#include <stdlib.h>
#include <string.h>

typedef struct LaunchArgs {
    int64_t     ranks, restarts, least;  /* 0: not given */
    const char *hosts, *agent, *mpirun;
    bool        dry_run, verbose, no_bind;
} LaunchArgs;

static const Option options[] = {
    OPTION_INT(LaunchArgs, ranks, "-n", "N", 1, 65536, "ranks (default with --hosts: all slots)"),
    OPTION_TEXT(LaunchArgs, hosts, "--hosts", "a:8,b:8",
                "hosts and their slots, in rank order (default: this host)"),
    OPTION_INT(LaunchArgs, restarts, "--restart", "K", 0, 1000000,
               "start again when a rank is lost, at most K times in a row without a new checkpoint "
               "(default 0)"),
    OPTION_INT(LaunchArgs, least, "--min-ranks", "M", 1, 65536,
               "with --restart: end when fewer are left (default 1)"),
    OPTION_TEXT(LaunchArgs, agent, "--agent", "CMD",
                "starts a command on a host: CMD HOST COMMAND (default ssh)"),
    OPTION_TEXT(LaunchArgs, mpirun, "--mpirun", "PATH", "Open MPI's mpirun, if not the one in PATH"),
    OPTION_FLAG(LaunchArgs, no_bind, "--no-bind", "do not bind ranks to cores"),
    OPTION_FLAG(LaunchArgs, verbose, "--verbose", "each rank prints its cores, NUMA node, GPU and threads"),
    OPTION_FLAG(LaunchArgs, dry_run, "--dry-run", "print the command and the bindings, start nothing"),
    OPTION_END
};

/* The words up to the verb are launch's own. */
static int find_verb(int argc, char **argv)
{
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++)
        for (const Option *o = options; o->name; o++)
            if (!strcmp(o->name, argv[i]) && o->arg) i++;
    return i < argc ? i : argc;
}

static Status check_verb(const char *name)
{
    static const char *const others[] = { "launch", "help", "doctor", "report", "plan", "config", "tune" };
    if (!command_find(&treb, name)) return command_unknown(&treb, name);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(name, others[i]))
            return fail(E_CONFIG, "launch: %s runs in one process; start it without launch", name);
    return OK;
}

static Status refuse_missing_mpi(void)
{
    if (strstr(comm_kinds(), ", mpi")) return OK;
    return fail(E_CONFIG, "launch: this build has no MPI; install libopenmpi-dev and openmpi-bin, then make");
}

static Status set_ranks(Launch *l, const LaunchArgs *a)
{
    Hosts *h = &l->command.hosts;
    TRY(hosts_parse(h, a->hosts, (int)a->ranks));
    l->ranks = a->ranks ? (int)a->ranks : hosts_slots(h);
    if (!l->ranks) return fail(E_CONFIG, "launch: how many ranks? write treb launch -n 4 train recipe.yaml");
    if (h->n && l->ranks > hosts_slots(h))
        return fail(E_CONFIG, "launch: -n %d, but the hosts have %d slots; raise the numbers of --hosts",
                    l->ranks, hosts_slots(h));
    l->command.ranks = l->ranks;
    return OK;
}

/* A mistake in the recipe is reported once, before ranks start. */
static Status check_recipe(Launch *l)
{
    Config cfg;
    Status st = OK;
    const RankCommand *c = &l->command;
    if (c->words < 2) return fail(E_CONFIG, "launch: %s: name a recipe; see treb train --help", c->verb[0]);
    TRY(config_open_words(&cfg, c->words - 1, c->verb + 1));
    if (strlen(cfg.checkpoint.output_dir) >= sizeof l->folder)
        st = fail(E_CONFIG, "checkpoint.output_dir: the path is too long");
    else strcpy(l->folder, cfg.checkpoint.output_dir);
    l->from_path = strcmp(cfg.checkpoint.resume_from_checkpoint, "none") &&
                   strcmp(cfg.checkpoint.resume_from_checkpoint, "auto");
    config_close(&cfg);
    return st;
}

static Status set_restarts(Launch *l, const LaunchArgs *a)
{
    l->saves = !strcmp(l->command.verb[0], "train");
    l->restarts = (int)a->restarts, l->least = a->least ? (int)a->least : 1;
    if (l->saves) return check_recipe(l);
    return a->restarts ? fail(E_CONFIG, "--restart: %s has no checkpoint to start from; only train does",
                              l->command.verb[0]) : OK;
}

static Status run(Launch *l, const LaunchArgs *a)
{
    int code = 0;
    TRY(set_ranks(l, a));
    TRY(set_restarts(l, a));
    TRY(refuse_missing_mpi());
    TRY(mpirun_find(&l->mpirun, a->mpirun));
    if (a->dry_run) return launch_print(stdout, l);
    TRY(launch_run(l, &code));
    if (code) exit(code);                                    /* the ranks have said why */
    return OK;
}

static Status cmd_launch(int argc, char **argv)
{
    LaunchArgs a = { 0 };
    int        verb = find_verb(argc, argv);
    TRY(options_parse(verb, argv, options, &a, NULL));
    if (verb == argc) return fail(E_CONFIG, "launch: name a verb: treb launch -n 4 train recipe.yaml");
    TRY(check_verb(argv[verb]));
    Launch *l = calloc(1, sizeof *l);
    if (!l) return fail(E_FIT, "no memory");
    l->command = (RankCommand){ .agent = a.agent, .bind = !a.no_bind, .verbose = a.verbose,
                                .verb = argv + verb, .words = argc - verb };
    Status st = run(l, &a);
    hosts_close(&l->command.hosts);
    words_close(&l->command.overrides);
    free(l);
    return st;
}

static const Usage usage = {
    .args    = "-n N verb ...",
    .options = options,
    .notes   = "Starts N ranks of `treb verb ...` with Open MPI's mpirun. Each rank is bound to its share "
               "of the cores, near its GPU. Ctrl-C, SIGTERM and SIGUSR1 make train save a checkpoint and "
               "exit; a second one ends the ranks. The exit code is that of the rank that failed. With "
               "--restart a lost rank (exit code 6, or a signal) leads to a new start from the newest "
               "checkpoint: with the same bits on as many ranks, or on the ranks that are left, with a "
               "layout that the planner picks.",
};

const Command command_launch = {
    .name     = "launch",
    .help     = "start the ranks of a run, and start them again when one is lost",
    .run      = cmd_launch,
    .usage    = USAGE(&usage),
};
