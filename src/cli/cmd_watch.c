/* cli/cmd_watch.c -- `treb watch`: the pages of runs, served while they train. */
#include "cli/commands.h"
#include "watch/run_server.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { PORT = 6780 };

typedef struct WatchArgs { const char *host; int64_t port; } WatchArgs;

static const Option options[] = {
    OPTION_INT(WatchArgs, port, "--port", "N", 0, 65535, "port to listen on; 0: a free one (default 6780)"),
    OPTION_TEXT(WatchArgs, host, "--host", "ADDRESS",
                "IPv4 address to listen on; 127.0.0.1: this machine alone; 0.0.0.0: every machine"),
    OPTION_END
};

/* The server's thread starts with these blocked too, so they reach this one alone. */
static void block_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGINT), sigaddset(set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, set, NULL);
}

static void print_address(const RunServer *s, const char *host)
{
    int  runs = run_server_runs(s);
    bool all = !strcmp(host, "0.0.0.0");
    printf("%d run%s at http://%s:%d/ ; Ctrl-C ends it\n", runs, runs == 1 ? "" : "s",
           all ? "localhost" : host, run_server_port(s));
    if (all) printf("--host 0.0.0.0: users of all machines that reach this one can read these runs\n");
    fflush(stdout);
}

static Status cmd_watch(int argc, char **argv)
{
    WatchArgs a = { .host = "127.0.0.1", .port = PORT };
    PlainArgs dir = { .least = 1, .most = RUN_SERVER_RUNS, .what = "run folders" };
    sigset_t  set;
    RunServer    *w = NULL;
    int       sig;
    TRY(options_parse(argc, argv, options, &a, &dir));
    block_signals(&set);
    RunServerConf conf = { .dir = dir.value, .n = dir.n, .host = a.host, .port = (int)a.port };
    Status st = run_server_open(&w, &conf);
    if (!st) {
        print_address(w, a.host);
        sigwait(&set, &sig);
        run_server_close(w);
    }
    plain_args_close(&dir);
    return st;
}

static const Usage usage = {
    .args    = "RUN...",
    .options = options,
    .notes   = "RUN is a run's folder (checkpoint.output_dir), or a folder of such folders. The pages show "
               "the report of each run with curves that grow while it trains, and all runs side by side. "
               "Nothing is written. From another machine: ssh -L 6780:localhost:6780 HOST.",
};

const Command command_watch = {
    .name     = "watch",
    .help     = "show the reports of runs in a browser, live while they train",
    .run      = cmd_watch,
    .usage    = USAGE(&usage),
};
