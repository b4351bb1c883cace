/* cli/cmd_convert.c -- `treb convert`: a checkpoint in any form that is read here, written in the hub's form.
 */
#include "cli/options.h"
#include "model/weights.h"

#include <stdio.h>
#include <unistd.h>

static Status refuse_overwrite(const char *to)
{
    char file[4200];
    snprintf(file, sizeof file, "%s/config.json", to);
    return access(file, F_OK) ? OK
                              : fail(E_CONFIG, "%s: there is a model in it already; name another folder", to);
}

static Status convert(Model *m, Backend *be, const SafeTensors *st, const char *from, const char *to,
                      DType dtype, int64_t shard)
{
    const Log log = { .world = 1, .least = LOG_INFO };
    TRY(weights_check(m, st, &log));
    TRY(weights_convert(m, be, st, to, dtype, shard));
    TRY(weights_copy_companions(from, to));
    TRY(weights_save_config(from, to, dtype));               /* last: with it the folder is a model */
    printf("%s: %lld parameters, %s, written to %s\n", m->shape.family, (long long)params_count(&m->params),
           dtype_name(dtype), to);
    return OK;
}

Status cmd_convert(int argc, char **argv)
{
    const char *dir[2], *dtype = NULL, *shard = "5000";
    const Option options[] = { { "--dtype", &dtype, NULL }, { "--shard-mb", &shard, NULL }, { 0 } };
    const bool frozen[GROUP_N] = { true, true, true };
    ModelShape shape;
    SafeTensors st = { 0 };
    Backend be = { 0 };
    Model m = { 0 };
    int64_t mb;
    TRY(options_parse(argc, argv, options, dir, 2));
    TRY(option_int("--shard-mb", shard, 1, 1 << 30, &mb));
    TRY(shape_load(&shape, dir[0]));
    DType to = shape.dtype;
    if (dtype) TRY(dtype_parse(&to, dtype));
    if (to != F32 && to != BF16 && to != F16)
        return fail(E_CONFIG, "--dtype %s: f32, bf16 or f16", dtype_name(to));
    TRY(refuse_overwrite(dir[1]));
    Status s = st_open(&st, dir[0]);
    if (!s) s = backend_open(&be, "cpu");
    if (!s) s = model_open(&m, &shape, frozen);
    if (!s) s = convert(&m, &be, &st, dir[0], dir[1], to, mb * 1000000);
    model_close(&m);
    backend_close(&be);
    st_close(&st);
    return s;
}
