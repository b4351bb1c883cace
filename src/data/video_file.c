/* data/video_file.c -- see video_file.h. What needs no library; reading is in video_libav.c. */
#include "data/video_file.h"

#include "base/str.h"

#include <string.h>
#include <strings.h>

bool video_file_has_suffix(const char *name, size_t len)
{
    const char *rest = ".mp4,.m4v,.mov,.webm,.mkv,.avi,.mpg,.mpeg,.ts,.m2ts,.ogv,.ogg,.flv,.wmv,.asf,.3gp";
    size_t      n;
    for (const char *s; (s = str_item(&rest, ',', &n));)
        if (len > n && !strncasecmp(name + len - n, s, n)) return true;
    return false;
}

#ifndef TREB_LIBAV

static Status not_built(const char *what)
{
    return fail(E_DATA,
                "%s: this program was built without FFmpeg's libraries and reads no video files; build "
                "it again where pkg-config finds libavformat, libavcodec, libswscale and libavutil "
                "(tools/setup.sh video), or extract the frames (ffmpeg -i FILE -vf fps=2 %%04d.jpg) and list "
                "them",
                what);
}

bool    video_file_readable(void) { return false; }
Status  video_file_info(VideoInfo *out, const VideoSource *from) { return not_built(from->what); }
Status  video_file_open(VideoFile **out, const VideoSource *from) { return not_built(from->what); }
Status  video_file_frame(VideoFile *f, int64_t index, Image *out) { return not_built("video"); }
int64_t video_file_at(const VideoFile *f) { return 0; }
void    video_file_close(VideoFile *f) { (void)f; }

#endif
