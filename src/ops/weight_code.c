/* ops/weight_code.c -- frozen weights to codes and back (weight_code.h): contract, cost, CPU.
 *
 *   weight_stats    of a matrix w (N, K): amax (N) of its rows (int8), or (N K / 64) of its blocks with group
 *                   (groups, 2), the largest magnitude and the offset of each group of blocks (nf4); f32
 *   code_scales     scale of parts of the matrix: element (i, j) is that of row (int8) or block (nf4) at + i
 *                   stride + j, from its amax; (count, n) f32 or u8
 *   code_weight     codes of parts of the matrix: element (i, j) of a part is element at + i stride + j of w,
 *                   flat; q (count, n) i8, or (count, n / 2) u8. K: elements of a row
 *   decode_weight   w (n, k), or (e, n, k) of a stack, becomes the tile that begins at `at` of the weight
 *                   whose codes are z
 *
 * w is dense, f32 or bf16. nf4: N K, at, stride and the parts are multiples of 64, K of 2. Every device gives
 * the same bits. */
#include "ops/weight_code.h"

#include "ops/cpu/cpu_rows.h"

enum { CODE_PIECE = 4096 };              /* elements that a thread takes at a time, whole blocks */

static bool is_matrix(Tensor w) { return w.rank == 2 && is_float(w) && t_dense(w); }

static bool holds_stats(CodeFormat format, Tensor amax, Tensor group, int64_t rows, int64_t n)
{
    if (amax.dtype != F32 || !t_dense(amax)) return false;
    if (format == CODE_INT8) return t_count(amax) == rows;
    return format == CODE_NF4 && n % NF4_BLOCK == 0 && t_count(amax) == nf4_blocks(n) &&
           is_rows_f32(group, nf4_groups(n), 2) && t_dense(group);
}

Cost weight_stats_cost(Backend *be, CodeFormat format, Tensor amax, Tensor group, Tensor w)
{
    REQUIRE(is_matrix(w) && holds_stats(format, amax, group, w.n[0], t_count(w)),
            "weight_stats: amax %s group %s w %s", t_fmt(amax), t_fmt(group), t_fmt(w));
    return (Cost){ .flops = (double)t_count(w), .rd = t_bytes(w), .wr = t_bytes(amax) + opt_bytes(group) };
}

Cost code_scales_cost(Backend *be, CodeFormat format, Tensor scale, Tensor amax, Tensor group, int64_t at,
                      int64_t stride)
{
    int64_t last = at + (scale.n[0] - 1) * stride + scale.n[1];
    REQUIRE(scale.rank == 2 && t_dense(scale) && scale.dtype == (format == CODE_NF4 ? U8 : F32) && at >= 0 &&
            (!t_count(scale) || last <= t_count(amax)), "code_scales: scale %s amax %s at %lld, %lld",
            t_fmt(scale), t_fmt(amax), (long long)at, (long long)stride);
    return (Cost){ .flops = (double)t_count(scale), .rd = 4 * t_count(scale), .wr = t_bytes(scale) };
}

Cost code_weight_cost(Backend *be, CodeFormat format, Tensor q, Tensor w, Tensor amax, int64_t at,
                      int64_t stride, int64_t K)
{
    int64_t n = q.n[1] * 8 / code_bits(format), last = at + (q.n[0] - 1) * stride + n;
    bool    blocks = format != CODE_NF4 || !(at % NF4_BLOCK || stride % NF4_BLOCK || n % NF4_BLOCK);
    REQUIRE(q.rank == 2 && t_dense(q) && q.dtype == (format == CODE_NF4 ? U8 : I8) && at >= 0 && blocks &&
            is_float(w) && t_dense(w) && (!t_count(q) || last <= t_count(w)),
            "code_weight: q %s w %s amax %s at %lld, %lld", t_fmt(q), t_fmt(w), t_fmt(amax), (long long)at,
            (long long)stride);
    return (Cost){ .flops = (double)(q.n[0] * n), .rd = q.n[0] * n * (int64_t)dtype_size((DType)w.dtype),
                   .wr = t_bytes(q) };
}

static int64_t elements_wide(const WeightCodes *z)
{
    return z->q.n[z->q.rank - 1] * 8 / code_bits(z->format);
}

Cost decode_weight_cost(Backend *be, Tensor w, WeightCodes z, TileAt at)
{
    int r = w.rank;
    REQUIRE((r == 2 || r == 3) && z.q.rank == r && is_float(w) && t_dense(w) && t_dense(z.q) &&
            at.row + w.n[r - 2] <= z.q.n[r - 2] && at.col + w.n[r - 1] <= elements_wide(&z) &&
            (r == 2 || at.e + w.n[0] <= z.q.n[0]), "decode_weight: w %s q %s at %lld, %lld, %lld", t_fmt(w),
            t_fmt(z.q), (long long)at.e, (long long)at.row, (long long)at.col);
    return (Cost){ .flops = (double)t_count(w), .rd = code_bytes(z.format, t_count(w)), .wr = t_bytes(w) };
}

/* ---- statistics ---- */

HOT static uint32_t largest(const float *x, int64_t n)
{
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t m = quant_magnitude(x[i]);
        most = m > most ? m : most;
    }
    return most;
}

/* Elements at .. at + n of a flat tensor as f32; n is CODE_PIECE at most. */
static const float *read_elements(Tensor w, int64_t at, int64_t n, float *own)
{
    if (w.dtype == F32) return (const float *)w.data + at;
    cpu_widen(own, (const uint16_t *)w.data + at, n);
    return own;
}

static float row_amax(Tensor w, int64_t row)
{
    float    own[CODE_PIECE];
    uint32_t most = 0;
    for (int64_t at = 0, n; at < w.n[1]; at += n) {
        n = min_i64(w.n[1] - at, CODE_PIECE);
        uint32_t m = largest(read_elements(w, row * w.n[1] + at, n, own), n);
        most = m > most ? m : most;
    }
    return quant_float(most);
}

/* The mean of n f32 in the order that weight_code.h states. */
static float mean_of(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t lane = 0; lane < NF4_GROUP && lane < n; lane++) {
        double part = 0;
        for (int64_t i = lane; i < n; i += NF4_GROUP) part += x[i];
        sum += part;
    }
    return (float)(sum / (double)n);
}

static void group_stats(float *group, const float *amax, int64_t n)
{
    float offset = n ? mean_of(amax, n) : 0;
    for (int64_t at = 0; at < n; at += NF4_GROUP) {
        uint32_t most = 0;
        for (int64_t i = at; i < min_i64(n, at + NF4_GROUP); i++) {
            uint32_t m = quant_magnitude(amax[i] - offset);
            most = m > most ? m : most;
        }
        *group++ = quant_float(most), *group++ = offset;
    }
}

static void block_amaxes(float *amax, Tensor w, int64_t at)
{
    float        own[CODE_PIECE];
    int64_t      n = min_i64(t_count(w) - at, CODE_PIECE);
    const float *x = read_elements(w, at, n, own);
    for (int64_t i = 0; i < n; i += NF4_BLOCK)
        amax[(at + i) / NF4_BLOCK] = quant_float(largest(x + i, NF4_BLOCK));
}

void cpu_weight_stats(Backend *be, CodeFormat format, Tensor amax, Tensor group, Tensor w)
{
    float  *out = amax.data;
    int64_t n = format == CODE_INT8 ? w.n[0] : ceil_div(t_count(w), CODE_PIECE);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(w)))
    for (int64_t i = 0; i < n; i++) {
        if (format == CODE_INT8) out[i] = row_amax(w, i);
        else                     block_amaxes(out, w, i * CODE_PIECE);
    }
    if (format == CODE_NF4) group_stats(group.data, out, t_count(amax));
}

/* ---- codes ---- */

static const float nf4_value[16] = {
#define X(v) v,
    NF4_VALUES(X)
#undef X
};

static float dynamic_value(int code)
{
    static const float value[DYNAMIC_ZERO] = {
#define X(v) v,
        DYNAMIC_VALUES(X)
#undef X
    };
    if (code == 255) return 1.0f;
    return code > DYNAMIC_ZERO ? value[code - DYNAMIC_ZERO - 1]
                               : code < DYNAMIC_ZERO ? -value[DYNAMIC_ZERO - 1 - code] : 0.0f;
}

static uint8_t dynamic_code(float x)
{
    int low = 0, high = 255;                            /* midpoints below `low` are below x */
    while (low < high) {
        int middle = (low + high) / 2;
        if (code_midpoint(dynamic_value(middle), dynamic_value(middle + 1)) < x) low = middle + 1;
        else high = middle;
    }
    return (uint8_t)low;
}

static float reciprocal(float x, float of) { return x == 0 ? 0 : of / x; }

void cpu_code_scales(Backend *be, CodeFormat format, Tensor scale, Tensor amax, Tensor group, int64_t at,
                     int64_t stride)
{
    const float *x = amax.data, *g = group.data;
    for (int64_t i = 0; i < t_count(scale); i++) {
        int64_t b = at + i / scale.n[1] * stride + i % scale.n[1];
        if (format == CODE_INT8) ((float *)scale.data)[i] = x[b] / 127.0f;
        else {
            const float *of = g + b / NF4_GROUP * 2;
            ((uint8_t *)scale.data)[i] = dynamic_code((x[b] - of[1]) * reciprocal(of[0], 1.0f));
        }
    }
}

HOT static void nf4_encode(uint8_t *q, const float *x, float inverse)
{
    uint8_t code[NF4_BLOCK] = { 0 };
    for (int k = 0; k < 15; k++) {
        float middle = code_midpoint(nf4_value[k], nf4_value[k + 1]);
        for (int i = 0; i < NF4_BLOCK; i++) code[i] = (uint8_t)(code[i] + (x[i] * inverse > middle));
    }
    for (int i = 0; i < NF4_BLOCK / 2; i++) q[i] = (uint8_t)(code[2 * i] << 4 | code[2 * i + 1]);
}

HOT static void int8_encode(int8_t *q, const float *x, float inverse, int64_t n)
{
    for (int64_t i = 0; i < n; i++) q[i] = (int8_t)(int32_t)__builtin_rintf(x[i] * inverse);
}

static void nf4_piece(uint8_t *q, Tensor w, const float *amax, int64_t at, int64_t n)
{
    float        own[CODE_PIECE];
    const float *x = read_elements(w, at, n, own);
    for (int64_t i = 0; i < n; i += NF4_BLOCK)
        nf4_encode(q + i / 2, x + i, reciprocal(amax[(at + i) / NF4_BLOCK], 1.0f));
}

static void int8_piece(int8_t *q, Tensor w, const float *amax, int64_t at, int64_t n, int64_t K)
{
    float        own[CODE_PIECE];
    const float *x = read_elements(w, at, n, own);
    for (int64_t i = 0, m; i < n; i += m) {
        m = min_i64(n - i, K - (at + i) % K);
        int8_encode(q + i, x + i, reciprocal(amax[(at + i) / K], 127.0f), m);
    }
}

void cpu_code_weight(Backend *be, CodeFormat format, Tensor q, Tensor w, Tensor amax, int64_t at,
                     int64_t stride, int64_t K)
{
    int64_t n = q.n[1] * 8 / code_bits(format), pieces = ceil_div(n, CODE_PIECE);
    #pragma omp parallel for schedule(static) if (worth_threads(q.n[0] * n))
    for (int64_t i = 0; i < q.n[0] * pieces; i++) {
        int64_t from = i % pieces * CODE_PIECE, m = min_i64(n - from, CODE_PIECE);
        int64_t of = at + i / pieces * stride + from;
        char   *to = (char *)row_ptr(q, i / pieces) + code_bytes(format, from);
        if (format == CODE_NF4) nf4_piece((uint8_t *)to, w, amax.data, of, m);
        else                    int8_piece((int8_t *)to, w, amax.data, of, m, K);
    }
}

/* ---- elements ---- */

/* `n` elements from column `col` of row `row`, over all matrices of a stack. */
typedef struct RowPart { int64_t row, col, n; } RowPart;

HOT static void int8_decode(float *x, const int8_t *q, float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = (float)q[i] * scale;
}

HOT static void fp8_decode(float *x, const uint8_t *q, float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = e4m3_to_f32(q[i]) * scale;
}

/* Element i of a row of codes, for i = col .. col + n. */
HOT static void nf4_decode(float *x, const uint8_t *q, int64_t col, float amax, int64_t n)
{
    for (int64_t i = col; i < col + n; i++) x[i - col] = nf4_value[q[i / 2] >> (i % 2 ? 0 : 4) & 15] * amax;
}

/* The amax of a local block that lies in group g. */
static float nf4_amax(const WeightCodes *z, int64_t block, int64_t g)
{
    const float *of = (const float *)z->group.data + 2 * g;
    float        part = dynamic_value(((const uint8_t *)z->scale.data)[block]) * of[0];
    return part + of[1];
}

static void nf4_row(float *x, const WeightCodes *z, RowPart p, int64_t K)
{
    const uint8_t *q = (const uint8_t *)z->q.data + p.row * K / 2;
    int64_t        first = 2 * (int64_t)((const int32_t *)z->first.data)[p.row];
    for (int64_t i = p.col, n; i < p.col + p.n; i += n) {
        int64_t here = p.row * K + i;
        n = min_i64(p.col + p.n - i, NF4_BLOCK - here % NF4_BLOCK);
        nf4_decode(x + i - p.col, q, i, nf4_amax(z, here / NF4_BLOCK, (first + i) / NF4_GROUP_ELEMS), n);
    }
}

static void fp8_row(float *x, const WeightCodes *z, RowPart p, int64_t N, int64_t K)
{
    int64_t        down = quant_groups(N), band = p.row / N * down + p.row % N / QUANT_GROUP;
    const uint8_t *q = (const uint8_t *)z->q.data + p.row * K;
    const float   *scale = (const float *)z->scale.data + band * quant_groups(K);
    for (int64_t i = p.col, n; i < p.col + p.n; i += n) {
        n = min_i64(p.col + p.n - i, QUANT_GROUP - i % QUANT_GROUP);
        fp8_decode(x + i - p.col, q + i, scale[i / QUANT_GROUP], n);
    }
}

static void decode_row(float *x, const WeightCodes *z, RowPart p)
{
    int64_t N = z->q.n[z->q.rank - 2], K = elements_wide(z);
    if (z->format == CODE_NF4)      nf4_row(x, z, p, K);
    else if (z->format == CODE_FP8) fp8_row(x, z, p, N, K);
    else int8_decode(x, (const int8_t *)z->q.data + p.row * K + p.col, ((const float *)z->scale.data)[p.row],
                     p.n);
}

void cpu_decode_weight(Backend *be, Tensor w, WeightCodes z, TileAt at)
{
    int64_t n = w.n[w.rank - 2], N = z.q.n[z.q.rank - 2], first = at.e * N + at.row;
    cpu_check_own("decode_weight", 1, row_width(w));
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(w)))
    for (int64_t r = 0; r < row_count(w); r++) {
        float *x = row_edit(w, r, cpu_own(be));
        decode_row(x, &z, (RowPart){ first + r / n * N + r % n, at.col, row_width(w) });
        row_store(w, r, x);
    }
}
