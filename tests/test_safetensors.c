/* tests/test_safetensors.c -- what the reader accepts and refuses, with which messages, and that the writer
 * leaves either the whole new file or the old one. */
#include "lab.h"
#include "tensor/safetensors.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

typedef struct Image { char *bytes; size_t len; } Image;

/* A file with this header and `data` bytes 0, 1, 2, … behind it. */
static Image image_make(const char *json, size_t data)
{
    size_t n = strlen(json);
    Image  m = { malloc(8 + n + data), 8 + n + data };
    for (int i = 0; i < 8; i++) m.bytes[i] = (char)(n >> (8 * i));
    memcpy(m.bytes + 8, json, n);
    for (size_t i = 0; i < data; i++) m.bytes[8 + n + i] = (char)i;
    return m;
}

static void put_file(const char *path, const void *bytes, size_t len)
{
    FILE *f = fopen(path, "wb");
    EXPECT(f && fwrite(bytes, 1, len, f) == len, "%s", path);
    if (f) fclose(f);
}

static void put_image(const char *path, const char *json, size_t data)
{
    Image m = image_make(json, data);
    put_file(path, m.bytes, m.len);
    free(m.bytes);
}

/* Empties a folder, returning how many entries it had. */
static int sweep(const char *dir)
{
    DIR *d = opendir(dir);
    int  n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[1024];
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        remove(path), n++;
    }
    if (d) closedir(d);
    return n;
}

static void reads_in_place(void)
{
    SafeTensors s;
    Image m = image_make("{\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
                         "\"__metadata__\":{\"format\":\"pt\",\"by\":\"hand\"},"
                         "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                         "\"none\":{\"dtype\":\"I64\",\"shape\":[5,0],\"data_offsets\":[16,16],\"extra\":1},"
                         "\"odd\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,3],\"data_offsets\":[16,19]},"
                         "\"late\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[19,23]}}    ", 23);
    EXPECT_OK(st_open_memory(&s, m.bytes, m.len, "memory"));
    const StTensor *a = st_find(&s, "a"), *b = st_find(&s, "b"), *none = st_find(&s, "none"), *late;
    EXPECT(s.count == 5 && s.files == 1 && !strcmp(s.tensor[0].name, "a"), "%d tensors, sorted", s.count);
    EXPECT(a && a->rank == 0 && a->bytes == 4 && a->data == m.bytes + m.len - 23, "the scalar");
    EXPECT(b && b->dtype == BF16 && b->rank == 2 && b->shape[1] == 3 && b->bytes == 12, "the matrix");
    EXPECT(none && none->bytes == 0 && none->data, "the empty one");
    EXPECT_OK(st_get(&s, "late", &late));
    int32_t v;
    dtype_convert(&v, I32, late->data, I32, 1);                     /* from an odd address */
    EXPECT(v == 0x16151413, "%#x", v);
    EXPECT(!strcmp(st_meta(&s, "by"), "hand") && !st_meta(&s, "c"), "metadata");
    EXPECT(!st_find(&s, "") && !st_find(&s, "aa") && !st_find(&s, "zzz"), "names that are not there");
    EXPECT_FAIL(st_get(&s, "zzz", &a), E_DATA, "no tensor zzz in memory");
    st_close(&s);
    st_close(&s);
    free(m.bytes);
}

static void reads_nothing(void)
{
    SafeTensors s;
    Image m = image_make("{}", 0);
    EXPECT_OK(st_open_memory(&s, m.bytes, m.len, "empty"));
    EXPECT(s.count == 0 && !st_find(&s, "a"), "no tensors");
    st_close(&s);
    free(m.bytes);
}

#define T(name, dtype, shape, from, to) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" #from "," #to "]}"

static void refuses_bad_headers(void)
{
    static const struct { const char *json; size_t data; const char *word; } bad[] = {
        { "",                                                          0,  "does not begin with '{'" },
        { " {}",                                                       0,  "does not begin with '{'" },
        { "{",                                                         0,  "header: line 1" },
        { "{}x",                                                       0,  "header: line 1" },
        { "{\"a\":1}",                                                 0,  "tensor a: not described" },
        { "{\"a\":{}}",                                                0,  "tensor a: dtype is missing" },
        { "{" T("a", "F31", "1", 0, 4) "}",                            4,  "dtype 'F31' is not supported" },
        { "{" T("a", "f32", "1", 0, 4) "}",                            4,  "dtype 'f32' is not supported" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":4}}",                   4,  "tensor a: shape is missing" },
        { "{" T("a", "F32", "-1", 0, 4) "}",                           4,  "dimension 0 is not a number" },
        { "{" T("a", "F32", "1.0", 0, 4) "}",                          4,  "dimension 0 is not a number" },
        { "{" T("a", "F32", "1,\"2\"", 0, 4) "}",                      4,  "dimension 1 is not a number" },
        { "{" T("a", "F32", "1,1,1,1,1,1,1,1,1", 0, 4) "}",            4,  "9 dimensions" },
        { "{" T("a", "F32", "4294967296,4294967296", 0, 4) "}",        4,  "no file is that large" },
        { "{" T("a", "F32", "4294967296,0,4294967296", 0, 0) "}",      0,  "no file is that large" },
        { "{" T("a", "F32", "99999999999999999999", 0, 4) "}",         4,  "header: line 1" },
        { "{" T("a", "F32", "1", 4, 0) "}",                            4,  "not a range" },
        { "{" T("a", "F32", "1", -4, 0) "}",                           4,  "not a range" },
        { "{" T("a", "F32", "2", 0, 4) "}",                            4,  "cover 4 bytes, F32 [2] takes 8" },
        { "{" T("a", "F32", "2,0", 0, 4) "}",                          4,  "F32 [2, 0] takes 0" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0]}}",      1, "not a pair" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1,2]}}",  1, "not a pair" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,true]}}", 1, "not a pair" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[]}}",                           1, "not a pair" },
        { "{" T("a", "F32", "2", 0, 8) "," T("b", "F32", "1", 4, 8) "}",       8, "a and b share bytes" },
        { "{" T("a", "F32", "1", 0, 4) "," T("b", "F32", "1", 0, 4) "}",       4, "share bytes from 0" },
        { "{" T("a", "F32", "1", 0, 4) "," T("b", "F32", "1", 8, 12) "}",     12, "4 bytes before tensor b" },
        { "{" T("a", "F32", "1", 4, 8) "}",                            8,  "4 bytes before tensor a" },
        { "{" T("a", "F32", "2", 0, 8) "}",                            6,  "truncated: 68 bytes" },
        { "{" T("a", "F32", "1", 0, 4) "}",                            7,  "3 bytes follow the last tensor" },
        { "{}",                                                        1,  "1 bytes follow the last tensor" },
        { "{" T("a", "U8", "", 0, 1) "," T("a", "U8", "", 1, 2) "}",   2,  "header: line 1" },
        { "{\"__metadata__\":[]}",                                     0,  "__metadata__ is not an object" },
        { "{\"__metadata__\":{\"a\":1}}",                              0,  "__metadata__.a is no string" },
        { "{" T("\\u001b[2J", "U8", "", 0, 1) "}",                     1,  "control characters" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        SafeTensors s;
        Image m = image_make(bad[i].json, bad[i].data);
        EXPECT_FAIL(st_open_memory(&s, m.bytes, m.len, "file X"), E_DATA, bad[i].word);
        EXPECT(!strncmp(status_text(), "file X: ", 8), "case %zu names its file: %s", i, status_text());
        st_close(&s);
        free(m.bytes);
    }
}

static void refuses_bad_lengths(void)
{
    SafeTensors s;
    Image m = image_make("{" T("a", "U8", "4", 0, 4) "}", 4);
    for (size_t n = 0; n < m.len; n++) {                            /* every truncation */
        char *cut = malloc(n + 1);                                  /* so that a read beyond it is seen */
        memcpy(cut, m.bytes, n);
        EXPECT_FAIL(st_open_memory(&s, cut, n, "cut"), E_DATA, "truncated");
        free(cut);
    }
    m.bytes[7] = 1;
    EXPECT_FAIL(st_open_memory(&s, m.bytes, m.len, "huge"), E_DATA, "a header of 72057594037927989 bytes");
    memset(m.bytes, 0xff, 8);
    EXPECT_FAIL(st_open_memory(&s, m.bytes, m.len, "huge"), E_DATA, "not a safetensors file");
    free(m.bytes);
}

static void refuses_deep_json(void)
{
    SafeTensors s;
    enum { DEEP = 100000 };
    char *json = malloc(DEEP + 16);
    int   n = sprintf(json, "{\"a\":");
    memset(json + n, '[', DEEP);
    json[n + DEEP] = 0;
    Image m = image_make(json, 0);
    EXPECT_FAIL(st_open_memory(&s, m.bytes, m.len, "deep"), E_DATA, "deep");
    free(json), free(m.bytes);
}

static void refuses_bad_paths(void)
{
    SafeTensors s;
    EXPECT_FAIL(st_open(&s, lab_path("absent.safetensors")), E_IO, "No such file");
    mkdir(lab_path("dir"), 0777);
    EXPECT_FAIL(st_open(&s, lab_path("dir")), E_IO, "neither");
    EXPECT(mkfifo(lab_path("pipe"), 0600) == 0, "a pipe must not hang the reader");
    EXPECT_FAIL(st_open(&s, lab_path("pipe")), E_IO, "not a regular file");
    put_file(lab_path("empty"), "", 0);
    EXPECT_FAIL(st_open(&s, lab_path("empty")), E_DATA, "truncated: 0 bytes");
    rmdir(lab_path("dir"));
    sweep(lab_tmp());
}

/* Two shards, one tensor each, and an index with the given weight_map. */
static Status open_set(const char *map)
{
    SafeTensors s;
    char index[1024];
    mkdir(lab_path("set"), 0777);
    put_image(lab_path("set/one.safetensors"), "{" T("a", "U8", "2", 0, 2) "}", 2);
    put_image(lab_path("set/two.safetensors"), "{" T("b", "U8", "3", 0, 3) "}", 3);
    put_image(lab_path("set/dup.safetensors"), "{" T("a", "U8", "2", 0, 2) "," T("c", "U8", "", 2, 3) "}", 3);
    put_image(lab_path("set/bad.safetensors"), "{" T("d", "U8", "2", 0, 2) "}", 1);
    put_image(lab_path("outside.safetensors"), "{" T("o", "U8", "2", 0, 2) "}", 2);
    snprintf(index, sizeof index, "{\"metadata\":{\"total_size\":5},\"weight_map\":%s}", map);
    put_file(lab_path("set/model.safetensors.index.json"), index, strlen(index));
    Status st = st_open(&s, lab_path("set"));
    if (!st && (s.count != 2 || s.files != 2 || st_find(&s, "a")->file != 0 || st_find(&s, "b")->bytes != 3))
        st = fail(E_CHECK, "%d tensors in %d files", s.count, s.files);
    st_close(&s);
    sweep(lab_path("set"));
    rmdir(lab_path("set"));
    sweep(lab_tmp());
    return st;
}

static void sharded_sets(void)
{
    EXPECT_OK(open_set("{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}"));
    EXPECT_FAIL(open_set("{\"a\":\"two.safetensors\",\"b\":\"one.safetensors\"}"), E_DATA, "not in");
    EXPECT_FAIL(open_set("{\"a\":\"one.safetensors\",\"z\":\"one.safetensors\"}"), E_DATA, "z is not in");
    EXPECT_FAIL(open_set("{\"a\":\"one.safetensors\",\"c\":\"dup.safetensors\"}"), E_DATA, "in two files");
    EXPECT_FAIL(open_set("{\"a\":\"one.safetensors\",\"d\":\"bad.safetensors\"}"), E_DATA, "truncated");
    EXPECT_FAIL(open_set("{\"a\":\"gone.safetensors\"}"), E_IO, "gone.safetensors");
    EXPECT_FAIL(open_set("{\"o\":\"../outside.safetensors\"}"), E_DATA, "'../outside.safetensors' is not");
    EXPECT_FAIL(open_set("{\"o\":\"/etc/passwd\"}"), E_DATA, "'/etc/passwd' is not");
    EXPECT_FAIL(open_set("{\"o\":\"..\"}"), E_DATA, "'..' is not");
    EXPECT_FAIL(open_set("{\"o\":\"\"}"), E_DATA, "'' is not");
    EXPECT_FAIL(open_set("{\"o\":\"model.bin\"}"), E_DATA, "'model.bin' is not");
    EXPECT_FAIL(open_set("{\"o\":7}"), E_DATA, "'?' is not");
    EXPECT_FAIL(open_set("{}"), E_DATA, "no weight_map");
    EXPECT_FAIL(open_set("[]"), E_DATA, "no weight_map");
    EXPECT_FAIL(open_set("{"), E_DATA, "line 1");
}

/* Four tensors of four widths, declared so that a naive layout would misalign them. */
static const struct { const char *name; DType d; int rank; int64_t shape[2]; size_t bytes; } parts[] = {
    { "bytes \"\\", U8,   1, { 3 },      3   },
    { "half",        BF16, 2, { 5, 7 },   70  },
    { "none",        F32,  2, { 0, 9 },   0   },
    { "wide",        F64,  0, { 0 },      8   },
    { "big",         F32,  2, { 10, 13 }, 520 },
};
enum { PARTS = sizeof parts / sizeof *parts, TOTAL = 3 + 70 + 8 + 520 };

static char part_byte(size_t i) { return (char)(i * 37 + 11); }

static Status write_parts(const char *path, int64_t max_shard, size_t piece, size_t upto)
{
    StWriter w;
    char     buf[TOTAL];
    for (size_t i = 0; i < TOTAL; i++) buf[i] = part_byte(i);
    TRY(st_writer_open(&w, path, max_shard));
    for (int i = 0; i < PARTS; i++)
        TRY(st_writer_declare(&w, parts[i].name, parts[i].d, parts[i].rank, parts[i].shape));
    TRY(st_writer_begin(&w));
    for (size_t at = 0; at < upto; at += piece)
        TRY(st_writer_write(&w, buf + at, piece < upto - at ? piece : upto - at));
    if (upto == TOTAL) return st_writer_finish(&w);
    st_writer_close(&w);
    st_writer_close(&w);
    return OK;
}

static void check_parts(const char *path, int files)
{
    SafeTensors s;
    size_t at = 0;
    EXPECT_OK(st_open(&s, path));
    EXPECT(s.count == PARTS && s.files == files, "%d tensors, %d files", s.count, s.files);
    EXPECT(s.count && !strcmp(st_meta(&s, "format"), "pt"), "metadata");
    for (int i = 0; i < PARTS && s.count; i++) {
        const StTensor *t = st_find(&s, parts[i].name);
        bool same = t && t->dtype == parts[i].d && t->rank == parts[i].rank && t->bytes == parts[i].bytes;
        EXPECT(same, "%s: description", parts[i].name);
        EXPECT(same && (uintptr_t)t->data % dtype_size(t->dtype) == 0, "%s: alignment", parts[i].name);
        for (size_t k = 0; same && k < t->bytes; k++) same = ((const char *)t->data)[k] == part_byte(at + k);
        EXPECT(same, "%s: bytes", parts[i].name);
        at += parts[i].bytes;
    }
    st_close(&s);
}

static void writes_what_it_reads(void)
{
    for (size_t piece = 1; piece <= TOTAL; piece = piece * 3 + 1) {
        EXPECT_OK(write_parts(lab_path("one.safetensors"), 10, piece, TOTAL));    /* a file is never split */
        check_parts(lab_path("one.safetensors"), 1);
        EXPECT(sweep(lab_tmp()) == 1, "nothing but the file");
        EXPECT_OK(write_parts(lab_path("new"), 0, piece, TOTAL));
        check_parts(lab_path("new"), 1);
        EXPECT(sweep(lab_path("new")) == 1, "nothing but model.safetensors");
        EXPECT_OK(write_parts(lab_path("new"), 81, piece, TOTAL));                /* the first four, just */
        EXPECT(access(lab_path("new/model-00002-of-00002.safetensors"), R_OK) == 0, "shard names");
        check_parts(lab_path("new"), 2);
        EXPECT(sweep(lab_path("new")) == 3, "two shards and the index");
        EXPECT_OK(write_parts(lab_path("new"), 1, piece, TOTAL));                 /* the third begins empty */
        check_parts(lab_path("new"), 4);
        sweep(lab_path("new"));
        rmdir(lab_path("new"));
    }
}

static void writes_an_empty_set(void)
{
    SafeTensors s;
    EXPECT_OK(st_save(lab_path("none.safetensors"), NULL, 0));
    EXPECT_OK(st_open(&s, lab_path("none.safetensors")));
    EXPECT(s.count == 0 && s.file[0].len % 8 == 0, "data would begin on a multiple of 8");
    st_close(&s);
    sweep(lab_tmp());
}

static void saves_tensors(void)
{
    float   x[] = { 1, 2, 3, 4, 5, 6 };
    int64_t n[] = { 2, 3 };
    Tensor  t = t_wrap(x, F32, 2, n);
    StTensor list[] = { st_of("x", t), st_of("row", t_rows(t, 1, 1)) };
    SafeTensors s;
    EXPECT_OK(st_save(lab_path("x.safetensors"), list, 2));
    EXPECT_OK(st_open(&s, lab_path("x.safetensors")));
    const StTensor *row = st_find(&s, "row");
    EXPECT(row && row->shape[0] == 1 && row->shape[1] == 3 && !memcmp(row->data, x + 3, 12), "the row");
    st_close(&s);
    EXPECT_OK(st_save(lab_path("x.out"), list, 2));                           /* by any name it is a file */
    EXPECT_OK(st_open(&s, lab_path("x.out")));
    EXPECT(s.count == 2, "%d tensors", s.count);
    st_close(&s);
    sweep(lab_tmp());
}

/* A new model in an old one's folder: the reader must see the new one whichever shapes they have. */
static void replaces_older_sets(void)
{
    EXPECT_OK(write_parts(lab_path("new"), 1, TOTAL, TOTAL));
    EXPECT_OK(write_parts(lab_path("new"), 0, TOTAL, TOTAL));
    check_parts(lab_path("new"), 1);
    EXPECT_OK(write_parts(lab_path("new"), 81, TOTAL, TOTAL));
    check_parts(lab_path("new"), 2);
    sweep(lab_path("new"));
    rmdir(lab_path("new"));
}

static void half_done_leaves_nothing(void)
{
    put_file(lab_path("one.safetensors"), "old", 3);
    for (size_t upto = 0; upto < TOTAL; upto = upto * 2 + 1) {
        EXPECT_OK(write_parts(lab_path("one.safetensors"), 0, 50, upto));
        EXPECT_OK(write_parts(lab_path("new"), 81, 50, upto));
        EXPECT(sweep(lab_path("new")) == 0, "temporaries after %zu bytes", upto);
    }
    char old[4] = "";
    FILE *f = fopen(lab_path("one.safetensors"), "rb");
    EXPECT(f && fread(old, 1, 4, f) == 3 && !memcmp(old, "old", 3), "the old file stays");
    if (f) fclose(f);
    rmdir(lab_path("new"));
    EXPECT(sweep(lab_tmp()) == 1, "nothing beside it");
}

/* A limit on file size stands in for a full disk: writes come up short, then fail. */
static void full_disk_leaves_nothing(void)
{
    struct rlimit before, tight;
    put_file(lab_path("one.safetensors"), "old", 3);
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t limit = 16; limit < 900; limit *= 3) { /* fails in the header, then in the data */
        tight = (struct rlimit){ limit, before.rlim_max };
        setrlimit(RLIMIT_FSIZE, &tight);
        Status one = write_parts(lab_path("one.safetensors"), 0, 100, TOTAL);
        Status set = write_parts(lab_path("new"), 81, 100, TOTAL);
        setrlimit(RLIMIT_FSIZE, &before);
        EXPECT(one == E_IO && set == E_IO && strstr(status_text(), "File too large"), "%s", status_text());
        EXPECT(sweep(lab_path("new")) == 0, "temporary files with a limit of %d bytes", (int)limit);
    }
    signal(SIGXFSZ, SIG_DFL);
    rmdir(lab_path("new"));
    EXPECT(sweep(lab_tmp()) == 1, "nothing beside the old file");
}

static void writer_refuses_bad_paths(void)
{
    StWriter w;
    char     longest[5000];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    put_file(lab_path("file"), "", 0);
    EXPECT_FAIL(st_writer_open(&w, lab_path("file"), 0), E_IO, "not a folder");
    EXPECT_FAIL(st_writer_open(&w, lab_path("no/such/folder"), 0), E_IO, "No such file");
    EXPECT_FAIL(st_writer_open(&w, "", 0), E_IO, "empty");
    EXPECT_FAIL(st_writer_open(&w, longest, 0), E_IO, "too long");
    EXPECT_FAIL(st_save(lab_path("no/file.safetensors"), NULL, 0), E_IO, "No such file");
    sweep(lab_tmp());
}

/* Thousands of names in no order, as a mixture of experts has. */
static void many_tensors(void)
{
    enum { MANY = 20000 };
    StWriter    w;
    SafeTensors s;
    char        name[64];
    EXPECT_OK(st_writer_open(&w, lab_path("many"), 4 * 1000));
    for (int i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "layers.%d.experts.%d", i * 7919 % MANY / 100, i * 7919 % MANY % 100);
        EXPECT_OK(st_writer_declare(&w, name, I32, 0, NULL));
    }
    EXPECT_OK(st_writer_begin(&w));
    for (int i = 0; i < MANY; i++) {
        int32_t v = i * 7919 % MANY;
        EXPECT_OK(st_writer_write(&w, &v, 4));
    }
    EXPECT(!st_writer_next(&w), "all written");
    EXPECT_OK(st_writer_finish(&w));
    EXPECT_OK(st_open(&s, lab_path("many")));
    EXPECT(s.count == MANY && s.files == 20, "%d in %d", s.count, s.files);
    for (int i = 0; i < MANY && s.count; i++) {
        snprintf(name, sizeof name, "layers.%d.experts.%d", i / 100, i % 100);
        const StTensor *t = st_find(&s, name);
        EXPECT(t && *(const int32_t *)t->data == i, "%s", name);
    }
    st_close(&s);
    sweep(lab_path("many"));
    rmdir(lab_path("many"));
}

int main(void)
{
    RUN(reads_in_place);
    RUN(reads_nothing);
    RUN(refuses_bad_headers);
    RUN(refuses_bad_lengths);
    RUN(refuses_deep_json);
    RUN(refuses_bad_paths);
    RUN(sharded_sets);
    RUN(writes_what_it_reads);
    RUN(writes_an_empty_set);
    RUN(saves_tensors);
    RUN(replaces_older_sets);
    RUN(half_done_leaves_nothing);
    RUN(full_disk_leaves_nothing);
    RUN(writer_refuses_bad_paths);
    RUN(many_tensors);
    rmdir(lab_tmp());
    return lab_report();
}
