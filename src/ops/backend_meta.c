/* ops/backend_meta.c -- the device of dry runs: same costs, same arenas, no data.
 *
 * Its memory is inaccessible address space: pointer arithmetic works as on a real device, and a read or write
 * faults. Ops are empty, since op_<name> has charged the ledger. */
#include "ops/ops.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define OP(name, kind, params, args) static void meta_##name params { }
#include "ops/ops.def"
#undef OP

static const Ops meta_ops = {
#define OP(name, kind, params, args) .name = meta_##name,
#include "ops/ops.def"
#undef OP
};

static Status meta_open(Backend *be) { return OK; }
static void   meta_close(Backend *be) { }

/* A limit on the address space is no lack of memory: the layout need not change. */
static Status no_space(size_t bytes, int why)
{
    struct rlimit most;
    if (getrlimit(RLIMIT_AS, &most) || most.rlim_cur == RLIM_INFINITY)
        return fail(E_FIT, "no address space for a plan: %s", strerror(why));
    return fail(E_CONFIG,
                "a plan reserves %.0f GiB of address space, which takes no memory, and this process may "
                "have %.1f GiB (ulimit -v); start it with `ulimit -v unlimited`, and bound its memory by "
                "device.memory_limit or a control group",
                (double)bytes / 0x1p30, (double)most.rlim_cur / 0x1p30);
}

static Status meta_map(Backend *be, size_t bytes, void **out)
{
    *out = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return *out == MAP_FAILED ? no_space(bytes, errno) : OK;
}

static void   meta_unmap(Backend *be, void *p, size_t bytes) { munmap(p, bytes); }
static void   meta_upload(Backend *be, Tensor dst, const void *host) { }
static void   meta_put(Backend *be, void *dst, const void *host, size_t bytes) { }
static void   meta_fetch(Backend *be, void *host, Tensor src) { memset(host, 0, (size_t)t_bytes(src)); }
static Status meta_sync(Backend *be) { return be->sticky; }

const Device device_meta = {
    .name = "meta", .ops = &meta_ops, .open = meta_open, .close = meta_close, .map = meta_map,
    .unmap = meta_unmap, .upload = meta_upload, .put = meta_put, .fetch = meta_fetch,
    .sync = meta_sync,
};
