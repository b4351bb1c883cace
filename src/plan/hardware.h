/* plan/hardware.h -- what a card, its links and its host can do: rows of hardware.def, or `this`, measured by
 * `treb bench calibrate` and kept in a file. Peaks are of the data sheet, dense; how much of each is reached
 * is beside it. */
#ifndef PLAN_HARDWARE_H
#define PLAN_HARDWARE_H

#include "base/ledger.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Kinds of work whose efficiency differs. */
typedef enum { WORK_GEMM, WORK_GROUPED, WORK_ATTENTION, WORK_ATTENTION_BACK, WORK_VISION, WORK_VISION_BACK,
               WORK_MEMORY, WORK_N } Work;

enum { CURVE_POINTS = 12, USUAL_PICTURE = 2304 };            /* patches, where nobody says how many */

/* Share of the peak that a call of so much work reaches, between points by the logarithm of the work: FLOPs;
 * bytes of WORK_MEMORY; rows that an expert gets of WORK_GROUPED. Below the first point a call takes as long
 * as one of that size; past the last the share stays. n = 0: only the flat share is known. */
typedef struct Curve { int n; double work[CURVE_POINTS], share[CURVE_POINTS], flat; } Curve;

typedef struct Hardware {
    char    id[32];
    char    backend[8];                  /* "cuda" or "cpu": what a plan for it is made for */
    char    dtype[8];                    /* that rates of products are of: bf16 or f32 */
    double  bf16, fp8, fp4;              /* FLOP/s, 0: it has none; bf16: of dtype */
    double  fp8_share, fp4_share;        /* of them that a large product reaches; of bf16: work[WORK_GEMM] */
    int     sms;
    double  capacity;                        /* bytes of device memory that a run may take, context aside */
    double  memory_bw;                   /* bytes/s, as all below */
    double  intra_bw, inter_bw, host_bw;    /* per direction: fast links of a domain, the network, the host */
    int     domain;                      /* ranks that fast links join */
    double  intra_share, inter_share, host_share;                   /* of them that is reached */
    double  intra_delay, inter_delay;       /* seconds of a message, however small */
    double  launch;                      /* seconds a kernel costs the host */
    double  fixed;                       /* bytes: context, libraries, workspace */
    double  error;                       /* of a time, as a share: 0.25 by table, less if measured */
    double  together;                    /* work takes so much longer in a step than each call alone */
    Curve   work[WORK_N];
    double  slow[LEDGER_OPS];            /* time of an op (ops.def) over what its bytes or products need */
} Hardware;

/* A row by name (h100, h200, gb200-nvl72 …), or "this": the file of hardware_file(). */
MUST Status hardware_find(Hardware *h, const char *id);
const char *hardware_names(void);                            /* of the rows, "a100-80, h100-sxm, …" */
const char *hardware_at(int i);                              /* id of a row; NULL past the last */
/* Ranks of one domain that a run of so many takes: all of them where they fit into one, else a power of two
 * where that divides them, so that no group lies across two racks: 64 of 72. */
int         hardware_node(const Hardware *h, int64_t ranks);
MUST Status hardware_file(char *path, size_t n);             /* where `this` is kept: $TREB_CACHE_DIR or ~ */
MUST Status hardware_load(Hardware *h, const char *path);    /* hostile or truncated: an error */
MUST Status hardware_save(const Hardware *h, const char *path);

const char *work_name(Work k);                               /* "attention_back", as the file has it */
double      work_share(const Hardware *h, Work k, double work);
/* Of one call: the larger of what its products take at their share and what its bytes take at theirs; of
 * WORK_GROUPED at the flat share, since rows are not known. */
double      work_seconds(const Hardware *h, Work k, double flops, double bytes);
double      grouped_seconds(const Hardware *h, double flops, double bytes, double rows);  /* rows an expert */

#endif
