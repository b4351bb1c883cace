/* cli/ranks.h -- a verb on all ranks that a launcher started, or on the one there is. */
#ifndef CLI_RANKS_H
#define CLI_RANKS_H

#include "base/config.h"
#include "comm/comm.h"

CommConf ranks_comm_conf(const Config *c);       /* of sections comm and device */

/* What a rank does in a world that is open, and frees before it closes. */
typedef struct RankVerb {
    Status (*run)(void *self, Comm *world);
    void   (*close)(void *self);
} RankVerb;

/* Opens the world by section comm and runs the verb on this rank. A failure that all ranks agreed on
 * (comm_agree) is that of the first rank that failed: it alone prints its text, and all have its Status, with
 * an empty text. Any other failure aborts the peers. */
MUST Status ranks_run(const Config *c, RankVerb verb, void *self);

#endif
