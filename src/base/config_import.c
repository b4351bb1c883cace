/* base/config_import.c -- see config_import.h. */
#include "base/config_import.h"

#include "base/config_table.h"
#include "base/str.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Makes the text fit into a comment of YAML: one line of printable characters. */
static void make_plain(char *text)
{
    bool utf8 = str_is_utf8(text);
    for (int n; *text; text += n) {
        uint32_t code = (unsigned char)*text;
        n = utf8 ? str_utf8(text, &code) : 1;
        bool control = code < ' ' || (code >= 0x7f && code < (utf8 ? 0xa0 : 0x100));
        bool odd = code == 0x2028 || code == 0x2029 || code == 0xfeff || (code >= 0xfff0 && code < 0x10000);
        if (control || odd) memset(text, '?', (size_t)n);
    }
}

static void note(Import *i, int line, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static void note(Import *i, int line, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    make_plain(text);
    ImportNote *n = mem_pool_alloc(&i->args.keep, sizeof *n);
    *n = (ImportNote){ .text = mem_pool_copy(&i->args.keep, text, strlen(text)), .line = line };
    *(i->last ? &i->last->next : &i->first) = n;
    i->last = n;
}

static const char *first_value(const ForeignArg *a) { return a->n ? a->value[0] : "true"; }

static bool is_true(const ForeignArg *a) { return str_lists_like("true,1,yes,on", ',', first_value(a)); }

/* Values by commas and as separate words, as a YAML list, each in quotes. */
static void put_list(char *out, size_t size, const ForeignArg *a)
{
    size_t used = 1, len;
    snprintf(out, size, "[");
    for (int k = 0; k < a->n; k++) {
        const char *rest = a->value[k];
        for (const char *item; (item = str_item(&rest, ',', &len));) {
            while (len && *item == ' ') item++, len--;
            if (!len || used + len + 6 > size || memchr(item, '"', len) || memchr(item, '\\', len)) continue;
            used += (size_t)snprintf(out + used, size - used, "%s\"%.*s\"", used > 1 ? ", " : "", (int)len,
                                     item);
        }
    }
    snprintf(out + used, size - used, "]");
}

/* Sets section.key; a value that is refused becomes a note. */
static void set(Import *i, const ForeignArg *a, const char *key, const char *value)
{
    char text[8192];
    snprintf(text, sizeof text, "%s=%s", key, value);
    if (strchr(value, '$') && !strchr(value, '/'))
        note(i, a->line, "%s %s: the script does not set this variable", a->key, value);
    else if (config_set(&i->cfg, text)) note(i, a->line, "%s %s: %s", a->key, value, status_text());
    else i->taken++;
}

static void take_number(Import *i, const ForeignArg *a, int64_t *out)
{
    int64_t x;
    bool    fits = str_whole(first_value(a), &x) && x > 0 && x <= 1 << 20;
    if (fits) *out = x, i->taken++;
    else note(i, a->line, "%s %s: not a number from 1 to %d", a->key, first_value(a), 1 << 20);
}

static void take_batch(Import *i, const ForeignArg *a)        { take_number(i, a, &i->batch); }
static void take_accumulation(Import *i, const ForeignArg *a) { take_number(i, a, &i->accumulation); }
static void take_global(Import *i, const ForeignArg *a)       { take_number(i, a, &i->global); }
static void take_ranks(Import *i, const ForeignArg *a)        { take_number(i, a, &i->ranks); }
static void take_nodes(Import *i, const ForeignArg *a)        { take_number(i, a, &i->nodes); }
static void take_samples(Import *i, const ForeignArg *a)      { take_number(i, a, &i->samples); }
static void take_total(Import *i, const ForeignArg *a)
{
    if (str_whole(first_value(a), &i->total) && i->total > 0) i->taken++;
    else note(i, a->line, "%s %s: not a number of samples", a->key, first_value(a));
}

/* Megatron's 99,1,0: the second share is held out. */
static void take_split(Import *i, const ForeignArg *a)
{
    double x[3] = { 0 };
    char   text[32];
    int    n = sscanf(first_value(a), "%lf,%lf,%lf", &x[0], &x[1], &x[2]);
    double all = x[0] + x[1] + x[2];
    snprintf(text, sizeof text, "%g", n > 1 && all > 0 ? x[1] / all : x[0]);
    set(i, a, "eval.split", text);
}

static void take_offload(Import *i, const ForeignArg *a)
{
    set(i, a, "memory.optimizer_offload", str_lists("cpu,nvme", ',', first_value(a)) ? "1" : "0");
}

static void take_nothing(Import *i, const ForeignArg *a)      { (void)a, i->taken++; }

static void take_bf16(Import *i, const ForeignArg *a)
{
    if (is_true(a)) set(i, a, "model.dtype", "bfloat16");
}

static void take_mixed_precision(Import *i, const ForeignArg *a)
{
    if (!strcmp(first_value(a), "bf16")) set(i, a, "model.dtype", "bfloat16");
    else note(i, a->line, "mixed_precision %s: bf16 is what there is; set model.dtype", first_value(a));
}

static void take_tuner(Import *i, const ForeignArg *a)
{
    const char *v = first_value(a);
    i->lora = !strcmp(v, "lora"), i->full = !strcmp(v, "full");
    if (i->lora || i->full) i->taken++;
    else note(i, a->line, "%s %s: training is full, or by LoRA adapters", a->key, v);
}

static void take_peft(Import *i, const ForeignArg *a)
{
    i->lora = is_true(a), i->full = !i->lora, i->taken++;
}

static void take_zero(Import *i, const ForeignArg *a) { set(i, a, "parallel.zero", first_value(a)); }

/* LLaMA-Factory's kind of training, or the stage of ZeRO in a configuration of DeepSpeed. */
static void take_stage(Import *i, const ForeignArg *a)
{
    if (str_lists("0,1,2,3", ',', first_value(a))) take_zero(i, a);
    else if (str_lists("sft,pt", ',', first_value(a))) i->taken++;
    else note(i, a->line, "stage %s: only supervised training is offered", first_value(a));
}

static void take_recompute(Import *i, const ForeignArg *a)
{
    set(i, a, "memory.recompute", is_true(a) ? "[full]" : "[]");
}

static void take_granularity(Import *i, const ForeignArg *a)
{
    if (!strcmp(first_value(a), "full")) set(i, a, "memory.recompute", "[full]");
    else if (config_is_set(&i->cfg, "memory", "recompute")) i->taken++;
    else note(i, a->line, "recompute_granularity %s: attention never keeps its scores; "
              "memory.recompute has labels for more", first_value(a));
}

static void take_schedule(Import *i, const ForeignArg *a)
{
    const char *v = first_value(a);
    bool held = !strcmp(v, "constant_with_warmup"), least = !strncmp(v, "cosine_with_min_lr", 18);
    set(i, a, "optim.lr_scheduler_type", held ? "constant" : least ? "cosine" : v);
}

static void take_targets(Import *i, const ForeignArg *a)
{
    char list[4096];
    put_list(list, sizeof list, a);
    set(i, a, "lora.target_modules", !strcmp(list, "[\"all\"]") ? "[all-linear]" : list);
}

/* The stage is in the name of the file: zero3, ds_z2_config.json, zero_stage1_config.json. */
static void take_deepspeed(Import *i, const ForeignArg *a)
{
    const char *v = first_value(a), *digit = NULL;
    for (const char *z = v; !digit && (z = strchr(z, 'z')); z++)
        for (const char *q = z; *q && q - z < 12 && !digit; q++)
            if (*q >= '0' && *q <= '3') digit = q;
    char stage[2] = { digit ? *digit : '2', 0 };
    set(i, a, "parallel.zero", stage);
    if (!digit) note(i, a->line, "deepspeed %s: its stage is not in its name; taken as 2", v);
    if (strstr(v, "offload"))
        note(i, a->line, "%s: for optimizer state on the host set memory.optimizer_offload", v);
}

static void take_sharded(Import *i, const ForeignArg *a)
{
    set(i, a, "parallel.zero", is_true(a) ? "1" : "0");
}

/* Others wait for weeks so that a slow start does not end a run; heartbeats here tell slow from dead. */
static void take_timeout(Import *i, const ForeignArg *a)
{
    note(i, a->line, "%s %s: left at its default: heartbeats tell a slow rank from a dead one", a->key,
         first_value(a));
}

/* Other trainers name a template for each family; here it comes with the model. */
static void take_template(Import *i, const ForeignArg *a)
{
    if (str_lists("model,chatml", ',', first_value(a))) set(i, a, "data.template", first_value(a));
    else note(i, a->line, "%s %s: the model folder's own template is used; for ChatML set "
              "data.template=chatml", a->key, first_value(a));
}

static void take_quant(Import *i, const ForeignArg *a)
{
    const char *v = first_value(a);
    if (str_lists("4,8", ',', v)) set(i, a, "model.base_quant", *v == '4' ? "nf4" : "int8");
    else note(i, a->line, "%s %s: frozen weights are kept in 4 or 8 bits (model.base_quant)", a->key, v);
}

static void take_4bit(Import *i, const ForeignArg *a)
{
    if (is_true(a)) set(i, a, "model.base_quant", "nf4");
}

static void take_8bit(Import *i, const ForeignArg *a)
{
    if (is_true(a)) set(i, a, "model.base_quant", "int8");
}

/* Others write -1 where epochs decide. */
static void take_steps(Import *i, const ForeignArg *a)
{
    if (*first_value(a) == '-') i->taken++;
    else set(i, a, "train.max_steps", first_value(a));
}

static void take_reports(Import *i, const ForeignArg *a)
{
    char list[4096];
    put_list(list, sizeof list, a);
    if (strstr(list, "wandb"))
        note(i, a->line, "report_to %s: docs/quickstart.md has a script that sends metrics.jsonl to W&B",
             list);
    else if (strstr(list, "\"all\"")) i->taken++;
    else set(i, a, "log.report_to", strstr(list, "\"none\"") ? "[]" : list);
}

static void take_board(Import *i, const ForeignArg *a)
{
    note(i, a->line, "%s: TensorBoard files are in the folder of the run", a->key);
}

static void take_deepep(Import *i, const ForeignArg *a)
{
    if (is_true(a)) set(i, a, "moe.dispatcher", "deepep");
}

/* The backend of flex is another argument. */
static void take_dispatcher(Import *i, const ForeignArg *a)
{
    if (!strcmp(first_value(a), "flex")) i->taken++;
    else set(i, a, "moe.dispatcher", first_value(a));
}

static void take_mtp(Import *i, const ForeignArg *a)
{
    set(i, a, "model.mtp", strcmp(first_value(a), "0") ? "train" : "drop");
}

static void take_max_pixels(Import *i, const ForeignArg *a) { set(i, a, "image.max_pixels", first_value(a)); }
static void take_min_pixels(Import *i, const ForeignArg *a) { set(i, a, "image.min_pixels", first_value(a)); }

static void add_source(Import *i, const ForeignArg *a, const char *name, size_t len)
{
    char key[64], path[1024];
    const char *hash = memchr(name, '#', len);
    int n = i->cfg.data.train.n;
    snprintf(path, sizeof path, "%.*s", (int)(hash ? hash - name : (ptrdiff_t)len), name);
    snprintf(key, sizeof key, "data.train[%d].path", n);
    set(i, a, key, path);
    if (i->cfg.data.train.n == n) return;
    snprintf(key, sizeof key, "data.train[%d].max_samples", n);
    if (hash) set(i, a, key, hash + 1);
    if (!strchr(path, '.'))
        note(i, a->line, "%s %s: a name in that trainer's or the hub's list; give the file or folder in "
             "data.train", a->key, path);
}

/* Megatron writes the share of a source in front of its path. */
static bool is_share(const char *item, size_t len) { return strspn(item, "0123456789.eE+-") >= len; }

static void take_dataset(Import *i, const ForeignArg *a)
{
    size_t len;
    for (int k = 0; k < a->n; k++) {
        const char *rest = a->value[k];
        for (const char *item; (item = str_item(&rest, ',', &len));) {
            while (len && *item == ' ') item++, len--;
            if (len && is_share(item, len))
                note(i, a->line, "%s %.*s: a share of the samples; weight of data.train counts passes over a "
                     "source in an epoch", a->key, (int)len, item);
            else if (len) add_source(i, a, item, len);
        }
    }
}

static const struct { const char *spellings; void (*take)(Import *, const ForeignArg *); } rules[] = {
#define IMPORT(spellings, take) { spellings, take },
#include "base/config_import.def"
#undef IMPORT
};

static bool take_rule(Import *i, const ForeignArg *a)
{
    for (size_t k = 0; k < sizeof rules / sizeof *rules; k++)
        if (str_lists_like(rules[k].spellings, ',', a->key)) return rules[k].take(i, a), true;
    return false;
}

static void take_row(Import *i, const ForeignArg *a, const ConfigRow *row)
{
    char key[ROW_NAME], list[4096];
    snprintf(key, sizeof key, "%s.%s", row->section, row->key);
    bool many = row->kind == K_LIST && (a->n != 1 || !str_lists_like("true,false,none", ',', first_value(a)));
    if (many) put_list(list, sizeof list, a);
    set(i, a, key, many ? list : first_value(a));
}

/* What follows "not a key here."; a guess by spelling is no answer. */
static const char *reason(void)
{
    const char *answered = "not a key here. ", *cut = strstr(status_text(), answered);
    return cut ? cut + strlen(answered) : "no counterpart";
}

static void import_arg(Import *i, const ForeignArg *a)
{
    const ConfigRow *row;
    if (take_rule(i, a) || a->variable) return;
    if (!config_find_word(a->key, &row)) take_row(i, a, row);
    else note(i, a->line, "%s%s%s: %s", a->key, a->n ? " " : "", a->n ? a->value[0] : "", reason());
}

/* Budgets are in tokens: a sample counts as the longest. */
static void take_batches(Import *i)
{
    char    text[64];
    int64_t length = i->cfg.data.max_length, ranks = (i->ranks ? i->ranks : 1) * (i->nodes ? i->nodes : 1);
    int64_t c = i->cfg.parallel.tp * i->cfg.parallel.pp * i->cfg.parallel.cp, dp = ranks > c ? ranks / c : 1;
    int64_t batch = i->batch ? i->batch : 1, times = i->accumulation ? i->accumulation : 1;
    double  most = i->global ? (double)i->global : (double)batch * (double)times * (double)dp;
    ForeignArg a = { .key = "batch" };
    if (!i->batch && !i->accumulation && !i->global) return;
    if (most > 1 << 24) {
        note(i, 0, "batches: %.0f samples a step are too many to be meant", most);
        return;
    }
    int64_t samples = (int64_t)most;
    snprintf(text, sizeof text, "%lld", (long long)(batch * length));
    set(i, &a, "train.micro_tokens", text);
    snprintf(text, sizeof text, "%lld", (long long)(samples * length));
    set(i, &a, "train.global_tokens", text);
    snprintf(text, sizeof text, "%lld", (long long)(i->total / samples));
    if (i->total >= samples) set(i, &a, "train.max_steps", text);
    note(i, 0, "batches are in tokens: %lld samples of at most %lld tokens a step%s", (long long)samples,
         (long long)length, i->global || i->ranks ? "" : ", on one GPU; multiply by yours");
}

static void take_adapters(Import *i)
{
    ForeignArg a = { .key = "lora_rank" };
    if (i->lora && !i->cfg.lora.rank) set(i, &a, "lora.rank", "8");
    if (i->full && i->cfg.lora.rank) set(i, &a, "lora.rank", "0");
}

static void take_limits(Import *i)
{
    char key[64], text[32];
    ForeignArg a = { .key = "max_samples" };
    snprintf(text, sizeof text, "%lld", (long long)i->samples);
    for (int k = 0; i->samples > 0 && k < i->cfg.data.train.n; k++) {
        snprintf(key, sizeof key, "data.train[%d].max_samples", k);
        set(i, &a, key, text);
    }
}

Status config_import(Import *i, const char *text, size_t len, const char *name)
{
    *i = (Import){ 0 };
    config_default(&i->cfg);
    TRY(foreign_args_parse(&i->args, text, len, name));
    for (const ForeignArg *a = i->args.first; a; a = a->next) import_arg(i, a);
    take_limits(i), take_adapters(i), take_batches(i);
    if (i->taken) return OK;
    config_import_close(i);
    return fail(E_CONFIG, "%s: none of its arguments has a counterpart here; is it a file of a trainer?",
                name);
}

void config_import_dump(FILE *out, const Import *i, const char *path)
{
    char name[512];
    snprintf(name, sizeof name, "%s", path);
    make_plain(name);
    fprintf(out, "# From %s: %d arguments taken.\n", name, i->taken);
    for (const ImportNote *n = i->first; n; n = n->next)
        if (n->line) fprintf(out, "# line %d: %s\n", n->line, n->text);
        else         fprintf(out, "# %s\n", n->text);
    config_dump_short(out, &i->cfg);
}

void config_import_close(Import *i)
{
    foreign_args_close(&i->args);
    config_close(&i->cfg);
    *i = (Import){ 0 };
}
