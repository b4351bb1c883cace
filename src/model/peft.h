/* model/peft.h -- adapters as PEFT keeps them: a folder with adapter_config.json and
 * adapter_model.safetensors, which PEFT and transformers load beside the model it was trained on.
 *
 * Tensors are named base_model.model.<module>.lora_A.weight (r, in) and .lora_B.weight (out, r); modules that
 * were trained whole are base_model.model.<tensor>. Of experts there are three forms:
 *
 *   fused     <…>.mlp.experts.lora_A.weight (E r, in), row e r + j, and lora_B.weight (out, r E), column
 *             j E + e. Where both parameters have a pair that of gate_up_proj is below "base_layer."
 *   turned    the same by older versions, which took dim 1 for the input: A (E r, out), B (in, r E), and the
 *             update is (B A)'. Told by the number of A's columns; where that says nothing, by other experts
 *             of the file or by the version that wrote it; else it is refused
 *   each      <…>.mlp.experts.<e>.gate_proj, .up_proj, .down_proj. Gate and up with the same A are the pair
 *             that they were written from; else A are stacked and B is block-diagonal, of twice the rank
 *
 * Reading believes nothing: what the configuration says and what the file has must agree, every tensor must
 * belong to something, and keys that change what an adapter means and are not computed here are refused by
 * name. Writing gives each expert names of its own where the hub's files of the family do and PEFT then loads
 * them (adapter_write.c), the fused form elsewhere. There is no dropout in a file with experts: PEFT refuses
 * it there, and who loads an adapter to use it has none anyway. */
#ifndef MODEL_PEFT_H
#define MODEL_PEFT_H

#include "base/folder.h"
#include "base/keep.h"
#include "model/weights.h"

#define PEFT_CONFIG  "adapter_config.json"
#define PEFT_WEIGHTS "adapter_model.safetensors"

typedef struct PeftAdapter PeftAdapter;

typedef struct PeftFile {
    LoraConf    conf;                 /* its modules are `exact`, and `save` those that it has whole */
    const char    *base;                 /* what it was trained on, as its maker called it; "": not said */
    SafeTensors    st;
    PeftAdapter   *pair;                 /* conf.exacts of them */
    WordList       save;
    const char   **copy;                 /* tensors of the base that it has copies of (a targeted head's) */
    int            copies;
    Keep           keep;
} PeftFile;

bool        peft_is(const char *folder);                   /* an adapter, by its looks */
MUST Status peft_base(Path out, const char *folder);       /* its base_model_name_or_path; "": not said */

/* On failure it is closed. s: of the model it is for. */
MUST Status peft_open(PeftFile *f, const char *folder, const ModelShape *s);
/* The same from its two files in memory, for peft_open and for tests: takes f->st, opened. */
MUST Status peft_read(PeftFile *f, const Json *config, const ModelShape *s);
void        peft_close(PeftFile *f);                    /* twice is fine */

/* Into the parameters of m, which was opened with f->conf, whatever part of it this rank has. */
MUST Status peft_load(const PeftFile *f, Model *m, Backend *be);
/* A ParamFillFn of what it has: self is an PeftFile, m was opened with its conf and is whole. */
MUST Status peft_fill(void *self, Model *m, Backend *be, int i);
/* Copies of base tensors are the base's, else it was made for another one. base NULL: it has no file. */
MUST Status peft_check_base(const PeftFile *f, const SafeTensors *base);

/* Whether p is trained itself, beside the adapters that m was opened with. */
bool        lora_trains_in_full(const Model *m, const Param *p);

/* Into folder dir, the configuration last: with it the folder is an adapter. m: opened with adapters, whole,
 * not bound; from fills them in. base: for base_model_name_or_path; "": null. */
MUST Status peft_save(Model *m, Backend *be, ParamSource from, const char *dir, const char *base);

/* The base with its adapters added in, in HF form: W' = round(W + s B A), product and sum in f32, B A summed
 * in order of j. m: the base, whole, not bound; with: the same opened with adapters; from: these. */
MUST Status peft_merge(Model *m, Model *with, Backend *be, const SafeTensors *base, ParamSource from,
                          const char *dir, DType dtype, int64_t max_shard);

#endif
