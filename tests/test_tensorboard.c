/* tests/test_tensorboard.c -- event files: the bytes, what a reader of the format decodes, failed writes. */
#include "lab.h"
#include "train/tensorboard.h"


typedef struct Bytes { uint8_t v[1 << 16]; size_t n; } Bytes;

typedef struct Event {
    double  time;
    int64_t step;
    char    version[32], tag[600];
    float   value;
    bool    has_value, start;
} Event;

static uint64_t little(const uint8_t *b, int n)
{
    uint64_t v = 0;
    for (int i = 0; i < n; i++) v |= (uint64_t)b[i] << 8 * i;
    return v;
}

static uint64_t varint(const uint8_t **at)
{
    uint64_t v = 0;
    int shift = 0;
    do v |= (uint64_t)(**at & 127) << shift, shift += 7;
    while (*(*at)++ & 128);
    return v;
}

/* A reader written from the format, not from the writer: unknown fields would be skipped, lengths are
 * followed. */
static void read_message(Event *e, const uint8_t *at, const uint8_t *end, int depth)
{
    while (at < end) {
        uint64_t key = varint(&at);
        int field = (int)(key >> 3) + 10 * depth, wire = (int)key & 7;
        uint64_t v = wire == 1 ? little(at, 8) : wire == 5 ? little(at, 4) : varint(&at);
        if (wire == 1) at += 8;
        if (wire == 5) at += 4;
        if (field == 1 && wire == 1) memcpy(&e->time, &v, 8);
        if (field == 2 && wire == 0) e->step = (int64_t)v;
        if (field == 22 && wire == 5) memcpy(&e->value, &v, 4), e->has_value = true;
        if (field == 31) e->start = v == 1;
        if (wire != 2) continue;
        if (field == 3)  snprintf(e->version, sizeof e->version, "%.*s", (int)v, (const char *)at);
        if (field == 5)  read_message(e, at, at + v, 1);
        if (field == 11) read_message(e, at, at + v, 2);
        if (field == 21) snprintf(e->tag, sizeof e->tag, "%.*s", (int)v, (const char *)at);
        if (field == 7)  read_message(e, at, at + v, 3);
        at += v;
    }
}

static int read_events(Event *e, int most, const Bytes *b)
{
    int n = 0;
    for (size_t at = 0; at + 12 <= b->n && n < most; n++) {
        const uint8_t *r = b->v + at;
        uint64_t len = little(r, 8);
        EXPECT(little(r + 8, 4) == crc32c_masked(r, 8), "crc of the length of event %d", n);
        if (at + 16 + len > b->n) break;
        EXPECT(little(r + 12 + len, 4) == crc32c_masked(r + 12, len), "crc of event %d", n);
        e[n] = (Event){ 0 };
        read_message(&e[n], r + 12, r + 12 + len, 0);
        at += 16 + len;
    }
    return n;
}

static void slurp(Bytes *b, const char *path)
{
    FILE *f = fopen(path, "rb");
    b->n = f ? fread(b->v, 1, sizeof b->v, f) : 0;
    if (f) fclose(f);
}

static void checksums(void)
{
    uint8_t zeros[32] = { 0 };                                     /* the vectors of RFC 3720, B.4 */
    EXPECT(crc32c("123456789", 9) == 0xe3069283, "%08x", crc32c("123456789", 9));
    EXPECT(crc32c(zeros, 32) == 0x8a9136aa, "%08x", crc32c(zeros, 32));
    EXPECT(crc32c("", 0) == 0, "empty");
    EXPECT(crc32c_masked("", 0) == 0xa282ead8, "mask");
}

static void what_is_written(void)
{
    static Bytes b;
    TensorBoard t;
    Event e[8];
    char path[PATH_MAX], tag[301];
    memset(tag, 'x', 300), tag[300] = 0;                            /* a length of two bytes */
    EXPECT_OK(tensorboard_open(&t, lab_tmp()));
    tensorboard_scalar(&t, 120, "train/loss", 2.5);
    tensorboard_scalar(&t, 1LL << 40, tag, -1e-3);
    tensorboard_scalar(&t, 121, "loss_by_source/\xff" "caf\xc3\xa9", NAN);
    EXPECT_OK(tensorboard_flush(&t));
    snprintf(path, sizeof path, "%s", t.path);
    EXPECT(strstr(path, "/events.out.tfevents."), "%s", path);
    slurp(&b, path);
    int n = read_events(e, 8, &b);
    EXPECT(n == 5, "%d events", n);
    EXPECT(!strcmp(e[0].version, "brain.Event:2") && e[0].time > 1.6e9, "%s", e[0].version);
    EXPECT(e[1].start && e[1].step == 120, "the first step is said: %lld", (long long)e[1].step);
    EXPECT(!strcmp(e[2].tag, "train/loss") && e[2].step == 120 && e[2].value == 2.5f, "%s %g", e[2].tag,
           e[2].value);
    EXPECT(!strcmp(e[3].tag, tag) && e[3].step == 1LL << 40 && e[3].value == -1e-3f, "long tag, large step");
    EXPECT(!strcmp(e[4].tag, "loss_by_source/?caf\xc3\xa9") && isnan(e[4].value), "%s", e[4].tag);
    tensorboard_close(&t);
    tensorboard_close(&t);
    unlink(path);
}

static void two_in_one_second(void)
{
    TensorBoard a, b;
    EXPECT_OK(tensorboard_open(&a, lab_tmp()));
    EXPECT_OK(tensorboard_open(&b, lab_tmp()));
    EXPECT(strcmp(a.path, b.path), "%s twice", a.path);
    unlink(a.path), unlink(b.path);
    tensorboard_close(&a), tensorboard_close(&b);
    rmdir(lab_tmp());
}

static void failed_writes_are_reported(void)
{
    TensorBoard t = { 0 };
    tensorboard_scalar(&t, 1, "train/loss", 1);                               /* a rank that writes none */
    EXPECT_OK(tensorboard_flush(&t));
    tensorboard_close(&t);
    EXPECT_FAIL(tensorboard_open(&t, "no/such/folder"), E_IO, "no/such/folder/events");
    tensorboard_close(&t);
    t.file = fopen("/dev/full", "wb"), strcpy(t.path, "/dev/full");
    for (int i = 0; i < 1000; i++) tensorboard_scalar(&t, i, "train/loss", 1);
    EXPECT_FAIL(tensorboard_flush(&t), E_IO, "/dev/full: No space");
    EXPECT_FAIL(tensorboard_flush(&t), E_IO, "/dev/full");
    tensorboard_close(&t);
}

int main(void)
{
    RUN(checksums);
    RUN(what_is_written);
    RUN(two_in_one_second);
    RUN(failed_writes_are_reported);
    return lab_report();
}
