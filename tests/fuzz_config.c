/* tests/fuzz_config.c -- any bytes as a recipe, and as an override: an error or a Config. A Config that was
 * accepted dumps to a recipe that reads back to the same dump. */
#include "base/config.h"
#include "base/yaml.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *dump(const Config *cfg, size_t *len)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, len);
    if (!f) abort();
    config_dump(f, cfg);
    fclose(f);
    return text;
}

static void check_round_trip(const Config *cfg)
{
    Config back;
    size_t once_len, twice_len;
    char *once = dump(cfg, &once_len);
    if (once_len > YAML_MAX_BYTES) {        /* aliases can say more than a file may hold */
        free(once);
        return;
    }
    config_default(&back);
    Status st = config_parse(&back, once, once_len, "dump");
    REQUIRE(!st, "the dump is refused: %s\n%s", status_text(), once);
    char *twice = dump(&back, &twice_len);
    REQUIRE(once_len == twice_len && !memcmp(once, twice, once_len), "dump\n%s\nand again\n%s", once, twice);
    free(once), free(twice);
    config_close(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Config cfg;
    config_default(&cfg);
    if (!config_parse(&cfg, (const char *)data, size, "fuzz")) check_round_trip(&cfg);
    config_close(&cfg);

    char *line = malloc(size + 1);
    if (!line) abort();
    memcpy(line, data, size);
    line[size] = 0;
    config_default(&cfg);
    if (!config_set(&cfg, line)) check_round_trip(&cfg);
    config_close(&cfg);
    free(line);
    return 0;
}

#ifndef TREB_LIBFUZZER
#include "fuzz_driver.h"

static void fuzz_seeds(Fuzz *f)
{
    static const char *const lines[] = {
        "data.train[0].path=*.jsonl", "data.train[0]={path: x, weight: 2}", "optim.learning_rate=1e-4",
        "memory.recompute=[a, b]",    "parallel=auto",                      "train={seed: 3, save: null}",
        "data: {train: &t [{path: \"\\x85\\u2028\"}], eval: *t}\n",        "model: {path: >\n  folded\n}\n",
    };
    Config cfg;
    size_t len;
    config_default(&cfg);
    char *all = dump(&cfg, &len);
    fuzz_add(f, all, len);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) fuzz_add(f, lines[i], strlen(lines[i]));
    fuzz_add_path(f, "recipes/example.yaml");
    free(all);
    config_close(&cfg);
}
#endif
