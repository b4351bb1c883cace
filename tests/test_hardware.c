/* tests/test_hardware.c -- hardware rows by name, curves at known points, the file of `this`: round trip,
 * hostile content. */
#include "lab.h"
#include "base/folder.h"
#include "base/rng.h"
#include "ops/ops.h"
#include "plan/hardware.h"

static bool close_to(double a, double b) { return fabs(a - b) <= 1e-6 * fabs(b) + 1e-30; }

static void every_row_is_whole(void)
{
    Hardware h;
    int n = 0;
    for (const char *id; (id = hardware_at(n)); n++) {
        EXPECT_OK(hardware_find(&h, id));
        EXPECT(!strcmp(h.id, id) && strstr(hardware_names(), id), "%s", id);
        EXPECT(h.bf16 > 0 && h.capacity > 1e9 && h.memory_bw > 0 && h.intra_bw > 0 && h.inter_bw > 0 &&
               h.host_bw > 0 && h.domain > 0 && h.sms > 0 && h.error > 0 && h.launch > 0, "%s", id);
        for (int k = 0; k < WORK_N; k++)
            EXPECT(h.work[k].flat > 0 && h.work[k].flat <= 1 && h.work[k].n <= CURVE_POINTS, "%s %d", id, k);
        for (int i = 0; i < OP_N; i++) EXPECT(h.slow[i] >= 1, "%s %s", id, op_name(i));
    }
    EXPECT(n == 19, "%d rows", n);
}

static void rows_by_name(void)
{
    Hardware a, b;
    EXPECT_OK(hardware_find(&a, "h100"));
    EXPECT_OK(hardware_find(&b, "h100-sxm"));
    EXPECT(!memcmp(&a, &b, sizeof a) && close_to(a.bf16, 989e12) && close_to(a.inter_bw, 50e9), "an alias");
    EXPECT_OK(hardware_find(&a, "gb300"));
    EXPECT(a.domain == 72 && close_to(a.inter_bw, 100e9) && close_to(a.capacity, 279e9), "gb300");
    EXPECT_FAIL(hardware_find(&a, "h300"), E_CONFIG, "gb200-nvl72");
    EXPECT_FAIL(hardware_find(&a, ""), E_CONFIG, "unknown");
}

/* In a run larger than a rack, groups of powers of two do not span racks. */
static void rows_of_devices(void)
{
    static const struct { const char *device, *row; } list[] = {
        { "NVIDIA H200", "h200" }, { "NVIDIA H20", "h20" }, { "NVIDIA H100 80GB HBM3", "h100-sxm" },
        { "NVIDIA A100-SXM4-80GB", "a100-80" }, { "NVIDIA A100-SXM4-40GB", "a100-40" },
        { "NVIDIA GB200", "gb200-nvl72" }, { "NVIDIA B200", "b200" }, { "NVIDIA L40S", "l40s" },
        { "NVIDIA GeForce RTX 5090", "rtx-5090" }, { "NVIDIA GeForce RTX 4090", "rtx-4090" },
        { "NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada" },
        { "NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000" },
        { "Tesla T4", NULL }, { "", NULL },
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const char *row = hardware_of_device(list[i].device);
        EXPECT(row == list[i].row || (row && list[i].row && !strcmp(row, list[i].row)), "%s: %s",
               list[i].device, row ? row : "none");
    }
}

static void ranks_of_a_domain(void)
{
    static const struct { int64_t ranks; int per; } rows[] = {
        { 8, 8 }, { 64, 64 }, { 72, 72 }, { 128, 64 }, { 256, 64 }, { 144, 72 }, { 96, 48 }, { 73, 1 },
    };
    Hardware h;
    EXPECT_OK(hardware_find(&h, "gb200"));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        EXPECT(hardware_node(&h, rows[i].ranks) == rows[i].per, "%d ranks", (int)rows[i].ranks);
    EXPECT_OK(hardware_find(&h, "h100"));
    EXPECT(hardware_node(&h, 256) == 8 && hardware_node(&h, 4) == 4, "nodes of eight");
}

static void curve_between_points(void)
{
    Hardware h = { .bf16 = 1e12, .memory_bw = 1e9, .together = 1 };
    h.work[WORK_GEMM] = (Curve){ .n = 3, .work = { 1e6, 1e8, 1e9 }, .share = { 0.1, 0.5, 0.8 }, .flat = 0.7 };
    h.work[WORK_MEMORY] = (Curve){ .flat = 0.5 };
    h.work[WORK_GROUPED] = (Curve){ .n = 2, .work = { 64, 1024 }, .share = { 0.2, 0.6 }, .flat = 0.6 };
    EXPECT(close_to(work_share(&h, WORK_GEMM, 1e6), 0.1) && close_to(work_share(&h, WORK_GEMM, 1e8), 0.5) &&
           close_to(work_share(&h, WORK_GEMM, 1e9), 0.8), "at the points");
    EXPECT(close_to(work_share(&h, WORK_GEMM, 1e7), 0.3), "halfway by the logarithm");
    EXPECT(close_to(work_share(&h, WORK_GEMM, 1e12), 0.8), "past the last");
    EXPECT(close_to(work_seconds(&h, WORK_GEMM, 1e3, 0), work_seconds(&h, WORK_GEMM, 1e6, 0)), "before it");
    EXPECT(close_to(work_share(&h, WORK_MEMORY, 123), 0.5), "flat");
    EXPECT(close_to(work_seconds(&h, WORK_GEMM, 1e9, 0), 1e9 / 0.8e12), "a product");
    EXPECT(close_to(work_seconds(&h, WORK_GEMM, 1e9, 1e9), 2.0), "bytes hold it up");
    EXPECT(close_to(work_seconds(&h, WORK_MEMORY, 1e30, 1e8), 0.2), "arithmetic of element-wise ops is free");
    EXPECT(close_to(work_seconds(&h, WORK_GROUPED, 6e11, 0), 1.0), "rows not known");
    EXPECT(close_to(grouped_seconds(&h, 4e11, 0, 256), 1.0), "rows known");
    EXPECT(work_seconds(&h, WORK_GEMM, 0, 0) == 0, "no work");
}

/* More work never takes less time. */
static void time_ascends(void)
{
    for (int i = 0; hardware_at(i); i++) {
        Hardware h;
        EXPECT_OK(hardware_find(&h, hardware_at(i)));
        for (int k = 0; k < WORK_N; k++) {
            double was = 0;
            for (double w = 1; w < 1e16; w *= 1.7) {
                bool   bytes = k == WORK_MEMORY;
                double now = work_seconds(&h, (Work)k, bytes ? 0 : w, bytes ? w : 0);
                EXPECT(now >= was * 0.999999, "%s %s at %g: %g after %g", h.id, work_name(k), w, now, was);
                was = now;
            }
        }
    }
}

static char file[512];

static void put(const char *text, size_t n) { EXPECT_OK(file_write(file, text, n)); }

static void round_trip(void)
{
    Hardware h, back;
    EXPECT_OK(hardware_find(&h, "h200"));
    snprintf(h.dtype, sizeof h.dtype, "f32");
    h.slow[OP_gelu_bwd] = 3.25;
    h.intra_ranks = 2, h.inter_nodes = 3;
    snprintf(h.transport, sizeof h.transport, "nccl");
    EXPECT_OK(hardware_save(&h, file));
    EXPECT_OK(hardware_load(&back, file));
    EXPECT(!strcmp(back.id, "this") && !strcmp(back.dtype, "f32"), "%s", back.id);
    EXPECT(close_to(back.bf16, h.bf16) && close_to(back.capacity, h.capacity) && back.sms == h.sms &&
           close_to(back.slow[OP_gelu_bwd], 3.25) && close_to(back.launch, h.launch), "numbers");
    EXPECT(back.intra_ranks == 2 && back.inter_nodes == 3 && !strcmp(back.transport, "nccl"), "links");
    for (int k = 0; k < WORK_N; k++) {
        EXPECT(back.work[k].n == h.work[k].n && close_to(back.work[k].flat, h.work[k].flat), "curve %d", k);
        for (int i = 0; i < h.work[k].n; i++)
            EXPECT(close_to(back.work[k].share[i], h.work[k].share[i]), "curve %d point %d", k, i);
    }
}

static void found_as_this(void)
{
    Hardware h;
    char     path[512];
    setenv("TREB_CACHE_DIR", lab_tmp(), 1);
    EXPECT_OK(hardware_file(path, sizeof path));
    EXPECT(!strncmp(path, lab_tmp(), strlen(lab_tmp())), "%s", path);
    EXPECT_FAIL(hardware_find(&h, "this"), E_IO, "treb bench calibrate");
    EXPECT_OK(hardware_find(&h, "h100"));
    EXPECT_OK(hardware_save(&h, path));
    EXPECT_OK(hardware_find(&h, "this"));
    remove(path);
    EXPECT_FAIL(hardware_file(path, 3), E_IO, "too long");
}

/* The saved text with one piece replaced. */
static void refuse(const char *text, const char *from, const char *to, const char *word)
{
    Hardware h;
    char     out[65536];
    const char *at = strstr(text, from);
    EXPECT(at != NULL, "%s is not in the file", from);
    if (!at) return;
    int n = snprintf(out, sizeof out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    put(out, (size_t)n);
    EXPECT_FAIL(hardware_load(&h, file), E_DATA, word);
    EXPECT(strstr(status_text(), "treb bench calibrate"), "no advice: %s", status_text());
    EXPECT(h.bf16 == 0, "half of a file was taken");
}

static size_t slurp(char *text, size_t capacity)
{
    FILE  *f = fopen(file, "rb");
    size_t n = f ? fread(text, 1, capacity - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    return n;
}

static void hostile_files(void)
{
    static char text[65536];
    Hardware h;
    EXPECT_OK(hardware_find(&h, "h200"));
    EXPECT_OK(hardware_save(&h, file));
    size_t n = slurp(text, sizeof text);
    refuse(text, "\"bf16\": 9", "\"bf16\": -9", "bf16: ");
    refuse(text, "\"bf16\": 9", "\"bf17\": 9", "bf16: is missing");
    refuse(text, "\"format\": 2", "\"format\": 3", "format");
    refuse(text, "\"format\": 2", "\"format\": 1.5", "format");
    refuse(text, "\"dtype\": \"bf16\"", "\"dtype\": \"f64\"", "dtype");
    refuse(text, "\"domain\": 8", "\"domain\": 8.5", "domain: expected a whole number");
    refuse(text, "\"sms\": 132", "\"sms\": \"many\"", "sms: expected a number");
    refuse(text, "\"work\"", "\"werk\"", "work: is missing");
    refuse(text, "\"attention_back\"", "\"attention_bak\"", "work.attention_back");
    refuse(text, "\"points\": [", "\"points\": [[1, 0.5], [1, 0.5],", "ascend");
    refuse(text, "\"points\": [", "\"points\": [7,", "a pair");
    refuse(text, "\"points\": [", "\"points\": [[1e-9, 0], ", "out of bounds");
    refuse(text, "\"rmsnorm_bwd\": 1", "\"rmsnorm_bwd\": -1", "slow.rmsnorm_bwd");
    put("[1, 2]", 6);
    EXPECT_FAIL(hardware_load(&h, file), E_DATA, "object");
    for (size_t cut = 0; cut < n - 1; cut += 1 + n / 60) {
        put(text, cut);
        Status st = hardware_load(&h, file);
        EXPECT(st == E_DATA, "%zu of %zu bytes: %d", cut, n, st);
    }
}

/* Files of format 1 have other keys for memory and links. */
static void old_keys(void)
{
    static const char *const was[][2] = { { "capacity", "room" }, { "intra_", "near_" }, { "inter_", "far_" },
                                          { "\"format\": 2", "\"format\": 1" } };
    static char text[65536], old[65536];
    Hardware h, again;
    size_t   n = 0;
    EXPECT_OK(hardware_find(&h, "h200"));
    EXPECT_OK(hardware_save(&h, file));
    slurp(text, sizeof text);
    for (const char *at = text; *at;) {
        size_t k = 0;
        while (k < 4 && strncmp(at, was[k][0], strlen(was[k][0]))) k++;
        if (k == 4) old[n++] = *at++;
        else        n += (size_t)snprintf(old + n, sizeof old - n, "%s", was[k][1]), at += strlen(was[k][0]);
    }
    put(old, n);
    EXPECT_OK(hardware_load(&again, file));
    EXPECT(again.capacity == h.capacity && again.intra_bw == h.intra_bw &&
           again.inter_share == h.inter_share && again.inter_delay == h.inter_delay,
           "a file of format 1 reads as it was written");
}

/* Random bytes in a good file: an error or numbers within bounds, never more. */
static void fuzz(void)
{
    static char text[65536], bent[65536];
    Hardware h;
    uint64_t seed = 20261115;
    printf("  seed %llu\n", (unsigned long long)seed);
    EXPECT_OK(hardware_find(&h, "gb200"));
    EXPECT_OK(hardware_save(&h, file));
    size_t n = slurp(text, sizeof text);
    for (uint64_t i = 0; i < 400; i++) {
        memcpy(bent, text, n);
        for (uint64_t k = 0; k < 1 + i % 5; k++) {
            size_t at = (size_t)(rng_uniform(seed, i, 2 * k) * (float)(n - 1));
            bent[at] = (char)(32 + (int)(rng_uniform(seed, i, 2 * k + 1) * 95));
        }
        put(bent, n);
        if (hardware_load(&h, file)) continue;
        EXPECT(h.bf16 >= 1e6 && h.domain >= 1 && work_seconds(&h, WORK_GEMM, 1e9, 1) > 0, "turn %d", (int)i);
        for (int k = 0; k < WORK_N; k++)
            EXPECT(h.work[k].n >= 0 && h.work[k].n <= CURVE_POINTS && work_share(&h, (Work)k, 1e9) > 0,
                   "turn %d", (int)i);
    }
}

int main(void)
{
    snprintf(file, sizeof file, "%s/bent.json", lab_tmp());
    RUN(every_row_is_whole);
    RUN(rows_by_name);
    RUN(rows_of_devices);
    RUN(ranks_of_a_domain);
    RUN(curve_between_points);
    RUN(time_ascends);
    RUN(round_trip);
    RUN(found_as_this);
    RUN(hostile_files);
    RUN(old_keys);
    RUN(fuzz);
    folder_remove(lab_tmp());
    return lab_report();
}
