/* cli/cmd_convert.c -- `treb convert`: a model in any form that is read here, or a checkpoint of a run of any
 * number of ranks, written in the hub's form; or such a checkpoint as one rank would have written it; or an
 * adapter, by itself or merged into its base. */
#include "cli/commands.h"
#include "model/weights.h"
#include "checkpoint/base_model.h"
#include "checkpoint/lora_source.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct Convert {
    const char *from, *to;
    Path        beside;                  /* folder with tokenizer files and the like */
    Path        config;                  /* folder with config.json */
    DType       dtype;
    int64_t     shard;                   /* bytes */
} Convert;

static Status refuse_overwrite(const char *to, const char *name)
{
    Path file;
    TRY(path_join(file, to, name));
    return file_is(file) ? fail(E_CONFIG, "%s: there is a model in it already; name another folder", to) : OK;
}

static Status choose_dtype(Convert *c, const ModelShape *shape, const char *word)
{
    bool known = true;
    c->dtype = shape->dtype;
    if (word && !strcmp(word, "fp8_block")) c->dtype = E4M3;
    else if (word) known = !dtype_parse(&c->dtype, word);
    if (known && (c->dtype == F32 || c->dtype == BF16 || c->dtype == F16 || c->dtype == E4M3)) return OK;
    return fail(E_CONFIG, "--dtype = %s: must be f32, bf16, f16 or fp8_block",
                word ? word : dtype_name(c->dtype));
}

static Status convert_model(const Convert *c, Model *m, Backend *be)
{
    const Log log = { .world = 1, .least = LOG_INFO };
    SafeTensors st;
    TRY(st_open(&st, c->from));
    Status s = weights_check(m, &st, &log);
    if (!s) s = weights_convert(m, be, &st, c->to, c->dtype, c->shard);
    st_close(&st);
    return s;
}

static Status convert_checkpoint(const Convert *c, Model *m, Backend *be)
{
    TRY(checkpoint_verify(c->from));
    Meter meter;
    meter_open(&meter, NULL, "converting", METER_BYTES, 4.0 * (double)params_count(&m->params));
    Status st = checkpoint_assemble(c->from, m, be, c->to, c->dtype, c->shard, &meter);
    meter_close(&meter);
    return st;
}

static Status to_hub(const Convert *c, const ModelShape *shape)
{
    const bool frozen[GROUP_N] = { true, true, true };
    Backend be = { 0 };
    Model m = { 0 };
    Status s = backend_open(&be, "cpu");
    if (!s) s = model_open(&m, shape, frozen);
    if (!s) s = checkpoint_is(c->from) ? convert_checkpoint(c, &m, &be) : convert_model(c, &m, &be);
    if (!s) s = weights_copy_companions(c->beside, c->to);
    if (!s) s = weights_save_config(c->config, c->to, c->dtype);     /* last: with it the folder is a model */
    if (!s)
        printf("%s: %lld parameters, %s, written to %s\n", shape->family, (long long)params_count(&m.params),
               dtype_name(c->dtype), c->to);
    model_close(&m);
    backend_close(&be);
    return s;
}

static Status to_native(const Convert *c)
{
    if (!checkpoint_is(c->from))
        return fail(E_CONFIG, "--native: %s is no checkpoint of a run; a run starts from it with model.path",
                    c->from);
    TRY(refuse_overwrite(c->to, "MANIFEST.json"));
    TRY(checkpoint_verify(c->from));
    TRY(checkpoint_consolidate(c->from, c->to));
    printf("the state of one rank written to %s\n", c->to);
    return OK;
}

/* ---- adapters ---- */

/* An option that would be of no account. */
static Status refuse_option(const char *name, bool given, const char *why)
{
    return given ? fail(E_CONFIG, "%s: %s; drop it", name, why) : OK;
}

/* The base that was named, else the one that the adapter names; "": none. */
static Status find_base(Path base, const Convert *c, const char *named)
{
    if (!named) return lora_source_base(base, c->from);
    int n = snprintf(base, sizeof(Path), "%s", named);
    return n < (int)sizeof(Path) ? OK : fail(E_IO, "--base %.200s: the path is too long", named);
}

static Status no_base(const Convert *c, const char *base)
{
    return fail(E_CONFIG, "the base of %s%s%s is not here; name its folder with --base", c->from,
                *base ? ", " : "", base);
}

/* An adapter by itself, in PEFT's form. A checkpoint has the model's configuration beside it. */
static Status to_adapter(Convert *c, const char *named)
{
    Path base;
    ModelShape shape;
    LoraSource l;
    TRY(refuse_overwrite(c->to, PEFT_CONFIG));
    TRY(refuse_overwrite(c->to, "config.json"));
    TRY(find_base(base, c, named));
    bool state = checkpoint_has_lora(c->from);
    if (shape_load(&shape, state ? c->config : base)) return state ? E_DATA : no_base(c, base);
    if (checkpoint_is(c->from)) TRY(checkpoint_verify(c->from));
    TRY(lora_source_open(&l, c->from, &shape));
    Status st = folder_make(c->to);
    if (!st) st = weights_copy_companions(c->beside, c->to);
    if (!st) st = lora_source_export(&l, &shape, c->to, base);       /* its configuration is the last file */
    if (!st) printf("%s: an adapter of %d modules written to %s\n", shape.family, l.conf.exacts, c->to);
    lora_source_close(&l);
    return st;
}

static Status compare_base(const LoraSource *l, const char *base)
{
    const Log log = { .world = 1, .least = LOG_INFO };
    ModelSource s = { .weights = base };
    Path config;
    TRY(path_join(config, base, "config.json"));
    TRY(json_load(&s.hf, config));
    Status st = lora_source_warn_base(l, &s, 0, &log);
    model_source_close(&s);
    return st;
}

static Status to_merged(Convert *c, const char *named, const char *dtype)
{
    Path base;
    ModelShape shape;
    LoraSource l;
    TRY(find_base(base, c, named));
    if (!*base || shape_load(&shape, base))
        return no_base(c, base);
    TRY(weights_find_mtp(&shape, base));
    TRY(choose_dtype(c, &shape, dtype));
    TRY(refuse_overwrite(c->to, "config.json"));
    if (checkpoint_is(c->from)) TRY(checkpoint_verify(c->from));
    TRY(lora_source_open(&l, c->from, &shape));
    Status st = compare_base(&l, base);
    if (!st) st = lora_source_merge(&l, &shape, base, c->to, c->dtype, c->shard);
    if (!st) st = weights_copy_companions(base, c->to);
    if (!st) st = weights_copy_companions(c->from, c->to);
    if (!st) st = weights_save_config(base, c->to, c->dtype);
    if (!st) printf("%s: %d modules merged into %s, %s, written to %s\n", shape.family, l.conf.exacts, base,
                    dtype_name(c->dtype), c->to);
    lora_source_close(&l);
    return st;
}

/* A checkpoint has the model's config.json beside its state. */
static Status find_config(Convert *c, const char *named)
{
    Path own;
    TRY(path_join(own, c->from, "state/config.json"));
    if (named) TRY(path_join(c->beside, named, ""));
    else if (model_source_files(c->beside, c->from)) {
        fprintf(stderr, "treb: warning: %s\n", status_text());
        TRY(path_join(c->beside, c->from, ""));
    }
    if (named || !file_is(own)) return path_join(c->config, named ? named : c->from, "");
    return path_join(c->config, c->from, "state");
}

typedef struct ConvertArgs {
    const char *dtype, *config, *base;
    int64_t     shard_mb;
    bool        native, merge;
} ConvertArgs;

static const Option options[] = {
    OPTION_TEXT(ConvertArgs, dtype, "--dtype", "f32|bf16|f16|fp8_block",
                "of the written tensors; as in FROM unless given. fp8_block: linear weights of the decoder "
                "in 8 bits with scales of 128 x 128 blocks, the others in bf16"),
    OPTION_INT(ConvertArgs, shard_mb, "--shard-mb", "N", 1, 1 << 30, "megabytes of a file (default 5000)"),
    OPTION_TEXT(ConvertArgs, config, "--config", "FOLDER",
                "config.json and tokenizer files where FROM has none"),
    OPTION_FLAG(ConvertArgs, native, "--native",
                "write the checkpoint as one rank would have, moments included"),
    OPTION_FLAG(ConvertArgs, merge, "--merge", "add an adapter into its base and write the model"),
    OPTION_TEXT(ConvertArgs, base, "--base", "FOLDER", "the base of an adapter, where it lies elsewhere now"),
    OPTION_END
};

/* An adapter's checkpoint or folder. */
static Status convert_adapter(Convert *c, const ConvertArgs *a)
{
    if (a->merge) TRY(refuse_option("--config", a->config, "a merged model has its base's"));
    if (a->merge) return to_merged(c, a->base, a->dtype);
    TRY(find_config(c, a->config));
    TRY(refuse_option("--dtype", a->dtype, "an adapter is written as f32, which it is trained in"));
    TRY(refuse_option("--shard-mb", a->shard_mb, "an adapter is one file"));
    return to_adapter(c, a->base);
}

static Status convert(const ConvertArgs *a, const char *from, const char *to)
{
    ModelShape shape;
    Convert    c = { .from = from, .to = to, .shard = (a->shard_mb ? a->shard_mb : 5000) * 1000000 };
    TRY(checkpoint_refuse_run_folder(from));
    if (a->native)
        TRY(refuse_option("--native", a->merge || a->base, "is of a checkpoint as it is, without a base"));
    if (a->native) return to_native(&c);
    if (lora_source_is(from)) return convert_adapter(&c, a);
    if (a->merge) return fail(E_CONFIG, "--merge: %s has no adapter in it", from);
    if (a->base) return fail(E_CONFIG, "--base: %s has no adapter in it", from);
    TRY(find_config(&c, a->config));
    TRY(shape_load(&shape, c.config));
    if (weights_exist(from)) TRY(weights_find_mtp(&shape, from));
    TRY(choose_dtype(&c, &shape, a->dtype));
    TRY(refuse_overwrite(to, "config.json"));
    return to_hub(&c, &shape);
}

static Status cmd_convert(int argc, char **argv)
{
    ConvertArgs a = { 0 };
    PlainArgs   dir = { .least = 2, .most = 2, .what = "a model and the folder to write" };
    TRY(options_parse(argc, argv, options, &a, &dir));
    Status st = convert(&a, dir.value[0], dir.value[1]);
    plain_args_close(&dir);
    return st;
}

static const Usage usage = {
    .args    = "FROM TO",
    .options = options,
    .notes   = "FROM is a model folder or a checkpoint of a run on any number of ranks, TO a new folder. A "
               "checkpoint of a run with adapters is written as an adapter that PEFT loads.",
};

static const Usage usage_merge = {
    .args    = "--merge ADAPTER TO",
    .notes   = "ADAPTER is a checkpoint of a run with adapters, or PEFT's folder; its base is found by "
               "what the adapter records unless --base names it.",
};

const Command command_convert = {
    .name     = "convert",
    .help     = "write a checkpoint in the hub's form; merge adapters",
    .run      = cmd_convert,
    .usage    = USAGE(&usage, &usage_merge),
};
