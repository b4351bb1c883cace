/* ops/quantize_slice.c -- quantises a weight of which a rank holds a slice, and transposes codes: contract,
 * cost, CPU.
 *
 * A weight is a matrix (N, K) or a stack (E, N, K) in blocks as quantize_weight has them; w (n) holds its
 * elements [of.at, of.at + n), flat, f32 or bf16. Slices need not end with a row or a block:
 *
 *   weight_amax      amax ([E,] ceil(N/128), ceil(K/128)) f32: the largest magnitude that the slice has of
 *                    each block, infinite where an element is infinite or NaN; 0: the slice has none of it
 *   amax_scales      scale = the scale of amax (quant.h), of equal shapes; may be in place
 *   quantize_slice   q (n) e4m3: codes of w by the scales of the whole weight
 *   transpose        y ([E,] K, N) = x ([E,] N, K) transposed, of one type of 1 or 4 bytes
 *
 * With amax the maximum over the slices of all ranks the codes are those of quantize_weight. Tensors are
 * dense. Extents may be 0. Every device gives the same bits. */
#include "ops/cpu/cpu_quant.h"

static int64_t matrices_in(Tensor t) { return t.rank == 3 ? t.n[0] : 1; }

static bool has_blocks(Tensor t, WeightSlice of)
{
    return (t.rank == 2 || t.rank == 3) && t.dtype == F32 && t_dense(t) &&
           t.n[t.rank - 2] == quant_groups(of.N) && t.n[t.rank - 1] == quant_groups(of.K);
}

static bool slice_fits(Tensor w, Tensor blocks, WeightSlice of)
{
    return w.rank == 1 && is_float(w) && has_blocks(blocks, of) && of.at >= 0 &&
           of.at + w.n[0] <= matrices_in(blocks) * of.N * of.K;
}

Cost weight_amax_cost(Backend *be, Tensor amax, Tensor w, WeightSlice of)
{
    REQUIRE(slice_fits(w, amax, of), "weight_amax: amax %s w %s at %lld of (%lld, %lld)", t_fmt(amax),
            t_fmt(w), (long long)of.at, (long long)of.N, (long long)of.K);
    return (Cost){ .flops = (double)t_count(w), .rd = t_bytes(w), .wr = t_bytes(amax) };
}

Cost amax_scales_cost(Backend *be, Tensor scale, Tensor amax, bool pow2)
{
    REQUIRE(scale.dtype == F32 && amax.dtype == F32 && t_dense(scale) && t_dense(amax) &&
            t_count(scale) == t_count(amax), "amax_scales: scale %s amax %s", t_fmt(scale), t_fmt(amax));
    return (Cost){ .flops = (double)t_count(amax), .rd = t_bytes(amax), .wr = t_bytes(scale) };
}

Cost quantize_slice_cost(Backend *be, Tensor q, Tensor w, Tensor scale, WeightSlice of)
{
    REQUIRE(slice_fits(w, scale, of) && q.rank == 1 && q.dtype == E4M3 && q.n[0] == w.n[0],
            "quantize_slice: q %s w %s scale %s at %lld of (%lld, %lld)", t_fmt(q), t_fmt(w), t_fmt(scale),
            (long long)of.at, (long long)of.N, (long long)of.K);
    return (Cost){ .flops = (double)t_count(w), .rd = t_bytes(w), .wr = t_bytes(q) };
}

Cost transpose_cost(Backend *be, Tensor y, Tensor x)
{
    size_t size = dtype_size((DType)x.dtype);
    REQUIRE((x.rank == 2 || x.rank == 3) && y.rank == x.rank && y.dtype == x.dtype && t_dense(x) &&
            t_dense(y) && (size == 1 || size == 4) && y.n[y.rank - 2] == x.n[x.rank - 1] &&
            y.n[y.rank - 1] == x.n[x.rank - 2] && matrices_in(y) == matrices_in(x),
            "transpose: y %s x %s", t_fmt(y), t_fmt(x));
    return (Cost){ .rd = t_bytes(x), .wr = t_bytes(y) };
}

/* Elements [at, at + n) of a slice, which lie in one row of block `block`. */
typedef struct Segment { int64_t at, n, block; } Segment;

/* The part of a slice of n elements that a row of blocks has: elements [at, end) of the slice. */
typedef struct Band { WeightSlice of; int64_t row, at, end; } Band;

static Band band_of(WeightSlice of, int64_t row, int64_t n)
{
    int64_t down = quant_groups(of.N), inner = row % down * QUANT_GROUP;
    int64_t first = row / down * of.N + inner, rows = min_i64(of.N - inner, QUANT_GROUP);
    int64_t from = max_i64(first * of.K - of.at, 0);
    return (Band){ of, row, from, min_i64((first + rows) * of.K - of.at, n) };
}

static bool next_segment(Band *b, Segment *g)
{
    if (b->at >= b->end) return false;
    int64_t col = (b->of.at + b->at) % b->of.K, width = QUANT_GROUP - col % QUANT_GROUP;
    *g = (Segment){ b->at, min_i64(min_i64(width, b->of.K - col), b->end - b->at),
                    b->row * quant_groups(b->of.K) + col / QUANT_GROUP };
    b->at += g->n;
    return true;
}

static const float *read_segment(Tensor w, const Segment *g, float *own)
{
    if (w.dtype == F32) return (const float *)w.data + g->at;
    cpu_widen(own, (const uint16_t *)w.data + g->at, g->n);
    return own;
}

/* Not a number counts as infinite. */
static uint32_t larger_amax(uint32_t amax, const float *x, int64_t n)
{
    uint32_t here = cpu_quant_amax(x, n);
    if (here > amax) amax = here;
    return amax > 0x7f800000u ? 0x7f800000u : amax;
}

void cpu_weight_amax(Backend *be, Tensor amax, Tensor w, WeightSlice of)
{
    float  *out = amax.data;
    int64_t rows = matrices_in(amax) * quant_groups(of.N), across = quant_groups(of.K);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(w)))
    for (int64_t row = 0; row < rows; row++) {
        Band    b = band_of(of, row, t_count(w));
        Segment g;
        float   own[QUANT_GROUP];
        for (int64_t i = 0; i < across; i++) out[row * across + i] = 0.0f;
        while (next_segment(&b, &g))
            out[g.block] = quant_float(larger_amax(quant_bits(out[g.block]), read_segment(w, &g, own), g.n));
    }
}

void cpu_amax_scales(Backend *be, Tensor scale, Tensor amax, bool pow2)
{
    const float *x = amax.data;
    float       *y = scale.data;
    for (int64_t i = 0; i < t_count(amax); i++) y[i] = quant_scale(quant_bits(x[i]), pow2).scale;
}

void cpu_quantize_slice(Backend *be, Tensor q, Tensor w, Tensor scale, WeightSlice of)
{
    int64_t rows = matrices_in(scale) * quant_groups(of.N);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(w)))
    for (int64_t row = 0; row < rows; row++) {
        Band    b = band_of(of, row, t_count(w));
        Segment g;
        float   own[QUANT_GROUP];
        while (next_segment(&b, &g))
            cpu_quant_encode((uint8_t *)q.data + g.at, read_segment(w, &g, own),
                             quant_inverse(((const float *)scale.data)[g.block]), g.n);
    }
}

/* Rows `from` .. of x, TILE at most, become columns of y. */
enum { TILE = 64 };

HOT static void transpose_bytes(uint8_t *y, const uint8_t *x, int64_t N, int64_t K, int64_t from)
{
    int64_t to = min_i64(N, from + TILE);
    for (int64_t k = 0; k < K; k++)
        for (int64_t n = from; n < to; n++) y[k * N + n] = x[n * K + k];
}

HOT static void transpose_words(uint32_t *y, const uint32_t *x, int64_t N, int64_t K, int64_t from)
{
    int64_t to = min_i64(N, from + TILE);
    for (int64_t k = 0; k < K; k++)
        for (int64_t n = from; n < to; n++) y[k * N + n] = x[n * K + k];
}

void cpu_transpose(Backend *be, Tensor y, Tensor x)
{
    int64_t N = x.n[x.rank - 2], K = x.n[x.rank - 1], tiles = ceil_div(N, TILE);
    bool    bytes = dtype_size((DType)x.dtype) == 1;
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(x)))
    for (int64_t i = 0; i < matrices_in(x) * tiles; i++) {
        int64_t at = i / tiles * N * K, from = i % tiles * TILE;
        if (bytes) transpose_bytes((uint8_t *)y.data + at, (const uint8_t *)x.data + at, N, K, from);
        else       transpose_words((uint32_t *)y.data + at, (const uint32_t *)x.data + at, N, K, from);
    }
}
