/* train/tensorboard.h -- event files that TensorBoard reads: scalars by tag and step.
 *
 *   TensorBoard tb;
 *   TRY(tb_open(&tb, "runs/ocr"));             makes runs/ocr/events.out.tfevents.<time>.<host>.<pid>.<n>
 *   tb_scalar(&tb, 120, "train/loss", 2.0143);
 *   TRY(tb_flush(&tb));                         the first trouble since tb_open, if any
 *   tb_close(&tb);
 *
 * Every tb_open makes a file of its own, so a resumed run adds one to the folder. Its first event says at
 * which step it starts, and TensorBoard then drops what the earlier file had from that step on: a run that
 * was killed and resumed shows one curve. On a zeroed TensorBoard every call is a no-op, for ranks that write
 * none. */
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
    Status status;                    /* sticks until tb_flush hands it out; `error` is its errno */
    int    error;
    Text   event, value;              /* room that is used again for each event */
} TensorBoard;

MUST Status tb_open(TensorBoard *t, const char *dir);                 /* the folder must exist */
void        tb_scalar(TensorBoard *t, int64_t step, const char *tag, double value);
MUST Status tb_flush(TensorBoard *t);                                 /* what was written is on its way */
void        tb_close(TensorBoard *t);                                 /* twice is fine */

/* CRC-32C (Castagnoli), and as a record carries it: rotated and offset, so that a sum of sums stays a sum. */
uint32_t crc32c(const void *bytes, size_t n);
uint32_t crc32c_masked(const void *bytes, size_t n);

#endif
