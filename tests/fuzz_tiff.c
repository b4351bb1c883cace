/* tests/fuzz_tiff.c -- hostile TIFF and run-length BMP files: an error with a text, or a picture of the size
 * in its header. The chunks' compressions are also given arbitrary bytes. */
#include "data/image.h"
#include "data/tiff_codec.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_PIXELS = 1 << 18, CHUNK = 4096 };

/* A copy of exactly the right size lets the sanitizer see a read beyond its end. */
static void decode(const uint8_t *data, size_t size)
{
    ImageLimits lim = { .max_pixels = MOST_PIXELS };
    Image       im = { 0 };
    int64_t     h = 0, w = 0;
    unsigned    sum = 0;
    Status      head = image_size(&h, &w, data, size, &lim, "fuzz"),
           st        = image_decode(&im, data, size, &lim, "fuzz");
    REQUIRE(!st || (status_text()[0] && !im.h), "an error without text, or half a picture");
    REQUIRE(st || (!head && h == im.h && w == im.w && h * w <= MOST_PIXELS), "not the size of its header");
    for (int64_t i = 0; i < im.h * im.w * 3; i++) sum += im.rgb[i];
    REQUIRE(st || sum <= (unsigned)(im.h * im.w) * 765u, "a sum of bytes");
    image_close(&im);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1), *out = malloc(CHUNK);
    if (size) memcpy(copy, data, size);
    decode(copy, size);
    tiff_lzw(out, CHUNK, copy, size), tiff_packbits(out, CHUNK, copy, size),
        tiff_deflate(out, CHUNK, copy, size);
    free(copy), free(out);
    return 0;
}

#ifndef TREB_LIBFUZZER
#include "fuzz_driver.h"

static void fuzz_seeds(Fuzz *f) { fuzz_add_path(f, "tests/tiff"); }
#endif
