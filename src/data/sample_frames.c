/* data/sample_frames.c -- see sample_frames.h and sample.h. */
#include "data/sample_frames.h"

#include "data/image_encode.h"
#include "data/media.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* A path names a member by its full name, by its base name, or by its suffix alone. */
static bool names_member(const char *path, size_t len, const RecordFile *f)
{
    const char *own = f->name, *dot;
    size_t      n   = f->name_len;
    if (n == len && !memcmp(own, path, n)) return true;
    for (const char *slash; (slash = memchr(own, '/', n)); n = f->name_len - (size_t)(own - f->name))
        own = slash + 1;
    if (n == len && !memcmp(own, path, n)) return true;
    dot = memchr(own, '.', n);
    return dot && n - (size_t)(dot + 1 - own) == len && !memcmp(dot + 1, path, len);
}

void sample_find_members(Sample *s)
{
    for (int i = 0; i < s->chat.frames; i++) {
        Frame *f = &s->chat.frame[i];
        for (int k = 0; !f->bytes && f->path && k < s->record.files; k++)
            if (names_member(f->path, strlen(f->path), &s->record.file[k]))
                f->bytes = s->record.file[k].bytes, f->len = s->record.file[k].len;
    }
}

const char *sample_frame_name(const Sample *s, int frame)
{
    return s->frame[frame].path ? s->frame[frame].path : "picture inside the sample";
}

static Status frame_path(char *out, size_t cap, const Sample *s, const SampleConf *c, int frame)
{
    return media_path(out, cap, s->frame[frame].path, c->media_dir, dataset_file(c->data, s->id)->file.path);
}

/* A picture that is not there: pictures are often kept apart from their JSONL. */
static Status missing_hint(Status st, const SampleConf *c, const Frame *f)
{
    if (st != E_IO || *c->media_dir || *f->path == '/' || !strstr(status_text(), strerror(ENOENT))) return st;
    return fail(st, "%s; data.media_dir names the folder that relative paths of pictures start from",
                status_text());
}

Status sample_frame_size(int64_t *h, int64_t *w, const Sample *s, const SampleConf *c, int frame)
{
    const Frame *f = &s->frame[frame];
    const char  *name = sample_frame_name(s, frame);
    char         path[4096];
    MediaMap     map;
    if (f->bytes) return image_size(h, w, f->bytes, f->len, NULL, name);
    TRY(frame_path(path, sizeof path, s, c, frame));
    Status st = media_map(&map, path);
    if (st) return missing_hint(st, c, f);
    st = image_size(h, w, map.bytes, map.len, NULL, path);
    media_unmap(&map);
    return st;
}

/* ---- video files ---- */

static Status video_source(VideoSource *out, char *path, size_t cap, const Sample *s, const SampleConf *c,
                           int frame)
{
    const Frame *f = &s->frame[frame];
    *out =
        (VideoSource){ .bytes = f->bytes, .len = f->len, .what = f->path ? f->path : "video in the sample" };
    if (f->bytes) return OK;
    TRY(frame_path(path, cap, s, c, frame));
    out->path = out->what = path;
    return OK;
}

static Status open_video(Sample *s, const SampleConf *c, int media)
{
    int         first = s->chat.media[media].first;
    VideoSource from;
    VideoInfo   info = { 0 };
    char        path[4096];
    TRY(video_source(&from, path, sizeof path, s, c, first));
    Status st = video_file_info(&info, &from);
    if (st) return from.bytes ? st : missing_hint(st, c, &s->frame[first]);
    TRY_CTX(video_choose_file(&s->chat, media, &info, &c->video), "%s", from.what);
    return OK;
}

Status sample_open_videos(Sample *s, const SampleConf *c)
{
    for (int i = 0; i < s->chat.medias; i++) {
        s->frame = s->chat.frame;
        if (s->chat.media[i].file) TRY(open_video(s, c, i));
    }
    return OK;
}

void sample_close_video(SampleScratch *t)
{
    video_file_close(t->video);
    t->video = NULL;
}

/* Frames of one file are asked for in order, so that its decoder goes on where it is. */
static Status video_frame_decode(Image *out, const Sample *s, SampleScratch *t, const SampleConf *c,
                                 int frame)
{
    const Frame *f = &s->frame[frame];
    VideoSource  from;
    char         path[4096];
    TRY(video_source(&from, path, sizeof path, s, c, frame));
    bool same = t->video && t->video_sample == s->id && t->video_bytes == f->bytes &&
                !strcmp(t->video_name, from.what);
    if (!same || f->nth - 1 < video_file_at(t->video)) {
        sample_close_video(t);
        snprintf(t->video_name, sizeof t->video_name, "%s", from.what);
        from.what = t->video_name, t->video_sample = s->id, t->video_bytes = f->bytes;
        TRY(video_file_open(&t->video, &from));
    }
    return video_file_frame(t->video, f->nth - 1, out);
}

/* ---- pixels ---- */

static Status file_bytes(const void **bytes, size_t *len, const Sample *s, SampleScratch *t,
                         const SampleConf *c, int frame)
{
    const Frame *f = &s->frame[frame];
    char         path[4096];
    *bytes = f->bytes, *len = f->len;
    if (f->bytes) return OK;
    TRY(frame_path(path, sizeof path, s, c, frame));
    TRY(media_read(path, &t->bytes, &t->cap, len));
    *bytes = t->bytes;
    return OK;
}

Status sample_picture(Image *out, const Sample *s, SampleScratch *t, const SampleConf *c, int frame)
{
    const void *bytes;
    size_t      len;
    if (s->frame[frame].nth) return video_frame_decode(out, s, t, c, frame);
    TRY(file_bytes(&bytes, &len, s, t, c, frame));
    return image_decode(out, bytes, len, NULL, sample_frame_name(s, frame));
}

Status sample_frame(const Sample *s, SampleScratch *t, const SampleConf *c, int64_t slice, int frame, int k)
{
    const RecordSlice *v = &s->slice[slice];
    TRY(sample_picture(&t->decoded[k], s, t, c, frame));
    TRY_CTX(image_resize(&t->resized[k], &t->decoded[k], v->h * c->picture.patch, v->w * c->picture.patch),
            "%s", sample_frame_name(s, frame));
    return OK;
}

/* A frame of a video file as a picture file of the size that the model gets: resizing it again changes
 * nothing. */
static Status frame_png(const void **bytes, size_t *len, const Sample *s, SampleScratch *t,
                        const SampleConf *c, int frame)
{
    int64_t i = 0;
    while (i < s->slices && s->slice[i].a != frame && s->slice[i].b != frame) i++;
    REQUIRE(i < s->slices, "frame %d is in no slice", frame);
    TRY(sample_frame(s, t, c, i, frame, 0));
    t->png.n = 0;
    TRY(image_encode_png(&t->png, t->resized[0].rgb, t->resized[0].h, t->resized[0].w));
    *bytes = t->png.v, *len = t->png.n;
    return OK;
}

Status sample_bytes(const void **bytes, size_t *len, const Sample *s, SampleScratch *t, const SampleConf *c,
                    int frame)
{
    return (s->frame[frame].nth ? frame_png : file_bytes)(bytes, len, s, t, c, frame);
}

Status sample_pixels(void *out, bool bytes, const Sample *s, SampleScratch *t, const SampleConf *c,
                     int64_t slice)
{
    const RecordSlice *v = &s->slice[slice];
    bool               two = v->b >= 0 && v->b != v->a;
    TRY_CTX(sample_frame(s, t, c, slice, v->a, 0), "%s", s->record.where);
    if (two) TRY_CTX(sample_frame(s, t, c, slice, v->b, 1), "%s", s->record.where);
    image_patches(out, bytes, &t->resized[0], two ? &t->resized[1] : NULL, &c->picture);
    return OK;
}
