/* data/libav.c -- see libav.h. */
#include "data/libav.h"

#ifdef TREB_LIBAV

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#define TEXT_OF(x) #x
#define SONAME(library, major) "lib" #library ".so." TEXT_OF(major)

/* No single buffer of the libraries is larger: a plane of the largest frame fits at 16 bits a pixel. This
 * also bounds the index of a stream, whose length a few bytes of an MP4 file can claim. */
enum { MAX_BUFFER = (1 << 27) + (1 << 20) };

static const char avutil[]   = SONAME(avutil, LIBAVUTIL_VERSION_MAJOR);
static const char avcodec[]  = SONAME(avcodec, LIBAVCODEC_VERSION_MAJOR);
static const char avformat[] = SONAME(avformat, LIBAVFORMAT_VERSION_MAJOR);
static const char swscale[]  = SONAME(swscale, LIBSWSCALE_VERSION_MAJOR);

static struct { pthread_once_t once; Libav fn; const char *missing; } loaded = { .once = PTHREAD_ONCE_INIT };

static void find(void *out, const char *library, const char *name)
{
    void *handle = loaded.missing ? NULL : dlopen(library, RTLD_NOW | RTLD_LOCAL);
    void *f = handle ? dlsym(handle, name) : NULL;
    if (!f && !loaded.missing) loaded.missing = handle ? name : library;
    memcpy(out, &f, sizeof f);
}

static void load(void)
{
#define FN(library, name) find(&loaded.fn.name, library, #name);
    LIBAV_FUNCTIONS(FN)
#undef FN
    if (loaded.missing) return;
    loaded.fn.av_log_set_level(AV_LOG_QUIET);
    loaded.fn.av_max_alloc(MAX_BUFFER);
}

Status libav_load(const Libav **out)
{
    pthread_once(&loaded.once, load);
    *out = &loaded.fn;
    if (!loaded.missing) return OK;
    return fail(E_DATA, "video files need %s, which is not on this machine (Debian: ffmpeg); or extract the "
                "frames (ffmpeg -i FILE -vf fps=2 %%04d.jpg) and list them", loaded.missing);
}

#endif
