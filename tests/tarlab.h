/* tests/tarlab.h -- tar archives made in memory, member by member: ustar, GNU and pax. */
#ifndef TESTS_TARLAB_H
#define TESTS_TARLAB_H

#include "pictures.h"

static inline void tar_header(Bytes *b, const char *name, char type, size_t size, const char *prefix)
{
    char     h[512] = { 0 };
    unsigned sum = 0;
    snprintf(h, 101, "%s", name);
    memcpy(h + 100, "0000644\0000001000\0000001000", 24);
    snprintf(h + 124, 12, "%011zo", size);
    snprintf(h + 136, 12, "%011o", 0);
    h[156] = type;
    memcpy(h + 257, prefix ? "ustar\00000" : "ustar  ", 8);
    if (prefix) snprintf(h + 345, 155, "%s", prefix);
    memset(h + 148, ' ', 8);
    for (int i = 0; i < 512; i++) sum += (unsigned char)h[i];
    snprintf(h + 148, 8, "%06o", sum);
    bytes_add(b, h, 512);
}

static inline void tar_data(Bytes *b, const void *v, size_t n)
{
    static const char zeros[512];
    bytes_add(b, v, n);
    bytes_add(b, zeros, (512 - n % 512) % 512);
}

static inline void tar_member(Bytes *b, const char *name, const void *v, size_t n)
{
    tar_header(b, name, '0', n, NULL);
    tar_data(b, v, n);
}

static inline void tar_prefixed(Bytes *b, const char *prefix, const char *name, const void *v, size_t n)
{
    tar_header(b, name, '0', n, prefix);
    tar_data(b, v, n);
}

static inline void tar_gnu(Bytes *b, const char *name, const void *v, size_t n)
{
    tar_header(b, "././@LongLink", 'L', strlen(name) + 1, NULL);
    tar_data(b, name, strlen(name) + 1);
    tar_member(b, "truncated-name-of-a-member", v, n);
}

/* path and size are in the extended header; the size in the plain header is wrong on purpose. */
static inline void tar_pax(Bytes *b, const char *name, const void *v, size_t n)
{
    char text[700], record[600];
    int  len = snprintf(record, sizeof record, " path=%s\n", name) + 3, at = 0;
    at += snprintf(text + at, sizeof text - (size_t)at, "%03d%s", len, record);
    len = snprintf(record, sizeof record, " size=%zu\n", n) + 2;
    at += snprintf(text + at, sizeof text - (size_t)at, "%02d%s", len, record);
    tar_header(b, "./PaxHeaders/x", 'x', (size_t)at, "");
    tar_data(b, text, (size_t)at);
    tar_header(b, "shortened", '0', 0, "");
    tar_data(b, v, n);
}

static inline void tar_end(Bytes *b)
{
    static const char zeros[1024];
    bytes_add(b, zeros, sizeof zeros);
}

#endif
