/* model/weights_check.c -- which tensors of the files a model uses, and which layers the files lack. */
#include "model/weights_private.h"

#include <stdio.h>
#include <string.h>

static bool ends_with(const char *s, const char *tail)
{
    size_t a = strlen(s), b = strlen(tail);
    return a >= b && !strcmp(s + a - b, tail);
}

static bool is_piece(const Model *m, const Piece *q, const char *name)
{
    char file[160];
    weights_file_name(file, sizeof file, &m->shape, q->name);
    return !strcmp(file, name);
}

/* Qwen's layers that predict further tokens, which no forward here has. */
static bool is_foreign_mtp(const ModelShape *s, const char *name)
{
    return s->text.gdn.every && !strncmp(name, "mtp.", 4);
}

/* Files repeat embedding and head beside the layer that predicts further tokens, which may be left out. */
static bool is_left_out(const ModelShape *s, const char *name)
{
    char at[80];
    if (is_foreign_mtp(s, name) || shape_is_empty_shared(s, name)) return true;
    int  n = snprintf(at, sizeof at, "%slayers.%lld.", s->text_prefix, (long long)s->text.L);
    if (!s->text.mtp_in_file || strncmp(name, at, (size_t)n)) return false;
    return !s->text.mtp || !strcmp(name + n, "embed_tokens.weight") ||
           !strcmp(name + n, "shared_head.head.weight");
}

static bool is_used(const Model *m, const char *name)
{
    if (st_is_scale(name) || is_left_out(&m->shape, name)) return true;
    char experts[64];
    weights_file_name(experts, sizeof experts, &m->shape, ".mlp.experts.");
    bool used = strstr(name, experts) || (m->shape.text.tied && ends_with(name, "lm_head.weight"));
    for (int k = 0; !used && k < m->params.n; k++)
        for (int j = 0; !used && j < m->params.p[k]->pieces; j++)
            used = is_piece(m, &m->params.p[k]->piece[j], name);
    return used;
}

Status weights_find_mtp(ModelShape *s, const char *folder)
{
    SafeTensors st;
    char name[120];
    if (!s->text.mtp) return OK;
    snprintf(name, sizeof name, "%slayers.%lld.eh_proj.weight", s->text_prefix, (long long)s->text.L);
    TRY(st_open(&st, folder));
    if (!st_find(&st, name)) s->text.mtp = 0;
    st_close(&st);
    return OK;
}

/* Such layers are neither trained nor written: a saved folder lacks them. */
static void report_mtp(const Model *m, const SafeTensors *st, const Log *log)
{
    int n = 0;
    for (int i = 0; i < st->count; i++) n += is_foreign_mtp(&m->shape, st->tensor[i].name);
    if (n)
        log_warn(log, "%d tensors mtp.* (layers that predict further tokens) of the files are ignored: they "
                 "do not train, and saved models are without them; copy them from these files to keep them",
                 n);
}

/* Warns of tensors that no parameter of the whole model uses: the file may be of another model than
 * config.json. */
static Status report_unused(const Model *m, const SafeTensors *st, const Log *log)
{
    Model whole;
    int unused = 0;
    const char *first = NULL;
    TRY(model_open_whole_of(&whole, m));
    for (int i = 0; i < st->count; i++)
        if (!is_used(&whole, st->tensor[i].name) && !unused++) first = st->tensor[i].name;
    model_close(&whole);
    if (unused)
        log_warn(log, "the model does not use %d tensors of the files, the first is %s; check that "
                 "config.json belongs to these weights", unused, first);
    return OK;
}

Status weights_check(const Model *m, const SafeTensors *st, const Log *log)
{
    TRY(st_check_scales(st));
    report_mtp(m, st, log);
    return report_unused(m, st, log);
}
