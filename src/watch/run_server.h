/* watch/run_server.h -- `treb watch`: serves the pages of runs while they train. It reads their folders and
 * writes nothing.
 *
 *   /            all runs side by side         /data            its document (report/page.h)
 *   /run/I       the report of run I           /data/run/I
 *   /pair/I/J    two runs compared             /data/pair/I/J
 *
 * A document has an ETag, made from the sizes and times of the files that it is built from: a page that asks
 * for the one it has gets 304. A folder of runs is looked through at each request: runs that begin later
 * appear. */
#ifndef WATCH_RUN_SERVER_H
#define WATCH_RUN_SERVER_H

#include "watch/http.h"

enum { RUN_SERVER_RUNS = 64 };

typedef struct RunServer RunServer;

typedef struct RunServerConf {
    const char *const *dir;              /* runs, or folders of runs */
    int                n;
    const char        *host;
    int                port;
} RunServerConf;

MUST Status run_server_open(RunServer **out, const RunServerConf *conf);
int         run_server_port(const RunServer *w);
int         run_server_runs(const RunServer *w);  /* found so far */
void        run_server_close(RunServer *w);

#endif
