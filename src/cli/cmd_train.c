/* cli/cmd_train.c -- treb train recipe.yaml [section.key=value ...]: a run, from its recipe to its last
 * step. */
#include "base/clock.h"
#include "cli/commands.h"
#include "cli/doctor.h"
#include "cli/ranks.h"
#include "launch/rank.h"
#include "plan/auto.h"
#include "report/contract.h"
#include "report/report.h"
#include "train/trainer_answers.h"

/* contract.json, and the log line that says what the numbers of the run may be taken for. */
static Status write_contract(const Trainer *t)
{
    const char *list[LABEL_REASONS];
    Contract    c;
    Json       *o = NULL;
    TRY(contract_read(&c, t->folder.dir));
    int    n = label_reasons(list, &c.facts);
    Status st = contract_json(&o, &c);
    if (!st) st = run_folder_write_json(&t->folder, "contract.json", o);
    json_decref(o);
    log_info(&t->log, "label        %s", label_word(&c.facts));
    for (int i = 0; i < n; i++) log_info(&t->log, "             %s", list[i]);
    contract_close(&c);
    return st;
}

/* The run is saved by now: a page that cannot be written is a warning and not a failure. */
static void write_report(const Trainer *t)
{
    const char *dir = t->folder.dir;
    Path page;
    Status st = path_join(page, dir, "report.html");
    if (!st) st = report_write(&(ReportAsk){ .dir = { dir }, .runs = 1, .out = page }, NULL);
    if (!st) st = write_contract(t);
    if (st) log_warn(&t->log, "no report: %s; `treb report %s` tries again", status_text(), dir);
    else    log_info(&t->log, "report       %s", page);
}

static Status train(const Config *cfg, double started, Comm *world, const TextLines *chosen)
{
    Trainer t;
    Json *env = doctor_findings();
    TrainerConf conf = { .recipe = cfg, .started = started, .env = env, .least = LOG_INFO,
                         .answers = trainer_answers(cfg), .world = world->size > 1 ? world : NULL };
    for (int i = 0; i < chosen->n; i++) conf.notes[i] = chosen->at[i];
    Status st = trainer_open(&t, &conf);
    if (!st) st = trainer_run(&t);
    if (!st && t.first) write_report(&t);
    if (st) launch_rank_exit(status_exit_code(st)), comm_abort(world, status_text());    /* ends its peers */
    trainer_close(&t);
    json_decref(env);
    return st;
}

static Status train_ranks(Config *cfg, double started)
{
    CommConf conf = ranks_comm_conf(cfg);
    Comm    *world = NULL;
    AutoChoice *chosen = malloc(sizeof *chosen);
    conf.run_folder = cfg->checkpoint.output_dir;
    Status st = chosen ? comm_open(&world, &conf) : fail(E_FIT, "no memory");
    if (!st) st = auto_choose(chosen, cfg, world);
    if (!st) st = train(cfg, started, world, &chosen->lines);
    comm_close(world);
    free(chosen);
    return st;
}

static Status cmd_train(int argc, char **argv)
{
    Config cfg;
    double started = clock_now();
    if (argc < 2) return fail(E_CONFIG, "train: name a recipe, or keys such as --model DIR --dataset FILE "
                                   "--output-dir DIR; see treb train --help");
    TRY(config_open_words(&cfg, argc - 1, argv + 1));
    Status st = train_ranks(&cfg, started);
    config_close(&cfg);
    return st;
}

static const Usage usage = {
    .args    = "[recipe.yaml] [section.key=value ...] [--key value ...]",
    .notes   = "Needs model.path (or model.preset), data.train and checkpoint.output_dir, in the recipe "
               "or after it; --key value takes other trainers' names as well, where one key is meant. "
               "SIGTERM and Ctrl-C save a checkpoint and exit; checkpoint.resume_from_checkpoint=auto "
               "continues with the same bits as an uninterrupted run.",
};

const Command command_train = {
    .name     = "train",
    .help     = "train a model by a recipe",
    .run      = cmd_train,
    .usage    = USAGE(&usage),
    .sections = ALL_SECTIONS,
};
