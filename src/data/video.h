/* data/video.h -- videos as frames: which frames are used, the time of each slice, and their size.
 *
 * A slice is `group` frames (the temporal patch of the model) encoded together; a last group that is short
 * repeats its last frame. */
#ifndef DATA_VIDEO_H
#define DATA_VIDEO_H

#include "data/chat.h"
#include "data/image.h"
#include "data/video_file.h"

/* video.* of the recipe, and PatchShape.frames. */
typedef struct VideoRule { double fps; int64_t min_frames, max_frames, group; } VideoRule;

/* Reduces every video of c that lists its frames to the frames that will be used, evenly spaced, and sets
 * media.seconds. A video whose line gives its fps is sampled down to rule.fps. Without fps it counts as
 * sampled at rule.fps already, and all its frames are used, up to max_frames. Rows of c->frame that are not
 * used belong to no medium afterwards. E_DATA for a video of fewer frames than one slice. */
MUST Status video_choose(Conversation *c, const VideoRule *rule);
/* The same for a video file, which has one row of c->frame until then; its frames are appended there. A rate
 * in its line is the rate to sample at. */
MUST Status video_choose_file(Conversation *c, int media, const VideoInfo *info, const VideoRule *rule);
static inline int64_t video_slices(const Media *m, int64_t group) { return (m->frames + group - 1) / group; }
/* Row of Conversation.frame that is the k-th frame of slice s. */
int         video_frame(const Media *m, int64_t s, int64_t k, int64_t group);

/* Height and width of each of n frames after smart resizing; the bounds of p apply to all frames together. */
MUST Status video_fit(int64_t *h, int64_t *w, int64_t n, const PatchShape *p);

/* Parts of the above: how many of total frames are used; the index of the i-th of n; the seconds of slice
 * s. */
int64_t     video_count(int64_t total, double fps, const VideoRule *rule);
int64_t     video_index(int64_t i, int64_t n, int64_t total);
double      video_seconds(int64_t s, int64_t n, int64_t total, double fps, int64_t group);

#endif
