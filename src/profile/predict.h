/* profile/predict.h -- a plan as a profile: what a dry run predicts, in the fields that a run measures. */
#ifndef PROFILE_PREDICT_H
#define PROFILE_PREDICT_H

#include "plan/dryrun.h"
#include "profile/profile.h"

/* Fills predicted, has_predicted, hardware, predicted_error, and source where nothing is measured. The plan
 * is of micro-batches as the measured steps had them, else of content_assumed. hw NULL: memory and bytes
 * alone, for the recipe's backend. */
MUST Status profile_predict(Profile *p, const Config *recipe, int ranks, int per_node, const Hardware *hw);
/* The step of the slowest stage; memory of the fullest. */
void        step_profile_of_plan(StepProfile *s, const DryRun *d);

/* What the micro-batches of a measured step held; false: not known, as in files of earlier builds. */
bool        content_of_step(BatchContent *c, const StepProfile *s);

/* A row for the device that `backend` opens: the measured one (`this`) where it is of this backend, else the
 * row of hardware.def that the device's name contains; false: neither. */
bool        predict_hardware(Hardware *hw, const char *backend);

#endif
