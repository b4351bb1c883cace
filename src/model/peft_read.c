/* model/peft_read.c -- opens PEFT files and assigns their tensors to modules; see peft.h.
 *
 * The walk is over the modules of the model; for each the file is searched for its tensors. A tensor that
 * belongs to no module is an error. */
#include "model/peft_config.h"
#include "model/peft_private.h"
#include "model/weights_private.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct PeftReader {
    PeftFile    *f;
    PeftConfig   conf;
    Model        m;                      /* the base */
    bool        *used;                   /* per tensor of the file */
    LoraTarget  *target;                 /* becomes conf.exact */
    const char **save;
    int          n, saves;
    int          fused, transposed;      /* fused adapters of either form, known by their shapes */
} PeftReader;

bool peft_is(const char *folder) { return folder_has(folder, PEFT_CONFIG); }

/* ---- tensors ---- */

/* Finds a tensor and marks it as used; NULL: not in the file. */
static const StTensor *find_tensor(PeftReader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static const StTensor *find_tensor(PeftReader *r, const char *fmt, ...)
{
    char name[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    const StTensor *t = st_find(&r->f->st, name);
    if (t) r->used[t - r->f->st.tensor] = true;
    return t;
}

static Status check_dtype(const StTensor *t)
{
    if (t->dtype == F32 || t->dtype == BF16 || t->dtype == F16 || t->dtype == F64) return OK;
    return fail(E_DATA, "%s is stored as %s; an adapter must be f32, bf16 or f16", t->name,
                dtype_name(t->dtype));
}

static Status wrong_shape(const StTensor *t, const char *want)
{
    if (t->rank != 2)
        return fail(E_DATA, "%s has %d dimensions instead of 2", t->name, t->rank);
    return fail(E_DATA, "%s has shape [%lld, %lld] instead of %s; the adapter is for another model", t->name,
                (long long)t->shape[0], (long long)t->shape[1], want);
}

/* Checks A (rows, in) and B (out, rows); *rows 0: not yet known, and set from A. */
static Status check_shapes(const StTensor *a, const StTensor *b, int64_t out, int64_t in, int64_t *rows)
{
    char want[80];
    TRY(check_dtype(a));
    TRY(check_dtype(b));
    if (!*rows && a->rank == 2) *rows = a->shape[0];
    snprintf(want, sizeof want, "[%lld, %lld]", (long long)*rows, (long long)in);
    if (a->rank != 2 || a->shape[0] != *rows || a->shape[1] != in || *rows < 1) return wrong_shape(a, want);
    snprintf(want, sizeof want, "[%lld, %lld]", (long long)out, (long long)*rows);
    if (b->rank != 2 || b->shape[0] != out || b->shape[1] != *rows) return wrong_shape(b, want);
    return OK;
}

static Status report_incomplete(const StTensor *a, const StTensor *b)
{
    return fail(E_DATA, "%s is in the file without its lora_%c", a ? a->name : b->name, a ? 'B' : 'A');
}

/* ---- targets ---- */

static void add_adapter(PeftReader *r, const LoraTarget *t, const PeftAdapter *p)
{
    r->target[r->n] = *t, r->f->adapter[r->n++] = *p;
}

/* Sets rank and alpha of t by the configuration. The rank must be that of the tensors, because it is also
 * part of the scale. */
static Status set_rank_alpha(PeftReader *r, LoraTarget *t, int64_t rank)
{
    TRY(peft_config_module(&r->conf, t));
    if (t->rank == rank) return OK;
    return fail(E_DATA, "%s has rank %lld in %s, its tensors have rank %lld", t->module, (long long)t->rank,
                PEFT_CONFIG, (long long)rank);
}

/* If the head is a target, PEFT also saves a copy of the head's weight. */
static Status add_copies(PeftReader *r, const char *module)
{
    static const char *const tails[] = { "weight", "bias" };
    for (int i = 0; i < 2; i++) {
        const StTensor *t = find_tensor(r, PEFT_PREFIX "%s.base_layer.%s", module, tails[i]);
        if (!t) continue;
        TRY(check_dtype(t));
        r->f->copy[r->f->copies++] = t->name;
    }
    return OK;
}

static Status read_plain(PeftReader *r, const Param *w, int i)
{
    LoraTarget t = { 0 };
    PeftAdapter p = { .form = PEFT_PLAIN, .E = 1, .out = w->piece[i].shape[0], .in = w->shape[1] };
    int64_t rank = 0;
    lora_module_name(t.module, sizeof t.module, w, i);
    p.a = find_tensor(r, PEFT_PREFIX "%s.lora_A.weight", t.module);
    p.b = find_tensor(r, PEFT_PREFIX "%s.lora_B.weight", t.module);
    if (!p.a && !p.b) return OK;
    if (!p.a || !p.b) return report_incomplete(p.a, p.b);
    TRY(check_shapes(p.a, p.b, p.out, p.in, &rank));
    TRY(set_rank_alpha(r, &t, rank));
    TRY(add_copies(r, t.module));
    add_adapter(r, &t, &p);
    return OK;
}

/* ---- experts, fused ---- */

/* Whether A and B are fused or transposed for experts of (out, in); PEFT_PLAIN: neither. */
static PeftForm fused_form(const StTensor *a, const StTensor *b, const PeftAdapter *p)
{
    if (a->rank != 2 || b->rank != 2) return PEFT_PLAIN;
    bool fused = a->shape[1] == p->in && b->shape[0] == p->out;
    bool transposed = a->shape[1] == p->out && b->shape[0] == p->in;
    if (fused && transposed) return PEFT_FUSED_SQUARE;
    return fused ? PEFT_FUSED : transposed ? PEFT_FUSED_TRANSPOSED : PEFT_PLAIN;
}

/* inner: below "base_layer.". only: the file has one adapter for the experts of the layer, whose shapes tell
 * which of the two parameters it belongs to. */
static Status read_fused(PeftReader *r, LoraTarget *t, PeftAdapter *p, bool inner, bool only)
{
    int64_t rows = 0;
    const char *below = inner ? "base_layer." : "";
    p->a = find_tensor(r, "%s%slora_A.weight", p->prefix, below);
    p->b = find_tensor(r, "%s%slora_B.weight", p->prefix, below);
    if (!p->a && !p->b)
        return fail(E_DATA, "%slora_A.weight is not in the file, which has the one below base_layer",
                    p->prefix);
    if (!p->a || !p->b) return report_incomplete(p->a, p->b);
    p->form = fused_form(p->a, p->b, p);
    bool taken = r->n && r->f->adapter[r->n - 1].a == p->a; /* by gate_up_proj, which is read first */
    if (only && p->form == PEFT_PLAIN && (p->gate_up || taken)) return OK;
    bool transposed = p->form == PEFT_FUSED_TRANSPOSED;
    TRY(check_shapes(p->a, p->b, transposed ? p->in : p->out, transposed ? p->out : p->in, &rows));
    if (rows % p->E)
        return fail(E_DATA, "%s has %lld rows, which is not a multiple of %lld experts", p->a->name,
                    (long long)rows, (long long)p->E);
    r->fused += p->form == PEFT_FUSED, r->transposed += transposed;
    TRY(set_rank_alpha(r, t, rows / p->E));
    add_adapter(r, t, p);
    return OK;
}

/* ---- experts, one by one ---- */


Status peft_expert_tensor(const PeftFile *f, const PeftAdapter *p, int64_t e, int part, char which,
                   const StTensor **t)
{
    char name[300];
    snprintf(name, sizeof name, "%s%lld.%s.lora_%c.weight", p->prefix, (long long)e,
             names_usual.expert_part[p->gate_up ? part : 2], which);
    return st_get(&f->st, name, t);
}

/* All experts must have the same rank and alpha. */
static Status check_expert(PeftReader *r, LoraTarget *t, const PeftAdapter *p, int64_t e, int part,
                           int64_t *rank)
{
    const StTensor *a, *b;
    LoraTarget own = { 0 };
    const char *name = p->prefix + strlen(PEFT_PREFIX);
    TRY(peft_expert_tensor(r->f, p, e, part, 'A', &a));
    TRY(peft_expert_tensor(r->f, p, e, part, 'B', &b));
    r->used[a - r->f->st.tensor] = r->used[b - r->f->st.tensor] = true;
    TRY(check_shapes(a, b, p->out / peft_parts(p), p->in, rank));
    int n = snprintf(own.module, sizeof own.module, "%s%lld.%s", name, (long long)e,
                     names_usual.expert_part[p->gate_up ? part : 2]);
    if (n >= (int)sizeof own.module) return fail(E_DATA, "%s: the name of the module is too long", a->name);
    TRY(set_rank_alpha(r, &own, *rank));
    if (t->rank && t->alpha != own.alpha)
        return fail(E_DATA, "%s: its alpha differs from other experts'", own.module);
    t->rank = own.rank, t->alpha = own.alpha;
    return OK;
}

/* Whether gate and up have the same A in all experts. */
static Status has_equal_a(const PeftFile *f, const PeftAdapter *p, bool *same)
{
    *same = true;
    for (int64_t e = 0; e < p->E && *same; e++) {
        const StTensor *a, *b;
        TRY(peft_expert_tensor(f, p, e, 0, 'A', &a));
        TRY(peft_expert_tensor(f, p, e, 1, 'A', &b));
        *same = a->dtype == b->dtype && a->bytes == b->bytes && !memcmp(a->data, b->data, a->bytes);
    }
    return OK;
}

static Status read_per_expert(PeftReader *r, LoraTarget *t, PeftAdapter *p)
{
    int64_t rank = 0;
    bool same = true;
    p->form = PEFT_PER_EXPERT;
    for (int64_t e = 0; e < p->E; e++)
        for (int k = 0; k < peft_parts(p); k++) TRY(check_expert(r, t, p, e, k, &rank));
    if (p->gate_up) TRY(has_equal_a(r->f, p, &same));
    if (!same) {                                                   /* twice the rank, at the same scale */
        p->form = PEFT_PER_EXPERT_SPLIT;
        t->rank *= 2, t->alpha *= r->conf.rslora ? sqrt(2) : 2;
    }
    add_adapter(r, t, p);
    return OK;
}

static bool has_per_expert(PeftReader *r, const PeftAdapter *p)
{
    for (int k = 0; k < peft_parts(p); k++)
        for (int c = 'A'; c <= 'B'; c++) {
            char name[300];
            snprintf(name, sizeof name, "%s0.%s.lora_%c.weight", p->prefix,
                     names_usual.expert_part[p->gate_up ? k : 2], c);
            if (st_find(&r->f->st, name)) return true;
        }
    return false;
}

static bool has_fused(PeftReader *r, const PeftAdapter *p, const char *below)
{
    for (int c = 'A'; c <= 'B'; c++) {
        char name[300];
        snprintf(name, sizeof name, "%s%slora_%c.weight", p->prefix, below, c);
        if (st_find(&r->f->st, name)) return true;
    }
    return false;
}

static Status read_experts(PeftReader *r, const Param *w)
{
    LoraTarget t = { 0 };
    PeftAdapter p = { .gate_up = w->form == FORM_EXPERT_GATE_UP, .E = w->shape[0], .out = w->shape[1],
                      .in = w->shape[2] };
    lora_module_name(t.module, sizeof t.module, w, 0);
    int len = (int)(strrchr(t.module, '.') - t.module) + 1;
    snprintf(p.prefix, sizeof p.prefix, PEFT_PREFIX "%.*s", len, t.module);
    bool both = has_fused(r, &p, "base_layer."), fused = both || has_fused(r, &p, "");
    bool per_expert = has_per_expert(r, &p);
    if (fused && per_expert)
        return fail(E_DATA, "%s*: the file has adapters of experts both fused and one by one", p.prefix);
    if (per_expert) return read_per_expert(r, &t, &p);
    return fused ? read_fused(r, &t, &p, both && p.gate_up, !both) : OK;
}

/* If in = out, the other experts of the file or the version that wrote it tell fused from transposed. */
static Status resolve_squares(PeftReader *r)
{
    if (!r->fused && !r->transposed) r->fused = r->conf.in_is_cols;
    for (int i = 0; i < r->n; i++) {
        PeftAdapter *p = &r->f->adapter[i];
        if (p->form == PEFT_FUSED_SQUARE && !r->fused == !r->transposed)
            return fail(E_DATA,
                        "%s: experts of %lld by %lld, and nothing in the file tells inputs from outputs; "
                        "load and save it with a current PEFT",
                        p->a->name, (long long)p->out, (long long)p->in);
        if (p->form == PEFT_FUSED_SQUARE) p->form = r->transposed ? PEFT_FUSED_TRANSPOSED : PEFT_FUSED;
    }
    return OK;
}

/* ---- modules trained in full ---- */

static Status add_full_module(PeftReader *r, const Param *p, int i)
{
    char name[sizeof p->piece->name];
    lora_module_name(name, sizeof name, p, i);
    for (int k = 0; k < r->saves; k++)
        if (!strcmp(r->save[k], name)) return OK;
    r->save[r->saves++] = mem_pool_copy(&r->f->keep, name, strlen(name));
    return OK;
}

/* Counts the pieces of a parameter whose tensors are in the file. */
static Status count_pieces(PeftReader *r, const Param *p, int *found)
{
    const char *dot = strrchr(p->piece[0].name, '.');
    for (int i = 0; i < p->pieces; i++) {
        const StTensor *t = find_tensor(r, PEFT_PREFIX "%s", p->piece[i].name);
        if (t) TRY(check_dtype(t));
        *found += t != NULL;
    }
    if (p->linear != LINEAR_EXPERTS || *found) return OK;
    for (int64_t e = 0; e < p->shape[0]; e++)
        for (int k = 0; k < 3; k++)
            if ((k < 2) == (p->form == FORM_EXPERT_GATE_UP))
                *found += find_tensor(r, PEFT_PREFIX "%.*s.%lld.%s.weight", (int)(dot - p->piece[0].name),
                               p->piece[0].name, (long long)e, names_usual.expert_part[k]) != NULL;
    if (*found) *found = p->pieces;                          /* weights_check_shapes finds missing ones */
    return OK;
}

static bool is_full_module(const PeftReader *r, const Param *p, int i)
{
    char name[sizeof p->piece->name];
    lora_module_name(name, sizeof name, p, i);
    for (int k = 0; k < r->saves; k++)
        if (!strcmp(r->save[k], name)) return true;
    return false;
}

static Status check_full_modules(const PeftReader *r)
{
    for (int k = 0; k < r->m.params.n; k++) {
        const Param *p = r->m.params.p[k];
        for (int i = 0; i < p->pieces; i++) {
            char name[300];
            snprintf(name, sizeof name, PEFT_PREFIX "%s", p->piece[i].name);
            if (is_full_module(r, p, i) && p->linear != LINEAR_EXPERTS && !st_find(&r->f->st, name))
                return fail(E_DATA, "%s is not in the file, which has the rest of its module",
                            p->piece[i].name);
        }
    }
    for (int i = 0; i < r->n; i++)
        for (int k = 0; k < r->saves; k++)
            if (!strcmp(r->target[i].module, r->save[k]))
                return fail(E_DATA, "%s has both an adapter and a full weight", r->save[k]);
    return OK;
}

static Status read_full_modules(PeftReader *r)
{
    for (int k = 0; k < r->m.params.n; k++) {
        const Param *p = r->m.params.p[k];
        int found = 0;
        TRY(count_pieces(r, p, &found));
        if (found && found < p->pieces)
            return fail(E_DATA, "the file has only part of the tensors that are one weight with %s here",
                        p->piece[0].name);
        if (found) TRY(weights_check_shapes(&r->m, &r->f->st, PEFT_PREFIX, k));
        for (int i = 0; found && i < p->pieces; i++) TRY(add_full_module(r, p, i));
    }
    return check_full_modules(r);
}

/* The file of a tied model has embedding and head, which are equal unless they were trained apart. */
static Status read_tied_head(PeftReader *r)
{
    const Param *p = r->m.embed;
    if (!r->m.shape.text.tied || !is_full_module(r, p, 0)) return OK;
    const StTensor *head = find_tensor(r, PEFT_HEAD);
    const StTensor *embed = find_tensor(r, PEFT_PREFIX "%s", p->piece[0].name);
    if (head && head->dtype == embed->dtype && head->bytes == embed->bytes &&
        !memcmp(head->data, embed->data, head->bytes))
        return OK;
    return fail(E_DATA, "%s was trained apart from the head, which is the same weight here "
                "(tie_word_embeddings); train it with ensure_weight_tying in PEFT", p->piece[0].name);
}

/* ---- opening ---- */

static Status refuse_unused(const PeftReader *r)
{
    const SafeTensors *st = &r->f->st;
    for (int i = 0; i < st->count; i++) {
        if (r->used[i]) continue;
        if (strstr(st->tensor[i].name, ".lora_embedding_"))
            return fail(E_DATA, "%s: adapters of embeddings are not supported", st->tensor[i].name);
        return fail(E_DATA, "%s belongs to no module of this model that takes adapters",
                    st->tensor[i].name);
    }
    return r->n ? OK : fail(E_DATA, "the file has no adapters");
}

static Status read_all(PeftReader *r)
{
    for (int k = 0; k < r->m.params.n; k++) {
        const Param *p = r->m.params.p[k];
        if (p->linear == LINEAR_EXPERTS) TRY(read_experts(r, p));
        else for (int i = 0; p->linear && i < p->pieces; i++) TRY(read_plain(r, p, i));
    }
    TRY(resolve_squares(r));
    TRY(read_full_modules(r));
    TRY(read_tied_head(r));
    return refuse_unused(r);
}

static Status alloc_lists(PeftReader *r)
{
    PeftFile *f = r->f;
    int n = 0;
    for (int k = 0; k < r->m.params.n; k++) n += r->m.params.p[k]->pieces;
    r->used = calloc((size_t)f->st.count + 1, sizeof *r->used);
    r->target = mem_pool_alloc(&f->keep, (size_t)n * sizeof *r->target);
    f->adapter = mem_pool_alloc(&f->keep, (size_t)n * sizeof *f->adapter);
    r->save = mem_pool_alloc(&f->keep, (size_t)n * sizeof *r->save);
    f->copy = mem_pool_alloc(&f->keep, (size_t)n * 2 * sizeof *f->copy);
    return r->used ? OK : fail(E_FIT, "no memory for the list of an adapter's tensors");
}

static void set_conf(PeftReader *r)
{
    PeftFile *f = r->f;
    f->save = (WordList){ r->save, r->saves };
    f->base = mem_pool_copy(&f->keep, r->conf.base, strlen(r->conf.base));
    f->conf = (LoraConf){ .rank = r->conf.r, .alpha = r->conf.alpha, .dropout = r->conf.dropout,
                             .rslora = r->conf.rslora, .gaussian = r->conf.gaussian, .exact = r->target,
                             .exacts = r->n, .save = r->saves ? &f->save : NULL };
}

Status peft_read(PeftFile *f, const Json *config, const ModelShape *s)
{
    const bool frozen[GROUP_N] = { true, true, true };
    PeftReader r = { .f = f };
    TRY_CTX(peft_config_open(&r.conf, config), PEFT_CONFIG);
    Status st = model_open(&r.m, s, frozen);
    if (!st) st = alloc_lists(&r);
    if (!st) st = read_all(&r);
    if (!st) set_conf(&r);
    model_close(&r.m);
    peft_config_close(&r.conf);
    free(r.used);
    return st;
}

static Status open_files(PeftFile *f, const char *folder, Json **config)
{
    Path path, old;
    TRY(path_join(path, folder, PEFT_CONFIG));
    TRY(json_load(config, path));
    TRY(path_join(path, folder, PEFT_WEIGHTS));
    TRY(path_join(old, folder, "adapter_model.bin"));
    if (!file_is(path) && file_is(old))
        return fail(E_DATA, "adapter_model.bin: a pickled file can run code and is not read; save it as "
                    PEFT_WEIGHTS " (PEFT: save_pretrained)");
    return st_open(&f->st, path);
}

Status peft_open(PeftFile *f, const char *folder, const ModelShape *s)
{
    Json *config = NULL;
    *f = (PeftFile){ 0 };
    Status st = open_files(f, folder, &config);
    if (!st) st = peft_read(f, config, s);
    json_decref(config);
    if (!st) return OK;
    peft_close(f);
    return wrap(st, "%s", folder);
}

void peft_close(PeftFile *f)
{
    st_close(&f->st);
    mem_pool_close(&f->keep);
    *f = (PeftFile){ 0 };
}

Status peft_base(Path out, const char *folder)
{
    Path path;
    Json *o;
    const char *base;
    TRY(path_join(path, folder, PEFT_CONFIG));
    TRY(json_load(&o, path));
    Status st = json_str(o, "base_model_name_or_path", "", &base);
    if (!st && snprintf(out, sizeof(Path), "%s", base) >= (int)sizeof(Path))
        st = fail(E_DATA, "base_model_name_or_path is too long");
    json_decref(o);
    return st ? wrap(st, "%s", path) : OK;
}
