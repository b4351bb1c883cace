/* train/tensorboard.c -- see tensorboard.h. Writes two formats by hand, both tiny:
 *
 *   TFRecord   u64 length | u32 masked crc of the length | the bytes | u32 masked crc of the bytes
 *   Event      protobuf: 1 wall_time double, 2 step int64, then one of 3 file_version string, 5 summary
 *              { 1 value { 1 tag string, 2 simple_value float } }, 7 session_log { 1 status }
 *
 * All numbers are little endian. Event files are not read back: metrics.jsonl has the same numbers. */
#include "train/tensorboard.h"

#include "base/activity.h"
#include "base/clock.h"
#include "base/str.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* Four bits at a time: an event has about sixty bytes, for which a small table is enough. */
uint32_t crc32c(const void *bytes, size_t n)
{
    static const uint32_t nibble[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
        0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };
    const uint8_t *b = bytes;
    uint32_t crc = ~0u;
    for (size_t i = 0; i < n; i++) {
        crc = crc >> 4 ^ nibble[(crc ^ b[i]) & 15];
        crc = crc >> 4 ^ nibble[(crc ^ b[i] >> 4) & 15];
    }
    return ~crc;
}

uint32_t crc32c_masked(const void *bytes, size_t n)
{
    uint32_t crc = crc32c(bytes, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void stick(TensorBoard *t, Status st, int error)
{
    if (!t->status) t->status = st, t->error = error;
}

/* --- protobuf ---------------------------------------------------------------------------------------- */

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };           /* wire types */

static void append_bytes(TensorBoard *t, Text *to, const void *bytes, size_t n)
{
    if (text_push(to, bytes, n)) stick(t, E_FIT, ENOMEM);
}

static void put_little(TensorBoard *t, Text *to, uint64_t v, int bytes)
{
    char b[8];
    for (int i = 0; i < bytes; i++) b[i] = (char)(v >> 8 * i);
    append_bytes(t, to, b, (size_t)bytes);
}

static void put_varint(TensorBoard *t, Text *to, uint64_t v)
{
    char b[10];
    size_t n = 0;
    for (; v > 127; v >>= 7) b[n++] = (char)(v | 128);
    b[n++] = (char)v;
    append_bytes(t, to, b, n);
}

static size_t varint_size(uint64_t v)
{
    size_t n = 1;
    while (v >>= 7) n++;
    return n;
}

static void put_field(TensorBoard *t, Text *to, int field, int wire)
{
    put_varint(t, to, (uint64_t)(field << 3 | wire));
}

static void put_bytes(TensorBoard *t, Text *to, int field, const void *bytes, size_t n)
{
    put_field(t, to, field, BYTES);
    put_varint(t, to, n);
    append_bytes(t, to, bytes, n);
}

/* TensorBoard rejects a file with a byte that is not UTF-8: such bytes become '?'. */
static void put_tag(TensorBoard *t, Text *to, int field, const char *tag)
{
    put_field(t, to, field, BYTES);
    put_varint(t, to, strlen(tag));
    while (*tag) {
        uint32_t code;
        int n = str_utf8(tag, &code);
        append_bytes(t, to, n ? tag : "?", n ? (size_t)n : 1);
        tag += n ? n : 1;
    }
}

/* --- records ----------------------------------------------------------------------------------------- */

static void write_out(TensorBoard *t, const void *bytes, size_t n)
{
    if (!t->status && fwrite(bytes, 1, n, t->file) != n) stick(t, E_IO, errno);
}

static void event_begin(TensorBoard *t, int64_t step)
{
    double now = clock_wall();
    uint64_t bits;
    memcpy(&bits, &now, sizeof bits);
    t->event.n = 0;
    put_field(t, &t->event, 1, FIXED64);
    put_little(t, &t->event, bits, 8);
    put_field(t, &t->event, 2, VARINT);
    put_varint(t, &t->event, (uint64_t)step);
}

static void event_end(TensorBoard *t)
{
    uint8_t head[12], tail[4];
    for (int i = 0; i < 8; i++) head[i] = (uint8_t)((uint64_t)t->event.n >> 8 * i);
    uint32_t crc[2] = { crc32c_masked(head, 8), crc32c_masked(t->event.v, t->event.n) };
    for (int i = 0; i < 4; i++)
        head[8 + i] = (uint8_t)(crc[0] >> 8 * i), tail[i] = (uint8_t)(crc[1] >> 8 * i);
    write_out(t, head, sizeof head);
    write_out(t, t->event.v, t->event.n);
    write_out(t, tail, sizeof tail);
}

static void write_version(TensorBoard *t)
{
    static const char version[] = "brain.Event:2";
    event_begin(t, 0);
    put_bytes(t, &t->event, 3, version, sizeof version - 1);
    event_end(t);
}

static void write_start(TensorBoard *t, int64_t step)
{
    static const char start[] = { 1 << 3 | VARINT, 1 };
    event_begin(t, step);
    put_bytes(t, &t->event, 7, start, sizeof start);
    event_end(t);
    t->started = true;
}

/* --- the file ---------------------------------------------------------------------------------------- */

static void host_name(char *buf, size_t size)
{
    if (gethostname(buf, size) || !*buf) snprintf(buf, size, "host");
    buf[size - 1] = 0;
    for (char *c = buf; *c; c++)
        if (*c == '/' || (unsigned char)*c <= ' ') *c = '_';
}

/* The number at the end tells apart files that one process opens within one second. */
static Status make_file(TensorBoard *t, const char *dir)
{
    char host[128];
    host_name(host, sizeof host);
    long long now = (long long)clock_wall();
    for (int i = 0; i < 1000; i++) {
        int n = snprintf(t->path, sizeof t->path, "%s/events.out.tfevents.%010lld.%s.%ld.%d", dir, now, host,
                         (long)getpid(), i);
        if (n < 0 || n >= (int)sizeof t->path) return fail(E_IO, "%.200s...: the path is too long", dir);
        int fd = open(t->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0) return (t->file = fdopen(fd, "wb")) ? OK : (close(fd), fail(E_FIT, "no memory"));
        if (errno != EEXIST) break;
    }
    return fail(E_IO, "%s: %s", t->path, strerror(errno));
}

Status tensorboard_open(TensorBoard *t, const char *dir)
{
    *t = (TensorBoard){ 0 };
    Status st = make_file(t, dir);
    if (!st) write_version(t), st = tensorboard_flush(t);
    if (st) tensorboard_close(t);
    return st;
}

void tensorboard_scalar(TensorBoard *t, int64_t step, const char *tag, double value)
{
    float narrow = (float)value;                       /* simple_value is a float */
    uint32_t bits;
    if (!t->file || t->status) return;
    if (!t->started) write_start(t, step);
    memcpy(&bits, &narrow, sizeof bits);
    t->value.n = 0;
    put_tag(t, &t->value, 1, tag);
    put_field(t, &t->value, 2, FIXED32);
    put_little(t, &t->value, bits, 4);
    event_begin(t, step);
    put_field(t, &t->event, 5, BYTES);                 /* a summary with one value */
    put_varint(t, &t->event, 1 + varint_size(t->value.n) + t->value.n);
    put_bytes(t, &t->event, 1, t->value.v, t->value.n);
    event_end(t);
}

Status tensorboard_flush(TensorBoard *t)
{
    if (!t->file) return OK;
    activity_slow_begin();
    if (fflush(t->file)) stick(t, E_IO, errno);
    activity_slow_end();
    return t->status ? fail(t->status, "%s: %s", t->path, strerror(t->error)) : OK;
}

void tensorboard_close(TensorBoard *t)
{
    if (t->file) fclose(t->file);
    text_close(&t->event);
    text_close(&t->value);
    *t = (TensorBoard){ 0 };
}
