/* checkpoint/picture_limits.h -- the sizes that pictures and videos are resized to in a run.
 *
 * A key of image.* or video.* that the recipe sets is taken as it is. Another comes from the processor files
 * of the model's folder (preprocessor_config.json, video_preprocessor_config.json), else from config.def. */
#ifndef CHECKPOINT_PICTURE_LIMITS_H
#define CHECKPOINT_PICTURE_LIMITS_H

#include "base/config.h"
#include "base/log.h"
#include "nn/shape.h"

/* Sets the keys from the files of adapter ("": none) or, where it has no such file, of folder. */
MUST Status picture_limits_read(Config *recipe, const char *folder, const char *adapter,
                                const VisionShape *v);

/* Lowers what the recipe does not set, so that one picture or one video fits a micro-batch and
 * data.max_length beside some text, and says so in one line. */
void        picture_limits_fit(Config *recipe, const VisionShape *v, const Log *log);

#endif
