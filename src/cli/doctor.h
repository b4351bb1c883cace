/* cli/doctor.h -- what `treb doctor` finds; the trainer logs it as well. */
#ifndef CLI_DOCTOR_H
#define CLI_DOCTOR_H

#include "base/json.h"

Json *doctor_findings(void);             /* caller: json_decref; NULL: no memory */

#endif
