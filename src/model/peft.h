/* model/peft.h -- adapters as PEFT files: a folder with adapter_config.json and adapter_model.safetensors,
 * which PEFT and transformers load together with the base model.
 *
 * Tensors are base_model.model.<module>.lora_A.weight (r, in) and .lora_B.weight (out, r); modules trained in
 * full are base_model.model.<tensor>. Adapters of experts have one of three forms:
 *
 *   fused         <…>.mlp.experts.lora_A.weight (E r, in), row e r + j, and lora_B.weight (out, r E), column
 *                 j E + e. If both parameters have adapters, those of gate_up_proj are below "base_layer."
 *   transposed    the fused form of older versions, which took dim 1 for the input: A (E r, out), B (in, r
 *   E), and
 *                 the update is (B A)'. The number of columns of A distinguishes it; if in = out, the other
 *                 experts of the file or the version that wrote it do; else the file is refused
 *   per expert    <…>.mlp.experts.<e>.gate_proj, .up_proj, .down_proj. Gate and up with equal A are one
 *   adapter of
 *                 gate_up_proj; if their A differ, A are stacked and B is block-diagonal, with twice the rank
 *
 * Reading checks everything: configuration and tensors must agree, every tensor must belong to a module, and
 * keys that make another kind of adapter than LoRA and rsLoRA are refused by name. Writing
 * uses the form per expert if the hub files of the family have a tensor per expert and PEFT can load that
 * (peft_describe.c), else the fused form. A file with adapters of experts has lora_dropout 0, which PEFT
 * requires. */
#ifndef MODEL_PEFT_H
#define MODEL_PEFT_H

#include "base/folder.h"
#include "base/mem_pool.h"
#include "model/weights.h"

#define PEFT_CONFIG  "adapter_config.json"
#define PEFT_WEIGHTS "adapter_model.safetensors"

typedef struct PeftAdapter PeftAdapter;

typedef struct PeftFile {
    LoraConf       conf;                 /* `exact`: the adapted modules; `save`: modules trained in full */
    const char    *base;                 /* base_model_name_or_path; "": not set */
    SafeTensors    st;
    PeftAdapter   *adapter;              /* (conf.exacts) */
    WordList       save;
    const char   **copy;                 /* tensors that are copies of the base's (of a targeted head) */
    int            copies;
    MemPool           keep;
} PeftFile;

bool        peft_is(const char *folder);                      /* whether it has adapter_config.json */
MUST Status peft_base(Path out, const char *folder);          /* base_model_name_or_path; "": not set */

/* s: shape of the base model. On failure nothing stays open. */
MUST Status peft_open(PeftFile *f, const char *folder, const ModelShape *s);
/* The same with f->st already opened, for peft_open and for tests. */
MUST Status peft_read(PeftFile *f, const Json *config, const ModelShape *s);
void        peft_close(PeftFile *f);                          /* may be called twice */

/* Loads the adapters into this rank's part of m, which was opened with f->conf. */
MUST Status peft_load(const PeftFile *f, Model *m, Backend *be);
/* A ParamFillFn: self is a PeftFile; m is whole and was opened with its conf. */
MUST Status peft_fill(void *self, Model *m, Backend *be, int i);
/* E_DATA if a copied tensor differs from the base's: the adapter was made for another base model. base NULL:
 * E_CONFIG if there are copies. */
MUST Status peft_check_base(const PeftFile *f, const SafeTensors *base);

/* Writes a PEFT folder, adapter_config.json last, which marks it as complete. m: opened with adapters, whole,
 * not bound; from: their weights. base: for base_model_name_or_path; "": null. */
MUST Status peft_save(Model *m, Backend *be, ParamSource from, const char *dir, const char *base);

/* Writes the base model with the adapters merged, in HF form: W' = round(W + s B A), product and sum in f32,
 * B A summed in order of j. m: the base, whole, not bound; adapted: the same opened with adapters; from:
 * their weights. */
MUST Status peft_merge(Model *m, Model *adapted, Backend *be, const SafeTensors *base, ParamSource from,
                       const char *dir, DType dtype, int64_t max_shard);

#endif
