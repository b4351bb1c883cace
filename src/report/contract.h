/* report/contract.h -- the measurement contract of a run: everything that its numbers depend on, as keys
 * with values. Two runs are comparable if their contracts differ in declared keys alone.
 *
 * The keys are those of recipe.yaml without contract.def's, and those of env.json (machine, build, ranks,
 * fingerprints of the data) as "env.cores". contract.json is written beside them:
 *
 *   {"hash": "...", "label": "benchmark-only", "reasons": ["..."], "keys": {"optim.learning_rate": "1e-05",
 *    ...}}
 *
 *   Contract a, b;
 *   TRY(contract_read(&a, "runs/a")); TRY(contract_read(&b, "runs/b"));
 *   ContractDifference d[8];
 *   int n = contract_compare(d, 8, &a, &b, declared, 1);        may be more than 8; 0: comparable */
#ifndef REPORT_CONTRACT_H
#define REPORT_CONTRACT_H

#include "base/config.h"
#include "report/report_run.h"
#include "train/label.h"

enum { CONTRACT_HASH = 33 };

typedef struct Contract {
    KeyValues  keys;                  /* sorted */
    LabelFacts facts;
    MemPool    keep;
} Contract;

typedef struct ContractDifference { const char *key, *a, *b; } ContractDifference;   /* NULL: absent */

MUST Status contract_of_run(Contract *c, const ReportRun *run);
MUST Status contract_read(Contract *c, const char *dir);               /* the folder of a run */
MUST Status contract_of_config(Contract *c, const Config *recipe);     /* before a run: no machine, no data */
void        contract_close(Contract *c);                               /* twice is fine */

/* The hash of all keys but the declared ones; a declared key that ends in a dot stands for its section:
 * "parallel.ep", "memory.". */
void        contract_hash(char out[CONTRACT_HASH], const Contract *c, const char *const *declared, int n);
/* Keys that are not declared and whose values differ: their number; the first `most` of them into d. */
int         contract_compare(ContractDifference *d, int most, const Contract *a, const Contract *b,
                             const char *const *declared, int n);
/* "3 keys: parallel.ep (8, 16), ..." */
void        contract_text(char *out, size_t n, const ContractDifference *d, int shown, int all);

/* The label of a comparison: reasons of either run, and rounded optimizer states against exact ones. */
enum { COMPARISON_REASONS = LABEL_REASONS + 1 };
int         contract_reasons(const char *list[COMPARISON_REASONS], const Contract *a, const Contract *b);

/* Two values of a key; 1e-4 and 0.0001 are equal. NULL: absent. */
bool        values_differ(const char *a, const char *b);

MUST Status contract_json(Json **out, const Contract *c);              /* for json_decref */

#endif
