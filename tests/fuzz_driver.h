/* tests/fuzz_driver.h -- a main() for fuzz targets without libFuzzer.
 *
 *   fuzz_x [-seconds N] [-runs N] [-seed S] [-seeds FOLDER] [file | folder] ...
 *
 * Without -seconds and -runs the corpus is run once, as a regression test. With them, inputs made from the
 * corpus are run for N seconds, or until N were run; they depend on seed and corpus only. When no
 * corpus is given, the target's own fuzz_seeds() makes one; -seeds writes that to a folder, for libFuzzer to
 * start from.
 *
 * A finding ends the process, so the current input is stored in a file, which is removed at a normal end.
 * A target defines LLVMFuzzerTestOneInput and fuzz_seeds, and includes this #ifndef TREB_LIBFUZZER. */
#ifndef TESTS_FUZZ_DRIVER_H
#define TESTS_FUZZ_DRIVER_H

#include "base/rng.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { FUZZ_INPUTS = 4096, FUZZ_MAX = 1 << 20, FUZZ_HANG_S = 20, FUZZ_HANG_RUNS = 64 };

typedef struct FuzzInput { uint8_t *bytes; size_t len; } FuzzInput;

typedef struct Fuzz {
    FuzzInput corpus[FUZZ_INPUTS];
    int       inputs;
    uint64_t  seed, run, drawn;       /* random numbers: seed, one stream per run, the next index */
    uint8_t  *now;                    /* the input being made */
    size_t    len, stored;            /* stored: the length of that file */
    char      path[512];              /* the file that stores it while it runs */
    int       fd;
} Fuzz;

int         LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
static void fuzz_seeds(Fuzz *f);      /* the target's: calls fuzz_add */

static void fuzz_add(Fuzz *f, const void *bytes, size_t len)
{
    if (f->inputs == FUZZ_INPUTS || len > FUZZ_MAX) return;
    FuzzInput *in = &f->corpus[f->inputs++];
    *in = (FuzzInput){ malloc(len + 1), len };
    memcpy(in->bytes, bytes, len);
}

static void fuzz_add_path(Fuzz *f, const char *path)
{
    struct stat info;
    if (stat(path, &info) < 0) perror(path), exit(2);
    if (S_ISDIR(info.st_mode)) {
        DIR *d = opendir(path);
        for (struct dirent *e; d && (e = readdir(d));) {
            char inside[1024];
            if (e->d_name[0] == '.') continue;
            snprintf(inside, sizeof inside, "%s/%s", path, e->d_name);
            fuzz_add_path(f, inside);
        }
        if (d) closedir(d);
        return;
    }
    FILE    *in = fopen(path, "rb");
    uint8_t *b = malloc(FUZZ_MAX);
    if (!in) perror(path), exit(2);
    fuzz_add(f, b, fread(b, 1, FUZZ_MAX, in));
    fclose(in), free(b);
}

static uint64_t fuzz_below(Fuzz *f, uint64_t n) { return n ? rng_below(f->seed, f->run, f->drawn++, n) : 0; }

/* Sizes at which arithmetic often fails, and their neighbours. */
static uint64_t fuzz_number(Fuzz *f)
{
    static const uint64_t edges[] = { 0, 1, 8, 255, 65535, 100000000, 1ull << 31, 1ull << 32, 1ull << 53,
                                      1ull << 60, 1ull << 61, 1ull << 62, 1ull << 63, UINT64_MAX };
    return edges[fuzz_below(f, sizeof edges / sizeof *edges)] + fuzz_below(f, 5) - 2;
}

/* Replaces now[at, at + cut) by n bytes. */
static void fuzz_replace(Fuzz *f, size_t at, size_t cut, const void *bytes, size_t n)
{
    if (at > f->len || cut > f->len - at || f->len - cut + n > FUZZ_MAX) return;
    memmove(f->now + at + n, f->now + at + cut, f->len - at - cut);
    if (n) memcpy(f->now + at, bytes, n);
    f->len += n - cut;
}

static void fuzz_flip(Fuzz *f)
{
    if (f->len) f->now[fuzz_below(f, f->len)] ^= (uint8_t)(1 << fuzz_below(f, 8));
}

static void fuzz_byte(Fuzz *f)
{
    static const char punctuation[] = "{}[]\":,\\0-9.eEntf \n\0\xff";
    if (f->len) f->now[fuzz_below(f, f->len)] = (uint8_t)punctuation[fuzz_below(f, sizeof punctuation)];
}

static void fuzz_truncate(Fuzz *f) { f->len = fuzz_below(f, f->len + 1); }

static void fuzz_delete(Fuzz *f)
{
    size_t at = fuzz_below(f, f->len + 1), n = fuzz_below(f, 32) + 1;
    fuzz_replace(f, at, n < f->len - at ? n : f->len - at, NULL, 0);
}

static void fuzz_repeat(Fuzz *f)
{
    uint8_t piece[256];
    size_t  at = fuzz_below(f, f->len + 1), n = fuzz_below(f, sizeof piece);
    if (n > f->len - at) n = f->len - at;
    memcpy(piece, f->now + at, n);
    fuzz_replace(f, fuzz_below(f, f->len + 1), 0, piece, n);
}

/* Overwrites or inserts a part of another input. */
static void fuzz_splice(Fuzz *f)
{
    const FuzzInput *o = &f->corpus[fuzz_below(f, (uint64_t)f->inputs)];
    size_t from = fuzz_below(f, o->len + 1), n = fuzz_below(f, 512), at = fuzz_below(f, f->len + 1);
    if (n > o->len - from) n = o->len - from;
    size_t over = fuzz_below(f, 2) ? n : 0;
    fuzz_replace(f, at, over < f->len - at ? over : f->len - at, o->bytes + from, n);
}

/* A number of 1 to 8 bytes in either byte order. */
static void fuzz_binary(Fuzz *f)
{
    uint64_t v = fuzz_number(f);
    size_t   n = (size_t)1 << fuzz_below(f, 4);
    if (fuzz_below(f, 2)) v = __builtin_bswap64(v << (64 - 8 * n));
    if (f->len >= n) fuzz_replace(f, fuzz_below(f, 4) ? fuzz_below(f, f->len - n + 1) : 0, n, &v, n);
}

/* The next decimal number after a random place, for headers and other text. */
static void fuzz_decimal(Fuzz *f)
{
    char   text[32];
    size_t at = fuzz_below(f, f->len + 1), n = 0;
    while (at < f->len && !isdigit(f->now[at])) at++;
    while (at + n < f->len && isdigit(f->now[at + n])) n++;
    bool small = fuzz_below(f, 3) == 0, minus = fuzz_below(f, 4) == 0;
    unsigned long long v = small ? fuzz_below(f, 40) : fuzz_number(f);
    int len = snprintf(text, sizeof text, "%s%llu", minus ? "-" : "", v);
    if (n) fuzz_replace(f, at, n, text, (size_t)len);
}

static void fuzz_make(Fuzz *f)
{
    static void (*const ways[])(Fuzz *) = {
        fuzz_flip,   fuzz_byte,   fuzz_truncate, fuzz_delete,  fuzz_repeat,
        fuzz_splice, fuzz_binary, fuzz_decimal,  fuzz_decimal, fuzz_decimal,
    };
    const FuzzInput *from = &f->corpus[fuzz_below(f, (uint64_t)f->inputs)];
    memcpy(f->now, from->bytes, f->len = from->len);
    for (uint64_t n = fuzz_below(f, 6) + 1; n > 0; n--) ways[fuzz_below(f, sizeof ways / sizeof *ways)](f);
}

static void fuzz_run(Fuzz *f, const uint8_t *bytes, size_t len)
{
    struct itimerval limit = { .it_value = { FUZZ_HANG_S, 0 } };
    if ((len < f->stored && ftruncate(f->fd, (off_t)len) < 0) || pwrite(f->fd, bytes, len, 0) != (ssize_t)len)
        perror(f->path), exit(2);
    f->stored = len;
    /* The timer counts processor time, and its signal's default is to kill us. */
    if (f->run % FUZZ_HANG_RUNS == 0) setitimer(ITIMER_PROF, &limit, NULL);
    LLVMFuzzerTestOneInput(bytes, len);
    f->run++, f->drawn = 0;
}

static void fuzz_dump(const Fuzz *f, const char *folder)
{
    mkdir(folder, 0777);
    for (int i = 0; i < f->inputs; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/seed-%04d", folder, i);
        FILE            *out = fopen(path, "wb");
        const FuzzInput *in = &f->corpus[i];
        if (!out || fwrite(in->bytes, 1, in->len, out) != in->len) perror(path), exit(2);
        fclose(out);
    }
}

static void fuzz_open(Fuzz *f)
{
    const char *tmp = getenv("TMPDIR");
    f->now = malloc(FUZZ_MAX);
    snprintf(f->path, sizeof f->path, "%s/treb-fuzz-%ld", tmp && *tmp ? tmp : "/tmp", (long)getpid());
    f->fd = open(f->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (!f->now || f->fd < 0) perror(f->path), exit(2);
    if (f->inputs == 0) fuzz_seeds(f);
    if (f->inputs == 0) fuzz_add(f, "", 0);
}

static void fuzz_close(Fuzz *f)
{
    for (int i = 0; i < f->inputs; i++) free(f->corpus[i].bytes);
    free(f->now);
    close(f->fd);
    unlink(f->path);
    free(f);
}

int main(int argc, char **argv)
{
    Fuzz       *f = calloc(1, sizeof *f);
    long        seconds = 0;
    uint64_t    runs = 0;
    const char *dump = NULL;
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (more && !strcmp(argv[i], "-seconds"))    seconds = atol(argv[++i]);
        else if (more && !strcmp(argv[i], "-runs"))  runs = strtoull(argv[++i], NULL, 0);
        else if (more && !strcmp(argv[i], "-seed"))  f->seed = strtoull(argv[++i], NULL, 0);
        else if (more && !strcmp(argv[i], "-seeds")) dump = argv[++i];
        else                                         fuzz_add_path(f, argv[i]);
    }
    fuzz_open(f);
    printf("fuzz: %d inputs to start from; a finding leaves its input in %s\n", f->inputs, f->path);
    fflush(stdout);
    if (dump) fuzz_dump(f, dump);
    for (int i = 0; i < f->inputs; i++) fuzz_run(f, f->corpus[i].bytes, f->corpus[i].len);
    for (time_t end = time(NULL) + seconds; f->run < runs || (seconds && time(NULL) < end);) {
        fuzz_make(f);
        fuzz_run(f, f->now, f->len);
    }
    printf("fuzz: %llu inputs run, nothing found\n", (unsigned long long)f->run);
    fuzz_close(f);
    return 0;
}

#endif
