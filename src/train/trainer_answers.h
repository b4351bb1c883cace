/* train/trainer_answers.h -- answers that a trainer generates at evaluations: exact matches over the held-out
 * data, and samples/step-N.jsonl in the folder of the run. */
#ifndef TRAIN_TRAINER_ANSWERS_H
#define TRAIN_TRAINER_ANSWERS_H

#include "train/trainer.h"

/* For TrainerConf.answers; run is NULL where eval.max_new_tokens = 0. */
Answers trainer_answers(const Config *recipe);

#endif
