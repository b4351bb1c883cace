/* ops/cuda/cublaslt.cu -- see cublaslt.cuh: descriptors, the choice of an algorithm, the launch.
 *
 * Sums are f32 throughout: bf16 operands multiply exactly into f32, f32 operands never go through TF32.
 * Where K is split, f32 partial sums in the workspace are added in order afterwards; the scheme that adds
 * them into the output as blocks finish is excluded. */
#include "ops/cuda/cublaslt.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORTH_MEASURING 2e9               /* FLOP; shorter products are too short to compare */

static bool           ok(cublasStatus_t s)        { return s == CUBLAS_STATUS_SUCCESS; }
static cudaDataType_t type_of(Tensor t)           { return t.dtype == F32 ? CUDA_R_32F : CUDA_R_16BF; }

/* A tensor of one row may have any stride; the library requires at least the row's length. */
static int64_t stride(Tensor t)                   { return t.s[0] > t.n[1] ? t.s[0] : t.n[1]; }
static int64_t inner(const LtCall *q)             { return q->mode == GEMM_TN ? q->a.n[0] : q->a.n[1]; }

/* Alignment of an address in bytes, up to 16, which TMA and 16-byte loads need. */
static uint8_t align_of(const void *p)
{
    uintptr_t at = (uintptr_t)p;
    return at % 128 == 0 ? 128 : at % 16 == 0 ? 16 : (uint8_t)(at & -at);
}

static LtKey key_of(const LtCall *q)
{
    LtKey key;
    memset(&key, 0, sizeof key);                        /* compared as bytes */
    bool acc = t_has(q->c), aux = t_has(q->aux);
    Tensor c = acc ? q->c : q->d;
    key.m   = q->d.n[0], key.n = q->d.n[1], key.k = inner(q);
    key.lda = stride(q->a), key.ldb = stride(q->b), key.ldc = stride(c), key.ldd = stride(q->d);
    key.ldx = aux ? stride(q->aux) : 0;
    key.epilogue = (uint16_t)q->epilogue;
    key.mode = (uint8_t)q->mode, key.in = q->a.dtype, key.out = q->d.dtype;
    key.beta = (uint8_t)(!acc ? 0 : q->c.data == q->d.data ? 1 : 2);
    const void *at[6] = { q->a.data, q->b.data, c.data, q->d.data, q->bias, q->aux.data };
    for (int i = 0; i < 6; i++) key.align[i] = align_of(at[i]);
    return key;
}

/* 2^i and 1.5 * 2^i: the next one up, from 16. */
static int64_t round_rows(int64_t rows)
{
    int64_t top = 16;
    while (top < rows) top += top & (top - 1) ? top / 3 : top / 2;
    return top;
}

static LtKey bucket_of(LtKey key)
{
    int64_t *rows = key.mode == GEMM_TN ? &key.k : &key.m;
    *rows = round_rows(*rows);
    return key;
}

static bool same(const LtKey *a, const LtKey *b) { return !memcmp(a, b, sizeof *a); }

static LtKnown *find_known(Lt *lt, const LtKey *bucket)
{
    for (int i = 0; i < lt->knowns; i++)
        if (same(&lt->known[i].key, bucket)) return &lt->known[i];
    return NULL;
}

static LtKnown *add_known(Lt *lt, const LtKey *bucket)
{
    if (lt->knowns == LT_KNOWN) return NULL;
    LtKnown *k = &lt->known[lt->knowns++];
    memset(k, 0, sizeof *k);
    k->key = *bucket;
    return k;
}

static LtSlot *slot_of(Lt *lt, const LtKey *key)
{
    uint64_t word[sizeof *key / 8], h = 0;
    memcpy(word, key, sizeof word);
    for (size_t i = 0; i < sizeof word / sizeof *word; i++)
        h = (h ^ word[i]) * 0x9E3779B97F4A7C15u, h ^= h >> 29;
    return &lt->slot[h % LT_SLOTS];
}

template <class T> static bool set(LtPlan *p, cublasLtMatmulDescAttributes_t what, T value)
{
    return ok(cublasLtMatmulDescSetAttribute(&p->op, what, &value, sizeof value));
}

static bool plan_epilogue(LtPlan *p, const LtCall *q)
{
    bool done = set<uint32_t>(p, CUBLASLT_MATMUL_DESC_EPILOGUE, (uint32_t)q->epilogue);
    if (q->bias)
        done = done && set<void *>(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, q->bias) &&
               set<int32_t>(p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(q->d));
    if (t_has(q->aux))
        done = done && set<void *>(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, q->aux.data) &&
               set<int64_t>(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, stride(q->aux)) &&
               set<int32_t>(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, type_of(q->aux));
    return done;
}

/* Row-major (r, c) is column-major c x r. */
static bool plan_matrix(cublasLtMatrixLayoutOpaque_t *m, Tensor t)
{
    return ok(cublasLtMatrixLayoutInit(m, type_of(t), (uint64_t)t.n[1], (uint64_t)t.n[0], stride(t)));
}

bool lt_plan(LtPlan *p, const LtCall *q)
{
    cublasComputeType_t type = q->a.dtype == F32 ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F;
    int32_t op_a = q->mode == GEMM_NT ? CUBLAS_OP_T : CUBLAS_OP_N;          /* their A is our b */
    int32_t op_b = q->mode == GEMM_TN ? CUBLAS_OP_T : CUBLAS_OP_N;
    return ok(cublasLtMatmulDescInit(&p->op, type, CUDA_R_32F)) &&
           set<int32_t>(p, CUBLASLT_MATMUL_DESC_TRANSA, op_a) &&
           set<int32_t>(p, CUBLASLT_MATMUL_DESC_TRANSB, op_b) && plan_epilogue(p, q) &&
           plan_matrix(&p->a, q->b) && plan_matrix(&p->b, q->a) &&
           plan_matrix(&p->c, t_has(q->c) ? q->c : q->d) && plan_matrix(&p->d, q->d);
}

cublasStatus_t lt_launch(Lt *lt, const LtCall *q, LtPlan *p, const cublasLtMatmulAlgo_t *algo, void *ws,
                         cudaStream_t stream)
{
    float beta = t_has(q->c) ? 1.0f : 0.0f;
    return cublasLtMatmul(lt->handle, &p->op, &q->scale, q->b.data, &p->a, q->a.data, &p->b, &beta,
                          t_has(q->c) ? q->c.data : q->d.data, &p->c, q->d.data, &p->d, algo, ws,
                          LT_WORKSPACE, stream);
}

template <class T>
static bool prefer(cublasLtMatmulPreferenceOpaque_t *pref, cublasLtMatmulPreferenceAttributes_t what, T value)
{
    return ok(cublasLtMatmulPreferenceSetAttribute(pref, what, &value, sizeof value));
}

/* Partial sums of a split K stay in f32: as such, or as an output that is f32. */
static uint32_t sums_allowed(const LtKey *key)
{
    uint32_t as_output = key->out == F32 ? CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE : 0;
    return CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | as_output;
}

static bool usable(const cublasLtMatmulHeuristicResult_t *r, const LtKey *key)
{
    uint32_t scheme = 0;
    size_t   got = 0;
    return ok(r->state) && r->workspaceSize <= LT_WORKSPACE &&
           ok(cublasLtMatmulAlgoConfigGetAttribute(&r->algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                                   sizeof scheme, &got)) &&
           !(scheme & ~sums_allowed(key));
}

/* The library's proposals, best first: `want` are asked for, fewer may be usable. */
static int propose(Lt *lt, LtPlan *p, const LtKey *key, cublasLtMatmulHeuristicResult_t *r, int want)
{
    cublasLtMatmulPreferenceOpaque_t pref;
    int found = 0, n = 0;
    bool said = ok(cublasLtMatmulPreferenceInit(&pref)) &&
                prefer<uint64_t>(&pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, LT_WORKSPACE) &&
                prefer<uint32_t>(&pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, sums_allowed(key)) &&
                prefer<uint32_t>(&pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key->align[1]) &&
                prefer<uint32_t>(&pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key->align[0]) &&
                prefer<uint32_t>(&pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key->align[2]) &&
                prefer<uint32_t>(&pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key->align[3]);
    if (!said || !ok(cublasLtMatmulAlgoGetHeuristic(lt->handle, &p->op, &p->a, &p->b, &p->c, &p->d, &pref,
                                                    want, r, &found)))
        return 0;
    for (int i = 0; i < found; i++)
        if (usable(&r[i], key)) r[n++] = r[i];
    return n;
}

/* Takes the bucket's algorithm if the library confirms that it runs this shape in the given workspace. */
static bool adopt(Lt *lt, LtSlot *s, LtPlan *p, const LtKnown *k)
{
    cublasLtMatmulHeuristicResult_t r;
    if (!k || !k->measured) return false;
    memset(&r, 0, sizeof r);
    r.algo = k->algo;
    bool runs = ok(cublasLtMatmulAlgoCheck(lt->handle, &p->op, &p->a, &p->b, &p->c, &p->d, &k->algo, &r));
    if (!runs || !usable(&r, &s->key)) return false;
    s->algo = k->algo;
    return true;
}

/* A new bucket: measured while preparing, if the product is long enough; in a step it stays unmeasured. */
static LtKnown *meet(Backend *be, const LtCall *q, LtPlan *p, const LtKey *key, const LtKey *bucket)
{
    Cuda *gpu = cuda_of(be);
    Lt   *lt = (Lt *)gpu->lt;
    cublasLtMatmulHeuristicResult_t tried[LT_TRIED];
    if (2.0 * (double)bucket->m * (double)bucket->n * (double)bucket->k < WORTH_MEASURING) return NULL;
    int n = be->preparing ? propose(lt, p, key, tried, LT_TRIED) : 0;
    int best = n > 0 ? lt_measure(lt, gpu->stream, q, tried, n) : -1;
    LtKnown *k = add_known(lt, bucket);
    if (!k || best < 0) return NULL;
    k->algo = tried[best].algo, k->measured = 1;
    lt->unsaved = true;
    return k;
}

/* Asks the library once per shape, for several proposals, since the first may be excluded. */
static bool take_first(Lt *lt, LtSlot *s, LtPlan *p)
{
    cublasLtMatmulHeuristicResult_t first[4];
    if (!propose(lt, p, &s->key, first, 4)) return false;
    s->algo = first[0].algo;
    return true;
}

/* Deterministic runs take the library's first proposal, because measured times differ from run to run. */
static LtSlot *choose(Backend *be, const LtCall *q, LtPlan *p)
{
    Lt     *lt = (Lt *)cuda_of(be)->lt;
    LtKey   key = key_of(q);
    LtSlot *s = slot_of(lt, &key);
    if (s->used && same(&s->key, &key)) return s;
    LtKey    bucket = bucket_of(key);
    LtKnown *k = be->repeat ? NULL : find_known(lt, &bucket);
    if (!k && !be->repeat) k = meet(be, q, p, &key, &bucket);
    s->key = key, s->used = true;
    s->works = adopt(lt, s, p, k) || take_first(lt, s, p);
    if (s->works && be->preparing) lt_warm(lt, cuda_of(be)->stream, q, &s->algo);
    return s;
}

bool lt_matmul(Backend *be, const LtCall *q)
{
    Cuda  *gpu = cuda_of(be);
    Lt    *lt = (Lt *)gpu->lt;
    LtPlan p;
    if (!lt_plan(&p, q)) return false;
    LtSlot *s = choose(be, q, &p);
    if (!s->works) return false;
    void *ws = cuda_workspace(be, LT_WORKSPACE);
    if (!ws) return true;                               /* preparing, or failed */
    if (lt->unsaved) lt->unsaved = false, lt_save(lt);  /* the first product after the preparation */
    double from = clock_now();
    cublasStatus_t st = lt_launch(lt, q, &p, &s->algo, ws, gpu->stream);
    cuda_launched(be, from);
    if (!ok(st) && !be->sticky)
        be->sticky = fail(E_DEVICE, "gemm %s %s by %s into %s: cuBLASLt: %s", q->mode == GEMM_NT ? "nt" :
                          q->mode == GEMM_NN ? "nn" : "tn", t_fmt(q->a), t_fmt(q->b), t_fmt(q->d),
                          cublasLtGetStatusString(st));
    return true;
}

Status lt_open(Cuda *c)
{
    Lt *lt = (Lt *)calloc(1, sizeof *lt);
    if (!lt) return fail(E_FIT, "no memory");
    c->lt = lt;
    cublasStatus_t st = cublasLtCreate(&lt->handle);
    if (!ok(st)) return fail(E_DEVICE, "opening cuBLASLt: %s", cublasLtGetStatusString(st));
    snprintf(lt->gpu, sizeof lt->gpu, "%s", c->name);
    lt->knowns = lt_load(lt->known, LT_KNOWN, lt->gpu);
    return OK;
}

void lt_close(Cuda *c)
{
    Lt *lt = (Lt *)c->lt;
    if (!lt) return;
    if (lt->handle) cublasLtDestroy(lt->handle);
    free(lt);
    c->lt = NULL;
}

void lt_describe(char *out, size_t n)
{
    cudaDeviceProp gpu;
    size_t   version = cublasLtGetVersion();
    LtKnown *known = (LtKnown *)calloc(LT_KNOWN, sizeof *known);
    int      count = 0;
    if (known && cudaGetDeviceProperties(&gpu, 0) == cudaSuccess)
        count = lt_load(known, LT_KNOWN, gpu.name);
    free(known);
    snprintf(out, n, "cuBLASLt %zu.%zu.%zu, %d algorithms measured on this GPU", version / 10000,
             version / 100 % 100, version % 100, count);
}
