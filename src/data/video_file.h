/* data/video_file.h -- video files (MP4, WebM, Matroska, AVI, MPEG, Ogg, FLV, ASF, …) through FFmpeg's
 * libraries, which are loaded when the first video is met. A program that was built without their headers, or
 * a machine without the libraries, refuses video files by name.
 *
 * Nothing in a file is trusted. A file opens no other file and no connection. Pixels of a frame, frames of a
 * file, bytes that are read, packets that are parsed, streams, entries of their indices and edits are
 * bounded, so time and memory are. One open file holds the decoder's frames (for H.264 at most 17) and one
 * converted frame. */
#ifndef DATA_VIDEO_FILE_H
#define DATA_VIDEO_FILE_H

#include "data/image.h"

/* Where the file is: its path, or its bytes. `what` names it in messages. */
typedef struct VideoSource { const char *path; const void *bytes; size_t len; const char *what; } VideoSource;

/* Frames in the file; their size upright, as the rotation of the file says; frames per second: their number
 * over the time that they are shown, as in the reference. */
typedef struct VideoInfo { int64_t frames, h, w; double fps; } VideoInfo;

#define VIDEO_MAX_BYTES   ((uint64_t)1 << 36)
#define VIDEO_MAX_PIXELS  ((int64_t)1 << 26)       /* of a frame */
#define VIDEO_MAX_FRAMES  ((int64_t)1 << 20)       /* of a file */
#define VIDEO_MAX_DECODED ((int64_t)1 << 38)       /* pixels of all frames of a file */

typedef struct VideoFile VideoFile;

bool        video_file_readable(void);             /* the libraries are built in and here */
bool        video_file_has_suffix(const char *name, size_t len);
MUST Status video_file_info(VideoInfo *out, const VideoSource *from);
MUST Status video_file_open(VideoFile **out, const VideoSource *from);
/* The frame with this index, counted from 0 in the order of showing; indices do not fall from call to
 * call. */
MUST Status video_file_frame(VideoFile *f, int64_t index, Image *out);
int64_t     video_file_at(const VideoFile *f);     /* the lowest index that can still be asked for */
void        video_file_close(VideoFile *f);        /* NULL is fine */

#endif
