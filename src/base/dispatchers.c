/* base/dispatchers.c -- see dispatchers.h. */
#include "base/dispatchers.h"

#include <string.h>

const DispatcherRow dispatcher_rows[DISPATCHER_COUNT] = {
#define DISPATCHER(name, two_level, pads, pipelined, maps, help)                           \
    { #name, two_level, pads, pipelined, maps },
    DISPATCHERS(DISPATCHER)
#undef DISPATCHER
};

int dispatcher_find(const char *name)
{
    for (int i = 0; i < DISPATCHER_COUNT; i++)
        if (name && !strcmp(dispatcher_rows[i].name, name)) return i;
    return -1;
}

DispatcherId dispatcher_auto(bool several_nodes, bool maps)
{
    int i = 0;
    for (; i < DISPATCHER_COUNT - 1; i++) {
        const DispatcherRow *r = &dispatcher_rows[i];
        if (r->two_level == several_nodes && r->maps == maps) break;
    }
    return (DispatcherId)i;
}

const char *dispatcher_names(void)
{
#define DISPATCHER(name, two_level, pads, pipelined, maps, help) ", " #name
    static const char names[] = DISPATCHERS(DISPATCHER);
#undef DISPATCHER
    return names + 2;
}
