/* bench/ops.c -- `treb bench ops`: every op at a training size against its floor.
 *
 * The floor of an op is the larger of its FLOPs over the rate of a large product and its bytes over the copy
 * rate, both measured in this run; the price is the one the ledger charges. A ratio of 1 is as good as it
 * gets, for an op whose data does not stay in cache. On the CPU the sizes suit two cores; on a GPU they are
 * those of Qwen3-VL-30B-A3B at 32,768 tokens a step, with its dense products beside them. */
#include "bench/mma_rate.h"
#include "bench/cases.h"
#include "cli/command.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* held: times the time alone; energy: of a call. */
typedef struct Result { double ms, floor_ms, gflops, gbs, held; Energy energy; } Result;

typedef struct OpsArgs {
    const char *backend, *kernels, *dtype, *only;
    int64_t     repeats, held_sms, reserved_sms;
    bool        deterministic, json;
} OpsArgs;

static Status measure(Result *out, const Setup *s, const Bench *b, Ceiling top, int repeats)
{
    Timing t;
    TRY(bench_time(&t, s, b, repeats));
    *out = (Result){ t.seconds * 1e3, fmax(t.flops / top.gflops, (double)t.bytes / top.gbs) / 1e6,
                     t.flops / t.seconds / 1e9, (double)t.bytes / t.seconds / 1e9,
                     t.held_seconds / t.seconds, t.energy };
    return OK;
}

static void show(const char *name, Result r)
{
    printf("%-26s %9.3f ms  floor %9.3f ms  ratio %5.2f  %9.1f GFLOP/s  %7.1f GB/s", name, r.ms, r.floor_ms,
           r.ms / r.floor_ms, r.gflops, r.gbs);
    if (r.energy.joules > 0)
        printf("  %8.3f J  %4.0f MHz  %4.0f W", r.energy.joules, r.energy.mhz,
               r.energy.joules / r.energy.seconds);
    if (r.held > 0) printf("  held %5.2fx", r.held);
    putchar('\n');
    fflush(stdout);
}

static Json *row_json(const char *name, Result r)
{
    Json *row = json_pack("{s:s, s:f, s:f, s:f}", "op", name, "ms", r.ms, "floor_ms", r.floor_ms, "ratio",
                          r.ms / r.floor_ms);
    if (r.energy.joules > 0) {
        json_object_set_new(row, "joules", json_real(r.energy.joules));
        json_object_set_new(row, "mhz", json_real(r.energy.mhz));
    }
    if (r.held > 0) json_object_set_new(row, "held_ratio", json_real(r.held));
    return row;
}

static Status run_list(Setup *s, BenchList list, Ceiling top, Json *rows, const OpsArgs *a)
{
    for (int i = 0; i < list.n; i++) {
        Result r;
        if (a->only && !strstr(list.at[i].name, a->only)) continue;
        TRY_CTX(measure(&r, s, &list.at[i], top, (int)a->repeats), "%s", list.at[i].name);
        if (rows) json_array_append_new(rows, row_json(list.at[i].name, r));
        else      show(list.at[i].name, r);
    }
    return OK;
}

static Status run_all(Setup *s, Json *rows, const OpsArgs *a)
{
    Ceiling top;
    bool gpu = !s->be->device->host_memory;
    TRY(bench_ceiling(&top, s->be, s->a, s->d));
    if (!rows)
        printf("%s  ceilings of this run: %s %.1f GFLOP/s, copy %.1f GB/s\n", dtype_name(s->d),
               bench_gemm_name(!gpu), top.gflops, top.gbs);
    if (!rows && gpu) printf("mma.sync on registers alone: %.1f GFLOP/s\n", bench_mma_rate() / 1e9);
    BenchList all = bench_list();
    if (gpu) {
        TRY(run_list(s, bench_products(), top, rows, a));
        all.at += PLAIN_PRODUCTS, all.n -= PLAIN_PRODUCTS;       /* of sizes that suit a CPU */
    }
    return run_list(s, all, top, rows, a);
}

static const Option options[] = {
    OPTION_TEXT(OpsArgs, backend, "--backend", "NAME", "cpu, cuda or auto (default cpu)"),
    OPTION_TEXT(OpsArgs, kernels, "--kernels", "NAME", "of the GPU: auto, hopper or portable (default auto)"),
    OPTION_TEXT(OpsArgs, dtype, "--dtype", "f32|bf16", "of the tensors (default f32)"),
    OPTION_INT(OpsArgs, repeats, "--repeat", "N", 1, 99, "measurements of each op (default 7)"),
    OPTION_TEXT(OpsArgs, only, "--only", "TEXT", "only ops whose name contains it"),
    OPTION_INT(OpsArgs, held_sms, "--held-sms", "N", 0, 128,
               "time each op also beside a kernel that holds N SMs of the GPU; print the ratio of the times"),
    OPTION_INT(OpsArgs, reserved_sms, "--reserved-sms", "N", 0, 128,
               "SMs that persistent kernels leave free (comm.reserved_sms)"),
    OPTION_FLAG(OpsArgs, deterministic, "--deterministic", "time the kernels of train.deterministic"),
    OPTION_FLAG(OpsArgs, json, "--json", "print the table as JSON"),
    OPTION_END
};

static Status run_ops(int argc, char **argv)
{
    OpsArgs a = { .backend = "cpu", .kernels = "auto", .dtype = "f32", .repeats = 7 };
    Backend be = { 0 };
    Arena arena = { 0 };
    TRY(options_parse(argc, argv, options, &a, NULL));
    const char *backend = backend_pick(a.backend);
    bool  gpu = !strcmp(backend, "cuda");
    Setup s = gpu ? setup_gpu : setup_cpu;
    s.be = &be, s.a = &arena, s.held_sms = a.held_sms, s.energy = true;
    TRY(option_dtype("--dtype", a.dtype, &s.d));
    TRY(backend_open(&be, backend));
    be.reserved_sms = (int)a.reserved_sms, be.repeat = a.deterministic;
    Status st = backend_kernels(&be, a.kernels);
    if (!st) st = backend_arena_open(&be, &arena, "bench", (size_t)(gpu ? 32 : 6) << 30);
    Json *rows = a.json ? json_array() : NULL;
    if (!st) st = run_all(&s, rows, &a);
    if (rows) json_dumpf(rows, stdout, JSON_INDENT(2)), putchar('\n'), json_decref(rows);
    backend_arena_close(&be, &arena);
    backend_close(&be);
    return st;
}

static const Usage usage = {
    .args    = "",
    .options = options,
};

const Command bench_ops = {
    .name  = "ops",
    .help  = "every op at a training size, its time over its floor",
    .run   = run_ops,
    .usage = USAGE(&usage),
};
