/* cli/parity_case.h -- a recorded reference case: a checkpoint, a padded batch, and what came out of it.
 *
 * A case of an adapter has a folder adapter/ in place of a checkpoint, a case of another precision has
 * neither: the model and the batch are another case's, whose folder `base` of its info.json names from its
 * own.
 *
 * Rows of the padded batch become documents of a flat stream; `at` remembers where each token stood, so that
 * results can be laid out as the reference has them. */
#ifndef CLI_PARITY_CASE_H
#define CLI_PARITY_CASE_H

#include "base/json.h"
#include "model/peft.h"

typedef struct ParityCase {
    ModelShape  shape;
    SafeTensors model, inputs, expected;     /* expected is empty where none was recorded */
    bool        has_expected;
    PeftFile adapter;                     /* conf.rank 0: none */
    Json       *info;                        /* info.json or NULL */
    double      aux_coef, mtp_weight;        /* mtp_weight 0: no further tokens are predicted */
    int64_t     B, S;                        /* the padded batch */
    Stream      stream;
    int32_t    *at;                          /* (tokens) b * S + s of each stream row */
    uint8_t    *is_video;                    /* (visual rows) */
    int64_t     videos;                      /* visual rows that are a video's */
    int64_t     wrong_positions;             /* rows whose recorded position ids differ from ours */
} ParityCase;

/* dir holds config.json and weights, or adapter/, or an info.json with `base`; inputs, expected and info are
 * there or in its parent. */
MUST Status parity_case_open(ParityCase *c, const char *dir);
void        parity_case_close(ParityCase *c);

#endif
