/* model/weights_save.c -- writes weights in HF form; see weights.h.
 *
 * save_params() decides names and order. It runs twice: it declares all tensors, then writes their data, one
 * tensor (or one expert) in host memory at a time. */
#include "base/folder.h"
#include "base/json.h"
#include "model/weights_private.h"
#include "nn/precision.h"
#include "ops/quant.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct WeightSaver {
    const Model *m;
    Backend     *be;
    StWriter     out;
    DType        dtype;
    bool         fp8;                    /* linear weights of the decoder in 8 bits, the others in dtype */
    bool         writing;                /* second walk */
    Model       *source;                 /* with `from`: the same model; parameters are bound in turn */
    ParamSource  from;
    Arena        arena;                  /* of the parameter bound */
    float       *stage, *transposed;     /* (largest tensor that is written at once) */
    void        *packed;
} WeightSaver;

/* Router, head, tower and mergers keep their dtype, as in models on the hub. */
static bool in_codes(const WeightSaver *s, const Param *p)
{
    Site site = precision_site(p);
    return s->fp8 && (site == SITE_EXPERTS || site == SITE_ATTENTION || site == SITE_MLP);
}

/* A bias that selects experts keeps f32: a step of it is less than a bf16 number resolves. */
static DType file_type(const WeightSaver *s, const Param *p) { return p->buffer ? F32 : s->dtype; }

/* Converts values to a type of the file and writes them. */
static Status write_values(WeightSaver *s, Tensor t, const float *values, DType type)
{
    int64_t n = t_count(t);
    dtype_convert(s->packed, type, values, F32, n);
    return st_writer_write(&s->out, s->packed, (size_t)n * dtype_size(type));
}

/* Copies a dense tensor to s->stage as f32. */
static Status fetch_floats(WeightSaver *s, Tensor t)
{
    if (t.dtype == F32) {
        backend_fetch(s->be, s->stage, t);
    } else {
        backend_fetch(s->be, s->packed, t);
        dtype_convert(s->stage, F32, s->packed, (DType)t.dtype, t_count(t));
    }
    return backend_sync(s->be);
}

static Status save_tensor(WeightSaver *s, const char *name, int rank, const int64_t *shape, Tensor t,
                          DType type)
{
    char file[200];
    weights_file_name(file, sizeof file, &s->m->shape, name);
    if (!s->writing) return st_writer_declare(&s->out, file, type, rank, shape);
    TRY(fetch_floats(s, t));
    return write_values(s, t, s->stage, type);
}

static Status declare_codes(WeightSaver *s, const char *name, const int64_t shape[2])
{
    char    scale[256];
    int64_t n[2] = { quant_groups(shape[0]), quant_groups(shape[1]) };
    snprintf(scale, sizeof scale, "%s" ST_SCALE, name);
    TRY(st_writer_declare(&s->out, name, E4M3, 2, shape));
    return st_writer_declare(&s->out, scale, F32, 2, n);
}

/* A matrix in 8 bits with f32 scales of blocks (tensor/safetensors_scales.c). */
static Status save_codes(WeightSaver *s, const char *name, const int64_t shape[2], Tensor t)
{
    static const Tensor none;
    int64_t n[2] = { quant_groups(shape[0]), quant_groups(shape[1]) };
    if (!s->writing) return declare_codes(s, name, shape);
    REQUIRE(s->be->device->host_memory, "weights are written in 8 bits from host memory");
    TRY(fetch_floats(s, t));
    Tensor q = t_wrap(s->packed, E4M3, 2, shape), scale = t_wrap(s->transposed, F32, 2, n);
    op_quantize_weight(s->be, q, scale, none, none, t_wrap(s->stage, F32, 2, shape), false);
    TRY(st_writer_write(&s->out, q.data, (size_t)t_bytes(q)));
    return st_writer_write(&s->out, scale.data, (size_t)t_bytes(scale));
}

/* Hub layouts of fused experts: [E, in, out], or [E, out, in] as in memory. */
static Status save_fused(WeightSaver *s, const Param *p, Tensor t)
{
    bool    turned = !s->m->shape.output_major;
    int64_t shape[3] = { p->shape[0], p->shape[turned ? 2 : 1], p->shape[turned ? 1 : 2] };
    if (!s->writing) return st_writer_declare(&s->out, p->piece[0].name, s->dtype, 3, shape);
    for (int64_t e = 0; e < p->shape[0]; e++) {
        TRY(fetch_floats(s, t_at(t, e)));
        if (turned) weights_transpose(s->transposed, s->stage, p->shape[1], p->shape[2]);
        TRY(write_values(s, t_at(t, e), turned ? s->transposed : s->stage, s->dtype));
    }
    return OK;
}

static Status save_per_expert(WeightSaver *s, const Param *p, Tensor t)
{
    int parts = p->form == FORM_EXPERT_GATE_UP ? 2 : 1;
    int64_t shape[2] = { p->shape[1] / parts, p->shape[2] };
    const char *dot = strrchr(p->piece[0].name, '.');
    const char *const *part_name = shape_names(&s->m->shape)->expert_part;
    for (int64_t e = 0; e < p->shape[0]; e++)
        for (int k = 0; k < parts; k++) {
            char name[200];
            snprintf(name, sizeof name, "%.*s.%lld.%s.weight", (int)(dot - p->piece[0].name),
                     p->piece[0].name, (long long)e, part_name[parts == 2 ? k : 2]);
            Tensor rows = s->writing ? t_rows(t_at(t, e), k * shape[0], shape[0]) : t;
            TRY(in_codes(s, p) ? save_codes(s, name, shape, rows)
                               : save_tensor(s, name, 2, shape, rows, s->dtype));
        }
    return OK;
}

Status weights_fill_param(Model *m, Backend *be, ParamSource from, Arena *arena, int i)
{
    Param *p = m->params.p[i];
    int64_t n[3] = { p->shape[0], p->shape[1], p->shape[2] };
    if (p->ndim == 1) n[0] = 1, n[1] = p->shape[0];
    arena_clear(arena);
    p->shard.w = t_new(arena, "param", F32, p->ndim == 1 ? 2 : p->ndim, n);
    TRY(backend_sync(be));
    TRY(from.fill(from.self, m, be, i));
    meter_add(from.meter, t_bytes(p->shard.w));
    return OK;
}

static Status fill_param(WeightSaver *s, int i)
{
    if (!s->from.fill || !s->writing) return OK;
    return weights_fill_param(s->source, s->be, s->from, &s->arena, i);
}

static Status save_params(WeightSaver *s)
{
    for (int i = 0; i < s->m->params.n; i++) {
        const Param *p = s->m->params.p[i];
        if (p->adapter_of) continue;                             /* adapters are in PEFT files */
        TRY(fill_param(s, i));
        bool   f32_master = t_has(p->shard.master) && p->shard.master.dtype == F32;
        bool   from_master = f32_master && (s->dtype == F32 || !t_has(p->shard.w));
        Tensor t = from_master ? p->shard.master : p->shard.w;
        if (p->form != FORM_ROWS) {
            bool fused = s->m->shape.fused_experts && !in_codes(s, p);
            TRY(fused ? save_fused(s, p, t) : save_per_expert(s, p, t));
            continue;
        }
        for (int k = 0; k < p->pieces; k++) {
            const Piece *q = &p->piece[k];
            Tensor rows = weights_piece_view(p, t, k);
            TRY(in_codes(s, p) ? save_codes(s, q->name, q->shape, rows)
                               : save_tensor(s, q->name, q->rank, q->shape, rows, file_type(s, p)));
        }
    }
    return OK;
}

static Status alloc_buffers(WeightSaver *s)
{
    int64_t largest = 0;
    for (int i = 0; i < s->m->params.n; i++) {
        const Param *p = s->m->params.p[i];
        int64_t n = param_count(p) / (p->form == FORM_ROWS ? 1 : p->shape[0]);
        if (n > largest) largest = n;
    }
    s->stage      = malloc((size_t)largest * sizeof *s->stage);
    s->transposed = malloc((size_t)largest * sizeof *s->transposed);
    s->packed     = malloc((size_t)largest * sizeof(double));
    return s->stage && s->transposed && s->packed
               ? OK
               : fail(E_FIT, "no host memory to write tensors of %lld elements", (long long)largest);
}

static Status save_model(WeightSaver *s, const char *dir, int64_t max_shard)
{
    if ((s->fp8 = s->dtype == E4M3)) s->dtype = BF16;
    Status st = alloc_buffers(s);
    if (!st) st = st_writer_open(&s->out, dir, max_shard);
    if (!st) st = save_params(s);
    if (!st) st = st_writer_begin(&s->out);
    s->writing = true;
    if (!st) st = save_params(s);
    if (!st) st = st_writer_finish(&s->out);
    st_writer_close(&s->out);
    free(s->stage), free(s->transposed), free(s->packed);
    return st;
}

Status weights_save(const Model *m, Backend *be, const char *dir, DType dtype, int64_t max_shard)
{
    WeightSaver s = { .m = m, .be = be, .dtype = dtype };
    return save_model(&s, dir, max_shard);
}

Status weights_assemble(Model *m, Backend *be, ParamSource from, const char *dir, DType dtype,
                        int64_t max_shard)
{
    WeightSaver s = { .m = m, .be = be, .dtype = dtype, .source = m, .from = from };
    int64_t largest = 0;
    for (int i = 0; i < m->params.n; i++)
        if (param_count(m->params.p[i]) > largest) largest = param_count(m->params.p[i]);
    TRY(backend_arena_open(be, &s.arena, "convert", (size_t)largest * sizeof(float)));
    Status st = save_model(&s, dir, max_shard);
    backend_arena_close(be, &s.arena);
    for (int i = 0; i < m->params.n; i++) m->params.p[i]->shard.w = (Tensor){ 0 };
    return st;
}

/* A ParamFillFn: self is a SafeTensors. */
static Status fill_from_files(void *self, Model *m, Backend *be, int i)
{
    return weights_load_one(m, be, self, "", i);
}

Status weights_convert(Model *m, Backend *be, const SafeTensors *from, const char *dir, DType dtype,
                       int64_t max_shard)
{
    Meter       meter;
    ParamSource source = { fill_from_files, (SafeTensors *)from, &meter };
    meter_open(&meter, NULL, "converting", METER_BYTES, 4.0 * (double)params_count(&m->params));
    Status st = weights_assemble(m, be, source, dir, dtype, max_shard);
    meter_close(&meter);
    return st;
}

bool weights_exist(const char *folder)
{
    return folder_has(folder, "model.safetensors") || folder_has(folder, "model.safetensors.index.json");
}

static void set_dtype(Json *o, const char *dtype)
{
    static const char *const keys[] = { "dtype", "torch_dtype" };
    for (int i = 0; i < 2; i++)
        if (json_object_get(o, keys[i])) json_object_set_new(o, keys[i], json_string(dtype));
}

/* Matrices of the files in `dir` that are not in 8 bits, as modules. */
static Status add_wide_modules(Json *list, const char *dir)
{
    SafeTensors st;
    TRY(st_open(&st, dir));
    for (int i = 0; i < st.count; i++) {
        const StTensor *t = &st.tensor[i];
        size_t n = strlen(t->name), tail = strlen(".weight");
        if (t->dtype != E4M3 && t->rank == 2 && n > tail && !strcmp(t->name + n - tail, ".weight"))
            json_array_append_new(list, json_stringn(t->name, n - tail));
    }
    st_close(&st);
    return OK;
}

/* Writes the entry that transformers reads; a model whose weights are not in 8 bits has none. */
static Status set_quantization(Json *o, const char *dir, DType dtype)
{
    json_object_del(o, "quantization_config");
    if (dtype != E4M3) return OK;
    Json *list = json_array();
    TRY(add_wide_modules(list, dir));
    json_object_set_new(o, "quantization_config",
                        json_pack("{s:s, s:s, s:s, s:[i,i], s:o}", "quant_method", "fp8", "fmt", "e4m3",
                                  "activation_scheme", "dynamic", "weight_block_size", QUANT_GROUP,
                                  QUANT_GROUP, "modules_to_not_convert", list));
    return OK;
}

Status weights_write_config(const Json *hf, const char *dir, DType dtype)
{
    char dst[4096];
    const char *name = dtype == F32 ? "float32" : dtype == F16 ? "float16" : "bfloat16";
    Json *o = json_deep_copy(hf);
    snprintf(dst, sizeof dst, "%s/config.json", dir);
    set_dtype(o, name);
    set_dtype(json_object_get(o, "text_config"), name);
    set_dtype(json_object_get(o, "vision_config"), name);
    Status st = set_quantization(o, dir, dtype);
    int bad = st || (mkdir(dir, 0777) && errno != EEXIST) ? -1 : json_dump_file(o, dst, JSON_INDENT(2));
    json_decref(o);
    return st ? st : bad ? fail(E_IO, "%s: cannot write: %s", dst, strerror(errno)) : OK;
}

Status weights_save_config(const char *from, const char *dir, DType dtype)
{
    char src[4096];
    Json *o;
    snprintf(src, sizeof src, "%s/config.json", from);
    TRY(json_load(&o, src));
    Status st = weights_write_config(o, dir, dtype);
    json_decref(o);
    return st;
}


static const char *const companions[] = {
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "chat_template.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
};

Status weights_copy_companions(const char *from, const char *dir)
{
    for (size_t i = 0; i < sizeof companions / sizeof *companions; i++) {
        Path a, b;
        TRY(path_join(a, from, companions[i]));
        TRY(path_join(b, dir, companions[i]));
        if (file_is(a)) TRY(file_copy(a, b));
    }
    return OK;
}
