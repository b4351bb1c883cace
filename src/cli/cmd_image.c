/* cli/cmd_image.c -- `treb image`: size, grid, tokens and patch statistics of pictures. A bad file is
 * reported and does not stop the others. */
#include "base/folder.h"
#include "base/json.h"
#include "base/str.h"
#include "cli/commands.h"
#include "data/image.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST_REPEATS = 101, MOST_DIGITS = 9 };

typedef enum { DECODE, RESIZE, PATCHES, STAGES } Stage;

static const char *const stage_names[STAGES] = { "decode", "resize", "patches" };

typedef struct ImageAsk {
    PatchShape  patch;
    ImageLimits lim;
    const char *index_text;
    int64_t    *index, indices, repeat;
    bool        json;
} ImageAsk;

/* Buffers that are reused from picture to picture, and the results of the current one. */
typedef struct Work {
    char   *bytes;
    size_t  len;
    Image   raw, fit;
    float  *patches;
    size_t  cap;                        /* capacity of patches, in floats */
    int64_t count, h, w;                 /* floats; the grid */
    double  mean, std, rgb[3];
    double  seconds[STAGES];             /* medians of the repeats */
} Work;

typedef struct Total { int64_t files, bad; double pixels, seconds[STAGES]; } Total;

static void work_close(Work *w)
{
    free(w->bytes), free(w->patches);
    image_close(&w->raw), image_close(&w->fit);
    *w = (Work){ 0 };
}

static Status bytes_read(Work *w, const char *path, size_t most)
{
    size_t cap = 0, n = 1, size;
    int    fd;
    TRY(file_open_regular(&fd, &size, path));
    FILE *f = fdopen(fd, "rb");
    if (!f) return close(fd), fail(E_IO, "%s: %s", path, strerror(errno));
    for (w->len = 0; n && w->len <= most; w->len += n) {
        if (w->len == cap) {
            char *more = realloc(w->bytes, cap = cap ? 2 * cap : (size_t)1 << 16);
            if (!more) return fclose(f), fail(E_FIT, "%s: no memory for the file", path);
            w->bytes = more;
        }
        n = fread(w->bytes + w->len, 1, cap - w->len, f);
    }
    bool bad = ferror(f);
    fclose(f);
    return bad ? fail(E_IO, "%s: cannot be read; is it a folder?", path) : OK;
}

static Status reserve_patches(Work *w, const PatchShape *p)
{
    w->h = w->fit.h / p->patch, w->w = w->fit.w / p->patch;
    w->count = w->h * w->w * p->channels * p->frames * p->patch * p->patch;
    if ((size_t)w->count <= w->cap) return OK;
    free(w->patches);
    w->cap = 0;
    if (!(w->patches = malloc((size_t)w->count * sizeof *w->patches)))
        return fail(E_FIT, "no memory for the patches");
    w->cap = (size_t)w->count;
    return OK;
}

/* CPU seconds of this thread: other load on the machine does not count. */
static double cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* All stages once; at[] are the times between them. */
static Status convert(Work *w, const ImageAsk *a, const char *path, double *at)
{
    at[0] = cpu_now();
    TRY(image_decode(&w->raw, w->bytes, w->len, &a->lim, path));
    int64_t h = w->raw.h, wide = w->raw.w;
    at[1] = cpu_now();
    TRY_CTX(image_fit(&h, &wide, &a->patch), "%s", path);
    TRY_CTX(image_resize(&w->fit, &w->raw, h, wide), "%s", path);
    TRY_CTX(reserve_patches(w, &a->patch), "%s", path);
    at[2] = cpu_now();
    image_patches(w->patches, false, &w->fit, NULL, &a->patch);
    at[3] = cpu_now();
    return OK;
}

static void statistics(Work *w)
{
    double sum = 0.0, square = 0.0, n = (double)w->count;
    int64_t pixels = w->raw.h * w->raw.w;
    uint64_t level[3] = { 0 };
    for (int64_t i = 0; i < w->count; i++) sum += (double)w->patches[i];
    w->mean = sum / n;
    for (int64_t i = 0; i < w->count; i++)
        square += ((double)w->patches[i] - w->mean) * ((double)w->patches[i] - w->mean);
    w->std = sqrt(square / (n - 1.0));                      /* as torch.std does */
    for (int64_t i = 0; i < pixels * 3; i++) level[i % 3] += w->raw.rgb[i];
    for (int c = 0; c < 3; c++) w->rgb[c] = (double)level[c] / (double)pixels;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static Status measure(Work *w, const ImageAsk *a, const char *path)
{
    double at[STAGES + 1], t[STAGES][MOST_REPEATS];
    for (int64_t i = 0; i < a->repeat; i++) {
        TRY(convert(w, a, path, at));
        for (int s = 0; s < STAGES; s++) t[s][i] = at[s + 1] - at[s];
    }
    for (int s = 0; s < STAGES && a->repeat; s++) {
        qsort(t[s], (size_t)a->repeat, sizeof **t, by_value);
        w->seconds[s] = t[s][a->repeat / 2];
    }
    return OK;
}

static Status file_work(Work *w, const ImageAsk *a, const char *path)
{
    double at[STAGES + 1];
    TRY(bytes_read(w, path, a->lim.max_bytes));
    TRY(convert(w, a, path, at));
    for (int64_t i = 0; i < a->indices; i++)
        if (a->index[i] >= w->count)
            return fail(E_DATA, "%s: --index %lld: the patches have %lld values", path,
                        (long long)a->index[i], (long long)w->count);
    TRY(measure(w, a, path));
    statistics(w);
    return OK;
}

/* File names are bytes, JSON is UTF-8: invalid bytes become question marks. */
static Json *text_json(const char *s)
{
    char  *copy = strdup(s);
    Json  *o = NULL;
    for (char *at = copy; at && *at;) {
        uint32_t code;
        int      n = str_utf8(at, &code);
        if (!n) *at = '?';
        at += n ? n : 1;
    }
    if (copy) o = json_string(copy);
    free(copy);
    return o;
}

static Json *as_json(const Work *w, const ImageAsk *a, const char *path)
{
    Json *o = json_pack("{s:o, s:I, s:I, s:[i, I, I], s:I, s:f, s:f, s:[f, f, f]}", "file", text_json(path),
                        "width", w->raw.w, "height", w->raw.h, "grid", 1, w->h, w->w, "tokens",
                        w->h * w->w / (a->patch.merge * a->patch.merge), "mean", w->mean, "std", w->std,
                        "rgb_mean", w->rgb[0], w->rgb[1], w->rgb[2]);
    if (o && a->indices) {
        Json *values = json_array();
        for (int64_t i = 0; i < a->indices; i++)
            json_array_append_new(values, json_real((double)w->patches[a->index[i]]));
        json_object_set_new(o, "values", values);
    }
    if (o && a->repeat) {
        Json *seconds = json_object();
        for (int s = 0; s < STAGES; s++)
            json_object_set_new(seconds, stage_names[s], json_real(w->seconds[s]));
        json_object_set_new(o, "seconds", seconds);
    }
    return o;
}

static void print_json(Json *o)
{
    if (!o) return;
    json_dumpf(o, stdout, JSON_REAL_PRECISION(MOST_DIGITS) | JSON_ENSURE_ASCII);
    putchar('\n');
    json_decref(o);
}

static void print_rates(double pixels, const double *seconds)
{
    double all = 0.0;
    for (int s = 0; s < STAGES; s++)
        all += seconds[s], printf("  %s %.0f", stage_names[s], pixels / seconds[s] / 1e6);
    printf("  all %.0f MP/s\n", pixels / all / 1e6);
}

static void print_text(const Work *w, const ImageAsk *a, const char *path)
{
    printf("%-32s %5lld x %-5lld  grid 1 x %lld x %lld  tokens %lld  mean %.5f  std %.5f\n", path,
           (long long)w->raw.w, (long long)w->raw.h, (long long)w->h, (long long)w->w,
           (long long)(w->h * w->w / (a->patch.merge * a->patch.merge)), w->mean, w->std);
    for (int64_t i = 0; i < a->indices; i++)
        printf("  [%lld] %.6f\n", (long long)a->index[i], (double)w->patches[a->index[i]]);
    if (a->repeat) print_rates((double)(w->raw.h * w->raw.w), w->seconds);
}

static void file_report(Work *w, const ImageAsk *a, const char *path, Status st, Total *t)
{
    t->files++;
    if (st) {
        t->bad++;
        Json *why = text_json(status_text());
        if (a->json) print_json(json_pack("{s:o, s:o}", "file", text_json(path), "error", why));
        else         fprintf(stderr, "treb: %s\n", status_text()), json_decref(why);
        return;
    }
    t->pixels += (double)(w->raw.h * w->raw.w);
    for (int s = 0; s < STAGES; s++) t->seconds[s] += w->seconds[s];
    if (a->json) print_json(as_json(w, a, path));
    else         print_text(w, a, path);
}

static Status index_read(ImageAsk *a, const char *text)
{
    size_t      len, cap = strlen(text) / 2 + 1;
    const char *rest = text;
    if (!(a->index = malloc(cap * sizeof *a->index))) return fail(E_FIT, "no memory for --index");
    for (const char *item; (item = str_item(&rest, ',', &len));) {
        char one[32];
        snprintf(one, sizeof one, "%.*s", (int)len, item);
        TRY(option_int("--index", one, 0, INT64_MAX, &a->index[a->indices++]));
    }
    return OK;
}

static Status check_ask(ImageAsk *a)
{
    if (a->index_text) TRY(index_read(a, a->index_text));
    if (a->patch.min_pixels > a->patch.max_pixels)
        return fail(E_CONFIG, "--min-pixels is above --max-pixels");
    return OK;
}

static Status all_files(const ImageAsk *a, const char **files, int n)
{
    Work   w = { 0 };
    Total  t = { 0 };
    Status first = OK;
    for (int i = 0; i < n; i++) {
        Status st = file_work(&w, a, files[i]);
        file_report(&w, a, files[i], st, &t);
        if (st && !first) first = st;
    }
    work_close(&w);
    if (a->repeat && !a->json && t.pixels > 0.0)
        printf("%-32s", "all files"), print_rates(t.pixels, t.seconds);
    if (!first) return OK;
    return fail(first, "%lld of %lld pictures could not be read", (long long)t.bad, (long long)t.files);
}

static const Option options[] = {
    OPTION_FLAG(ImageAsk, json, "--json", "one JSON object a picture"),
    OPTION_TEXT(ImageAsk, index_text, "--index", "I,J,...", "values of the flattened patches to print"),
    OPTION_INT(ImageAsk, patch.min_pixels, "--min-pixels", "N", 1, INT32_MAX,
               "pictures are scaled up to it (default 65536)"),
    OPTION_INT(ImageAsk, patch.max_pixels, "--max-pixels", "N", 1, INT32_MAX,
               "and down to it (default 16777216)"),
    OPTION_INT(ImageAsk, lim.max_pixels, "--limit-pixels", "N", 1, INT32_MAX,
               "refuse larger files before decoding"),
    OPTION_INT(ImageAsk, repeat, "--repeat", "N", 1, MOST_REPEATS, "time each stage, on one core"),
    OPTION_END
};

static Status cmd_image(int argc, char **argv)
{
    ImageAsk a = { .patch = { .patch = 16, .frames = 2, .merge = 2, .channels = 3 },
              .lim = { IMAGE_MAX_PIXELS, IMAGE_MAX_BYTES } };
    PlainArgs files = { .least = 1, .most = PLAIN_ANY, .what = "pictures" };
    a.patch.min_pixels = 65536, a.patch.max_pixels = 16777216;      /* as published for Qwen3-VL */
    TRY(options_parse(argc, argv, options, &a, &files));
    Status st = check_ask(&a);
    if (!st) st = all_files(&a, files.value, files.n);
    plain_args_close(&files), free(a.index);
    return st;
}

static const Usage usage = {
    .args    = "FILE ...",
    .options = options,
    .notes   = "A picture that cannot be read is reported and the rest go on; the exit code is then 4.",
};

const Command command_image = {
    .name     = "image",
    .help     = "print what the model sees of pictures: grid and patch values",
    .run      = cmd_image,
    .usage    = USAGE(&usage),
};
