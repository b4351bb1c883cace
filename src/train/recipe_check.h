/* train/recipe_check.h -- what a recipe may ask for and this build cannot do, said before anything is opened.
 *
 * No key is accepted and ignored: what is asked for runs, or the run stops here with the way out. A row goes
 * when the thing it refuses exists. */
#ifndef TRAIN_RECIPE_CHECK_H
#define TRAIN_RECIPE_CHECK_H

#include "base/config.h"

MUST Status recipe_check(const Config *c);
MUST Status recipe_check_types(const Config *c);            /* of it what a plan can be asked too */
MUST Status recipe_check_lora(const Config *c);             /* the same */

#endif
