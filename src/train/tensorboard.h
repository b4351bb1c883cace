/* train/tensorboard.h -- event files that TensorBoard reads: scalars by tag and step.
 *
 *   TensorBoard tb;
 *   TRY(tensorboard_open(&tb, "runs/ocr"));     makes runs/ocr/events.out.tfevents.<time>.<host>.<pid>.<n>
 *   tensorboard_scalar(&tb, 120, "train/loss", 2.0143);
 *   TRY(tensorboard_flush(&tb));                 the first error since tensorboard_open, if any
 *   tensorboard_close(&tb);
 *
 * Every tensorboard_open makes a file of its own, so a resumed run adds one to the folder. Its first event
 * says at which step it starts, and TensorBoard then drops what the earlier file had from that step on: a
 * run that was killed and resumed shows one curve. On a zeroed TensorBoard every call is a no-op, for
 * ranks that write none. */
#ifndef TRAIN_TENSORBOARD_H
#define TRAIN_TENSORBOARD_H

#include "base/status.h"
#include "data/ids.h"
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct TensorBoard {
    FILE  *file;
    char   path[PATH_MAX];
    bool   started;                   /* the event that names the first step is written */
    Status status;                    /* the first error, for tensorboard_flush; `error` is its errno */
    int    error;
    Text   event, value;              /* buffers, reused for each event */
} TensorBoard;

MUST Status tensorboard_open(TensorBoard *t, const char *dir);           /* the folder must exist */
void        tensorboard_scalar(TensorBoard *t, int64_t step, const char *tag, double value);
MUST Status tensorboard_flush(TensorBoard *t);
void        tensorboard_close(TensorBoard *t);                           /* twice is fine */

/* CRC-32C (Castagnoli), and its masked form (rotated and offset) that TFRecord stores. */
uint32_t crc32c(const void *bytes, size_t n);
uint32_t crc32c_masked(const void *bytes, size_t n);

#endif
