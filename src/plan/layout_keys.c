/* plan/layout_keys.c -- see layout_keys.h. */
#include "plan/layout_keys.h"

#include "ops/backend.h"
#include "plan/search.h"

#include <stdarg.h>
#include <string.h>
#include <unistd.h>

void layout_key(LayoutKeys *k, const char *fmt, ...)
{
    va_list args;
    REQUIRE(k->n < LAYOUT_KEYS, "more than %d keys of a layout", LAYOUT_KEYS);
    va_start(args, fmt);
    vsnprintf(k->at[k->n++], LAYOUT_KEY_TEXT, fmt, args);
    va_end(args);
}

void layout_key_number(LayoutKeys *k, const char *key, int64_t is, int64_t want)
{
    if (is != want) layout_key(k, "%s=%lld", key, (long long)want);
}

/* ZeRO 0 to 2 are one family of the search: the recipe decides between them. */
static int64_t zero_stage(const Config *c, const Candidate *found)
{
    if (found->zero == 3) return 3;
    return c->parallel.zero < 3 ? c->parallel.zero : 1;
}

static void add_degrees(LayoutKeys *k, const Config *c, const Candidate *f)
{
    const struct cfg_parallel *p = &c->parallel;
    layout_key_number(k, "parallel.tp", p->tp, f->tp);
    layout_key_number(k, "parallel.cp", p->cp, f->cp);
    layout_key_number(k, "parallel.pp", p->pp, f->pp);
    layout_key_number(k, "parallel.vpp", p->vpp, f->vpp);
    layout_key_number(k, "parallel.ep", p->ep, f->ep);
    layout_key_number(k, "parallel.etp", p->etp, f->etp);
    layout_key_number(k, "parallel.zero", p->zero, zero_stage(c, f));
    layout_key_number(k, "parallel.replicas", p->replicas, f->replicas > 1 ? f->replicas : 1);
    if (f->cp_inner > 1) layout_key(k, "parallel.cp_sizes=[%d, %d]", f->cp_inner, f->cp / f->cp_inner);
    else if (p->cp_sizes.n) layout_key(k, "parallel.cp_sizes=[]");
    const char *comm = f->cp_inner > 1 ? "a2a+p2p" : "p2p";
    if (strcmp(p->cp_comm, comm)) layout_key(k, "parallel.cp_comm=%s", comm);
}

static void add_stages(LayoutKeys *k, const Config *c, const Candidate *f, int layers)
{
    const struct cfg_parallel *p = &c->parallel;
    LayerSplit split = { 0 };
    if (f->pp > 1) space_split(&split, layers, f->pp, f->vpp);
    if (strcmp(p->layout, split.string)) layout_key(k, "parallel.layout=\"%s\"", split.string);
    layout_key_number(k, "parallel.first_layers", p->first_layers, 0);
    layout_key_number(k, "parallel.last_layers", p->last_layers, 0);
    layout_key_number(k, "parallel.microbatch_group", p->microbatch_group, 0);
    if (p->count_embedding != split.embedding)
        layout_key(k, "parallel.count_embedding=%s", split.embedding ? "true" : "false");
    if (p->count_loss != split.loss) layout_key(k, "parallel.count_loss=%s", split.loss ? "true" : "false");
}

void layout_keys_set(LayoutKeys *k, const Config *c, const Candidate *f, int layers)
{
    add_degrees(k, c, f);
    add_stages(k, c, f, layers);
}

Status layout_keys_apply(Config *c, const LayoutKeys *k)
{
    for (int i = 0; i < k->n; i++) TRY(config_set(c, k->at[i]));
    return OK;
}

bool layout_is_new(const Search *s, int at)
{
    const Candidate *c = &s->found[at].c;
    for (int i = 0; i < at; i++) {
        const Candidate *f = &s->found[i].c;
        if (f->tp == c->tp && f->cp == c->cp && f->pp == c->pp && f->vpp == c->vpp && f->ep == c->ep &&
            f->etp == c->etp && f->zero == c->zero && f->overlap == c->overlap) return false;
    }
    return true;
}

Status hardware_here(Hardware *h, const char *asked, int per_node)
{
    char device[256] = "";
    const char *backend = !strcmp(asked, "auto") && strstr(backend_names(), "cuda") ? "cuda" : asked;
    bool cuda = !strcmp(backend, "cuda");
    if (cuda) backend_describe("cuda", device, sizeof device);
    if (!hardware_find(h, "this") && !strcmp(h->backend, cuda ? "cuda" : "cpu")) return OK;
    const char *row = hardware_of_device(device);
    TRY(hardware_find(h, !cuda ? "cpu" : row ? row : "h100"));
    if (!cuda) h->capacity = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / per_node;
    return OK;
}
