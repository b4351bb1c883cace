/* plan/hardware.h -- rates of a GPU, its links and its host: rows of hardware.def, or `this`, measured by
 * `treb bench calibrate` and kept in a file. Peaks come from data sheets (dense); beside each is the share
 * that is reached. */
#ifndef PLAN_HARDWARE_H
#define PLAN_HARDWARE_H

#include "base/ledger.h"
#include "base/precisions.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Kinds of work whose efficiency differs. */
typedef enum { WORK_GEMM, WORK_GROUPED, WORK_ATTENTION, WORK_ATTENTION_BACK, WORK_VISION, WORK_VISION_BACK,
               WORK_MEMORY, WORK_N } Work;

enum { CURVE_POINTS = 12, USUAL_PICTURE = 2304 };            /* patches of a picture, if not given */

/* The share of the peak that a call reaches, by its work: FLOPs; bytes for WORK_MEMORY; rows per expert
 * for WORK_GROUPED. Interpolated over the logarithm of the work; below the first point a call takes as
 * long as one of that size, beyond the last the share is constant. n = 0: only the flat share is known. */
typedef struct Curve { int n; double work[CURVE_POINTS], share[CURVE_POINTS], flat; } Curve;

typedef struct Hardware {
    char    id[32];
    char    backend[8];                  /* "cuda" or "cpu" */
    char    dtype[8];                    /* of the matrix rates: bf16 or f32 */
    double  bf16, fp8, fp4;              /* FLOP/s, 0: not supported; bf16: in dtype */
    double  fp8_share, fp4_share;        /* reached by large products; bf16: work[WORK_GEMM] */
    int     sms;
    double  capacity;                        /* bytes of device memory for a run, without the CUDA context */
    double  memory_bw;                   /* bytes/s, as all bandwidths */
    double  intra_bw, inter_bw, host_bw;    /* per direction: intra-node links, network, host */
    int     domain;                      /* ranks joined by intra-node links */
    double  intra_share, inter_share, host_share;                   /* shares that are reached */
    double  intra_delay, inter_delay;       /* latency of a message, seconds */
    int     intra_ranks, inter_nodes;    /* that measured the links; 0: taken from a data sheet */
    char    transport[16];               /* that they were measured over */
    double  launch;                      /* host seconds per kernel launch */
    double  fixed;                       /* bytes of context, libraries, workspace */
    double  error;                       /* relative error of times: 0.25 for a table row, less if measured */
    double  together;                    /* factor of work inside a step over single calls */
    Curve   work[WORK_N];
    double  slow[LEDGER_OPS];            /* factor of an op (ops.def) over its bytes or FLOPs */
} Hardware;

/* A row by name (h100, h200, gb200-nvl72 …), or "this": the file of hardware_file(). */
MUST Status hardware_find(Hardware *h, const char *id);
const char *hardware_names(void); /* for messages: "a100-80, h100-sxm, …, or this" */
const char *hardware_at(int i);                              /* id of row i; NULL past the last */
/* The row of a device by its name: "NVIDIA H200" is h200, "NVIDIA A100-SXM4-80GB" a100-80. NULL: none. */
const char *hardware_of_device(const char *device);
/* A run may take so many GiB, everything included; 0: no limit. */
void        hardware_limit(Hardware *h, double gib);
/* Ranks per domain for a run of `ranks`: all of them if they fit into one, else the largest power of two that
 * divides them, so that no group spans two racks: 64 of 72. */
int         hardware_node(const Hardware *h, int64_t ranks);
/* FLOP/s of products in a format: by the data sheet, and of large ones; 0: there are none. */
double      hardware_peak(const Hardware *h, Precision p);
double      hardware_rate(const Hardware *h, Precision p);
double      ring_share(double nodes); /* of the network's bandwidth that a ring over so many nodes keeps */
MUST Status hardware_file(char *path, size_t n);             /* the file of `this`: $TREB_CACHE_DIR or ~ */
MUST Status hardware_load(Hardware *h, const char *path);    /* any content; an error if it is not valid */
MUST Status hardware_save(const Hardware *h, const char *path);

const char *work_name(Work k);                               /* "attention_back", as in the file */
double      work_share(const Hardware *h, Work k, double work);
/* Seconds of a call: the larger of FLOPs and bytes at their shares; WORK_GROUPED at the flat share, since the
 * rows are not known. */
double      work_seconds(const Hardware *h, Work k, double flops, double bytes);
double      grouped_seconds(const Hardware *h, double flops, double bytes, double rows); /* rows per expert */

#endif
