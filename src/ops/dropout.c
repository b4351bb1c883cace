/* ops/dropout.c -- elements left out by chance: contract, price, CPU.
 *
 *   y[i,j] = x[i,j] / (1 - p) where number first + i stride + j of (seed, stream) says so, else 0; add: +=
 *
 * A number of base/rng.h keeps its element if, an unsigned word, it is no less than p 2^32 cut to an integer,
 * which has a chance of 1 - p. It depends on its place alone: backward asks for the same ones again, and a
 * part of a matrix is treated like that part of the whole. x and y are matrices of f32 or bf16, rows may be
 * strided, and y may be x. The factor is 1 / (1 - p) in f32, its product and the sum are each rounded to f32
 * and the result to y's dtype: the same bits on every machine. */
#include "ops/rows.h"

#include "base/rng.h"

Cost dropout_cost(Backend *be, Tensor y, Tensor x, float p, uint64_t seed, uint64_t stream, int64_t first,
                  int64_t stride, bool add)
{
    REQUIRE(is_rows(x, x.n[0], x.n[1]) && is_rows(y, x.n[0], x.n[1]), "dropout: y%s x%s", t_fmt(y), t_fmt(x));
    REQUIRE(p >= 0 && p < 1 && first >= 0 && stride >= 0, "dropout: p %g, numbers from %lld by %lld",
            (double)p, (long long)first, (long long)stride);
    return (Cost){ .flops = (add ? 2.0 : 1.0) * (double)t_count(x),
                   .rd    = t_bytes(x) + (add ? t_bytes(y) : 0), .wr = t_bytes(y) };
}

/* Blocks first .. of the stream, four numbers each. */
HOT static void draw(Rng4 *out, int64_t n, uint64_t seed, uint64_t stream, uint64_t first)
{
    for (int64_t i = 0; i < n; i++) out[i] = rng_block(seed, stream, first + (uint64_t)i);
}

/* out[i] = x[i] * scale where its number is large enough, else 0. */
HOT static void thin(float *out, const float *x, const uint32_t *number, int64_t n, uint32_t least,
                     float scale)
{
    for (int64_t i = 0; i < n; i++) out[i] = number[i] >= least ? x[i] * scale : 0.0f;
}

void cpu_dropout(Backend *be, Tensor y, Tensor x, float p, uint64_t seed, uint64_t stream, int64_t first,
                 int64_t stride, bool add)
{
    uint32_t least = (uint32_t)((double)p * 0x1p32);           /* p < 1: it fits */
    float    scale = 1.0f / (1.0f - p);
    Pieces   cut = pieces_of(y);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(y)))
    for (int64_t i = 0; i < cut.count; i++) {
        float   *buf = cpu_own(be), *kept = buf + PIECE, *wide = kept + PIECE;
        Rng4    *four = (Rng4 *)(wide + PIECE);
        Tensor   yi = piece(y, cut, i), xi = piece(x, cut, i);
        int64_t  n = yi.n[0], at = first + i / cut.per_row * stride + i % cut.per_row * PIECE;
        float   *out = row_edit(yi, 0, buf);
        draw(four, (at % 4 + n + 3) / 4, seed, stream, (uint64_t)(at / 4));
        thin(kept, row_read(xi, 0, wide), four->v + at % 4, n, least, scale);
        if (add) rows_add(out, row_read(yi, 0, out), kept, n);
        else     memcpy(out, kept, (size_t)n * sizeof *out);
        row_store(yi, 0, out);
    }
}
