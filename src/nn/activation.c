/* nn/activation.c -- the table of activations. */
#include "nn/activation.h"

#include <stdio.h>
#include <string.h>

static void swiglu_fwd(Backend *be, Tensor h, Tensor gu, Tensor scale, Tensor offsets)
{
    op_swiglu_fwd(be, h, gu, scale, offsets);
}

static void swiglu_bwd(Backend *be, Tensor dgu, Tensor dscale, Tensor dh, Tensor gu, Tensor scale)
{
    op_swiglu_bwd(be, dgu, dscale, dh, gu, scale);
}

static void swiglu_grouped_fwd(Backend *be, Tensor gu, Tensor h, Tensor rows, Tensor w, Tensor offsets,
                               Tensor scale, LoraTerm lora)
{
    op_grouped_swiglu(be, gu, h, rows, w, offsets, scale, lora);
}

static void swiglu_grouped_bwd(Backend *be, Tensor dgu, Tensor dscale, Tensor dout, Tensor w, Tensor offsets,
                               Tensor gu, Tensor scale, LoraTerm lora)
{
    op_grouped_dswiglu(be, dgu, dscale, dout, w, offsets, gu, scale, lora);
}

static void swiglu_grouped_fwd_coded(Backend *be, Tensor gu, Tensor h, Tensor rows, WeightCodes w,
                                     Tensor panel, Tensor offsets, Tensor scale, LoraTerm lora)
{
    op_grouped_swiglu_coded(be, gu, h, rows, w, panel, offsets, scale, lora);
}

static void swiglu_grouped_bwd_coded(Backend *be, Tensor dgu, Tensor dscale, Tensor dout, WeightCodes w,
                                     Tensor panel, Tensor offsets, Tensor gu, Tensor scale, LoraTerm lora)
{
    op_grouped_dswiglu_coded(be, dgu, dscale, dout, w, panel, offsets, gu, scale, lora);
}

static void swiglu_grouped_fwd_fp8(Backend *be, Tensor gu, CodedRows h, CodedRows rows, Tensor w,
                                   Tensor w_scale, Tensor offsets, Tensor scale, bool stores_rows)
{
    op_grouped_swiglu_fp8(be, gu, h.x, h.q, h.scale, rows.q, rows.scale, w, w_scale, offsets, scale,
                          stores_rows);
}

static void swiglu_bwd_fp8(Backend *be, CodedRows dgu, Tensor dscale, Tensor dh, Tensor gu, Tensor scale,
                           Tensor offsets)
{
    op_swiglu_bwd_fp8(be, dgu.x, dgu.q, dgu.scale, dscale, dh, gu, scale, offsets, true);
}

static void swiglu_bwd_cols(Backend *be, CodedRows dgu, ColumnCodes dgu_cols, ColumnCodes h_cols,
                            Tensor dscale, Tensor dh, Tensor gu, Tensor scale, Tensor offsets,
                            bool stores_rows)
{
    op_swiglu_bwd_cols(be, dgu.x, dgu.q, dgu.scale, dgu_cols, h_cols, dscale, dh, gu, scale, offsets,
                       stores_rows);
}

static void clamped_fwd(Backend *be, Tensor h, Tensor gu, Tensor scale, Tensor offsets)
{
    op_clamped_glu_fwd(be, h, gu, scale, offsets);
}

static void clamped_bwd(Backend *be, Tensor dgu, Tensor dscale, Tensor dh, Tensor gu, Tensor scale)
{
    op_clamped_glu_bwd(be, dgu, dscale, dh, gu, scale);
}

const Activation activations[] = {
    [ACTIVATION_SWIGLU] = { "silu", 2, swiglu_fwd, swiglu_bwd, swiglu_grouped_fwd, swiglu_grouped_bwd,
                            swiglu_grouped_fwd_coded, swiglu_grouped_bwd_coded, swiglu_grouped_fwd_fp8,
                            swiglu_bwd_fp8, swiglu_bwd_cols },
    [ACTIVATION_CLAMPED_GLU] = { "clamped_glu", 2, clamped_fwd, clamped_bwd, NULL, NULL, NULL, NULL, NULL,
                                 NULL, NULL },
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
