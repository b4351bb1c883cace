/* data/libav.h -- the functions of FFmpeg's libraries that video_libav.c calls, found in the libraries of the
 * versions that the program was compiled for when the first video is met. They stay loaded. */
#ifndef DATA_LIBAV_H
#define DATA_LIBAV_H

#ifdef TREB_LIBAV

#include "base/status.h"

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/display.h>
#include <libavutil/opt.h>
#include <libswscale/swscale.h>

/* FN(library, function) */
#define LIBAV_FUNCTIONS(FN)                                                                                  \
    FN(avutil, av_malloc) FN(avutil, av_freep) FN(avutil, av_dict_set) FN(avutil, av_dict_free)              \
    FN(avutil, av_frame_alloc) FN(avutil, av_frame_free) FN(avutil, av_frame_unref)                          \
    FN(avutil, av_log_set_level) FN(avutil, av_max_alloc) FN(avutil, av_display_rotation_get)                \
    FN(avcodec, av_packet_alloc) FN(avcodec, av_packet_free) FN(avcodec, av_packet_unref)                    \
    FN(avcodec, avcodec_find_decoder) FN(avcodec, avcodec_alloc_context3) FN(avcodec, avcodec_free_context)  \
    FN(avcodec, avcodec_parameters_to_context) FN(avcodec, avcodec_open2) FN(avcodec, avcodec_send_packet)   \
    FN(avcodec, avcodec_receive_frame) FN(avcodec, avcodec_get_name)                                         \
    FN(avformat, avio_alloc_context) FN(avformat, avio_context_free) FN(avformat, avformat_alloc_context)    \
    FN(avformat, avformat_free_context) FN(avformat, avformat_open_input)                                    \
    FN(avformat, avformat_close_input) FN(avformat, avformat_find_stream_info)                               \
    FN(avformat, av_probe_input_buffer2) FN(avformat, av_find_best_stream) FN(avformat, av_read_frame)       \
    FN(avformat, av_seek_frame)                                                                              \
    FN(avformat, avformat_index_get_entries_count) FN(avformat, avformat_index_get_entry)                    \
    FN(swscale, sws_getCachedContext) FN(swscale, sws_freeContext) FN(swscale, sws_scale)                    \
    FN(swscale, sws_getCoefficients) FN(swscale, sws_setColorspaceDetails)                                   \
    LIBAV_SIDE_DATA(FN)

/* Where a stream keeps its rotation has changed. */
#if LIBAVCODEC_VERSION_INT >= AV_VERSION_INT(60, 30, 100)
#define LIBAV_SIDE_DATA(FN) FN(avcodec, av_packet_side_data_get)
#else
#define LIBAV_SIDE_DATA(FN) FN(avformat, av_stream_get_side_data)
#endif

typedef struct Libav {
#define FN(library, name) __typeof__(name) *name;
    LIBAV_FUNCTIONS(FN)
#undef FN
} Libav;

/* *out stays valid. E_DATA where a library is not on this machine, so that the sample counts as bad. */
MUST Status libav_load(const Libav **out);

#endif
#endif
