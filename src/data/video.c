/* data/video.c -- see video.h. Arithmetic is in double and in the order of the reference, so that frames,
 * seconds and sizes are bit-equal to it. */
#include "data/video.h"

#include "base/num.h"
#include <math.h>
#include <string.h>

int64_t video_count(int64_t total, double fps, const VideoRule *rule)
{
    double wanted = fps > 0 ? trunc((double)total / fps * rule->fps) : (double)total;
    int64_t n = wanted < (double)total ? (int64_t)wanted : total;      /* at most all frames */
    return min_i64(min_i64(max_i64(n, rule->min_frames), rule->max_frames), total);
}

int64_t video_index(int64_t i, int64_t n, int64_t total)
{
    if (i == n - 1 && n > 1) return total - 1;
    return n > 1 ? (int64_t)rint((double)i * ((double)(total - 1) / (double)(n - 1))) : 0;
}

/* The mean time of the first and last frame of the slice. */
double video_seconds(int64_t s, int64_t n, int64_t total, double fps, int64_t group)
{
    double first = (double)video_index(s * group, n, total) / fps;
    double last = (double)video_index(min_i64(s * group + group - 1, n - 1), n, total) / fps;
    return (first + last) / 2;
}

int video_frame(const Media *m, int64_t s, int64_t k, int64_t group)
{
    return m->first + (int)min_i64(s * group + k, m->frames - 1);
}

static Status too_short(int media, int64_t n, int64_t group)
{
    return fail(E_DATA,
                "medium %d: a video of %lld frame%s; it needs at least %lld (list a single frame as an "
                "image)",
                media, (long long)n, n == 1 ? "" : "s", (long long)group);
}

static const double *slice_times(Conversation *c, int64_t n, int64_t total, double fps, int64_t group)
{
    int64_t slices = (n + group - 1) / group;
    double *seconds = mem_pool_alloc(&c->keep, (size_t)slices * sizeof *seconds);
    for (int64_t s = 0; s < slices; s++) seconds[s] = video_seconds(s, n, total, fps, group);
    return seconds;
}

static Status choose_listed(Conversation *c, int media, const VideoRule *rule)
{
    Media  *m = &c->media[media];
    int64_t total = m->frames, n = video_count(total, m->fps, rule);
    if (n < rule->group) return too_short(media, n, rule->group);
    m->seconds = slice_times(c, n, total, m->fps > 0 ? m->fps : rule->fps, rule->group);
    for (int64_t k = 0; k < n; k++) c->frame[m->first + k] = c->frame[m->first + video_index(k, n, total)];
    m->frames = (int)n;
    return OK;
}

Status video_choose(Conversation *c, const VideoRule *rule)
{
    for (int i = 0; i < c->medias; i++)
        if (c->media[i].video && !c->media[i].file && !c->media[i].seconds) TRY(choose_listed(c, i, rule));
    return OK;
}

Status video_choose_file(Conversation *c, int media, const VideoInfo *info, const VideoRule *rule)
{
    Media    *m = &c->media[media];
    VideoRule own = *rule;
    if (m->fps > 0) own.fps = m->fps;
    int64_t n = video_count(info->frames, info->fps, &own);
    if (n < rule->group) return too_short(media, n, rule->group);
    Frame *frame = mem_pool_alloc(&c->keep, (size_t)(c->frames + n) * sizeof *frame),
          whole  = c->frame[m->first];
    memcpy(frame, c->frame, (size_t)c->frames * sizeof *frame);
    for (int64_t k = 0; k < n; k++) {
        frame[c->frames + k]     = whole;
        frame[c->frames + k].nth = video_index(k, n, info->frames) + 1;
    }
    m->seconds = slice_times(c, n, info->frames, info->fps, rule->group);
    m->first = c->frames, m->frames = (int)n, m->h = info->h, m->w = info->w;
    c->frame = frame, c->frames += (int)n;
    return OK;
}

/* The bounds apply to tb frames, where tb is n rounded to groups; the scale is computed from n. */
Status video_fit(int64_t *height, int64_t *width, int64_t n, const PatchShape *p)
{
    double f = (double)(p->patch * p->merge), g = (double)p->frames;
    double h = (double)*height, w = (double)*width;
    if (n < p->frames || h < 1 || w < 1)
        return fail(E_DATA, "a video of %lld frames of %lld x %lld pixels cannot be used", (long long)n,
                    (long long)*width, (long long)*height);
    if (h < f || w < f) {
        double scale = fmax(f / h, f / w);
        h = trunc(h * scale), w = trunc(w * scale);
    }
    if (fmax(h, w) / fmin(h, w) > 200)
        return fail(E_DATA, "frames of %lld x %lld pixels: one side is more than 200 times the other",
                    (long long)*width, (long long)*height);
    double hb = rint(h / f) * f, wb = rint(w / f) * f, tb = rint((double)n / g) * g;
    if (tb * hb * wb > (double)p->max_pixels) {
        double b = sqrt((double)n * h * w / (double)p->max_pixels);
        hb = fmax(f, floor(h / b / f) * f), wb = fmax(f, floor(w / b / f) * f);
    } else if (tb * hb * wb < (double)p->min_pixels) {
        double b = sqrt((double)p->min_pixels / ((double)n * h * w));
        hb = ceil(h * b / f) * f, wb = ceil(w * b / f) * f;
    }
    *height = (int64_t)hb, *width = (int64_t)wb;
    return OK;
}
