/* tests/fuzz_import.c -- any bytes as another trainer's file: an error, or a recipe that is read again. */
#include "base/config_import.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_dump(const Import *i)
{
    char  *text = NULL;
    size_t len;
    FILE  *f = open_memstream(&text, &len);
    Config back;
    if (!f) abort();
    config_import_dump(f, i, "fuzz");
    fclose(f);
    config_default(&back);
    Status st = config_parse(&back, text, len, "dump");
    REQUIRE(!st, "the recipe is refused: %s\n%s", status_text(), text);
    config_close(&back);
    free(text);
}

static void import_as(const char *name, const char *text, size_t size)
{
    Import i;
    if (config_import(&i, text, size, name)) return;
    check_dump(&i);
    config_import_close(&i);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    if (!text) abort();
    for (size_t k = 0; k < size; k++) text[k] = (char)data[k];
    text[size] = 0;
    import_as("fuzz.sh", text, size);
    import_as("fuzz.yaml", text, size);
    free(text);
    return 0;
}

#ifndef TREB_LIBFUZZER
#include "fuzz_driver.h"

static void fuzz_seeds(Fuzz *f)
{
    static const char *const texts[] = {
        "#!/bin/bash\nSEQ=4096\nARGS=(\n  --seq-length $SEQ  # tokens\n  --lr 1e-4\n)\n"
        "torchrun --nproc_per_node ${GPUS:-8} pretrain.py ${ARGS[@]}\n",
        "OPTIONS=\" --micro-batch-size 1 \\\n --global-batch-size 16 \\\n --bf16\"\nrun ${OPTIONS}\n",
        "NPROC_PER_NODE=8 swift sft --model 'a/b' --dataset 'x#500' \"y.jsonl\" --tuner_type lora "
        "--target_modules all\n",
        "model_name_or_path: a/b\nlora_target: q_proj,v_proj\ndataset: a, b\ncutoff_len: 2048\nbf16: "
        "true\n",
        "{\"deepspeed\": \"ds_z3.json\", \"per_device_train_batch_size\": 2, \"lora\": {\"r\": [8, 9]}}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) fuzz_add(f, texts[i], strlen(texts[i]));
}
#endif
