/* tests/simt/tensor_map.h -- what a CUtensorMap holds on the emulated GPU; tensor_map.cc. */
#ifndef TESTS_SIMT_TENSOR_MAP_H
#define TESTS_SIMT_TENSOR_MAP_H

#include "simt/device.h"

#include "cuda.h"

namespace simt {

enum { DIMS = 3 };                                      /* more are not emulated */

/* Extents in elements, strides (of the dimensions from the second on) in bytes. */
struct TensorMap {
    uint64_t mark;
    char    *base;
    uint64_t stride[DIMS], extent[DIMS];
    uint16_t box[DIMS];
    uint8_t  rank, size, type;
    bool     swizzled;                                  /* by 128 bytes */
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap), "it fits");
constexpr uint64_t TENSOR_MAP = 0x7061736e65746d61u;    /* mark */

/* cuTensorMapEncodeTiled. */
CUresult encode_tiled(CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank, void *base,
                      const cuuint64_t *extent, const cuuint64_t *stride, const cuuint32_t *box,
                      const cuuint32_t *step, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                      CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);

}

#endif
