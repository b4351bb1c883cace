/* tests/simt/report.cc -- what is said when a kernel is at fault: which one, and where its threads wait. */
#include "simt/threads.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

namespace simt {

/* Runs addr2line for an address of this program, and leaves its output in `out`. */
static void look_up(char *out, size_t n, const char *flags, const void *address)
{
    Dl_info info = { };
    char    command[512];
    dladdr(address, &info);
    snprintf(command, sizeof command, "addr2line -%s /proc/%d/exe %#zx 2>/dev/null", flags, (int)getpid(),
             (size_t)((const char *)address - (const char *)info.dli_fbase));
    FILE *f = popen(command, "r");
    size_t got = f ? fread(out, 1, n - 1, f) : 0;
    out[got] = 0;
    if (f) pclose(f);
}

static void print_kernel(const Grid *grid)
{
    char name[1024];
    look_up(name, sizeof name, "Cfe", grid->kernel);
    name[strcspn(name, "\n")] = 0;
    fprintf(stderr, "simt: %s, launched at %s:%d", *name ? name : "a kernel", grid->site.file,
            grid->site.line);
}

void fail(const char *format, ...)
{
    va_list v;
    fflush(stdout);
    if (launched) {
        print_kernel(launched);
        fprintf(stderr, ", block (%u, %u, %u), thread %d: ", blockIdx.x, blockIdx.y, blockIdx.z,
                self()->number);
    }
    va_start(v, format);
    vfprintf(stderr, format, v);
    va_end(v);
    fputc('\n', stderr);
    abort();
}

/* The functions that a thread waits in, innermost first, as far as they are inlined into each other. */
static void print_callers(const void *caller)
{
    char text[4096];
    look_up(text, sizeof text, "ispfCe", (const char *)caller - 1);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (!strstr(line, "simt/")) fprintf(stderr, "      %s\n", line);
}

static bool same_place(const Thread *a, const Thread *b)
{
    if (a->state != b->state) return false;
    return a->state == RETURNED ||
           (a->what == b->what && a->site.line == b->site.line && a->mask == b->mask &&
            a->caller == b->caller && a->about[0] == b->about[0] && a->about[1] == b->about[1]);
}

static void print_place(const Thread *t, unsigned lanes)
{
    fprintf(stderr, "  block %u, warp %d, lanes %08x: ", t->block->index.x, t->number / LANES, lanes);
    if (t->state == RETURNED) { fprintf(stderr, "returned\n"); return; }
    fprintf(stderr, "%s", t->what);
    if (t->state == IN_WARP) fprintf(stderr, "(mask %08x)", t->mask);
    if (t->state == WAITS) print_barrier(t);
    fprintf(stderr, " at %s:%d\n", t->site.file, t->site.line);
    if (t->caller) print_callers(t->caller);
}

/* Where all threads are, lanes of a warp that are at one place in a line. */
void print_threads()
{
    for (int r = 0; r < cluster.size; r++) {
        const Block *b = cluster.block[r];
        for (int i = 0; i < b->threads; i++) {
            unsigned same = 0;
            for (int k = 0, first = i / LANES * LANES; k < LANES && first + k < b->threads; k++)
                same |= (unsigned)same_place(&b->thread[first + k], &b->thread[i]) << k;
            if (__builtin_ctz(same) == i % LANES) print_place(&b->thread[i], same);
        }
    }
}

}
