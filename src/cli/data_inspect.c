/* cli/data_inspect.c -- `treb data inspect`: a sample, or the micro-batches of a step, as the model gets
 * them. */
#include "cli/data.h"
#include "cli/data_show.h"

#include "cli/commands.h"
#include "data/index.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct InspectAsk {
    int64_t     sample, step;         /* step 0: show a sample */
    const char *html;
    bool        table, plain;
} InspectAsk;

static Status load_and_show(Show *w, const DataView *v, int64_t id)
{
    Sample s;
    TRY(sample_load(&s, w->scratch, &v->sample, id));
    Status st = show_sample(w, &s, id, dataset_source(&v->data, id)->conf->channel);
    if (!st && s.drop) show_note(w, "too long: data.truncation leaves it out");
    sample_close(&s);
    return st;
}

static Status inspect_sample(Show *w, const DataSetup *s, int64_t number)
{
    DataView v;
    TRY(data_view_open(&v, s, &s->recipe.data.train, "data.train", true, true));
    w->conf = &v.sample;
    Status st = OK;
    if (number >= v.data.samples)
        st = fail(E_CONFIG, "--sample %lld: there are %lld samples, counted from 0", (long long)number,
                  (long long)v.data.samples);
    if (!st) show_begin(w, "A sample as the model sees it");
    if (!st) st = load_and_show(w, &v, number);
    data_view_close(&v);
    return st;
}

static Status show_bin(Show *w, const DataView *v, const PackBin *b, int k, int64_t epoch)
{
    char   text[160];
    Status st = OK;
    snprintf(text, sizeof text, "micro-batch %d: %lld documents, %lld of %lld tokens, %lld of %lld patches",
             k, (long long)b->docs, (long long)b->used.tokens, (long long)v->sample.budget.tokens,
             (long long)b->used.patches, (long long)v->sample.budget.patches);
    show_border(w, text);
    for (int64_t i = 0; !st && i < b->docs; i++)
        st = load_and_show(w, v, dataset_id(&v->data, epoch, b->doc[i].at));
    return st;
}

/* Packs steps as training does, up to the requested step. */
static Status show_step(Show *w, const DataView *v, StepPacker *p, Index *x, PackBin *bins, int64_t step)
{
    for (int64_t done = 0; done < step;) {
        int64_t  epoch = p->epoch;
        DocSize  size;
        SizeKind kind = SIZE_BAD;
        if (!step_packer_has_step(p)) {
            Sample loaded;
            Status st = index_measure(x, w->scratch, &v->sample, dataset_id(&v->data, epoch, p->position),
                                      &size, &kind, &loaded);
            sample_close(&loaded);
            if (st && !sample_is_bad(st)) return st;
            TRY(step_packer_put(p, !st && kind == SIZE_GOOD ? &size : NULL));
            continue;
        }
        TRY(step_packer_take(p, bins));
        Status st = OK;
        for (int k = 0; k < p->micro; k++) {
            if (done + 1 == step && !st) st = show_bin(w, v, &bins[k], k, epoch);
            pack_bin_close(&bins[k]);
        }
        TRY(st);
        done++;
    }
    return OK;
}

static Status inspect_step(Show *w, const DataSetup *s, int64_t step)
{
    DataView v;
    StepPacker p;
    Index    x = { 0 };
    PackBin *bins = calloc((size_t)s->micro, sizeof *bins);
    char     title[80];
    if (!bins) return fail(E_FIT, "no memory for %d micro-batches", s->micro);
    Status st = data_view_open(&v, s, &s->recipe.data.train, "data.train", false, true);
    if (st) return free(bins), st;
    w->conf = &v.sample;
    step_packer_open(&p, &s->budget, v.data.pass, 1, s->micro);
    st = index_open(&x, v.data.samples);
    snprintf(title, sizeof title, "Step %lld as the model sees it", (long long)step);
    if (!st) show_begin(w, title);
    if (!st) st = show_step(w, &v, &p, &x, bins, step);
    index_close(&x);
    step_packer_close(&p);
    data_view_close(&v);
    free(bins);
    return st;
}

static Status inspect(const DataSetup *s, const InspectAsk *a)
{
    SampleScratch t;
    Page          page = { 0 };
    Show          w = { .out = stdout, .scratch = &t, .table = a->table, .page = a->html ? &page : NULL };
    w.colour = !a->plain && isatty(STDOUT_FILENO);
    if (!s->model.tokenizer)
        return fail(E_CONFIG, "data inspect: tokenising needs a model; add model.path=FOLDER");
    Status st = sample_scratch_open(&t, s->model.tokenizer);
    if (!st) st = a->step ? inspect_step(&w, s, a->step) : inspect_sample(&w, s, a->sample);
    sample_scratch_close(&t);
    if (!st && a->html) st = page_write(&page, a->html);
    page_close(&page);
    if (!st && a->html) printf("%s written\n", a->html);
    return st;
}

static const Option options[] = { OPTION_INT(InspectAsk, sample, "--sample", "N", 0, INT64_MAX,
                                             "which sample, counted from 0"),
                                  OPTION_INT(InspectAsk, step, "--step", "N", 0, INT32_MAX,
                                             "the micro-batches of that step instead, counted from 1"),
                                  OPTION_FLAG(InspectAsk, table, "--tokens", "a row for every token"),
                                  OPTION_TEXT(InspectAsk, html, "--html", "FILE", "write a page instead"),
                                  OPTION_FLAG(InspectAsk, plain, "--plain", "no colours"),
                                  OPTION_END };

static Status data_inspect(int argc, char **argv)
{
    DataSetup s;
    InspectAsk       a = { 0 };
    PlainArgs plain = { .most = PLAIN_ANY };
    TRY(options_parse(argc, argv, options, &a, &plain));
    Status st = data_setup_open(&s, "data inspect", plain.value, plain.n);
    if (!st) {
        st = inspect(&s, &a);
        data_setup_close(&s);
    }
    plain_args_close(&plain);
    return st;
}

const Usage usage_data_inspect = {
    .args    = "recipe.yaml [section.key=value ...]",
    .options = options,
    .notes   = "Shows what is trained, masked and visual in a sample or in the micro-batches of a step.",
    .sub     = "inspect",
    .run     = data_inspect,
};
