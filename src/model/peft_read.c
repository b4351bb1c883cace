/* model/peft_read.c -- opening an adapter: which tensor of the file is what; see adapter_files.h.
 *
 * It is the model that is walked, and asked of each module what the file has of it. What nobody asked for in
 * the end is an error. */
#include "model/peft_config.h"
#include "model/peft_private.h"
#include "model/weights_private.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Reader {
    PeftFile   *f;
    PeftConfig       conf;
    Model          m;                    /* the base */
    bool          *used;                 /* by tensor of the file */
    LoraTarget *target;               /* become exact */
    const char   **save;
    int            n, saves;
    int            straight, turned;     /* fused pairs that say which they are */
} Reader;

bool peft_is(const char *folder)
{
    Path path;
    return !path_join(path, folder, PEFT_CONFIG) && file_is(path);
}

/* ---- tensors ---- */

static const StTensor *look(Reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static const StTensor *look(Reader *r, const char *fmt, ...)
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

static Status check_numbers(const StTensor *t)
{
    if (t->dtype == F32 || t->dtype == BF16 || t->dtype == F16 || t->dtype == F64) return OK;
    return fail(E_DATA, "%s: stored as %s; an adapter is of f32, bf16 or f16", t->name, dtype_name(t->dtype));
}

static Status wrong_shape(const StTensor *t, const char *want)
{
    if (t->rank != 2)
        return fail(E_DATA, "%s: %d dimensions; a matrix is wanted", t->name, t->rank);
    return fail(E_DATA, "%s: shape [%lld, %lld]; %s is wanted", t->name, (long long)t->shape[0],
                (long long)t->shape[1], want);
}

/* Both halves of a pair, A (rows, in) and B (out, rows); rows: 0 before they are known. */
static Status check_pair(const StTensor *a, const StTensor *b, int64_t out, int64_t in, int64_t *rows)
{
    char want[80];
    TRY(check_numbers(a));
    TRY(check_numbers(b));
    if (!*rows && a->rank == 2) *rows = a->shape[0];
    snprintf(want, sizeof want, "[%lld, %lld]", (long long)*rows, (long long)in);
    if (a->rank != 2 || a->shape[0] != *rows || a->shape[1] != in || *rows < 1) return wrong_shape(a, want);
    snprintf(want, sizeof want, "[%lld, %lld]", (long long)out, (long long)*rows);
    if (b->rank != 2 || b->shape[0] != out || b->shape[1] != *rows) return wrong_shape(b, want);
    return OK;
}

static Status alone(const StTensor *a, const StTensor *b)
{
    return fail(E_DATA, "%s: the other half of the pair is not in the file", a ? a->name : b->name);
}

/* ---- targets ---- */

static void add_pair(Reader *r, const LoraTarget *t, const PeftAdapter *p)
{
    r->target[r->n] = *t, r->f->pair[r->n++] = *p;
}

/* The rank is what the file has; the scale is by what the configuration says, so they must be the same. */
static Status settle_rank(Reader *r, LoraTarget *t, int64_t rank)
{
    TRY(peft_config_module(&r->conf, t));
    if (t->rank == rank) return OK;
    return fail(E_DATA, "%s: rank %lld by %s, its tensors have %lld", t->module, (long long)t->rank,
                PEFT_CONFIG, (long long)rank);
}

/* Who targets the head of a model has PEFT put a copy of the head in. */
static Status note_copy(Reader *r, const char *module)
{
    static const char *const tails[] = { "weight", "bias" };
    for (int i = 0; i < 2; i++) {
        const StTensor *t = look(r, PEFT_PREFIX "%s.base_layer.%s", module, tails[i]);
        if (!t) continue;
        TRY(check_numbers(t));
        r->f->copy[r->f->copies++] = t->name;
    }
    return OK;
}

static Status read_plain(Reader *r, const Param *w, int i)
{
    LoraTarget t = { 0 };
    PeftAdapter p = { .form = PEFT_PLAIN, .E = 1, .out = w->piece[i].shape[0], .in = w->shape[1] };
    int64_t rank = 0;
    lora_module_name(t.module, sizeof t.module, w, i);
    p.a = look(r, PEFT_PREFIX "%s.lora_A.weight", t.module);
    p.b = look(r, PEFT_PREFIX "%s.lora_B.weight", t.module);
    if (!p.a && !p.b) return OK;
    if (!p.a || !p.b) return alone(p.a, p.b);
    TRY(check_pair(p.a, p.b, p.out, p.in, &rank));
    TRY(settle_rank(r, &t, rank));
    TRY(note_copy(r, t.module));
    add_pair(r, &t, &p);
    return OK;
}

/* ---- experts, fused ---- */

/* Which way round a pair lies over experts of (out, in); PEFT_PLAIN: neither. */
static PeftForm way_of(const StTensor *a, const StTensor *b, const PeftAdapter *p)
{
    if (a->rank != 2 || b->rank != 2) return PEFT_PLAIN;
    bool straight = a->shape[1] == p->in && b->shape[0] == p->out;
    bool turned = a->shape[1] == p->out && b->shape[0] == p->in;
    return straight && turned ? PEFT_FUSED_SQUARE : straight ? PEFT_FUSED : turned ? PEFT_FUSED_TRANSPOSED : PEFT_PLAIN;
}

/* The only pair of a layer's experts may be of either parameter; no shape is one of both. */
static Status read_fused(Reader *r, LoraTarget *t, PeftAdapter *p, bool inner, bool only)
{
    int64_t rows = 0;
    const char *below = inner ? "base_layer." : "";
    p->a = look(r, "%s%slora_A.weight", p->at, below);
    p->b = look(r, "%s%slora_B.weight", p->at, below);
    if (!p->a && !p->b)
        return fail(E_DATA, "%slora_A.weight: not in the file, though the pair inside of it (base_layer) is",
                    p->at);
    if (!p->a || !p->b) return alone(p->a, p->b);
    p->form = way_of(p->a, p->b, p);
    bool taken = r->n && r->f->pair[r->n - 1].a == p->a; /* by gate_up, which is asked first */
    if (only && p->form == PEFT_PLAIN && (p->gate_up || taken)) return OK;
    bool turned = p->form == PEFT_FUSED_TRANSPOSED;
    TRY(check_pair(p->a, p->b, turned ? p->in : p->out, turned ? p->out : p->in, &rows));
    if (rows % p->E)
        return fail(E_DATA, "%s: %lld rows are no rank for each of %lld experts", p->a->name, (long long)rows,
                    (long long)p->E);
    r->straight += p->form == PEFT_FUSED, r->turned += turned;
    TRY(settle_rank(r, t, rows / p->E));
    add_pair(r, t, p);
    return OK;
}

/* ---- experts, one by one ---- */

static const char *const parts[3] = { "gate_proj", "up_proj", "down_proj" };

Status peft_expert_tensor(const PeftFile *f, const PeftAdapter *p, int64_t e, int part, char which,
                   const StTensor **t)
{
    char name[300];
    snprintf(name, sizeof name, "%s%lld.%s.lora_%c.weight", p->at, (long long)e, parts[p->gate_up ? part : 2],
             which);
    return st_get(&f->st, name, t);
}

/* All experts are alike: one rank and one alpha. */
static Status check_expert(Reader *r, LoraTarget *t, const PeftAdapter *p, int64_t e, int part,
                           int64_t *rank)
{
    const StTensor *a, *b;
    LoraTarget own = { 0 };
    const char *name = p->at + strlen(PEFT_PREFIX);
    TRY(peft_expert_tensor(r->f, p, e, part, 'A', &a));
    TRY(peft_expert_tensor(r->f, p, e, part, 'B', &b));
    r->used[a - r->f->st.tensor] = r->used[b - r->f->st.tensor] = true;
    TRY(check_pair(a, b, p->out / peft_parts(p), p->in, rank));
    int n = snprintf(own.module, sizeof own.module, "%s%lld.%s", name, (long long)e,
                     parts[p->gate_up ? part : 2]);
    if (n >= (int)sizeof own.module) return fail(E_DATA, "%s: a module of too long a name", a->name);
    TRY(settle_rank(r, &own, *rank));
    if (t->rank && t->alpha != own.alpha)
        return fail(E_DATA, "%s: alpha differs between experts", own.module);
    t->rank = own.rank, t->alpha = own.alpha;
    return OK;
}

static Status same_halves(const PeftFile *f, const PeftAdapter *p, bool *same)
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

static Status read_each(Reader *r, LoraTarget *t, PeftAdapter *p)
{
    int64_t rank = 0;
    bool same = true;
    p->form = PEFT_PER_EXPERT;
    for (int64_t e = 0; e < p->E; e++)
        for (int k = 0; k < peft_parts(p); k++) TRY(check_expert(r, t, p, e, k, &rank));
    if (p->gate_up) TRY(same_halves(r->f, p, &same));
    if (!same) {                                                   /* the scale stays as it is */
        p->form = PEFT_PER_EXPERT_SPLIT;
        t->rank *= 2, t->alpha *= r->conf.rslora ? sqrt(2) : 2;
    }
    add_pair(r, t, p);
    return OK;
}

static bool has_each(Reader *r, const PeftAdapter *p)
{
    for (int k = 0; k < peft_parts(p); k++)
        for (char c = 'A'; c <= 'B'; c++) {
            char name[300];
            snprintf(name, sizeof name, "%s0.%s.lora_%c.weight", p->at, parts[p->gate_up ? k : 2], c);
            if (st_find(&r->f->st, name)) return true;
        }
    return false;
}

static bool has_fused(Reader *r, const PeftAdapter *p, const char *below)
{
    for (char c = 'A'; c <= 'B'; c++) {
        char name[300];
        snprintf(name, sizeof name, "%s%slora_%c.weight", p->at, below, c);
        if (st_find(&r->f->st, name)) return true;
    }
    return false;
}

static Status read_experts(Reader *r, const Param *w)
{
    LoraTarget t = { 0 };
    PeftAdapter p = { .gate_up = w->form == FORM_EXPERT_GATE_UP, .E = w->shape[0], .out = w->shape[1],
                      .in = w->shape[2] };
    lora_module_name(t.module, sizeof t.module, w, 0);
    int at = (int)(strrchr(t.module, '.') - t.module) + 1;
    snprintf(p.at, sizeof p.at, PEFT_PREFIX "%.*s", at, t.module);
    bool both = has_fused(r, &p, "base_layer."), fused = both || has_fused(r, &p, ""), each = has_each(r, &p);
    if (fused && each) return fail(E_DATA, "%s*: adapters of experts both fused and one by one", p.at);
    if (each) return read_each(r, &t, &p);
    return fused ? read_fused(r, &t, &p, both && p.gate_up, !both) : OK;
}

/* Where in and out are the same number, the other experts of the file say which is which, or who wrote it. */
static Status settle_squares(Reader *r)
{
    if (!r->straight && !r->turned) r->straight = r->conf.settled;
    for (int i = 0; i < r->n; i++) {
        PeftAdapter *p = &r->f->pair[i];
        if (p->form == PEFT_FUSED_SQUARE && !r->straight == !r->turned)
            return fail(E_DATA,
                        "%s: experts of %lld by %lld, and nothing in the file tells which of the two its "
                        "rows are; load and save it with a current PEFT",
                        p->a->name, (long long)p->out, (long long)p->in);
        if (p->form == PEFT_FUSED_SQUARE) p->form = r->turned ? PEFT_FUSED_TRANSPOSED : PEFT_FUSED;
    }
    return OK;
}

/* ---- modules that were trained whole ---- */

static Status add_saved(Reader *r, const Param *p, int i)
{
    char name[sizeof p->piece->name];
    lora_module_name(name, sizeof name, p, i);
    for (int k = 0; k < r->saves; k++)
        if (!strcmp(r->save[k], name)) return OK;
    r->save[r->saves++] = keep_text(&r->f->keep, name, strlen(name));
    return OK;
}

/* Pieces of a parameter that are in the file as they are. */
static Status count_whole(Reader *r, const Param *p, int *found)
{
    const char *dot = strrchr(p->piece[0].name, '.');
    for (int i = 0; i < p->pieces; i++) {
        const StTensor *t = look(r, PEFT_PREFIX "%s", p->piece[i].name);
        if (t) TRY(check_numbers(t));
        *found += t != NULL;
    }
    if (p->linear != LINEAR_EXPERTS || *found) return OK;
    for (int64_t e = 0; e < p->shape[0]; e++)
        for (int k = 0; k < 3; k++)
            if ((k < 2) == (p->form == FORM_EXPERT_GATE_UP))
                *found += look(r, PEFT_PREFIX "%.*s.%lld.%s.weight", (int)(dot - p->piece[0].name),
                               p->piece[0].name, (long long)e, parts[k]) != NULL;
    if (*found) *found = p->pieces;                          /* what is missing is found below */
    return OK;
}

static bool is_saved(const Reader *r, const Param *p, int i)
{
    char name[sizeof p->piece->name];
    lora_module_name(name, sizeof name, p, i);
    for (int k = 0; k < r->saves; k++)
        if (!strcmp(r->save[k], name)) return true;
    return false;
}

static Status check_saved(const Reader *r)
{
    for (int k = 0; k < r->m.params.n; k++) {
        const Param *p = r->m.params.p[k];
        for (int i = 0; i < p->pieces; i++) {
            char name[300];
            snprintf(name, sizeof name, PEFT_PREFIX "%s", p->piece[i].name);
            if (is_saved(r, p, i) && p->linear != LINEAR_EXPERTS && !st_find(&r->f->st, name))
                return fail(E_DATA, "%s: not in the file, which has the rest of its module",
                            p->piece[i].name);
        }
    }
    for (int i = 0; i < r->n; i++)
        for (int k = 0; k < r->saves; k++)
            if (!strcmp(r->target[i].module, r->save[k]))
                return fail(E_DATA, "%s: both adapted and trained whole", r->save[k]);
    return OK;
}

static Status read_saved(Reader *r)
{
    for (int k = 0; k < r->m.params.n; k++) {
        const Param *p = r->m.params.p[k];
        int found = 0;
        TRY(count_whole(r, p, &found));
        if (found && found < p->pieces)
            return fail(E_DATA, "%s: trained whole without its neighbours, which are one weight with it here",
                        p->piece[0].name);
        if (found) TRY(weights_check_shapes(&r->m, &r->f->st, PEFT_PREFIX, k));
        for (int i = 0; found && i < p->pieces; i++) TRY(add_saved(r, p, i));
    }
    return check_saved(r);
}

/* Of a tied model both tables are stored, unless the one was trained without the other. */
static Status read_tied_head(Reader *r)
{
    const Param *p = r->m.embed;
    if (!r->m.shape.text.tied || !is_saved(r, p, 0)) return OK;
    const StTensor *head = look(r, PEFT_HEAD), *embed = look(r, PEFT_PREFIX "%s", p->piece[0].name);
    if (head && head->dtype == embed->dtype && head->bytes == embed->bytes &&
        !memcmp(head->data, embed->data, head->bytes))
        return OK;
    return fail(E_DATA, "%s: trained whole without the head, which is the same table here "
                "(tie_word_embeddings); PEFT keeps them one with ensure_weight_tying", p->piece[0].name);
}

/* ---- opening ---- */

static Status refuse_unused(const Reader *r)
{
    const SafeTensors *st = &r->f->st;
    for (int i = 0; i < st->count; i++) {
        if (r->used[i]) continue;
        if (strstr(st->tensor[i].name, ".lora_embedding_"))
            return fail(E_DATA, "%s: adapters of embeddings are not computed here", st->tensor[i].name);
        return fail(E_DATA, "%s: belongs to no module of this model that takes adapters", st->tensor[i].name);
    }
    return r->n ? OK : fail(E_DATA, "there is no adapter in it");
}

static Status read_all(Reader *r)
{
    for (int k = 0; k < r->m.params.n; k++) {
        const Param *p = r->m.params.p[k];
        if (p->linear == LINEAR_EXPERTS) TRY(read_experts(r, p));
        else for (int i = 0; p->linear && i < p->pieces; i++) TRY(read_plain(r, p, i));
    }
    TRY(settle_squares(r));
    TRY(read_saved(r));
    TRY(read_tied_head(r));
    return refuse_unused(r);
}

static Status rooms(Reader *r)
{
    PeftFile *f = r->f;
    int n = 0;
    for (int k = 0; k < r->m.params.n; k++) n += r->m.params.p[k]->pieces;
    r->used = calloc((size_t)f->st.count + 1, sizeof *r->used);
    r->target = keep_take(&f->keep, (size_t)n * sizeof *r->target);
    f->pair = keep_take(&f->keep, (size_t)n * sizeof *f->pair);
    r->save = keep_take(&f->keep, (size_t)n * sizeof *r->save);
    f->copy = keep_take(&f->keep, (size_t)n * 2 * sizeof *f->copy);
    return r->used ? OK : fail(E_FIT, "no memory for the list of an adapter's tensors");
}

static void hand_over(Reader *r)
{
    PeftFile *f = r->f;
    f->save = (WordList){ r->save, r->saves };
    f->base = keep_text(&f->keep, r->conf.base, strlen(r->conf.base));
    f->conf = (LoraConf){ .rank = r->conf.r, .alpha = r->conf.alpha, .dropout = r->conf.dropout,
                             .rslora = r->conf.rslora, .gaussian = r->conf.gaussian, .exact = r->target,
                             .exacts = r->n, .save = r->saves ? &f->save : NULL };
}

Status peft_read(PeftFile *f, const Json *config, const ModelShape *s)
{
    const bool frozen[GROUP_N] = { true, true, true };
    Reader r = { .f = f };
    TRY_CTX(peft_config_open(&r.conf, config), PEFT_CONFIG);
    Status st = model_open(&r.m, s, frozen);
    if (!st) st = rooms(&r);
    if (!st) st = read_all(&r);
    if (!st) hand_over(&r);
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
        return fail(E_DATA, "adapter_model.bin: pickled files can run code and are not read; save it as "
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
    keep_close(&f->keep);
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
