/* tests/simt/tensor_map.cc -- cuTensorMapEncodeTiled: refuses what the driver's manual rules out. */
#include "simt/tensor_map.h"

namespace simt {

static int size_of(CUtensorMapDataType type)
{
    switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8:    return 1;
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return 2;
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:  return 4;
    }
    return 0;
}

static bool dimension_fits(cuuint64_t extent, cuuint32_t box, cuuint32_t step)
{
    return extent >= 1 && extent <= (cuuint64_t)1 << 32 && box >= 1 && box <= 256 && step >= 1 && step <= 8;
}

static bool stride_fits(cuuint64_t stride) { return stride % 16 == 0 && stride < (cuuint64_t)1 << 40; }

CUresult encode_tiled(CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank, void *base,
                      const cuuint64_t *extent, const cuuint64_t *stride, const cuuint32_t *box,
                      const cuuint32_t *step, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                      CUtensorMapL2promotion, CUtensorMapFloatOOBfill)
{
    int       size = size_of(type);
    TensorMap m = { };
    bool      ok = (uintptr_t)out % 64 == 0 && size && rank >= 1 && rank <= 5 && (uintptr_t)base % 16 == 0;
    for (cuuint32_t i = 0; ok && i < rank; i++)
        ok = dimension_fits(extent[i], box[i], step[i]) && (i + 1 == rank || stride_fits(stride[i]));
    if (!ok || box[0] * (cuuint32_t)size % 16) return CUDA_ERROR_INVALID_VALUE;
    if (swizzle == CU_TENSOR_MAP_SWIZZLE_128B && box[0] * (cuuint32_t)size > 128)
        return CUDA_ERROR_INVALID_VALUE;
    if (rank > DIMS || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE)
        fail("tensor maps of rank %u, or interleaved, are not emulated", rank);
    m.mark = TENSOR_MAP, m.base = (char *)base, m.rank = (uint8_t)rank, m.size = (uint8_t)size;
    m.type = (uint8_t)type, m.swizzled = swizzle == CU_TENSOR_MAP_SWIZZLE_128B;
    for (cuuint32_t i = 0; i < rank; i++) {
        if (step[i] != 1) fail("tensor maps with element strides are not emulated");
        m.extent[i] = extent[i], m.box[i] = (uint16_t)box[i];
        if (i) m.stride[i] = stride[i - 1];
    }
    memcpy(out, &m, sizeof m);
    return CUDA_SUCCESS;
}

}
