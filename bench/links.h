/* bench/links.h -- what messages between the ranks of this program take, over the transport in use. */
#ifndef BENCH_LINKS_H
#define BENCH_LINKS_H

#include "comm/comm.h"
#include "plan/hardware.h"

/* A link as plan/hardware.h has it: bytes/s in one direction of the fastest kind of call, the share of it
 * that all kinds reach on average, the latency of a message. ranks 0: it was not measured. */
typedef struct Link { int ranks; double bw, share, delay; } Link;
typedef struct Links { char transport[16]; int per_node; Link intra_node, inter_node; } Links;

/* Collective over the world, which is bound to be: between the ranks of the first node, and between the first
 * ranks of all nodes. Rank 0 prints the table. The result is that of rank 0, on all ranks. */
MUST Status links_measure(Links *out, Comm *world, Backend *be, Arena *a, int repeats);

/* Into the row, as far as they were measured. */
void        links_apply(Hardware *h, const Links *l);

#endif
