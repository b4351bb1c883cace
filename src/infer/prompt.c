/* infer/prompt.c -- see prompt.h. */
#include "infer/prompt.h"

#include <stdlib.h>
#include <string.h>

Status prompt_reader_open(PromptReader *r, const Config *recipe, const Predictor *model)
{
    const Budget any = { .tokens     = PROMPT_MOST_TOKENS,
                         .patches    = PROMPT_MOST_TOKENS,
                         .docs       = 1,
                         .supervised = PROMPT_MOST_TOKENS };
    StreamShape  ss  = shape_stream(&model->source.shape);
    *r               = (PromptReader){ 0 };
    TRY(sample_conf(&r->sc, recipe, model->source.tokenizer, &model->patch, &ss, &any));
    r->sc.chat.prompt_only = true, r->sc.max_length = PROMPT_MOST_TOKENS;
    return sample_scratch_open(&r->scratch, model->source.tokenizer);
}

void prompt_reader_close(PromptReader *r)
{
    sample_scratch_close(&r->scratch);
    *r = (PromptReader){ 0 };
}

Status prompt_read(Prompt *p, PromptReader *r, const char *json, const char *where)
{
    FormatConf fc = { r->sc.chat.tokenizer, PROMPT_MOST_TOKENS };
    *p            = (Prompt){ 0 };
    Status st     = format_open_memory(&p->file.file, "jsonl", json, strlen(json), where, &fc);
    p->data       = (Dataset){ .file = &p->file, .files = 1, .samples = 1, .pass = 1 };
    r->sc.data    = &p->data;
    if (!st) st = sample_load(&p->sample, &r->scratch, &r->sc, 0);
    if (st) prompt_close(p);
    return st;
}

static Status add_tokens(Stream *s, const Sample *x)
{
    VisualSlice *slice = calloc((size_t)x->slices + 1, sizeof *slice);
    if (!slice) return fail(E_FIT, "no memory for %lld pictures", (long long)x->slices);
    for (int64_t i = 0; i < x->slices; i++) slice[i] = (VisualSlice){ x->slice[i].h, x->slice[i].w, NULL };
    Document d  = { x->ids.n, x->ids.v, x->targets.v, x->slices, slice };
    Status   st = stream_add(s, &d);
    free(slice);
    return st;
}

Status prompt_add(Stream *s, Prompt *p, PromptReader *r)
{
    Sample *x  = &p->sample;
    int64_t at = s->patches;
    TRY(add_tokens(s, x));
    r->sc.data = &p->data;
    for (int64_t i = 0; i < x->slices; i++) {
        TRY(sample_pixels(stream_patch(s, at), s->shape.bytes, x, &r->scratch, &r->sc, i));
        at += (int64_t)x->slice[i].h * x->slice[i].w;
    }
    return OK;
}

void prompt_close(Prompt *p)
{
    sample_close(&p->sample);
    format_close(&p->file.file);
    *p = (Prompt){ 0 };
}
