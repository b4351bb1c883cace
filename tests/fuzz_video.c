/* tests/fuzz_video.c -- hostile video files: refused with a text, or frames of the size that they have. Skips
 * where FFmpeg's libraries are not on the machine. */
#include "data/video_file.h"

#include <stdlib.h>
#include <string.h>

enum { FRAMES = 6 };

static void read_frames(const VideoSource *from)
{
    VideoFile *f;
    Image      im = { 0 };
    if (video_file_open(&f, from)) return;
    for (int64_t i = 0; i < FRAMES; i++) {
        if (video_file_frame(f, 3 * i, &im)) break;
        REQUIRE(im.h > 0 && im.w > 0 && im.h * im.w <= VIDEO_MAX_PIXELS, "%lld x %lld", (long long)im.w,
                (long long)im.h);
        REQUIRE(video_file_at(f) <= 3 * i, "frame %lld is gone", (long long)(3 * i));
    }
    image_close(&im);
    video_file_close(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    VideoInfo   info = { 0 };
    VideoSource from = { .bytes = data, .len = size, .what = "fuzz" };
    if (!video_file_readable() || !size) return 0;
    if (video_file_info(&info, &from)) REQUIRE(status_text()[0], "a refusal without text");
    else if (info.h * info.w <= 1 << 20) read_frames(&from);
    return 0;
}

#ifndef TREB_LIBFUZZER
#include "fuzz_driver.h"

static void fuzz_seeds(Fuzz *f) { fuzz_add_path(f, "tests/video"); }
#endif
