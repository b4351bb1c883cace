/* nn/activation.c -- the table of activations. */
#include "nn/activation.h"

#include <stdio.h>
#include <string.h>

static void swiglu_fwd(Backend *be, Tensor h, Tensor up, Tensor gate) { op_swiglu_fwd(be, h, up, gate); }

static void swiglu_bwd(Backend *be, Tensor dup, Tensor dgate, Tensor dh, Tensor up, Tensor gate)
{
    op_swiglu_bwd(be, dup, dgate, dh, up, gate);
}

const Activation activations[] = {
    [ACTIVATION_SWIGLU] = { "silu", 2, swiglu_fwd, swiglu_bwd, true },
};

Status activation_find(ActivationId *id, const char *name)
{
    char known[128] = "";
    for (int i = 0; i < ACTIVATIONS; i++) {
        size_t at = strlen(known);
        *id = (ActivationId)i;
        if (!strcmp(activations[i].name, name)) return OK;
        snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", activations[i].name);
    }
    return fail(E_DATA, "hidden_act = %s: no such activation here; there are %s", name, known);
}
