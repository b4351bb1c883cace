/* cli/commands.c -- the table of verbs, and what is said about them. */
#include "cli/commands.h"

#include "base/config.h"
#include "base/str.h"
#include <limits.h>
#include <string.h>

Status cmd_bench(int argc, char **argv);
Status cmd_config(int argc, char **argv);
Status cmd_convert(int argc, char **argv);
Status cmd_data(int argc, char **argv);
Status cmd_doctor(int argc, char **argv);
Status cmd_eval(int argc, char **argv);
Status cmd_generate(int argc, char **argv);
Status cmd_help(int argc, char **argv);
Status cmd_image(int argc, char **argv);
Status cmd_parity(int argc, char **argv);
Status cmd_plan(int argc, char **argv);
Status cmd_report(int argc, char **argv);
Status cmd_tokenize(int argc, char **argv);
Status cmd_train(int argc, char **argv);

static const Command commands[] = {
    { "train",   "train a model by a recipe", cmd_train,
      "recipe.yaml [section.key=value ...]\n"
      "  Needs model.path (or model.preset), data.train and checkpoint.output_dir. SIGTERM and Ctrl-C save and leave;\n"
      "  checkpoint.resume_from_checkpoint=auto goes on, with the same bits as if it had never stopped.\n", ALL_SECTIONS },
    { "plan",    "whether a layout is legal and fits, who sits where, what each holds, how long a step takes", cmd_plan,
      "recipe.yaml [--ranks N] [--per-node N] [--hardware ID] [--json] [--html FILE] [--compare-estimators]\n"
      "               [section.key=value ...]\n"
      "       treb plan --gpus N --model NAME [--hardware ID] [--seq N] [--gbs N] [--images PATCHES [--picture PATCHES]]\n"
      "               [--frozen-vision] [--per-node N] [--objective throughput|fit] [--fix tp=2,ep=8,...]\n"
      "               [--precision bf16|fp8|mxfp8] [--imbalance X] [--top N] [--no-dry-run] [--out recipe.yaml] [--json]\n"
      "               [lora.rank=R [lora.KEY=VALUE ...] [model.freeze_PART=true ...] | --lora R [--targets WORDS]]\n"
      "  Nothing is read but the recipe and the model's config.json (or model.preset=NAME, or the preset that model.path\n"
      "  is called after): rules, seats, memory of a rank of every stage by arena and label, bytes it sends. --ranks: as\n"
      "  many as the layout takes at least. --per-node: ranks that a fast link joins, 8 or the hardware's. --hardware: a\n"
      "  card by name, or `this`: time of a step, and with exit code 3 what to turn when it does not fit.\n"
      "  plan --gpus: looks for layouts that fit and ranks them, --out writes the first as a recipe. --gbs: sequences of\n"
      "  --seq tokens in a step, with --images patches each, in pictures of --picture. --fix: what is not to be looked for, of tp, cp, pp, vpp, ep,\n"
      "  etp, zero, mbs, recompute, states, offload, dispatch, overlap. lora.*: layouts for adapters as a recipe has\n"
      "  them, beside frozen weights; --lora R --targets WORDS is lora.rank=R lora.target_modules=[WORDS].\n"
      "  plan --validate: what others measured beside what the formulas say of it.\n",
      "parallel,moe,memory,train,lora" },
    { "config",  "check a recipe and print every key of it", cmd_config,
      "recipe.yaml [section.key=value ...]\n"
      "  Prints the recipe as it would run: defaults, then the file, then the overrides.\n", ALL_SECTIONS },
    { "data",    "check, inspect, pack and draw datasets", cmd_data,
      "check recipe.yaml|FILE... [section.key=value ...] [--json]\n"
      "       treb data inspect recipe.yaml [--sample N | --step N] [--tokens] [--html FILE] [--plain]\n"
      "       treb data pack recipe.yaml OUT [--shard-mb N]\n"
      "       treb data synth --out DIR [--train N] [--eval N] [--seed N] [--without COLOUR,...] [--about COLOUR,...]\n"
      "  check: every record read, every picture decoded; lengths, budgets and steps per epoch; exit code 4 when one\n"
      "  is bad. Files alone are checked without tokens unless model.path=FOLDER is added. inspect: what is trained,\n"
      "  masked and visual in a sample (counted from 0) or in the micro-batches of a step (from 1). pack: shards that a\n"
      "  run maps. synth: draws the demo's visual questions; colours are left out of it, pictures and words, with\n"
      "  --without, and with --about every picture shows one of these, beside any others.\n", "data,image,video" },
    { "convert", "a checkpoint in any form that is read here, in the hub's form; adapters merged", cmd_convert,
      "FROM TO [--dtype f32|bf16|f16] [--shard-mb N] [--config FOLDER] [--native]\n"
      "       treb convert --merge ADAPTER TO [--base FOLDER] [--dtype f32|bf16|f16] [--shard-mb N]\n"
      "  FROM is a model folder or a checkpoint of a run on any number of ranks, TO a new folder; --dtype as in FROM\n"
      "  unless given. --config names a folder with config.json and tokenizer files where FROM has none. --native\n"
      "  writes the checkpoint as one rank would have, moments included. Of a run with adapters the adapter is written,\n"
      "  as PEFT loads it. --merge: a model that has an adapter (a checkpoint, or PEFT's folder) added into its base, which\n"
      "  is where the adapter says unless --base does.\n", NULL },
    { "parity",  "this build against recorded reference tensors", cmd_parity,
      "CASE [--backend NAME] [--dtype f32|bf16] [--steps N] [--recompute WORDS] [--offload WORDS]\n"
      "  [--out FILE] [--json] [--tolerance KIND=ERROR,...]\n"
      "  CASE is a folder of recorded tensors, of a model or of an adapter on one; ends with exit code 7 when one\n"
      "  differs too much. --tolerance sets how much, by kind as the table prints them: loss=1e-5,gradients=1e-4.\n",
      NULL },
    { "bench",   "ops and whole steps against ceilings measured in the same run", cmd_bench,
      "ops [--backend NAME] [--dtype f32|bf16] [--repeat N] [--json]\n"
      "       treb bench step [--model DIR|PRESET] [--layers N] [--tokens N] [--doc N] [--images N] [--grid HxW]\n"
      "                       [--photos N] [--micro N] [--backend NAME] [--dtype f32|bf16] [--recompute WORDS]\n"
      "                       [--offload WORDS] [--moments f32|bf16] [--split] [--away SHARE] [--deterministic]\n"
      "                       [--hardware NAME] [--repeat N] [--json]\n"
      "                       [--lora RANK [--targets WORDS] [--dropout P] [--shared-a] [--floor]]\n"
      "       treb bench calibrate [--backend NAME] [--dtype f32|bf16] [--repeat N] [--out FILE]\n"
      "       treb bench decode [--model DIR] [--docs N] [--prompt N] [--tokens N] [--dtype f32|bf16]\n"
      "       treb bench loader recipe.yaml [--steps N] [--workers N] [--step-ms N] [--json]\n"
      "       treb bench dispatch [--tokens N] [--experts N] [--top N] [--width N]\n"
      "  ops: every op at a training size, its time over its floor. step: forward, backward and AdamW of a\n"
      "  model (a small built-in one unless given) on synthetic documents of --doc tokens, --images pictures\n"
      "  of --grid patches, or on --photos documents of one photograph and a short text; --micro passes\n"
      "  over them make a step. --lora: weights are frozen, pairs beside the modules of --targets train (words of\n"
      "  lora.target_modules, all-linear unless given); --floor measures the step of the frozen weights beside\n"
      "  it. calibrate: what this machine reaches by kind and size of work, kept as the\n"
      "  hardware `this`, by which step and plans then predict. A preset may have fewer\n"
      "  --layers: --model Qwen3-VL-30B-A3B --layers 8 --backend cuda --dtype bf16 is the proxy of docs/performance.md.\n",
      NULL },
    { "image",   "what the model sees of pictures: grid and patch values", cmd_image,
      "FILE ... [--json] [--index I,J,...] [--min-pixels N] [--max-pixels N] [--limit-pixels N] [--repeat N]\n"
      "  --index picks values of the flattened patches; --limit-pixels refuses larger files before decoding;\n"
      "  --repeat times each stage, on one core. A picture that cannot be read is reported and the rest go on;\n"
      "  the exit code is then 4.\n", NULL },
    { "tokenize", "lines of text to lines of token ids, and back", cmd_tokenize,
      "--tokenizer FILE [--plain] [--decode [--skip-special]] < lines\n"
      "  FILE is a tokenizer.json or a model's folder. Lines are {\"text\": ...}; out come lists of ids, or with\n"
      "  --decode the other way. --plain takes added tokens such as <|im_end|> as ordinary text.\n", NULL },
    { "report",  "a run's page, or two runs side by side: one HTML file, no network", cmd_report,
      "RUN [RUN2] [--out FILE]\n"
      "  RUN is a run's folder (checkpoint.output_dir); the page is RUN/report.html, or RUN/report-vs-RUN2.html.\n", NULL },
    { "eval",    "loss and answers of a model on held-out data", cmd_eval,
      "[recipe.yaml] [section.key=value ...] [--model DIR] [--lora DIR] [--data FILE ...] [--samples FILE]\n"
      "  [--sample-lines N] [--max-samples N] [--max-new N] [--dtype f32|bf16] [--blind] [--json]\n"
      "  Data: the files of --data, else data.eval of the recipe, else the share that eval.split keeps apart. Loss\n"
      "  is per supervised token; an answer is right when it is the expected text. --max-new 0: loss alone.\n"
      "  --samples writes questions and answers, one JSON object a line; --blind shows the model blank pictures.\n"
      "  --lora: an adapter beside the model; one that is named as the model brings the base that it was made for.\n", NULL },
    { "generate", "text from a prompt and pictures", cmd_generate,
      "--model DIR [--lora DIR] --prompt TEXT [--image FILE ...] [--system TEXT] [--max-new N]\n"
      "  [--temperature T] [--top-p P] [--seed S] [--dtype f32|bf16] [--backend NAME]\n"
      "  Pictures stand where TEXT has <image>, or before it. The likeliest token each time unless T is above 0.\n"
      "  --lora: an adapter beside the model; one that is named as the model brings the base that it was made for.\n", NULL },
    { "doctor",  "what this machine has and what that allows", cmd_doctor,
      "[--json]\n", NULL },
    { "help",    "more about a verb, or about a section of the recipe", cmd_help,
      "[verb | section]\n", NULL },
};

enum { COMMANDS = sizeof commands / sizeof *commands };

const Command *command_find(const char *name)
{
    for (int i = 0; i < COMMANDS; i++)
        if (!strcmp(commands[i].name, name)) return &commands[i];
    return NULL;
}

const Command *command_like(const char *name)
{
    const Command *best = NULL;
    int least = INT_MAX;
    for (int i = 0; i < COMMANDS; i++) {
        int unlike = str_unlike(name, commands[i].name);
        if (unlike < least) least = unlike, best = &commands[i];
    }
    return best;
}

Status command_unknown(const char *name)
{
    const Command *best = command_like(name);
    if (best) return fail(E_CONFIG, "%.80s: not a verb. Did you mean %s?", name, best->name);
    return fail(E_CONFIG, "%.80s: not a verb. `treb --help` lists them.", name);
}

void command_list(FILE *out)
{
    fputs("usage: treb <verb> [recipe.yaml] [section.key=value ...]\n\n", out);
    for (int i = 0; i < COMMANDS; i++) fprintf(out, "  %-9s %s\n", commands[i].name, commands[i].help);
    fputs("\n`treb help <verb>` says more; `treb help <section>` lists the keys of a recipe.\n", out);
}

Status command_usage(FILE *out, const Command *c)
{
    fprintf(out, "treb %s: %s\n\nusage: treb %s %s", c->name, c->help, c->name, c->usage);
    size_t len;
    const char *rest = c->sections;
    if (!rest) return OK;
    if (!strcmp(rest, ALL_SECTIONS)) return putc('\n', out), config_help(out, NULL);
    for (const char *item; (item = str_item(&rest, ',', &len));) {
        char section[32];
        snprintf(section, sizeof section, "%.*s", (int)len, item);
        putc('\n', out);
        TRY(config_help(out, section));
    }
    return OK;
}
