/* model/step_private.h -- between the files of a step: step.c walks a chunk of the model, step_layers.c its
 * layers, step_mtp.c what predicts further tokens, step_visual.c images and their rows, step_aux.c the losses
 * of routers; backward_range.c says how far down a backward goes. */
#ifndef MODEL_STEP_PRIVATE_H
#define MODEL_STEP_PRIVATE_H

#include "model/model.h"

/* ---- backward_range.c ---- */

/* Whether backward makes gradients of visual rows. */
bool    visual_grads_wanted(const Pass *c, const Model *m);
/* The lowest layer that has a backward, by the whole model, so all stages agree; layers above it pass
 * gradients down. -1: layer 0 passes them on too; L: only the head has a backward; L + 1: nothing has. */
int64_t backward_stop_layer(const Pass *c, const Model *m);
/* The lowest layer whose forward keeps something for backward; the same whether or not a micro-batch has
 * images, since that is planned before. */
int64_t first_saved_layer(const Pass *c, const Model *m);

/* ---- step_layers.c ---- */

/* Whether the backward of a chunk follows its forward at once. */
bool    backward_follows(const Pass *c, const Chunk *k);
/* Memory for the input of layer l, which is the output of the layer before it. */
Tensor  layer_input(const Pass *c, const Model *m, const Chunk *k, ModelAct *a, int64_t l);
void    layers_fwd(const Pass *c, const Model *m, const Chunk *k, ModelAct *a);
void    layers_bwd(const Pass *c, const Model *m, const Chunk *k, ModelAct *a);

/* ---- step_visual.c ---- */

/* Deepstack features that are added after layer `from` or later. They are the last ones. */
int64_t deepstack_pending(const Model *m, int64_t from);
/* Encodes images; *tokens: visual tokens of this rank's rows, from images that other ranks may have
 * encoded. */
void    encode_images(const Pass *c, const Model *m, ModelAct *a, Tensor *tokens);
void    encode_images_bwd(const Pass *c, const Model *m, ModelAct *a);
/* Adds the deepstack feature of layer l to its output; and its gradient, before the layer's backward. */
void    deepstack_add(const Pass *c, const Model *m, ModelAct *a, int64_t l);
void    deepstack_add_bwd(const Pass *c, const Model *m, ModelAct *a, int64_t l);
/* The n features from feature[layer] on, which cross the pipeline boundary before `layer`. */
void    deepstack_receive(const Pass *c, const Model *m, Tensor *feature, int64_t layer, int64_t n,
                          Tensor from,
                          const char *label);
void    deepstack_send(const Pass *c, Tensor to, const Tensor *feature, int64_t layer, int64_t n);

/* ---- step_mtp.c ---- */

/* Between the beginning and the end of the units of the head, of the layer behind the last and of the
 * embedding. The second call takes the loss, adds to a->dx and frees what the first has kept. */
void    mtp_fwd(const Pass *c, const Model *m, ModelAct *a);
void    mtp_bwd(const Pass *c, const Model *m, ModelAct *a);

/* ---- step_aux.c ---- */

/* Lays out the router statistics of a chunk; NULL: it has no MoE layer. They live until backward: the pooled
 * loss needs those of every layer before the first backward. */
const Aux *aux_open(const Pass *c, const Model *m, const Chunk *k, Aux *x);
void    aux_loss(const Pass *c, const Model *m, const Aux *x);

#endif
