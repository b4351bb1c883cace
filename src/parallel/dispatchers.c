/* parallel/dispatchers.c -- the table of roads to the experts. "local" is none: a Ctx without one. */
#include "parallel/dispatch.h"

#include <string.h>

static const DispatchOps *const dispatchers[] = { &dispatch_alltoall, &dispatch_deepep, &dispatch_hybridep };
enum { DISPATCHERS = sizeof dispatchers / sizeof *dispatchers };

const char *dispatch_names(void) { return "alltoall, deepep, hybridep"; }

/* Where rows leave a domain, sending each token there once is what pays. */
static const char *pick(const Mesh *mesh)
{
    return mesh->comm[GR_ep_inter_node]->size > 1 ? "deepep" : "alltoall";
}

Status dispatch_open(Dispatcher *d, const Mesh *mesh, const DispatchConf *conf)
{
    const char *name = !conf->name || !strcmp(conf->name, "auto") ? pick(mesh) : conf->name;
    *d = (Dispatcher){ 0 };
    for (int i = 0; i < DISPATCHERS; i++)
        if (!strcmp(dispatchers[i]->name, name)) return dispatch_init(d, dispatchers[i], mesh, conf);
    return fail(E_CONFIG, "moe.dispatcher = %s: there are auto, %s", name, dispatch_names());
}
