/* cli/doctor.h -- what `treb doctor` finds, for whoever else wants to note it. */
#ifndef CLI_DOCTOR_H
#define CLI_DOCTOR_H

#include "base/json.h"

Json *doctor_findings(void);             /* caller: json_decref; NULL: no memory */

#endif
