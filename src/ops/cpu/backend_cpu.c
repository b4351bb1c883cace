/* ops/cpu/backend_cpu.c -- the CPU as a device: anonymous pages, or files without a name where other
 * processes open the memory; OpenMP threads; a workspace mapped at start. */
#define _GNU_SOURCE                   /* memfd_create */
#include "ops/cpu/cpu.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A line "key:  n kB" of a file of /proc, in bytes; 0: it is not there. */
static double proc_bytes(const char *path, const char *key)
{
    FILE  *f = fopen(path, "re");
    char   line[128];
    double kib = 0;
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, key, strlen(key)) && sscanf(line + strlen(key), ": %lf kB", &kib) == 1) break;
    if (f) fclose(f);
    return kib * 1024;
}

static void cpu_memory(double *left, double *all)
{
    *all = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    *left = proc_bytes("/proc/meminfo", "MemAvailable");
    if (*left <= 0) *left = *all;
}

static double cpu_memory_used(void) { return proc_bytes("/proc/self/status", "VmHWM"); }

static const Ops cpu_ops = {
#define OP(name, kind, params, args) .name = cpu_##name,
#include "ops/ops.def"
#undef OP
};

/* Memory of a file without a name, which other processes open by the number that it has here. */
static Status map_file(Cpu *c, size_t bytes, void **out)
{
    int fd = c->files < CPU_FILES ? memfd_create("treb", MFD_CLOEXEC) : -1;
    if (fd < 0) return fail(E_FIT, "no file for shared memory: %s", strerror(errno));
    void *p = ftruncate(fd, (off_t)bytes) ? MAP_FAILED
                                          : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return close(fd), fail(E_FIT, "no shared memory: %s", strerror(errno));
    c->file[c->files++] = (CpuFile){ p, fd };
    *out = p;
    return OK;
}

static CpuFile *file_of(Cpu *c, const void *base)
{
    for (int i = 0; i < c->files; i++)
        if (c->file[i].base == base) return &c->file[i];
    return NULL;
}

static Status cpu_map(Backend *be, size_t bytes, void **out)
{
    if (be->shares) return map_file(be->priv, bytes, out);
    *out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (*out == MAP_FAILED) return fail(E_FIT, "no memory: %s", strerror(errno));
    madvise(*out, bytes, MADV_HUGEPAGE);                /* advice: a kernel without huge pages ignores it */
    return OK;
}

static void cpu_unmap(Backend *be, void *p, size_t bytes)
{
    Cpu     *c = be->priv;
    CpuFile *f = file_of(c, p);
    munmap(p, bytes);
    if (f) close(f->fd), *f = c->file[--c->files];
}

static Status cpu_handle(Backend *be, void *base, size_t bytes, MemoryHandle *out)
{
    const CpuFile *f = file_of(be->priv, base);
    if (!f) return fail(E_COMM, "memory that is private to its process");
    *out = (MemoryHandle){ .process = getpid(), .file = f->fd, .bytes = bytes };
    return OK;
}

static Status cpu_open_handle(Backend *be, const MemoryHandle *h, void **at)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)h->process, h->file);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return fail(E_COMM, "%s: %s", path, strerror(errno));
    *at = mmap(NULL, h->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return *at == MAP_FAILED ? fail(E_COMM, "%s: %s", path, strerror(errno)) : OK;
}

static void cpu_close_handle(Backend *be, void *at, const MemoryHandle *h) { munmap(at, h->bytes); }

static const SharedMemoryOps cpu_shares = { cpu_handle, cpu_open_handle, cpu_close_handle };

static void cpu_upload(Backend *be, Tensor dst, const void *host)
{
    memcpy(dst.data, host, (size_t)t_bytes(dst));
}
static void cpu_put(Backend *be, void *dst, const void *host, size_t bytes) { memcpy(dst, host, bytes); }
static void cpu_fetch(Backend *be, void *host, Tensor src) { memcpy(host, src.data, (size_t)t_bytes(src)); }
static void copy_async(Backend *be, CopyStream stream, void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}
static const CopyOps cpu_copies = { .copy = copy_async };

static Status cpu_sync(Backend *be) { return be->sticky; }

static void cpu_close(Backend *be)
{
    Cpu *c = be->priv;
    if (!c) return;
    if (c->shared) cpu_unmap(be, c->shared, c->bytes);
    free(c);
    be->priv = NULL;
}

static Status cpu_open(Backend *be)
{
    Cpu *c = calloc(1, sizeof *c);
    void *p;
    if (!c) return fail(E_FIT, "no memory");
    be->priv   = c;
    c->threads = omp_get_max_threads();
    c->bytes   = CPU_SHARED + (size_t)c->threads * CPU_OWN;
    Status st  = cpu_map(be, c->bytes, &p);
    if (st) return cpu_close(be), st;
    c->shared = p;
    return OK;
}

const Device device_cpu = {
    .name = "cpu", .ops = &cpu_ops, .host_memory = true, .open = cpu_open, .close = cpu_close, .map = cpu_map,
    .unmap = cpu_unmap, .upload = cpu_upload, .put = cpu_put, .fetch = cpu_fetch, .sync = cpu_sync,
    .memory = cpu_memory, .memory_used = cpu_memory_used, .copies = &cpu_copies, .shared = &cpu_shares,
};
