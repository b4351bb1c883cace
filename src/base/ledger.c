/* base/ledger.c -- see ledger.h. */
#include "base/ledger.h"

static void add_row(LedgerRow *r, const LedgerRow *x, int times)
{
    r->calls += times * x->calls, r->bytes += times * x->bytes;
    r->flops += times * x->flops, r->extra += times * x->extra, r->other += times * x->other;
}

void ledger_add(Ledger *l, const Ledger *x, int times)
{
    for (int i = 0; i < LEDGER_OPS; i++) add_row(&l->op[i], &x->op[i], times);
    for (int i = 0; i < PART_N; i++) add_row(&l->by_part[i], &x->by_part[i], times);
    l->host.in += times * x->host.in, l->host.out += times * x->host.out;
    l->chunked_layers += times * x->chunked_layers;
    for (int g = 0; g < LEDGER_GROUPS; g++) {
        LedgerComm *c = &l->comm[g];
        c->calls += times * x->comm[g].calls;
        c->intra_node += times * x->comm[g].intra_node, c->inter_node += times * x->comm[g].inter_node;
    }
}
