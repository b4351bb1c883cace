/* profile/classify.h -- the category of an op or a kernel, and the kind of layer that an op belongs to. */
#ifndef PROFILE_CLASSIFY_H
#define PROFILE_CLASSIFY_H

#include "ops/backend.h"
#include "profile/profile.h"
#include "profile/recorder.h"

Category  classify_op(int op, Part part);
/* Of a kernel that no op is known for, such as one of a graph: by the words in its name. */
Category  classify_kernel(const char *name, Part part);
Category  classify_span(DeviceSpanKind kind);                /* of what is no kernel */
LayerPart classify_layer(int op, const HostPlace *at);       /* op -1: not known */

#endif
