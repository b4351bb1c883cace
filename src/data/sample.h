/* data/sample.h -- one sample as the model gets it: ids, targets, and slices whose pixels are decoded
 * later.
 *
 * Loading a sample reads and parses its record, reads the sizes of its pictures from their headers and
 * renders the text: everything but pixels. It is a pure function of the recipe and the id. Errors name
 * file, line and picture. */
#ifndef DATA_SAMPLE_H
#define DATA_SAMPLE_H

#include "base/config.h"
#include "data/dataset.h"
#include "data/video.h"

typedef struct SampleConf {
    const Dataset *data;
    Chat           chat;
    StreamShape    stream;
    PatchShape     picture, frame;       /* frame: of videos, bounds for all frames together */
    VideoRule      video;
    Budget         budget;
    int64_t        max_length;           /* data.max_length, or the token budget where that is less */
    Truncation     truncation;
    const char    *media_dir;            /* "": beside the dataset file */
    const char    *columns;              /* data.columns; see record_form.h */
} SampleConf;

/* E_CONFIG where tokenizer and model disagree. The caller sets the dataset once it is open. Without a
 * tokenizer (NULL) samples have pictures and no tokens, which is enough to check files. */
MUST Status sample_conf(SampleConf *c, const Config *recipe, const Tokenizer *t, const PatchShape *patch,
                        const StreamShape *stream, const Budget *b);
/* The settings that rendered samples depend on, as an object that the caller releases. Packed files must
 * agree with them. */
MUST Status sample_settings(const SampleConf *c, Json **out);

/* One thread's buffers. */
typedef struct SampleScratch {
    TokenScratch *token;
    Image         decoded[2], resized[2];
    char         *bytes;
    size_t        cap;
    Text          png;                   /* of a frame of a video */
    VideoFile    *video;                 /* the video file whose frames were asked for last, or NULL */
    int64_t       video_sample;          /* of that sample; its bytes, or NULL; its path */
    const void   *video_bytes;
    char          video_name[4096];
    int64_t       loads;                 /* samples loaded with this scratch */
} SampleScratch;

MUST Status sample_scratch_open(SampleScratch *t, const Tokenizer *tokenizer);
void        sample_scratch_close(SampleScratch *t);                  /* twice is fine */

typedef struct Sample {
    int64_t      id;
    bool         drop;                   /* too long, and data.truncation is delete */
    bool         over;                   /* the sample was refused for its length or its patches */
    DocSize      size;
    Ids          ids, targets;
    RecordSlice *slice;                  /* a, b: rows of frame; b is -1 for a picture */
    int64_t      slices, slice_cap;
    int          medias;                 /* pictures and videos that are left after truncation */
    Frame       *frame;
    int          frames;
    Record       record;                 /* frames point into record, json and chat */
    Json        *json;
    Conversation chat;
} Sample;

MUST Status sample_load(Sample *s, SampleScratch *t, const SampleConf *c, int64_t id);
void        sample_close(Sample *s);                                 /* twice is fine */
size_t      sample_host_bytes(const Sample *s);  /* of a loaded sample, estimated from above */

/* h * w rows of patch_dim floats of one slice. */
MUST Status sample_pixels(void *out, bool bytes, const Sample *s, SampleScratch *t, const SampleConf *c,
                          int64_t slice);
/* A frame of a slice, decoded and resized, in t->resized[k]. */
MUST Status sample_frame(const Sample *s, SampleScratch *t, const SampleConf *c, int64_t slice, int frame,
                         int k);
/* The pixels of a frame as they are in its file. Frames of one video file are asked for in order. */
MUST Status sample_picture(Image *out, const Sample *s, SampleScratch *t, const SampleConf *c, int frame);
void        sample_close_video(SampleScratch *t);                    /* after its last frame; twice is fine */
/* The bytes of a frame's file; of a frame of a video file, a PNG file of its size in the model. They belong
 * to the record, or are valid until the next call with t. */
MUST Status sample_bytes(const void **bytes, size_t *len, const Sample *s, SampleScratch *t,
                         const SampleConf *c, int frame);
const char *sample_frame_name(const Sample *s, int frame);           /* its path as written, for messages */

/* Whether an error is one of the sample, so that a run may go on without it. */
static inline bool sample_is_bad(Status st) { return st == E_DATA || st == E_IO; }

#endif
