/* profile/lanes.h -- one profiled step of every rank for a drawing: compute, communication, copies and the
 * host, each a lane of coloured pieces. Neighbours of one colour are joined until a rank has few enough. */
#ifndef PROFILE_LANES_H
#define PROFILE_LANES_H

#include "profile/spans.h"

typedef enum { LANE_COMPUTE, LANE_COMM, LANE_COPIES, LANE_HOST, LANE_KINDS } LaneKind;

/* Colours beyond the categories: the host launches; it waits for the device, for data. */
enum { COLOR_LAUNCH = CAT_N, COLOR_WAIT, COLOR_DATA, COLORS };
extern const char *const color_names[COLORS];

enum { LANE_PIECES = 1200 };

typedef struct LanePiece {
    float   from, to;
    uint8_t lane, color;
} LanePiece;

/* Seconds from the beginning of the step. */
typedef struct Lanes {
    float     step;
    int       n;
    LanePiece piece[LANE_PIECES];
} Lanes;

/* The first profiled step that is counted. */
MUST Status lanes_fill(Lanes *out, const SpanList *s, const Recorder *r);

#endif
