/* tests/test_import.c -- recipes from files of other trainers: their words, their shapes,
            what is left over. */
#include "base/config_import.h"
#include "lab.h"

static void import(Import *i, const char *text, const char *name)
{
    EXPECT_OK(config_import(i, text, strlen(text), name));
}

static bool notes(const Import *i, const char *word, int line)
{
    for (const ImportNote *n = i->first; n; n = n->next)
        if (n->line == line && strstr(n->text, word)) return true;
    return false;
}

static bool is(const char *a, const char *b) { return !strcmp(a, b); }

static void flat_yaml(void)
{
    Import i;
    import(&i, "model_name_or_path: org/name\nstage: sft\nfinetuning_type: lora\nlora_rank: "
               "16\nlora_target: all\n"
               "dataset: one, two.json\ntemplate: x\ncutoff_len: 2048\nmax_samples: 100\nbf16: true\n"
               "per_device_train_batch_size: 2\ngradient_accumulation_steps: 8\nlearning_rate: 1.0e-4\n"
               "lr_scheduler_type: constant_with_warmup\nddp_timeout: 180000000\nreport_to: none\n"
               "deepspeed: examples/ds_z3_offload_config.json\nresume_from_checkpoint: null\n", "lf.yaml");
    const Config *c = &i.cfg;
    EXPECT(is(c->model.path, "org/name") && is(c->model.dtype, "bfloat16") && c->lora.rank == 16, "model");
    EXPECT(c->lora.target_modules.n == 1 && is(c->lora.target_modules.item[0], "all-linear"), "targets");
    EXPECT(c->data.train.n == 2 && is(c->data.train.item[1].path, "two.json"), "data");
    EXPECT(c->data.train.item[0].max_samples == 100 && c->data.max_length == 2048, "limits");
    EXPECT(c->train.micro_tokens == 4096 && c->train.global_tokens == 32768, "batches");
    EXPECT(c->parallel.zero == 3 && is(c->optim.lr_scheduler_type, "constant"), "zero");
    EXPECT(!c->log.report_to.n && c->optim.learning_rate == 1e-4, "none");
    EXPECT(notes(&i, "dataset one: a name", 6) && notes(&i, "template x: the model folder's own", 7),
           "what is left over");
    EXPECT(notes(&i, "memory.optimizer_offload", 17) && notes(&i, "8 samples", 0) == false, "offload");
    EXPECT(notes(&i, "16 samples of at most 2048 tokens", 0), "samples");
    config_import_close(&i);
}

static void shell_command(void)
{
    Import i;
    import(&i, "# a comment --lr 5\nMAX_PIXELS=1003520 \\\nNPROC_PER_NODE=4 \\\nmegatron sft \\\n    "
               "--model org/name \\\n"
               "    --dataset 'a/b#500' \\\n              'c.jsonl#20' \\\n    --tuner_type full \\\n"
               "    --lora_rank 8 \\\n    --tensor_model_parallel_size 2 --sequence_parallel true \\\n"
               "    --micro_batch_size 1 --global_batch_size 16 --max_length 1024 \\\n"
               "    --recompute_granularity full --packing --lr 1e-5 | tee log --not-an-argument\n",
                           "run.sh");
    const Config *c = &i.cfg;
    EXPECT(is(c->model.path, "org/name") && c->image.max_pixels == 1003520 && c->lora.rank == 0, "full");
    EXPECT(c->data.train.n == 2 && is(c->data.train.item[0].path, "a/b"), "path");
    EXPECT(c->data.train.item[0].max_samples == 500 && c->data.train.item[1].max_samples == 20, "samples");
    EXPECT(c->parallel.tp == 2 && c->train.global_tokens == 16384 && c->optim.learning_rate == 1e-5,
                "keys");
    EXPECT(c->memory.recompute.n == 1 && is(c->memory.recompute.item[0], "full"), "recompute");
    EXPECT(notes(&i, "sequence_parallel true: It follows", 10) && notes(&i, "packing: Samples", 12),
                "left over");
    config_import_close(&i);
}

static void shell_script(void)
{
    Import i;
    import(&i, "#!/bin/bash\nGPUS_PER_NODE=8\nNUM_NODES=${NNODES:-2}\nSEQ=4096\nCHECKPOINT_PATH=$1\n"
               "MODEL_ARGS=(\n    --num-layers 32\n    --seq-length $SEQ # tokens\n)\n"
               "TRAIN=\" \\\n --train-iters 500 \\\n --bf16 \\\n --lr-decay-style cosine\"\n"
               "if [ -n \"$X\" ]; then\n  MODEL_ARGS+=(--use-distributed-optimizer)\nfi\n"
               "torchrun pretrain.py ${MODEL_ARGS[@]} $TRAIN --expert-model-parallel-size 8 "
               "--micro-batch-size 2 "
               "--save $CHECKPOINT_PATH\n", "train.sh");
    const Config *c = &i.cfg;
    EXPECT(c->data.max_length == 4096 && c->train.max_steps == 500 && c->parallel.ep == 8, "keys");
    EXPECT(c->parallel.zero == 1 && is(c->model.dtype, "bfloat16"), "flags");
    EXPECT(c->train.micro_tokens == 8192 && c->train.global_tokens == 2 * 16 * 4096, "16 ranks: %d",
           (int)c->train.global_tokens);
    EXPECT(notes(&i, "num_layers 32: The dimensions", 7) && notes(&i, "does not set this variable", 17),
                "left");
    config_import_close(&i);
}

/* Defaults in quotes and of other variables, arithmetic, commands that only a shell can run. */
static void shell_arithmetic(void)
{
    Import i;
    import(&i, "nproc=2\nGPUS_PER_NODE=${GPUS:-\"4\"}\nNNODES=${SLURM_NNODES:-${N:-\"3\"}}\n"
               "SEQ=$((1024 * (1 + 1)))\nswift sft --gradient_accumulation_steps $(expr 16 / $nproc) "
               "--max_length $SEQ --eval_steps $((nproc * 5 - 3 % 2)) \\\n"
               "--per_device_train_batch_size $((7/$nproc)) --save_steps $(nproc) --logging_steps $((5/0)) "
               "--output_dir \"out/$(date +%F)\" --seed $((9223372036854775807+1))\n",
           "swift.sh");
    const Config *c = &i.cfg;
    EXPECT(c->data.max_length == 2048 && c->train.micro_tokens == 3 * 2048, "products and quotients");
    EXPECT(c->train.global_tokens == 3 * 8 * 12 * 2048, "12 ranks: %lld", (long long)c->train.global_tokens);
    EXPECT(c->eval.eval_steps == 9, "%lld", (long long)c->eval.eval_steps);
    EXPECT(notes(&i, "save_steps $(nproc): the script does not set", 6), "a command");
    EXPECT(notes(&i, "logging_steps $((5/0))", 6) && notes(&i, "seed $((9223", 6), "no number");
    EXPECT(is(c->checkpoint.output_dir, "out/$(date +%F)"), "%s", c->checkpoint.output_dir);
    config_import_close(&i);
}

/* Arguments whose values have other meanings or other names here. */
static void values_of_others(void)
{
    Import i;
    import(&i, "{\"model_name_or_path\": \"a\", \"deepspeed\": {\"zero_optimization\": {\"stage\": 3}}, "
               "\"quantization_bit\": 4, \"max_steps\": -1, \"report_to\": [\"wandb\"], "
               "\"min_lr_rate\": 0.1}",
           "a.json");
    const Config *c = &i.cfg;
    EXPECT(c->parallel.zero == 3 && is(c->model.base_quant, "nf4") && !c->train.max_steps, "json");
    EXPECT(notes(&i, "to W&B", 1) && notes(&i, "min_lr_rate 0.1: Set optim.min_lr", 1), "notes");
    config_import_close(&i);
    import(&i, "torchrun pretrain_gpt.py --moe-router-load-balancing-type seq_aux_loss --moe-enable-deepep "
               "--moe-token-dispatcher-type flex --mtp-num-layers 1 --tensorboard-dir $OUT/board "
               "--num-layers-per-virtual-pipeline-stage 2\n",
           "m.sh");
    EXPECT(is(c->moe.aux_loss_type, "sequence") && is(c->moe.dispatcher, "deepep"), "experts");
    EXPECT(is(c->model.mtp, "train") && c->log.report_to.n > 0, "mtp, reports");
    EXPECT(notes(&i, "in the folder of the run", 1) && notes(&i, "Set parallel.vpp", 1), "notes");
    config_import_close(&i);
}

static void blends_and_shares(void)
{
    Import i;
    import(&i, "python pretrain_gpt.py --data-path 0.3 /data/a.jsonl 7e-1 /data/b.jsonl --split 98,2,0 "
               "--train-samples 4096 --global-batch-size 32 --data-parallel-sharding-strategy optim_grads\n",
           "m.sh");
    const Config *c = &i.cfg;
    EXPECT(c->data.train.n == 2 && is(c->data.train.item[1].path, "/data/b.jsonl"), "two sources");
    EXPECT(c->eval.split == 0.02 && c->train.max_steps == 128 && c->parallel.zero == 2, "numbers");
    EXPECT(notes(&i, "data_path 7e-1: a share of the samples", 1), "shares");
    config_import_close(&i);
}

static void sections_and_json(void)
{
    Import i;
    import(&i, "ENV_VARS:\n  NCCL_ALGO: Ring\nMODEL_ARGS:\n  --tensor-model-parallel-size: 4\n"
               "  --exp-avg-dtype: bf16\ndeepspeed_config:\n  zero_stage: 2\nmixed_precision: bf16\n",
                           "m.yaml");
    EXPECT(i.cfg.parallel.tp == 4 && i.cfg.parallel.zero == 2 && is(i.cfg.optim.state_dtype, "bfloat16"),
                "yaml");
    EXPECT(!i.first, "%s", i.first ? i.first->text : "");
    config_import_close(&i);
    import(&i, "{\"model_id\": \"a\", \"target_modules\": [\"q_proj\", \"v_proj\"], \"use_peft\": true}",
                "a.json");
    EXPECT(i.cfg.lora.rank == 8 && i.cfg.lora.target_modules.n == 2, "json");
    config_import_close(&i);
}

static void refused(void)
{
    Import i;
    EXPECT_FAIL(config_import(&i, "x", 1, "train.py"), E_CONFIG, "Python is not read");
    EXPECT_FAIL(config_import(&i, "", 0, "a.yaml"), E_CONFIG, "no arguments in it");
    EXPECT_FAIL(config_import(&i, "foo: 1\n", 7, "a.yaml"), E_CONFIG, "none of its arguments has a "
                                  "counterpart");
    EXPECT_FAIL(config_import(&i, "a\0b", 3, "a.sh"), E_CONFIG, "not a text");
    import(&i, "per_device_train_batch_size: 1048576\ngradient_accumulation_steps: 1048576\nnnodes: 1048576\n"
               "nproc_per_node: 1048576\n", "a.yaml");
    EXPECT(notes(&i, "too many to be meant", 0), "a product beyond all numbers");
    config_import_close(&i);
}

int main(void)
{
    RUN(flat_yaml);
    RUN(shell_command);
    RUN(shell_script);
    RUN(shell_arithmetic);
    RUN(values_of_others);
    RUN(blends_and_shares);
    RUN(sections_and_json);
    RUN(refused);
    return lab_report();
}
