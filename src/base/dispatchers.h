/* base/dispatchers.h -- the token dispatchers, one row each. Everything outside a dispatcher's own file
 * derives from its row: the choices of moe.dispatcher, the rules, the analytic cost model, `plan --fix
 * dispatch=`, the benchmark and the tests.
 *
 *   DISPATCHER(name, two_level, pads, pipelined, maps, help)
 *
 *   two_level   a token crosses to another node once and is forwarded there over the fast link; otherwise one
 *               row is sent for each of its experts
 *   pads        moe.pad_to_capacity is supported
 *   pipelined   an exchange is cut into chunks whose steps overlap
 *   maps        ranks of a node write into each other's memory; without two_level all ranks of an expert
 *               group share a node
 *
 * parallel/dispatch_*.c defines `const DispatchOps dispatch_<name>`. moe.dispatcher = auto takes the first
 * row that is two_level if experts are on several nodes and not if they are on one, and that maps if the
 * ranks of a node can map each other's memory and not if they cannot. The analytic model prices a dispatch by
 * two_level and by maps. */
#ifndef BASE_DISPATCHERS_H
#define BASE_DISPATCHERS_H

#include <stdbool.h>

#define DISPATCHERS(DISPATCHER)                                                                    \
    DISPATCHER(alltoall, false, true,  false, false, "a row for each expert of a token, to its rank")    \
    DISPATCHER(peer,     false, false, false, true,  "kernels write rows into memory of the node's ranks") \
    DISPATCHER(deepep,   true,  false, false, false, "a token crosses to a node once, is forwarded there") \
    DISPATCHER(hybridep, true,  true,  true,  false, "as deepep, in chunks that overlap")                \
    DISPATCHER(deepep_peer, true, false, false, true, "as deepep, on a node kernels write rows as peer does")

/* Values and help of moe.dispatcher. */
#define DISPATCHER_CHOICE(name, two_level, pads, pipelined, maps, help) "|" #name
#define DISPATCHER_CHOICES "auto|local" DISPATCHERS(DISPATCHER_CHOICE)
#define DISPATCHER_LINE(name, two_level, pads, pipelined, maps, help) "; " #name ": " help
#define DISPATCHER_HELP    "how tokens reach their experts" DISPATCHERS(DISPATCHER_LINE)

typedef enum {
#define DISPATCHER(name, two_level, pads, pipelined, maps, help) DISPATCHER_##name,
    DISPATCHERS(DISPATCHER)
#undef DISPATCHER
    DISPATCHER_COUNT
} DispatcherId;

typedef struct DispatcherRow {
    const char *name;
    bool        two_level, pads, pipelined, maps;
} DispatcherRow;

extern const DispatcherRow dispatcher_rows[DISPATCHER_COUNT];

/* Whether all ranks of an expert group must share a node; then the host knows no counts. */
static inline bool dispatcher_within_node(const DispatcherRow *r) { return r->maps && !r->two_level; }

int          dispatcher_find(const char *name);             /* DispatcherId; -1: there is none of this name */
/* What moe.dispatcher = auto takes; maps: ranks of a node can map each other's memory. */
DispatcherId dispatcher_auto(bool several_nodes, bool maps);
const char  *dispatcher_names(void);                         /* "alltoall, peer, deepep, …" */

#endif
