/* tests/test_str.c -- text helpers, and the log lines and metrics that use them. */
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "lab.h"
#include <limits.h>

static void distance(void)
{
    EXPECT(str_distance("", "") == 0 && str_distance("", "abc") == 3 && str_distance("abc", "") == 3,
           "empty");
    EXPECT(str_distance("kitten", "sitting") == 3, "%d", str_distance("kitten", "sitting"));
    EXPECT(str_distance("trian", "train") == 1, "a swap is one edit");
    EXPECT(str_distance("Max-Steps", "max_steps") == 0, "case and dash are free");
    char long_a[300], long_b[300];
    memset(long_a, 'a', 299), memset(long_b, 'b', 299), long_a[299] = long_b[299] = 0;
    EXPECT(str_distance(long_a, long_b) == 63, "%d", str_distance(long_a, long_b));
    EXPECT(str_unlike("x", "tp") == INT_MAX && str_unlike("steps", "max_steps") < INT_MAX, "likeness");
}

static void lists(void)
{
    EXPECT(str_lists("a|bc|d", '|', "bc") && !str_lists("a|bc|d", '|', "b") && !str_lists("", '|', ""),
           "exact");
    EXPECT(str_lists_like("max_pixels,fps", ',', "MAX-PIXELS") && !str_lists_like("fps", ',', "fp"), "like");
    EXPECT(!str_lists_like("fp", ',', "fps"), "longer");
}

static void utf8(void)
{
    uint32_t c;
    EXPECT(str_utf8("\xf0\x9f\x8f\xb0", &c) == 4 && c == 0x1f3f0, "%x", c);
    EXPECT(str_is_utf8("") && str_is_utf8("a\xc3\xa9"), "good");
    EXPECT(!str_is_utf8("\xc0\x80") && !str_is_utf8("\xed\xa0\x80") && !str_is_utf8("\xf5\x80\x80\x80"),
           "bad");
    EXPECT(!str_is_utf8("\xe2\x82") && !str_is_utf8("\x80"), "cut");
}

static void numbers(void)
{
    double d;
    int64_t i;
    EXPECT(str_number("1e-5", &d) && d == 1e-5 && str_number("-.5", &d) && d == -0.5 && str_number("5.", &d),
           "good");
    EXPECT(!str_number("", &d) && !str_number("1 ", &d) && !str_number("0x1", &d) && !str_number("nan", &d),
           "bad");
    EXPECT(!str_number("--1", &d) && !str_number("1e+", &d) && !str_number("1k", &d), "bad");
    EXPECT(str_whole("1e6", &i) && i == 1000000 && !str_whole("0.5", &i) && !str_whole("1e30", &i), "whole");
}

static char *slurp(const char *path)
{
    static char text[4096];
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    return text;
}

static void log_lines(void)
{
    Log log;
    char path[300];
    snprintf(path, sizeof path, "%s/train.log", lab_tmp());
    EXPECT_OK(log_open(&log, path, 3, 8, LOG_INFO));
    log_info(&log, "not heard");
    log_warn(&log, "from rank %d", 3);
    log_close(&log);
    log_close(&log);
    char *text = slurp(path);
    EXPECT(strstr(text, "Z [3] warning: from rank 3\n") && !strstr(text, "not heard"), "%s", text);
    unlink(path);
    log_info(NULL, "to no log");
    EXPECT_FAIL(log_open(&log, "/no/such/folder/x", 0, 1, LOG_INFO), E_IO, "/no/such/folder/x");
}

static void metrics(void)
{
    Metrics m;
    char path[300];
    snprintf(path, sizeof path, "%s/metrics.jsonl", lab_tmp());
    for (int run = 0; run < 2; run++) {
        EXPECT_OK(metrics_open(&m, path, "benchmark-only"));
        metrics_begin(&m, 120 + run);
        metrics_put(&m, "train/loss", 2.5);
        metrics_put(&m, "loss_by_source/a\"\n", NAN);
        EXPECT_OK(metrics_end(&m));
        metrics_close(&m);
        metrics_close(&m);
    }
    char *text = slurp(path);
    EXPECT(!strncmp(text, "{\"step\": 120, \"time\": ", 22), "%s", text);
    EXPECT(strstr(text, "\"label\": \"benchmark-only\", \"train/loss\": 2.5, "
                        "\"loss_by_source/a\\\"\\u000a\": null}\n"), "%s", text);
    EXPECT(strstr(text, "\n{\"step\": 121"), "continued");
    unlink(path), rmdir(lab_tmp());
    EXPECT_OK(metrics_open(&m, NULL, ""));
    metrics_begin(&m, 1);
    EXPECT_OK(metrics_end(&m));
    EXPECT_OK(metrics_open(&m, "/dev/full", ""));
    metrics_begin(&m, 1);
    EXPECT_FAIL(metrics_end(&m), E_IO, "/dev/full");
    metrics_close(&m);
}

static void clocks(void)
{
    double a = clock_now(), b = clock_now();
    EXPECT(b >= a && clock_wall() > 1.6e9, "%g %g", a, b);
}

int main(void)
{
    RUN(distance);
    RUN(lists);
    RUN(utf8);
    RUN(numbers);
    RUN(log_lines);
    RUN(metrics);
    RUN(clocks);
    return lab_report();
}
