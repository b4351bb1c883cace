/* cli/cmd_doctor.c -- `treb doctor`: what this machine has and what that allows. */
#include "base/thread_pool.h"
#include "cli/doctor.h"
#include "cli/commands.h"
#include "comm/comm.h"
#include "launch/mpirun.h"
#include "ops/cpu/gemm_bf16.h"
#include "ops/ops.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *cpu_model(char *buf, int n)
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    snprintf(buf, (size_t)n, "unknown");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !colon) continue;
        colon[strcspn(colon, "\n")] = 0;
        snprintf(buf, (size_t)n, "%s", colon + 2);
        break;
    }
    if (f) fclose(f);
    return buf;
}

static const char *vector_set(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f")) return "avx512";
    if (__builtin_cpu_supports("avx2"))    return "avx2";
#endif
    return "baseline";
}

static const char *bf16_unit(void)
{
    if (gemm_bf16_has(BF16_AMX)) return "amx-bf16";
    if (gemm_bf16_has(BF16_DOT)) return "avx512-bf16";
    return "widened to f32 (this CPU has no bf16 units)";
}

static double memory_gib(void)
{
    return (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / (1 << 30);
}

Json *doctor_findings(void)
{
    char model[256], cuda[256], kernels[384], mpi[256];
    backend_describe("cuda", cuda, sizeof cuda);
    backend_describe_kernels("cuda", kernels, sizeof kernels);
    comm_describe(mpi, sizeof mpi);
    return json_pack("{s:s, s:i, s:f, s:s, s:s, s:s, s:s, s:s*, s:s, s:s}", "cpu",
                     cpu_model(model, sizeof model),
                     "cores", cpu_count(), "memory_gib", memory_gib(), "vector", vector_set(),
                     "bf16_products", bf16_unit(), "backends", backend_names(),
                     "cuda", cuda, "gpu_kernels", *kernels ? kernels : NULL,
                     "transports", comm_kinds(), "mpi", mpi);
}

/* What `treb launch` would start ranks with. */
static Json *describe_launch(void)
{
    Mpirun m;
    if (!strstr(comm_kinds(), ", mpi")) return json_string("no: this build has no MPI");
    if (mpirun_find(&m, NULL)) return json_sprintf("no: %s", status_text());
    return json_sprintf("treb launch -n N train recipe.yaml, with the mpirun of Open MPI %d", m.major);
}

static void print_findings(const Json *o)
{
    const char *key;
    Json *v;
    json_object_foreach((Json *)o, key, v) {
        if (json_is_string(v))       printf("%-14s %s\n", key, json_string_value(v));
        else if (json_is_integer(v)) printf("%-14s %lld\n", key, (long long)json_integer_value(v));
        else                         printf("%-14s %.1f\n", key, json_real_value(v));
    }
}

typedef struct DoctorArgs { bool json; } DoctorArgs;

static const Option options[] = {
    OPTION_FLAG(DoctorArgs, json, "--json", "print the findings as JSON"),
    OPTION_END
};

static Status cmd_doctor(int argc, char **argv)
{
    DoctorArgs a = { 0 };
    TRY(options_parse(argc, argv, options, &a, NULL));
    Json *o = doctor_findings();
    if (!o) return fail(E_FIT, "no memory for the findings");
    json_object_set_new(o, "launch", describe_launch());
    if (a.json) json_dumpf(o, stdout, JSON_INDENT(2)), putchar('\n');
    else        print_findings(o);
    json_decref(o);
    return OK;
}

static const Usage usage = { .args    = "", .options = options };

const Command command_doctor = {
    .name     = "doctor",
    .help     = "list what this machine has and what that allows",
    .run      = cmd_doctor,
    .usage    = USAGE(&usage),
};
