/* profile/trace_file.h -- spans and host events of all ranks as one file in Chrome's trace format, which
 * Perfetto (ui.perfetto.dev) and chrome://tracing open: a process for each rank, in it a track for each
 * stream, one for what the host launches and waits for, and one for the ranges step, pass, micro-batch and
 * layer. */
#ifndef PROFILE_TRACE_FILE_H
#define PROFILE_TRACE_FILE_H

#include "profile/spans.h"

/* Times are written from `zero` on, which is the same moment on every rank. */
MUST Status trace_file_write_rank(const char *folder, int rank, const SpanList *s, const Recorder *r,
                                  double zero);
/* Joins the files of all ranks to folder/trace.json and removes them. */
MUST Status trace_file_join(const char *folder, int ranks);

#endif
