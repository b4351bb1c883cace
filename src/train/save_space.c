/* train/save_space.c -- see save_space.h. */
#include "train/save_space.h"

#include "base/num.h"
#include "base/str.h"

#include <string.h>
#include <sys/statvfs.h>

/* The HF form is assembled from state/, which save_only_model removes afterwards. */
void save_space_count(SaveSpace *s, const struct cfg_checkpoint *c, double saves, bool best)
{
    bool   every = c->save_only_model || !strcmp(c->hf, "every"), end = every || !strcmp(c->hf, "final");
    double state = c->save_only_model ? 0 : s->state,
           stay  = c->save_total_limit ? c->save_total_limit : saves;
    s->each = state + (every ? s->hf : 0), s->final = state + (end ? s->hf : 0);
    s->most = s->state + (end ? s->hf : 0);
    stay    = min_f64(stay + best, saves - 1);
    s->peak = saves > 0 ? s->most + stay * s->each : 0;
    if (saves <= 0) s->most = 0;
}

void save_space_find_left(SaveSpace *s, const char *folder)
{
    struct statvfs disk;
    s->left = statvfs(folder, &disk) ? 0 : (double)disk.f_bavail * (double)disk.f_frsize;
}

Status save_space_check(const SaveSpace *s, const struct cfg_checkpoint *c)
{
    char left[STR_BYTES], most[STR_BYTES];
    if (!c->check_space || !(s->left > 0) || s->left >= s->most) return OK;
    return fail(E_IO,
                "%s: a checkpoint takes %s and the disk has %s left; make space, set another "
                "checkpoint.output_dir%s, or start all the same with checkpoint.check_space=false",
                c->output_dir, str_bytes(most, s->most), str_bytes(left, s->left),
                c->save_only_model ? "" : " or checkpoint.save_only_model=true");
}
