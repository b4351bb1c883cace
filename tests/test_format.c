/* tests/test_format.c -- dataset formats: JSON Lines, arrays, archives, texts, packed shards; content and
 * damage. */
#include "base/folder.h"
#include "recordlab.h"
#include "tarlab.h"
#include "tinyset.h"

#include "data/format_bin.h"
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { LINES = 60 };

static TinySet          set;
static const FormatConf plain = { NULL, 0 };

static Status memory(FormatFile *f, const char *name, const void *v, size_t n)
{
    return format_open_memory(f, name, v, n, "set/file", &plain);
}

static void expect_record(const FormatFile *f, int64_t i, RecordKind kind, const char *text,
                          const char *where)
{
    Record r;
    EXPECT_OK(format_read(f, i, &r));
    EXPECT(r.kind == kind && r.len == strlen(text) && !memcmp(r.text, text, r.len), "%lld: kind %d, \"%.*s\"",
           (long long)i, r.kind, (int)r.len, r.text);
    EXPECT(!strcmp(r.where, where), "\"%s\", \"%s\" wanted", r.where, where);
    record_close(&r);
}

static void json_lines(void)
{
    static const char text[] = "\xef\xbb\xbf{\"a\":1}\r\n\n  \n{\"b\":2}\n\t\r\n{\"c\":3}";
    FormatFile f;
    EXPECT_OK(memory(&f, "jsonl", text, sizeof text - 1));
    EXPECT(f.samples == 3, "%lld samples", (long long)f.samples);
    expect_record(&f, 0, RECORD_JSON, "{\"a\":1}\r", "set/file:1");
    expect_record(&f, 1, RECORD_JSON, "{\"b\":2}", "set/file:4");
    expect_record(&f, 2, RECORD_JSON, "{\"c\":3}", "set/file:6");
    format_close(&f);
    format_close(&f);
    EXPECT_OK(memory(&f, "jsonl", "", 0));
    EXPECT(f.samples == 0, "an empty file");
    format_close(&f);
}

static void json_array_file(void)
{
    static const char text[] = " [ {\"a\":\"],}\\\"\"} , {\"b\":[1,{\"c\":[]}]},\n{}] ";
    FormatFile f;
    EXPECT_OK(memory(&f, "json", text, sizeof text - 1));
    EXPECT(f.samples == 3 && !f.damage[0], "%lld samples, %s", (long long)f.samples, f.damage);
    expect_record(&f, 0, RECORD_JSON, "{\"a\":\"],}\\\"\"} ", "set/file[0]");
    expect_record(&f, 2, RECORD_JSON, "{}", "set/file[2]");
    format_close(&f);
    EXPECT_OK(memory(&f, "json", text, sizeof text - 8));
    EXPECT(f.samples == 2 && strstr(f.damage, "not closed"), "%lld samples, %s", (long long)f.samples,
           f.damage);
    format_close(&f);
    EXPECT_FAIL(memory(&f, "json", "{}", 2), E_DATA, ".jsonl");
}

static const char talk[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"<image>?\"},{\"role\":"
                           "\"assistant\",\"content\":\"!\"}]}";

/* Five samples in every variant of tar. */
/* Links and sparse members, by GNU's type or by pax keys, make their sample bad by name; a picture is not
 * left out of it. */
static void tar_members_without_bytes(void)
{
    static const char path[] = "27 GNU.sparse.name=s/3.png\n32 path=GNUSparseFile.1/s/3.png\n";
    FormatFile        f;
    Record            r;
    Bytes             b = { 0 };
    const char        types[] = { '1', '2', 'S' };
    char              name[32], block[512] = { 0 };
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "s/%d.png", i);
        tar_header(&b, name, types[i], types[i] == 'S' ? 5 : 0, NULL);
        if (types[i] == 'S') {
            b.v[b.n - 512 + 482] = 1;                       /* its header goes on in two blocks */
            for (int k = 148; k < 156; k++) b.v[b.n - 512 + k] = ' ';
            unsigned sum = 0;
            for (int k = 0; k < 512; k++) sum += (unsigned char)b.v[b.n - 512 + k];
            snprintf(name, sizeof name, "%06o", sum);
            memcpy(b.v + b.n - 512 + 148, name, 7);
            block[504] = 1, bytes_add(&b, block, 512);
            block[504] = 0, bytes_add(&b, block, 512);
            tar_data(&b, "bytes", 5);
        }
        snprintf(name, sizeof name, "s/%d.txt", i);
        tar_member(&b, name, "a caption", 9);
    }
    tar_header(&b, "./PaxHeaders/x", 'x', sizeof path - 1, "");
    tar_data(&b, path, sizeof path - 1);
    tar_member(&b, "GNUSparseFile.1/s/3.png", "bytes", 5);
    tar_member(&b, "s/3.txt", "a caption", 9);
    tar_end(&b);
    EXPECT_OK(format_open_memory(&f, "tar", b.v, b.n, "a.tar", &(FormatConf){ 0 }));
    EXPECT(f.samples == 4, "%lld samples", (long long)f.samples);
    for (int64_t i = 0; i < f.samples; i++) {
        snprintf(name, sizeof name, "s/%d.png: a link", (int)i);
        EXPECT_FAIL(format_read(&f, i, &r), E_DATA, name);
        record_close(&r);
    }
    format_close(&f);
    free(b.v);
}

static Bytes tar_make(void)
{
    Bytes b = { 0 }, p = tiny_picture(1);
    char  longname[300];
    memset(longname, 'd', sizeof longname);
    memcpy(longname + 200, "/003.txt", 9);
    tar_header(&b, "./dir/", '5', 0, NULL);
    tar_member(&b, "./dir/000.json", talk, sizeof talk - 1);
    tar_member(&b, "./dir/000.png", p.v, p.n);
    tar_member(&b, "./dir/._000.json", "mac", 3);
    tar_prefixed(&b, "some/prefix", "001.png", p.v, p.n);
    tar_prefixed(&b, "some/prefix", "001.txt", "a caption", 9);
    tar_prefixed(&b, "some/prefix", "001.json", "{\"url\":\"x\"}", 11);
    tar_pax(&b, "päx/002.0.png", p.v, p.n);
    tar_pax(&b, "päx/002.json", talk, sizeof talk - 1);
    tar_gnu(&b, longname, "words only", 10);
    tar_member(&b, "dir/004.png", p.v, p.n);
    tar_member(&b, "no-ending", "x", 1);
    free(p.v);
    return b;
}

static void tar_archives(void)
{
    FormatFile f;
    Record     r;
    Bytes      b = tar_make(), p = tiny_picture(1);
    char       where[300] = "set/file:";
    memset(where + 9, 'd', 160), where[169] = 0;
    tar_end(&b);
    EXPECT_OK(memory(&f, "tar", b.v, b.n));
    EXPECT(f.samples == 5 && !f.damage[0], "%lld samples, %s", (long long)f.samples, f.damage);
    expect_record(&f, 0, RECORD_JSON, talk, "set/file:dir/000");
    expect_record(&f, 1, RECORD_CAPTION, "a caption", "set/file:some/prefix/001");
    expect_record(&f, 2, RECORD_JSON, talk, "set/file:päx/002");
    expect_record(&f, 3, RECORD_TEXT, "words only", where);
    EXPECT_FAIL(format_read(&f, 4, &r), E_DATA, "is a .json or .txt");
    EXPECT_OK(format_read(&f, 2, &r));
    EXPECT(r.files == 2 && r.file[0].len == p.n && !memcmp(r.file[0].bytes, p.v, p.n),
           "the picture, by its pax size");
    record_close(&r);
    format_close(&f);
    free(b.v), free(p.v);
}

/* A conversation takes its pictures from the members, whether it names them or not. */
static void archives_bring_their_pictures(void)
{
    static const char named[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"<image><image>\"},{\"role\":\"assistant\","
        "\"content\":\"!\"}],\"images\":[\"%s\",\"p0.jpg\"]}";
    static const char *const names[] = { "x/000.png", "000.png", "png" };
    char          path[512], line[300];
    Dataset       data;
    SampleConf    conf;
    SampleScratch t;
    DatasetConf   d = { .sources = set.conf.sources, .key = "data.train" };
    Bytes         b = tar_make(), p = tiny_picture(1);
    for (int i = 0; i < 3; i++) {
        int n = snprintf(line, sizeof line, named, names[i]);
        tar_member(&b, "x/000.png", p.v, p.n);
        tar_member(&b, "x/000.json", line, (size_t)n);
        tar_member(&b, "-.", "", 0);
    }
    snprintf(path, sizeof path, "%s/talk.tar", set.dir);
    tiny_write(path, b.v, b.n);
    set.source[0].path = path;
    EXPECT_OK(dataset_open(&data, &d));
    EXPECT_OK(
        sample_conf(&conf, &set.cfg, set.tokenizer, &set.conf.patch, &set.conf.shape, &set.conf.budget));
    EXPECT_OK(sample_scratch_open(&t, set.tokenizer));
    conf.data = &data;
    for (int64_t i = 0; i < data.samples; i++) {
        static const int want[] = { 1, 1, 1, 0, -1, 2, -1, 2, -1, 2, -1 };
        void *px = malloc(4096 * TINY_DIM);
        Sample s;
        Status st = sample_load(&s, &t, &conf, i);
        EXPECT(st ? want[i] < 0 : s.slices == want[i], "sample %lld: %s", (long long)i,
               st ? status_text() : "pictures");
        for (int64_t k = 0; !st && k < s.slices; k++) EXPECT_OK(sample_pixels(px, true, &s, &t, &conf, k));
        sample_close(&s);
        free(px);
    }
    sample_scratch_close(&t);
    dataset_close(&data);
    set.source[0].path = set.path;
    free(b.v), free(p.v);
}

static void damaged_archives(void)
{
    FormatFile f;
    Bytes      b = tar_make();
    uint8_t    was = b.v[512 + 3];
    EXPECT_OK(memory(&f, "tar", b.v, b.n - 2000));
    EXPECT(f.samples == 3 && strstr(f.damage, "after the end of the file"), "%lld: %s", (long long)f.samples,
           f.damage);
    format_close(&f);
    b.v[512 + 3] ^= 1;
    EXPECT_OK(memory(&f, "tar", b.v, b.n));
    EXPECT(f.samples == 0 && strstr(f.damage, "wrong checksum at byte 512"), "%s", f.damage);
    format_close(&f);
    b.v[512 + 3] = was;
    EXPECT_OK(memory(&f, "tar", b.v, 512 + 100));
    EXPECT(strstr(f.damage, "an incomplete header"), "%s", f.damage);
    format_close(&f);
    free(b.v);
}

/* Archives written by the tar of the system give the same streams as the files. */
static void tar_of_the_system(void)
{
    static const char *const dialects[] = { "ustar", "gnu", "pax" };
    char       command[1024], path[512];
    LoaderStep s;
    Loader    *l;
    if (system("tar --version > /dev/null 2>&1")) SKIP("no tar here");
    snprintf(command, sizeof command,
             "cd '%s' && mkdir -p t && for i in 0 1 2 3 4 5; do n=$(ls p$i.*); cp $n t/00$i.${n##*.}; "
             "printf 'caption %%d' $i > t/00$i.txt; done",
             set.dir);
    EXPECT(!system(command), "%s", command);
    for (int i = 0; i < 3; i++) {
        LoaderConf c = set.conf;
        snprintf(path, sizeof path, "%s/shard.tar", set.dir);
        snprintf(command, sizeof command, "cd '%s' && tar --format=%s --sort=name -cf shard.tar t", set.dir,
                 dialects[i]);
        EXPECT(!system(command), "%s", command);
        set.source[0].path = path;
        c.once = true;
        EXPECT_OK(loader_open(&l, &c, NULL));
        int64_t docs = 0, patches = 0;
        do {
            EXPECT_OK(loader_next(l, &s));
            docs += s.samples, patches += s.patches;
        } while (s.micro);
        EXPECT(docs == 6 && patches > 0, "%s: %lld captions, %lld patches", dialects[i], (long long)docs,
               (long long)patches);
        loader_close(l);
    }
    set.source[0].path = set.path;
}

static bool at_mark(const char *text, size_t len, size_t at)
{
    return len - at >= 13 && !memcmp(text + at, "<|endoftext|>", 13);
}

/* All pieces concatenated, without separators, are the text; no piece is too long. */
static void check_pieces(const char *text, size_t len, int64_t most, int64_t want)
{
    FormatFile    f;
    TokenScratch *t;
    FormatConf    conf = { set.tokenizer, most };
    size_t        at = 0;
    EXPECT_OK(token_scratch_open(&t, set.tokenizer));
    EXPECT_OK(format_open_memory(&f, "text", text, len, "book.txt", &conf));
    EXPECT(want < 0 || f.samples == want, "%lld pieces, %lld wanted", (long long)f.samples, (long long)want);
    for (int64_t i = 0; i < f.samples; i++) {
        Record r;
        Ids    ids = { 0 };
        EXPECT_OK(format_read(&f, i, &r));
        EXPECT_OK(tokenizer_encode(set.tokenizer, t, &ids, r.text, r.len, false));
        EXPECT(ids.n < most, "piece %lld has %lld tokens", (long long)i, (long long)ids.n);
        EXPECT((size_t)(r.text - text) == at || at_mark(text, len, at), "piece %lld begins at %zu",
               (long long)i, (size_t)(r.text - text));
        at = (size_t)(r.text - text) + r.len;
        EXPECT(r.more == (at < len && !at_mark(text, len, at)), "piece %lld: more %d", (long long)i, r.more);
        ids_close(&ids);
        record_close(&r);
    }
    EXPECT(at == len || !f.samples, "%zu of %zu bytes", at, len);
    format_close(&f);
    token_scratch_close(t);
}

static void plain_text(void)
{
    static const char three[] =
        "first\nline\n<|endoftext|>\nsecond <|endoftext|> inside\n<|endoftext|>\r\nthird";
    static const char euros[] = "€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€";
    char  *book = malloc(40000);
    size_t n = 0;
    check_pieces(three, sizeof three - 1, 100, 3);
    for (int i = 0; n < 39000; i++)
        n += (size_t)sprintf(book + n, "line %d%.*s\n%s", i, i % 90,
                             "and so on and so forth and so on and so forth and so on and so forth and so on",
                             i % 7 ? "" : "\n");
    check_pieces(book, n, 200, -1);
    memset(book, 'x', 5000);
    check_pieces(book, 5000, 100, -1);                      /* one very long line */
    check_pieces(euros, sizeof euros - 1, 20, -1);
    check_pieces(" \n <|endoftext|>\n", 3, 20, 0);
    free(book);
}

static void pack_all(const char *path, bool decoded)
{
    Dataset       data;
    SampleConf    conf;
    SampleScratch t;
    BinWriter     w;
    Json         *settings;
    DatasetConf   d = { .sources = set.conf.sources, .key = "data.train", .once = true };
    EXPECT_OK(dataset_open(&data, &d));
    EXPECT_OK(
        sample_conf(&conf, &set.cfg, set.tokenizer, &set.conf.patch, &set.conf.shape, &set.conf.budget));
    conf.data = &data;
    EXPECT_OK(sample_settings(&conf, &settings));
    EXPECT_OK(sample_scratch_open(&t, set.tokenizer));
    EXPECT_OK(bin_writer_open(&w, path));
    w.decoded = decoded;
    for (int64_t i = 0; i < data.samples; i++) {
        Sample s;
        EXPECT_OK(sample_load(&s, &t, &conf, i));
        EXPECT_OK(bin_writer_add(&w, &s, &t, &conf));
        sample_close(&s);
    }
    EXPECT_OK(bin_writer_finish(&w, settings));
    json_decref(settings);
    sample_scratch_close(&t);
    dataset_close(&data);
}

/* A packed shard gives the same streams as its sources, whether its pictures are decoded or not. */
static void packed_shards(void)
{
    char       path[512], pixels[512];
    uint64_t   want[20];
    Loader    *l;
    LoaderStep s;
    snprintf(path, sizeof path, "%s/all.treb", set.dir);
    snprintf(pixels, sizeof pixels, "%s/pixels.treb", set.dir);
    pack_all(path, false), pack_all(pixels, true);
    const char *const forms[] = { set.path, path, pixels };
    for (int form = 0; form < 3; form++) {
        set.source[0].path = forms[form];
        EXPECT_OK(loader_open(&l, &set.conf, NULL));
        for (int i = 0; i < 20; i++) {
            EXPECT_OK(loader_next(l, &s));
            uint64_t h = step_hash(&s, set.conf.micro);
            if (!form) want[i] = h;
            EXPECT(h == want[i], "step %d differs", i);
        }
        loader_close(l);
    }
    set.cfg.image.max_pixels = 5000;
    EXPECT_FAIL(loader_open(&l, &set.conf, NULL), E_CONFIG, "packed with max_pixels = 4096");
    set.cfg.image.max_pixels = 4096;
    set.source[0].path = set.path;
}

static void damaged_shards(void)
{
    char       path[512];
    FormatFile f, g;
    Record     r;
    snprintf(path, sizeof path, "%s/all.treb", set.dir);
    pack_all(path, false);
    EXPECT_OK(format_open(&f, path, &plain));
    uint8_t *copy = malloc(f.len);
    const BinRow *row = (const BinRow *)(f.bytes + ((const BinHead *)f.bytes)->rows_at);
    memcpy(copy, f.bytes, f.len);
    copy[row[3].at + 5] ^= 4;
    EXPECT_OK(memory(&g, "bin", copy, f.len));
    EXPECT_FAIL(format_read(&g, 3, &r), E_DATA, "damaged");
    EXPECT_OK(format_read(&g, 4, &r));
    record_close(&r);
    format_close(&g);
    EXPECT_FAIL(memory(&g, "bin", copy, f.len - 1), E_DATA, "truncated");
    EXPECT_FAIL(memory(&g, "bin", copy, 10), E_DATA, "too short");
    copy[(const char *)&row[2] - f.bytes + 9] ^= 1;
    EXPECT_FAIL(memory(&g, "bin", copy, f.len), E_DATA, "table of samples is damaged");
    copy[9] ^= 1;
    EXPECT_FAIL(memory(&g, "bin", copy, f.len), E_DATA, "version");
    copy[0] = 'X';
    EXPECT_FAIL(memory(&g, "bin", copy, f.len), E_DATA, "not a packed shard");
    free(copy);
    format_close(&f);
}

/* Archives with flipped bits or truncated: some samples are read or `damage` is set; the loader goes on or
 * refuses. */
static void thousand_corrupted_archives(void)
{
    Bytes b = tar_make();
    tar_end(&b);
    uint8_t *copy = malloc(b.n);
    int      broken = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        FormatFile f;
        size_t     n = i % 3 ? b.n : rng_below(5, 0, i, b.n);
        memcpy(copy, b.v, b.n);
        for (uint64_t k = 0; k < 1 + i % 5; k++)
            copy[rng_below(5, 1, 8 * i + k, b.n)] ^= (uint8_t)(1 << rng_below(5, 2, 8 * i + k, 8));
        EXPECT_OK(memory(&f, "tar", copy, n));
        broken += f.damage[0] != 0;
        for (int64_t k = 0; k < f.samples; k++) {
            Record r;
            Status st = format_read(&f, k, &r);
            EXPECT(!st || st == E_DATA, "status %d", st);
            if (!st) EXPECT(r.text >= (char *)copy && r.text + r.len <= (char *)copy + n, "outside");
            record_close(&r);
        }
        format_close(&f);
    }
    EXPECT(broken > 300, "%d damaged archives detected", broken);
    free(copy), free(b.v);
}

static void damaged_files_in_a_set(void)
{
    char       path[512], quarantine[512];
    Loader    *l;
    LoaderStep s = { 0 };
    LoaderConf c = set.conf;
    Bytes      b = tar_make();
    snprintf(path, sizeof path, "%s/broken.tar", set.dir);
    snprintf(quarantine, sizeof quarantine, "%s/quarantine.jsonl", set.dir);
    tiny_write(path, b.v, b.n - 9000);
    free(b.v);
    set.source[1].path = path, set.cfg.data.train.n = 2;
    c.quarantine = quarantine;
    EXPECT_FAIL(loader_open(&l, &c, NULL), E_DATA, "broken.tar: a");
    set.cfg.data.bad_sample = "skip";
    EXPECT_OK(loader_open(&l, &c, NULL));
    EXPECT(loader_samples(l) > LINES, "the intact part is used");
    EXPECT_OK(loader_next(l, &s));
    loader_close(l);
    Json *line;
    EXPECT_OK(json_load(&line, quarantine));
    EXPECT(line && strstr(json_string_value(json_object_get(line, "where")), "broken.tar"), "listed");
    json_decref(line);
    set.source[1].path = set.path, set.cfg.data.train.n = 1, set.cfg.data.bad_sample = "error";
}

/* A file that is cut while it is read is an error; its mapping is not touched behind the end. */
static void a_file_that_shrinks(void)
{
    Path       path;
    FormatFile f;
    Record     r;
    FILE      *out;
    EXPECT_OK(path_join(path, lab_tmp(), "shrinks.jsonl"));
    out = fopen(path, "w");
    for (int i = 0; i < 2000; i++) fprintf(out, "{\"text\": \"line %d\"}\n", i);
    fclose(out);
    EXPECT_OK(format_open(&f, path, &(FormatConf){ 0 }));
    EXPECT_OK(format_read(&f, 1999, &r));
    record_close(&r);
    EXPECT(!truncate(path, 100), "truncate");
    EXPECT_FAIL(format_read(&f, 1999, &r), E_IO, "became shorter");
    format_close(&f);
    unlink(path);
}

/* A pipe is refused at once; opening one would wait for a writer. */
static void only_regular_files_are_opened(void)
{
    Path       path;
    FormatFile f;
    Json      *v;
    EXPECT_OK(path_join(path, lab_tmp(), "pipe.jsonl"));
    EXPECT(!mkfifo(path, 0600), "mkfifo");
    alarm(20);
    EXPECT_FAIL(format_open(&f, path, &(FormatConf){ 0 }), E_IO, "not a regular file");
    EXPECT_FAIL(json_load(&v, path), E_IO, "not a regular file");
    EXPECT_FAIL(json_load(&v, lab_tmp()), E_IO, "a folder");
    alarm(0);
    unlink(path);
}

static void expect_row(const char *path, int64_t samples, int64_t i, const char *want)
{
    FormatFile f;
    EXPECT_OK(format_open(&f, path, &(FormatConf){ 0 }));
    EXPECT(f.samples == samples, "%s: %lld samples", path, (long long)f.samples);
    Json *got = record_json(&f, i), *v = NULL;
    EXPECT_OK(json_parse(&v, want, strlen(want), "want"));
    EXPECT(json_equal(got, v), "%s: record %lld", path, (long long)i);
    json_decref(got), json_decref(v);
    format_close(&f);
}

static void tables_of_texts(void)
{
    static const char csv[] = "\xef\xbb\xbfquestion,\"the answer\",messages\r\na,\"b \"\"c\"\", "
                              "d\ne\",\r\n\r\n,x,\"[1, \"\"y\"\"]\"";
    static const char tsv[] = "a\tb\n1\t2,3\n4\n";
    Path              path;
    FormatFile        f;
    Record            r;
    EXPECT_OK(path_join(path, lab_tmp(), "table.csv"));
    EXPECT_OK(file_write(path, csv, strlen(csv)));
    expect_row(path, 2, 0,
               "{\"question\": \"a\", \"the answer\": \"b \\\"c\\\", d\\ne\", \"messages\": \"\"}");
    expect_row(path, 2, 1, "{\"question\": \"\", \"the answer\": \"x\", \"messages\": [1, \"y\"]}");
    unlink(path);
    EXPECT_OK(path_join(path, lab_tmp(), "table.tsv"));
    EXPECT_OK(file_write(path, tsv, strlen(tsv)));
    expect_row(path, 2, 0, "{\"a\": \"1\", \"b\": \"2,3\"}");
    EXPECT_OK(format_open(&f, path, &(FormatConf){ 0 }));
    EXPECT_FAIL(format_read(&f, 1, &r), E_DATA, "fewer fields");
    format_close(&f);
    unlink(path);
}

/* Two members of gzip are one file; a cut one is damaged. */
static void compressed_files(void)
{
    Path   path;
    gzFile g;
    EXPECT_OK(path_join(path, lab_tmp(), "lines.jsonl.gz"));
    for (int i = 0; i < 2; i++) {
        g = gzopen(path, i ? "ab" : "wb");
        for (int k = 0; k < 500; k++) gzprintf(g, "{\"text\": \"%d-%d\"}\n", i, k * k * 7919);
        gzclose(g);
    }
    expect_row(path, 1000, 999, "{\"text\": \"1-1971838919\"}");
    EXPECT(!truncate(path, 2000), "truncate");
    FormatFile f;
    EXPECT_FAIL(format_open(&f, path, &(FormatConf){ 0 }), E_DATA, "damaged or cut");
    unlink(path);
}

int main(void)
{
    tiny_set_open(&set, lab_tmp(), LINES);
    RUN(a_file_that_shrinks);
    RUN(tables_of_texts);
    RUN(compressed_files);
    RUN(only_regular_files_are_opened);
    RUN(json_lines);
    RUN(json_array_file);
    RUN(tar_archives);
    RUN(tar_members_without_bytes);
    RUN(archives_bring_their_pictures);
    RUN(damaged_archives);
    RUN(tar_of_the_system);
    RUN(plain_text);
    RUN(packed_shards);
    RUN(damaged_shards);
    RUN(thousand_corrupted_archives);
    RUN(damaged_files_in_a_set);
    tiny_set_close(&set);
    rmdir(lab_tmp());
    return lab_report();
}
