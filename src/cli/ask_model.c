/* cli/ask_model.c -- see ask_model.h. */
#include "cli/ask_model.h"

#include <string.h>

void ask_model_default(AskModel *m)
{
    m->how        = (GenerateConf){ .max_new = 512, .top_p = 1 };
    m->backend    = "auto";
    m->plain.most = PLAIN_ANY;
    config_default(&m->recipe);
}

static Status set_overrides(AskModel *m, const char *verb)
{
    for (int i = m->own; i < m->plain.n; i++) {
        const char *text = m->plain.value[i];
        if (!config_is_override(text))
            return fail(E_CONFIG, "%s: %s is neither an option nor section.key=value", verb, text);
        TRY(config_set(&m->recipe, text));
    }
    return OK;
}

static Status dtype_word(const char *text, const char **word)
{
    DType d;
    if (!text) return OK;
    TRY(option_dtype("--dtype", text, &d));
    return *word = d == F32 ? "float32" : "bfloat16", OK;
}

Status ask_model_set(AskModel *m, const char *verb)
{
    Config *c = &m->recipe;
    TRY(dtype_word(m->dtype, &c->model.dtype));
    TRY(option_folder("--lora", m->lora));
    TRY(set_overrides(m, verb));
    if (m->backend) c->device.backend = m->backend;
    c->device.backend = backend_pick(c->device.backend);
    if (m->lora) c->lora.path = m->lora;
    c->model.path = m->dir, m->how.seed = (uint64_t)m->seed;
    return backend_check(c->device.backend);
}

/* Overrides are set once more: the model of an adapter brings keys of its own. */
Status ask_model_open(AskModel *m, const char *verb, Comm *world)
{
    m->world = world;
    TRY(lora_source_resolve(&m->recipe));
    TRY(set_overrides(m, verb));
    TRY(predict_open(&m->model, &m->recipe));
    m->how.vocab = tokenizer_size(m->model.source.tokenizer), m->how.stops = m->model.stops;
    memcpy(m->how.stop, m->model.stop, sizeof m->how.stop);
    return prompt_reader_open(&m->reader, &m->recipe, &m->model);
}

static Status open_stream(AskModel *m, const Budget *b)
{
    StreamShape ss = shape_stream(&m->model.source.shape);
    ss.bytes       = true;
    return stream_open(&m->stream, &ss, b);
}

Status ask_model_load(AskModel *m, const Budget *b, int64_t docs)
{
    int         rank = m->world->rank, ranks = m->world->size;
    const Log   log              = { .rank  = rank,
                                     .world = ranks,
                                     .least = rank        ? LOG_ERROR
                                              : ranks > 1 ? LOG_INFO
                                                          : LOG_WARN };
    PredictConf conf             = { .budget       = *b,
                                     .capacity     = { docs, m->how.max_new },
                                     .world        = m->world,
                                     .one_document = true,
                                     .log          = &log };
    m->recipe.train.micro_tokens = b->tokens;
    TRY(comm_agree(m->world, open_stream(m, b)));
    TRY(predict_load(&m->model, &conf));
    return comm_agree(m->world, generator_open(&m->gen, &m->model.e));
}

bool ask_model_has_documents(const AskModel *m) { return !m->model.e.mesh.at[AX_DP]; }

/* A replica without documents computes where the others need it. */
static bool takes_part(const AskModel *m) { return m->stream.docs || decode_in_lockstep(&m->model.e); }

Status ask_model_answer(AskModel *m, Ids *out)
{
    return takes_part(m) ? generate(&m->gen, &m->stream, &m->how, out) : OK;
}

void ask_model_unload(AskModel *m)
{
    generator_close(&m->gen);
    prompt_reader_close(&m->reader);
    predict_close(&m->model);
}

void ask_model_close(AskModel *m)
{
    stream_close(&m->stream);
    plain_args_close(&m->plain);
    config_close(&m->recipe);
}
