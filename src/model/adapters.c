/* model/adapters.c -- see adapters.h. */
#include "model/model.h"

Status adapters_attach(Model *m, const AdapterConf *c)
{
    m->lora = c;
    return fail(E_CONFIG, "lora.rank = %lld: there are no adapters yet; set it to 0", (long long)c->rank);
}

void adapters_close(Model *m) { m->lora = NULL; }
