/* cli/ranks.c -- see ranks.h. */
#include "cli/ranks.h"

#include "cli/program.h"
#include "launch/rank.h"

#include <stdio.h>
#include <stdlib.h>

/* The Status of the first rank that failed by itself, which prints its text. A rank that learns of the
 * failure has E_COMM. No rank exits before the text is out: a launcher ends all ranks once one has failed. */
static Status settle(Comm *world, Status mine)
{
    int  own = (int)mine, first = 0, *all = calloc((size_t)world->size, sizeof *all);
    if (!all) return mine;
    comm_host_gather(world, all, &own, sizeof own);
    while (first + 1 < world->size && (all[first] == OK || all[first] == E_COMM)) first++;
    Status st = (Status)all[first];
    free(all);
    launch_rank_exit(status_exit_code(st));
    if (world->rank == first) program_print_error(), fflush(stderr);
    comm_barrier(world);
    return fail(st, "%s", "");
}

CommConf ranks_comm_conf(const Config *c)
{
    return (CommConf){ .kind = c->comm.kind, .backend = backend_pick(c->device.backend),
                       .per_node = (int)c->comm.ranks_per_node, .timeout = c->comm.timeout };
}

Status ranks_run(const Config *c, RankVerb verb, void *self)
{
    CommConf conf = ranks_comm_conf(c);
    Comm *world = NULL;
    TRY(comm_open(&world, &conf));
    Status st = verb.run(self, world);
    if (st && world->size > 1 && world->failure_agreed) st = settle(world, st);
    else if (st) launch_rank_exit(status_exit_code(st)), comm_abort(world, status_text());
    verb.close(self);
    comm_close(world);
    return st;
}
