/* tests/test_tiff.c -- TIFF and run-length BMP pictures against the pixels that Pillow reads (tests/tiff,
 * written by tools/make_tiff_cases.py), and what is refused. */
#include "lab.h"

#include "base/folder.h"
#include "base/json.h"
#include "data/image.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static int64_t field(const Json *o, const char *key) { return json_integer_value(json_object_get(o, key)); }

static void equals_pillow(void)
{
    Json *cases;
    EXPECT_OK(json_load(&cases, "tests/tiff/cases.json"));
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const Json *want = json_array_get(cases, i);
        char        path[200], *bytes = NULL;
        size_t      len = 0;
        int64_t     h = 0, w = 0;
        Image       im = { 0 };
        snprintf(path, sizeof path, "tests/tiff/%s", json_string_value(json_object_get(want, "file")));
        EXPECT_OK(file_load(&bytes, &len, path, 1 << 20));
        EXPECT_OK(image_size(&h, &w, bytes, len, NULL, path));
        EXPECT_OK(image_decode(&im, bytes, len, NULL, path));
        EXPECT(h == im.h && w == im.w && h == field(want, "h") && w == field(want, "w"), "%s: %lld x %lld",
               path, (long long)im.w, (long long)im.h);
        uLong crc = crc32(0, im.rgb, (uInt)(im.h * im.w * 3));
        EXPECT((int64_t)crc == field(want, "crc"), "%s: other pixels", path);
        for (size_t cut = 0; cut < len; cut += len / 7 + 1)           /* a file that ends early is refused */
            if (!image_decode(&im, bytes, cut, NULL, path))
                EXPECT(strstr(path, ".bmp"), "%s cut at %zu", path, cut);
        image_close(&im);
        free(bytes);
    }
    json_decref(cases);
}

/* A little-endian file of one pixel with one entry changed. */
static Status one_pixel(uint16_t tag, uint32_t value)
{
    static const struct { uint16_t tag; uint32_t value;
    } entries[] = {
        { 256, 1 }, { 257, 1 }, { 258, 8 }, { 259, 1 }, { 262, 1 },
        { 273, 8 }, { 277, 1 }, { 279, 1 }, { 339, 1 },
    };
    enum { N = sizeof entries / sizeof *entries };
    uint8_t file[12 + 2 + 12 * N] = { 'I', 'I', tag == 43 ? '+' : '*', 0, 12, 0, 0, 0, 77 };
    Image   im = { 0 };
    file[12] = N;
    for (int i = 0; i < N; i++) {
        uint8_t *e = file + 14 + 12 * i;
        uint32_t v = entries[i].tag == tag ? value : entries[i].value;
        e[0] = (uint8_t)entries[i].tag, e[1] = (uint8_t)(entries[i].tag >> 8), e[2] = 4, e[4] = 1;
        for (int k = 0; k < 4; k++) e[8 + k] = (uint8_t)(v >> 8 * k);
    }
    Status st = image_decode(&im, file, sizeof file, NULL, "a.tif");
    if (!st) EXPECT(im.h == 1 && im.w == 1 && im.rgb[0] == 77, "pixel %d", im.rgb[0]);
    image_close(&im);
    return st;
}

static void refuses(void)
{
    static const struct { uint16_t tag; uint32_t value; const char *words; } rows[] = {
        { 43, 0, "BigTIFF is not read" },          { 259, 7, "JPEG compression inside TIFF" },
        { 259, 4, "fax compression" },             { 259, 50000, "compression is not read" },
        { 262, 6, "YCbCr" },                       { 258, 32, "depth of samples" },
        { 339, 3, "kind of samples" },             { 256, 1 << 30, "the limit is" },
        { 257, 0, "no pixels" },                   { 273, 4000, "ends early" },
        { 279, 1u << 31, "ends early" },           { 277, 9, "depth of samples" },
        { 262, 3, "palette is damaged" },
    };
    EXPECT_OK(one_pixel(0, 0));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        EXPECT_FAIL(one_pixel(rows[i].tag, rows[i].value), E_DATA, rows[i].words);
}

int main(void)
{
    RUN(equals_pillow);
    RUN(refuses);
    return lab_report();
}
