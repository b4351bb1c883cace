/* train/recipe_check.h -- refuses recipes that ask for what this build cannot do, before anything is opened.
 *
 * No key is accepted and ignored: either the run does what it asks for, or the run ends here with a message
 * that names the way out. */
#ifndef TRAIN_RECIPE_CHECK_H
#define TRAIN_RECIPE_CHECK_H

#include "base/config.h"

MUST Status recipe_check(const Config *c);
MUST Status recipe_check_types(const Config *c);            /* the part that plans check too */
MUST Status recipe_check_lora(const Config *c);             /* likewise */

#endif
