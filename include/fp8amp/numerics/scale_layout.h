// Where the scales of an FP8 matrix lie: one for the tensor, for each row, for each 1x128 piece of
// a row or for each block of 128x128. The matrix is [rows, k]: as an operand of a product, k is the
// contraction. The layouts are those that cuBLASLt reads:
//
//   granularity    scale_inv                                 scale of element (r, k) at
//   kTensor        []                                        0
//   kRow           [rows]                                    r                        OUTER_VEC_32F
//   kBlock1x128    [ceil(k / 128), rows], rows contiguous    k / 128 * rows + r          VEC128_32F
//   kBlock128x128  [ceil(rows / 128), 4 ceil(k / 512)],      r / 128 * 4 ceil(k / 512) + k / 128
//                  k contiguous, padded to 4 with 1                               BLK128x128_32F
//
// In the words of cuBLAS, the scales of 1x128 are M- (or N-) major and those of 128x128 K-major
// with a leading dimension that is a multiple of 4. Blocks at the edges are smaller.
//
// Source: cuBLAS 13.1 documentation, "Element 1D and 128x128 2D Block Scaling for FP8 Data Types",
// and the sample LtBlk128x128Fp8Matmul of NVIDIA/CUDALibrarySamples.
#pragma once
#include <fp8amp/numerics/formats.h>

#include <cstdint>

namespace fp8amp {

// How many elements share a scale.
enum class ScaleGranularity : std::uint8_t {
  kTensor = 0,
  kRow = 1,
  kBlock1x128 = 2,
  kBlock128x128 = 3,
};

namespace numerics {

inline constexpr int kScaleBlockBits = 7;
inline constexpr std::int64_t kScaleBlock = 1 << kScaleBlockBits;

FP8AMP_HD std::int64_t scale_blocks(std::int64_t n) {
  return (n + kScaleBlock - 1) >> kScaleBlockBits;
}

struct ScaleLayout {
  int row_bits;  // rows >> row_bits: number of the row of blocks
  std::int64_t row_stride, k_stride;
  std::int64_t size;  // number of scales, padding included

  FP8AMP_HD std::int64_t index(std::int64_t row, std::int64_t k) const {
    return (row >> row_bits) * row_stride + (k >> kScaleBlockBits) * k_stride;
  }
};

FP8AMP_HD ScaleLayout scale_layout(ScaleGranularity granularity, std::int64_t rows,
                                   std::int64_t k) {
  switch (granularity) {
    case ScaleGranularity::kRow: return {0, 1, 0, rows};
    case ScaleGranularity::kBlock1x128: return {0, 1, rows, scale_blocks(k) * rows};
    case ScaleGranularity::kBlock128x128: {
      const std::int64_t row_stride = (scale_blocks(k) + 3) / 4 * 4;
      return {kScaleBlockBits, row_stride, 1, scale_blocks(rows) * row_stride};
    }
    default: return {0, 0, 0, 1};
  }
}

// Whether the contraction is cut into blocks of 128.
FP8AMP_HD bool scales_along_k(ScaleGranularity granularity) {
  return granularity == ScaleGranularity::kBlock1x128 ||
         granularity == ScaleGranularity::kBlock128x128;
}

}  // namespace numerics
}  // namespace fp8amp
