/* data/video_libav.c -- video files by FFmpeg's libraries; see video_file.h. Frames are decoded in order by
 * one thread: the workers of the loader decode different videos at the same time. */
#include "data/video_file.h"

#include "data/libav.h"

#ifdef TREB_LIBAV

#include "data/image_private.h"
#include "data/media.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    BUFFER      = 1 << 16, /* of reading */
    MAX_PACKETS = 1 << 23, /* of all streams of a file */
    MAX_STREAMS = 64,      /* of a file; each has an index of up to MAX_BUFFER bytes (libav.c) */
    MAX_INDEX   = 1 << 23, /* entries of the indices of all streams */
    MAX_EDITS   = 1 << 10, /* of a track of an MP4 file */
    BOX_NAMED   = 8,       /* bytes of a box of an MP4 file up to the end of its name */
    BOX_HEAD    = 16,      /* and up to the end of the number of its entries */
    REREADS     = 4,       /* a file may be read so many times by seeking in it */
    HEAD_FRAMES = 64,      /* one of which is shown first */
    LATE_FRAMES = 8        /* frames that a file may lack at its end; the last one is repeated */
};

/* Containers and codecs that are read; what else the libraries know stays out of reach of a file. */
static const char formats[] = "mov,mp4,matroska,webm,avi,mpegts,mpeg,flv,ogg,asf,gif";
static const char codecs[] =
    "h264,hevc,vp8,vp9,libvpx,libvpx-vp9,av1,libdav1d,libaom-av1,mpeg4,mpeg1video,mpeg2video,mjpeg,h263,flv,"
    "theora,vc1,wmv1,wmv2,wmv3,msmpeg4,msmpeg4v1,msmpeg4v2,prores,dnxhd,ffv1,huffyuv,ffvhuff,rawvideo,"
    "cinepak,"
    "svq3,png,gif";

struct VideoFile {
    const Libav        *av;
    const char         *what;
    int                 fd;              /* -1: bytes */
    const uint8_t      *bytes;
    int64_t             size, at, read;  /* of the file; the reader's place; bytes read so far */
    AVIOContext        *io;
    AVFormatContext    *format;
    AVStream           *stream;
    AVCodecContext     *codec;
    AVPacket           *packet;
    AVFrame            *frame;
    struct SwsContext  *scaler;
    uint8_t            *rows;            /* converted pixels, with padding behind each row */
    size_t              rows_cap;
    int64_t             packets, next;   /* parsed; index of the frame that is decoded next */
    int                 turn;            /* EXIF's orientation that the file's rotation amounts to */
    const char         *refused;         /* why the box that goes on at refused_at is not read */
    int64_t             refused_at;
    int64_t             samples_at;      /* where the last box goes on that adds samples; 0: none */
    const char         *excess;          /* why reading has ended early, or NULL */
    bool                opened;          /* the head of the file has been read */
    bool                flushed, held;   /* the decoder knows of the end; frame holds the last one */
};

/* ---- reading ---- */

static bool indices_fit(const VideoFile *f)
{
    int64_t entries = 0;
    for (unsigned i = 0; i < f->format->nb_streams; i++)
        entries += f->av->avformat_index_get_entries_count(f->format->streams[i]);
    return entries <= MAX_INDEX;
}

static bool tracks_have_ids(const VideoFile *f)
{
    for (unsigned i = 0; i < f->format->nb_streams; i++)
        if (f->format->streams[i]->id < 0) return false;
    return true;
}

static uint32_t word_at(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static bool is_mp4(const VideoFile *f)
{
    return f->format->iformat && strstr(f->format->iformat->name, "mp4");
}

/* `at` is the head of a box: its size, name, version, flags, and number of entries. */
static bool is_box(const uint8_t *at, const char *name) { return !memcmp(at + 4, name, 4); }

/* Why a file with this box is not read, or NULL. A size of 1 says that one of 64 bits follows. */
static const char *refuse_box(const uint8_t *at)
{
    if (is_box(at, "cmov")) return "its head is compressed";
    if (!is_box(at, "elst") || (word_at(at) != 1 && word_at(at + 12) <= MAX_EDITS)) return NULL;
    return "a track has too many edits";
}

/* A few bytes of an MP4 file can claim millions of samples, which take memory in an index, and time for each
 * edit of the track. So a read ends behind the name of a box that adds samples: indices_fit counts them
 * before the next such box. And it ends behind the name of a box that is refused: the file is, if reading
 * goes on there, which it does not where the bytes are those of a frame. */
static int length_to_box(VideoFile *f, const uint8_t *bytes, int n, bool last)
{
    if (!is_mp4(f)) return n;
    for (int i = 0; i + BOX_HEAD <= n; i++) {
        const uint8_t *at = bytes + i;
        const int64_t  goes_on = f->at + i + BOX_NAMED;
        const char    *why = f->opened ? NULL : refuse_box(at);
        if (why) f->refused = why, f->refused_at = goes_on;
        if (is_box(at, "trun")) f->samples_at = goes_on;
        if (why || is_box(at, "trak") || is_box(at, "trun")) return i + BOX_NAMED;
    }
    return last || n < BOX_HEAD ? n : n - BOX_HEAD + 1;
}

/* Samples of a fragment take the libraries half a second for each box of them where a track has no id. */
static bool is_excessive(VideoFile *f)
{
    if (!indices_fit(f)) f->excess = "the indices of its streams have too many entries";
    if (!f->opened && f->refused && f->refused_at == f->at) f->excess = f->refused;
    if (f->samples_at && f->samples_at == f->at && !tracks_have_ids(f)) f->excess = "a track has no id";
    return f->excess;
}

static int read_bytes(void *self, uint8_t *out, int n)
{
    VideoFile *f = self;
    int64_t    left = f->size - f->at, most = REREADS * f->size + REREADS * BUFFER;
    if (left <= 0 || f->read > most || is_excessive(f)) return AVERROR_EOF;
    if (n > left) n = (int)left;
    ssize_t got = n;
    if (f->fd < 0) memcpy(out, f->bytes + f->at, (size_t)n);
    else while ((got = pread(f->fd, out, (size_t)n, f->at)) < 0 && errno == EINTR) {}
    if (got <= 0) return got ? AVERROR(EIO) : AVERROR_EOF;
    got = length_to_box(f, out, (int)got, got == left);
    f->at += got, f->read += got;
    return (int)got;
}

static int64_t seek_bytes(void *self, int64_t offset, int whence)
{
    VideoFile *f = self;
    if (whence & AVSEEK_SIZE) return f->size;
    whence &= ~AVSEEK_FORCE;
    int64_t from = whence == SEEK_CUR ? f->at : whence == SEEK_END ? f->size : 0;
    if (offset < -from || offset > f->size - from) return AVERROR(EINVAL);
    return f->at = from + offset;
}

/* Playlists and references to other files are not followed. */
static int refuse_open(AVFormatContext *s, AVIOContext **io, const char *url, int flags,
                       AVDictionary **options)
{
    return AVERROR(EPERM);
}

static Status open_bytes(VideoFile *f, const VideoSource *from)
{
    size_t len = from->len;
    f->fd = -1, f->bytes = from->bytes;
    if (!from->bytes) TRY(media_open(&f->fd, &len, from->path, VIDEO_MAX_BYTES));
    f->size = (int64_t)len;
    return OK;
}

/* ---- opening ---- */

static Status unreadable(const VideoFile *f, const char *why)
{
    return fail(E_DATA, "%s: not a video that is read here: %s", f->what, why);
}

static Status open_io(VideoFile *f)
{
    uint8_t *buffer = f->av->av_malloc(BUFFER);
    f->at = f->read = 0;
    f->io = buffer ? f->av->avio_alloc_context(buffer, BUFFER, 0, f, read_bytes, NULL, seek_bytes) : NULL;
    if (f->io) return OK;
    f->av->av_freep(&buffer);
    return fail(E_FIT, "%s: no memory to open it", f->what);
}

static void close_io(VideoFile *f)
{
    if (f->io) f->av->av_freep(&f->io->buffer);
    f->av->avio_context_free(&f->io);
}

/* What is read to find the format is read again by the reader of the format, so that it meets the end of each
 * read. */
static Status find_format(VideoFile *f, const AVInputFormat **out)
{
    TRY(open_io(f));
    int rc = f->av->av_probe_input_buffer2(f->io, out, NULL, NULL, 0, 0);
    close_io(f);
    return rc < 0 ? unreadable(f, "no known container") : open_io(f);
}

static Status open_format(VideoFile *f)
{
    const Libav         *av = f->av;
    AVDictionary        *options = NULL;
    const AVInputFormat *kind = NULL;
    f->format = av->avformat_alloc_context();
    if (!f->format) return fail(E_FIT, "%s: no memory to open it", f->what);
    TRY(find_format(f, &kind));
    f->format->pb = f->io, f->format->io_open = refuse_open, f->format->max_streams = MAX_STREAMS;
    av->av_dict_set(&options, "format_whitelist", formats, 0);
    av->av_dict_set(&options, "codec_whitelist", codecs, 0);
    int rc = av->avformat_open_input(&f->format, NULL, kind, &options);      /* frees format on failure */
    av->av_dict_free(&options);
    if (rc < 0) return unreadable(f, f->excess ? f->excess : "no known container, or a damaged one");
    f->opened = true;
    if (av->avformat_find_stream_info(f->format, NULL) < 0) return unreadable(f, "its streams are damaged");
    if (is_excessive(f)) return unreadable(f, f->excess);
    int best = av->av_find_best_stream(f->format, AVMEDIA_TYPE_VIDEO, -1, -1, NULL, 0);
    if (best < 0) return unreadable(f, "it has no stream of pictures");
    f->stream = f->format->streams[best];
    for (unsigned i = 0; i < f->format->nb_streams; i++)
        if ((int)i != best) f->format->streams[i]->discard = AVDISCARD_ALL;
    return OK;
}

/* Rotations by quarter turns. */
static int find_turn(const VideoFile *f)
{
    const int32_t *matrix = NULL;
    size_t         n = 0;
#if LIBAVCODEC_VERSION_INT >= AV_VERSION_INT(60, 30, 100)
    const AVCodecParameters *p = f->stream->codecpar;
    const AVPacketSideData  *d =
        f->av->av_packet_side_data_get(p->coded_side_data, p->nb_coded_side_data, AV_PKT_DATA_DISPLAYMATRIX);
    if (d) matrix = (const int32_t *)d->data, n = d->size;
#else
    matrix = (const int32_t *)f->av->av_stream_get_side_data(f->stream, AV_PKT_DATA_DISPLAYMATRIX, &n);
#endif
    if (!matrix || n < 9 * sizeof *matrix) return ORIENT_UPRIGHT;
    double clockwise = -f->av->av_display_rotation_get(matrix);
    if (!(clockwise > -400 && clockwise < 400)) return ORIENT_UPRIGHT;
    int quarter = ((int)(clockwise / 90 + (clockwise < 0 ? -0.5 : 0.5)) % 4 + 4) % 4;
    static const int turns[4] = { 1, 6, 3, 8 };
    return turns[quarter];
}

static Status check_size(const VideoFile *f)
{
    const AVCodecParameters *p = f->stream->codecpar;
    if (p->width < 1 || p->height < 1) return unreadable(f, "its frames have no size");
    if (p->width <= VIDEO_MAX_PIXELS / p->height) return OK;
    return fail(E_DATA, "%s: frames of %d x %d pixels; the limit is %lld", f->what, p->width, p->height,
                (long long)VIDEO_MAX_PIXELS);
}

static Status open_input(VideoFile **out, const VideoSource *from)
{
    const Libav *av;
    TRY(libav_load(&av));
    VideoFile *f = *out = calloc(1, sizeof *f);
    if (!f) return fail(E_FIT, "%s: no memory to open it", from->what);
    f->av = av, f->what = from->what, f->fd = -1;
    TRY(open_bytes(f, from));
    TRY(open_format(f));
    f->turn   = find_turn(f);
    f->packet = av->av_packet_alloc();
    if (!f->packet) return fail(E_FIT, "%s: no memory for a packet", f->what);
    return check_size(f);
}

void video_file_close(VideoFile *f)
{
    if (!f) return;
    const Libav *av = f->av;
    av->sws_freeContext(f->scaler);
    av->av_frame_free(&f->frame);
    av->av_packet_free(&f->packet);
    av->avcodec_free_context(&f->codec);
    if (f->format) av->avformat_close_input(&f->format);
    close_io(f);
    if (f->fd >= 0) close(f->fd);
    free(f->rows);
    free(f);
}

bool video_file_readable(void)
{
    const Libav *av;
    return !libav_load(&av);
}

/* ---- what the file says of itself ---- */

/* The next packet of the stream; false at the end of the file, or of what is read of it. */
static bool next_packet(VideoFile *f)
{
    for (; f->packets++ < MAX_PACKETS; f->av->av_packet_unref(f->packet)) {
        if (f->av->av_read_frame(f->format, f->packet) < 0) return false;
        if (f->packet->stream_index == f->stream->index) return true;
    }
    return false;
}

static double seconds_of(const VideoFile *f, int64_t time)
{
    return (double)time * f->stream->time_base.num / f->stream->time_base.den;
}

/* Frames that are shown, and the time from the first one to the end of the last. */
typedef struct Span { int64_t frames, begin, end; } Span;

static void span_add(Span *s, const AVPacket *p)
{
    int64_t time = p->pts == AV_NOPTS_VALUE ? p->dts : p->pts, last;
    if (p->flags & AV_PKT_FLAG_DISCARD) return;
    s->frames++;
    if (time == AV_NOPTS_VALUE || __builtin_add_overflow(time, p->duration, &last)) return;
    if (time < s->begin) s->begin = time;
    if (last > s->end) s->end = last;
}

/* Adds packets until `most` shown frames were met, or the file ends. */
static void span_parse(VideoFile *f, Span *s, int64_t most)
{
    int64_t stop = most < INT64_MAX - s->frames ? s->frames + most : INT64_MAX;
    for (; s->frames < stop && next_packet(f); f->av->av_packet_unref(f->packet)) span_add(s, f->packet);
}

/* Entries of the index in the head of an MP4 or MOV file that its edit list shows; 0: the index is not
 * whole. */
static int64_t count_indexed(const VideoFile *f)
{
    int64_t n = f->av->avformat_index_get_entries_count(f->stream), shown = 0;
    if (!is_mp4(f) || f->stream->nb_frames <= 0 || n < f->stream->nb_frames) return 0;
    for (int64_t i = 0; i < n; i++)
        shown += !(f->av->avformat_index_get_entry(f->stream, (int)i)->flags & AVINDEX_DISCARD_FRAME);
    return shown;
}

/* Of a file with an index only the first frames and those from the last key frame on are parsed. */
static void measure_span(VideoFile *f, Span *s)
{
    int64_t indexed = count_indexed(f);
    *s = (Span){ .begin = INT64_MAX, .end = INT64_MIN };
    span_parse(f, s, indexed ? HEAD_FRAMES : INT64_MAX);
    if (!indexed) return;
    int n = f->av->avformat_index_get_entries_count(f->stream);
    int64_t last = f->av->avformat_index_get_entry(f->stream, n - 1)->timestamp;
    if (f->av->av_seek_frame(f->format, f->stream->index, last, AVSEEK_FLAG_BACKWARD) >= 0)
        span_parse(f, s, INT64_MAX);
    s->frames = indexed;
}

/* AVI files say in their heads how many frames they have and how long they are shown; others are parsed. */
static void count_frames(VideoFile *f, VideoInfo *out)
{
    Span   s = { 0 };
    double head = f->stream->duration > 0 ? seconds_of(f, f->stream->duration) : 0, shown;
    out->frames = f->stream->nb_frames;
    if (out->frames > 0 && head > 0 && !strcmp(f->format->iformat->name, "avi")) {
        out->fps = (double)out->frames / head;
        return;
    }
    measure_span(f, &s);
    shown = s.begin < s.end ? seconds_of(f, s.end) - seconds_of(f, s.begin) : 0;
    out->frames = s.frames, out->fps = shown > 0 ? (double)s.frames / shown : 0;
}

static Status read_info(VideoFile *f, VideoInfo *out)
{
    const AVCodecParameters *p = f->stream->codecpar;
    const AVRational        *rate = &f->stream->avg_frame_rate;
    bool turned = orient_swaps(f->turn);
    *out = (VideoInfo){ .h = turned ? p->width : p->height, .w = turned ? p->height : p->width };
    count_frames(f, out);
    if (!(out->fps > 0) && rate->num > 0 && rate->den > 0) out->fps = (double)rate->num / rate->den;
    if (out->frames < 1) return unreadable(f, "it has no frames");
    if (!(out->fps >= 1e-3 && out->fps <= 1e4)) return unreadable(f, "its frames per second are unknown");
    if (out->frames > VIDEO_MAX_FRAMES || out->frames > VIDEO_MAX_DECODED / (out->h * out->w))
        return fail(E_DATA, "%s: %lld frames of %lld x %lld pixels are more than one video may have; cut it",
                    f->what, (long long)out->frames, (long long)out->w, (long long)out->h);
    return OK;
}

Status video_file_info(VideoInfo *out, const VideoSource *from)
{
    VideoFile *f = NULL;
    Status     st = open_input(&f, from);
    if (!st) st = read_info(f, out);
    video_file_close(f);
    return st;
}

/* ---- frames ---- */

static Status open_codec(VideoFile *f)
{
    const Libav   *av = f->av;
    AVDictionary  *options = NULL;
    const AVCodec *decoder = av->avcodec_find_decoder(f->stream->codecpar->codec_id);
    if (!decoder)
        return fail(E_DATA, "%s: no decoder for %s is installed", f->what,
                    av->avcodec_get_name(f->stream->codecpar->codec_id));
    f->codec = av->avcodec_alloc_context3(decoder);
    f->frame = av->av_frame_alloc();
    if (!f->codec || !f->frame) return fail(E_FIT, "%s: no memory to decode it", f->what);
    f->codec->thread_count = 1, f->codec->max_pixels = VIDEO_MAX_PIXELS;
    f->codec->pkt_timebase = f->stream->time_base;
    av->av_dict_set(&options, "codec_whitelist", codecs, 0);
    int rc = av->avcodec_parameters_to_context(f->codec, f->stream->codecpar);
    if (rc >= 0) rc = av->avcodec_open2(f->codec, decoder, &options);
    av->av_dict_free(&options);
    if (rc >= 0) return OK;
    return fail(E_DATA, "%s: its codec %s is not read, or its settings are damaged", f->what,
                av->avcodec_get_name(f->stream->codecpar->codec_id));
}

Status video_file_open(VideoFile **out, const VideoSource *from)
{
    *out = NULL;
    Status st = open_input(out, from);
    if (!st) st = open_codec(*out);
    if (st) video_file_close(*out), *out = NULL;
    return st;
}

/* Packets that the decoder refuses are left out, as in the reference. */
static void feed(VideoFile *f)
{
    bool more = next_packet(f);
    if (f->av->avcodec_send_packet(f->codec, more ? f->packet : NULL) < 0) {}
    f->flushed = !more;
    if (more) f->av->av_packet_unref(f->packet);
}

/* The next frame of the file in `frame`; false at its end, where the frame before stays. */
static bool decode_next(VideoFile *f)
{
    for (AVFrame *frame = f->av->av_frame_alloc(); frame;) {
        int rc = f->av->avcodec_receive_frame(f->codec, frame);
        if (rc >= 0) {
            f->av->av_frame_free(&f->frame);
            return f->frame = frame, f->next++, f->held = true;
        }
        if (f->flushed || rc != AVERROR(EAGAIN)) {
            f->av->av_frame_free(&frame);
            return false;
        }
        feed(f);
    }
    return false;
}

/* A space that the file does not name is that of the libraries' default, ITU-R BT.601. */
static void set_colours(VideoFile *f)
{
    const AVFrame *v = f->frame;
    int            space = v->colorspace == AVCOL_SPC_UNSPECIFIED ? SWS_CS_DEFAULT : (int)v->colorspace;
    const int     *table = f->av->sws_getCoefficients(space);
    bool           full = v->color_range == AVCOL_RANGE_JPEG;
    f->av->sws_setColorspaceDetails(f->scaler, table, full, f->av->sws_getCoefficients(SWS_CS_DEFAULT), 1, 0,
                                    1 << 16, 1 << 16);
}

/* The scaler leaves the last pixels of rows out that do not go on for whole vectors behind them. */
static Status scale_rows(VideoFile *f, Image *out)
{
    const AVFrame *v = f->frame;
    size_t         row = ((size_t)v->width + 63) / 64 * 64 * 3, need = row * (size_t)v->height + 64;
    if (f->rows_cap < need) {
        free(f->rows);
        f->rows = aligned_alloc(64, (need + 63) / 64 * 64), f->rows_cap = f->rows ? need : 0;
        if (!f->rows) return fail(E_FIT, "%s: no memory for %zu bytes of pixels", f->what, need);
    }
    uint8_t *to[4] = { f->rows };
    int      stride[4] = { (int)row };
    if (f->av->sws_scale(f->scaler, (const uint8_t *const *)v->data, v->linesize, 0, v->height, to, stride) !=
        v->height)
        return fail(E_DATA, "%s: a frame cannot be converted to RGB", f->what);
    for (int y = 0; y < v->height; y++)
        memcpy(out->rgb + (size_t)y * (size_t)v->width * 3, f->rows + (size_t)y * row, (size_t)v->width * 3);
    return OK;
}

static Status convert(VideoFile *f, Image *out)
{
    const AVFrame *v = f->frame;
    if (v->width < 1 || v->height < 1 || v->width > VIDEO_MAX_PIXELS / v->height)
        return fail(E_DATA, "%s: a frame of %d x %d pixels", f->what, v->width, v->height);
    TRY(image_reserve(out, v->height, v->width, f->what));
    f->scaler = f->av->sws_getCachedContext(f->scaler, v->width, v->height, v->format, v->width, v->height,
                                            AV_PIX_FMT_RGB24, SWS_BICUBIC, NULL, NULL, NULL);
    if (!f->scaler)
        return fail(E_DATA, "%s: the pixels of its frames are in a form that is not read", f->what);
    set_colours(f);
    TRY(scale_rows(f, out));
    return orient_apply(out, f->turn, f->what);
}

int64_t video_file_at(const VideoFile *f) { return f->held ? f->next - 1 : 0; }

Status video_file_frame(VideoFile *f, int64_t index, Image *out)
{
    while (f->next <= index && decode_next(f)) {}
    if (f->next + LATE_FRAMES <= index || !f->held)
        return fail(E_DATA, "%s: frame %lld cannot be decoded; the file ends after %lld", f->what,
                    (long long)index, (long long)f->next);
    return convert(f, out);
}

#endif
