/* bench/attention.h -- cases of bench/cases.h about attention: causal in equal documents, in unequal ones
 * (ragged) and in one (long), that of the tower, and heads of other families: latent (192 wide, values 128),
 * with a window, 256 wide. */
#ifndef BENCH_ATTENTION_H
#define BENCH_ATTENTION_H

#include "bench/cases.h"

Tensor  bench_heads(Case *c, int64_t rows, int64_t n);       /* random; of c->width */
void    bench_documents(Case *c, int64_t rows, int64_t n);   /* causal, of one length */

void    make_attention(Case *c), make_ragged(Case *c), make_long(Case *c), make_vision(Case *c);
void    make_attention_bwd(Case *c), make_ragged_bwd(Case *c), make_long_bwd(Case *c);
void    make_vision_bwd(Case *c);
void    make_attention_latent(Case *c), make_latent_bwd(Case *c);
void    make_latent_ragged(Case *c), make_latent_ragged_bwd(Case *c);
void    make_attention_window(Case *c), make_window_bwd(Case *c);
void    make_attention_wide(Case *c), make_wide_bwd(Case *c);
BenchFn run_attention, run_attention_bwd;

#endif
