/* train/trainer_folder.c -- a run whose folder is removed or renamed while it trains: the folder is made
 * again, and the log says what is gone, at once and at the end. */
#include "train/trainer.h"

#include <math.h>

static Status reopen_files(Trainer *t)
{
    TRY(run_folder_make_again(&t->folder));
    TRY(run_folder_write_recipe(&t->folder, t->recipe, t->conf.notes, TRAINER_NOTES));
    if (t->log.file) TRY(file_redirect(t->log.file, t->folder.log));
    if (t->metrics.file) TRY(file_redirect(t->metrics.file, t->folder.metrics));
    if (!t->board.file) return OK;
    tensorboard_close(&t->board);
    return tensorboard_open(&t->board, t->folder.dir);
}

/* The best checkpoint is gone with the folder: the next evaluation that is saved is the best one. */
Status trainer_keep_folder(Trainer *t)
{
    if (!t->first || !run_folder_is_lost(&t->folder)) return OK;
    Status st      = reopen_files(t);
    t->folder_lost = t->step, t->best = NAN, t->best_step = -1;
    log_warn(&t->log,
             "%s was removed or renamed during the run: its earlier log, metrics and checkpoints are "
             "not there any more; the folder is made again and the run goes on, after step %lld",
             t->folder.dir, (long long)t->step);
    return st ? wrap(st, "making the run's folder again") : OK;
}

void trainer_log_lost_folder(const Trainer *t)
{
    if (t->folder_lost >= 0)
        log_warn(&t->log,
                 "%s was removed or renamed during the run: log, metrics and checkpoints up to step "
                 "%lld are not in it",
                 t->folder.dir, (long long)t->folder_lost);
}
