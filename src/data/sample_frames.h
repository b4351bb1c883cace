/* data/sample_frames.h -- the pictures and videos of a sample, for sample.c; see sample.h. */
#ifndef DATA_SAMPLE_FRAMES_H
#define DATA_SAMPLE_FRAMES_H

#include "data/sample.h"

/* Frames of s->chat that are members of the record's archive get their bytes. */
void        sample_find_members(Sample *s);
/* Replaces every video file of s->chat by the frames that are used of it. */
MUST Status sample_open_videos(Sample *s, const SampleConf *c);
/* Height and width from the header, without decoding. */
MUST Status sample_frame_size(int64_t *h, int64_t *w, const Sample *s, const SampleConf *c, int frame);

#endif
