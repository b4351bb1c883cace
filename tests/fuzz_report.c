/* tests/fuzz_report.c -- any bytes as one of the files of a run give a page whose only script is the page's
 * own. The first byte selects the file, and whether the run is compared with itself. */
#include "base/folder.h"
#include "report/report.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const files[] = {
    "metrics.jsonl",        "recipe.yaml",          "env.json",        "plan.json", "expert_load.json",
    "samples/step-1.jsonl", "samples/step-2.jsonl", "quarantine.jsonl"
};

enum { FILES = sizeof files / sizeof *files };

static char run_dir[PATH_MAX - 32];

static void remove_run(void) { folder_remove(run_dir); }

/* One folder for the life of the process. */
static void make_run(void)
{
    const char *tmp = getenv("TMPDIR");
    char samples[PATH_MAX];
    snprintf(run_dir, sizeof run_dir, "%s/treb-fuzz-run-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(run_dir)) perror(run_dir), exit(2);
    snprintf(samples, sizeof samples, "%s/samples", run_dir);
    if (mkdir(samples, 0777)) perror(samples), exit(2);
    atexit(remove_run);
}

static int count(const char *text, const char *word)
{
    int n = 0;
    for (; (text = strstr(text, word)); text++) n++;
    return n;
}

static void check_page(const char *path)
{
    static char page[32 << 20];
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(page, 1, sizeof page - 1, f) : 0;
    REQUIRE(f && n, "no page");
    fclose(f);
    page[n] = 0;
    REQUIRE(strlen(page) == n, "a NUL on the page");
    REQUIRE(count(page, "<script") == 1 && count(page, "</script") == 1, "scripts");
    REQUIRE(count(page, "<img") == 0, "markup of a run");
    REQUIRE(count(page, "\"src\":") == count(page, "\"src\":\"data:image/"), "pictures from elsewhere");
    REQUIRE(!strcmp(page + n - 15, "</body></html>\n"), "no end");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[PATH_MAX], out[PATH_MAX];
    const char *dir[2] = { run_dir, run_dir };
    if (!size) return 0;
    if (!*run_dir) make_run();
    snprintf(path, sizeof path, "%s/%s", run_dir, files[data[0] % FILES]);
    snprintf(out, sizeof out, "%s/report.html", run_dir);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data + 1, 1, size - 1, f) != size - 1 || fclose(f)) perror(path), exit(2);
    ReportAsk ask = { .dir = { dir[0], dir[1] }, .runs = data[0] / FILES % 2 + 1, .out = out };
    Status st = report_write(&ask, NULL);
    if (!st) check_page(out);
    REQUIRE(!st || st == E_DATA, "status %d: %s", (int)st, status_text());
    unlink(path);
    return 0;
}

#ifndef TREB_LIBFUZZER
#include "fuzz_driver.h"

/* Each as the file it is meant for; the splices of the driver try them as others. */
static void fuzz_seeds(Fuzz *f)
{
    static const char *const seeds[FILES][3] = {
        { "{\"step\": 1, \"time\": 1750000000.5, \"label\": \"benchmark-only\", \"train/loss\": 2.5, "
          "\"perf/mfu\": 0.4}\n"
          "{\"step\": 2, \"train/loss\": null, \"moe/max_over_mean/layer_00\": 1.25, \"loss_by_source/<b>\": "
          "1e-5}\n"
          "{\"step\": 1, \"eval/accuracy\": 0.5, \"x\\u003cscript\": -1.5e3}\n",
          "{\"step\":0,\"a\":1e99,\"b\":-1e99}\n{\"step\":1e15,\"a\":1e-300,\"b\":0}\n",
          "{\"step\": 7, \"train/loss\": 1}" },
        { "model: {path: \"<script>\"}\ntrain: {max_steps: 10}\ndata: {train: [{path: a, weight: "
          "1.0}]}\nmemory: {recompute: [a, b]}\n" },
        { "{\"cpu\": \"x<y>\", \"gpu\": [{\"name\": \"&\"}, 1.5, null], \"ok\": true}" },
        { "{\"arenas\": [{\"name\": \"param\", \"bytes\": 1e9, \"labels\": [{\"name\": \"a\", \"bytes\": "
          "5e8}]}], \"flops\": {\"vision\": 1e12}}" },
        { "{\"step\": 3, \"layers\": [{\"layer\": 0, \"image\": [1, 2, 0], \"text\": [0, 0, 0]}, {\"layer\": "
          "1, \"text\": [4, 5, 6]}]}" },
        { "{\"question\": \"q <i>\", \"answer\": \"a\", \"expected\": \"b\", \"correct\": false, \"images\": "
          "[\"x.png\", \"data:image/png;base64,"
          "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQAY3Y2wAAAAAElFTkSuQmCC\"]}"
          "\n" },
        { "{\"question\": \"q\", \"answer\": \"\", \"correct\": true}\n{\"question\": \"q\", \"answer\": "
          "\"two\"}\n" },
        { "{}\n\n{}" },
    };
    for (int i = 0; i < FILES; i++)
        for (int k = 0; k < 3 && seeds[i][k]; k++)
            for (int twice = 0; twice < 2; twice++) {
                char bytes[2048];
                bytes[0] = (char)(i + FILES * twice);
                size_t n = strlen(seeds[i][k]);
                memcpy(bytes + 1, seeds[i][k], n);
                fuzz_add(f, bytes, n + 1);
            }
}
#endif
