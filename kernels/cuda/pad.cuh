// Padding and transposing copies of bytes, 16 bytes or codes a thread.
//
// Rows that are contiguous in k are copied by blocks of 32 x 8 threads. Others pass through tiles
// of 64 x 64 bytes: each thread turns a 4 x 4 block in its registers, so that shared memory sees
// words.
#pragma once
#include "fp8amp/numerics/convert.h"
#include "fp8amp/numerics/scale_layout.h"
#include "kernels/cuda/portable.cuh"
#include "kernels/cuda/transpose.cuh"

namespace fp8amp::kernels::cuda {

struct PadParams {
  const uint8_t* x;
  int64_t stride;  // from row to row, or from k to k where rows are contiguous
  int64_t rows, k;
  void* y;
  int64_t y_rows, y_k;
  const float* scale_inv;
  numerics::ScaleLayout layout;
};

// ---- 16 codes of one row, from k on, to memory --------------------------------------------------

struct CopyCodes {
  using Element = uint8_t;
  static __device__ __forceinline__ void store(const PadParams&, int64_t, int64_t, uint8_t* y,
                                               const uint32_t (&w)[4]) {
    *reinterpret_cast<uint4*>(y) = make_uint4(w[0], w[1], w[2], w[3]);
  }
};

// FP8 -> BF16, exact: both formats' mantissas and exponents fit.
template <class F>
struct DecodeToBFloat16 {
  using Element = uint16_t;
  static __device__ __forceinline__ uint32_t pair(uint32_t codes) {
    const uint32_t low = numerics::float_bits(numerics::decode<F>(uint8_t(codes)));
    const uint32_t high = numerics::float_bits(numerics::decode<F>(uint8_t(codes >> 8)));
    return low >> 16 | (high & 0xffff0000u);
  }
  static __device__ __forceinline__ void store(const PadParams&, int64_t, int64_t, uint16_t* y,
                                               const uint32_t (&w)[4]) {
    uint4* out = reinterpret_cast<uint4*>(y);
    out[0] = make_uint4(pair(w[0]), pair(w[0] >> 16), pair(w[1]), pair(w[1] >> 16));
    out[1] = make_uint4(pair(w[2]), pair(w[2] >> 16), pair(w[3]), pair(w[3] >> 16));
  }
};

// The same times the one scale that the 16 share.
template <class F>
struct DecodeBlocksToBFloat16 {
  using Element = uint16_t;
  static __device__ __forceinline__ uint32_t value(uint32_t code, float scale_inv) {
    return numerics::float_to_bfloat16(numerics::decode<F>(uint8_t(code)) * scale_inv);
  }
  static __device__ __forceinline__ uint32_t pair(uint32_t codes, float scale_inv) {
    return value(codes, scale_inv) | value(codes >> 8, scale_inv) << 16;
  }
  static __device__ __forceinline__ void store(const PadParams& p, int64_t row, int64_t k,
                                               uint16_t* y, const uint32_t (&w)[4]) {
    const float s = row < p.rows && k < p.k ? p.scale_inv[p.layout.index(row, k)] : 1.0f;
    uint4* out = reinterpret_cast<uint4*>(y);
    out[0] = make_uint4(pair(w[0], s), pair(w[0] >> 16, s), pair(w[1], s), pair(w[1] >> 16, s));
    out[1] = make_uint4(pair(w[2], s), pair(w[2] >> 16, s), pair(w[3], s), pair(w[3] >> 16, s));
  }
};

// ---- loads that stop at an end -----------------------------------------------------------------

// 4 bytes of which `count` exist (the others are 0). kAligned: x is a multiple of 4.
template <bool kAligned>
__device__ __forceinline__ uint32_t load4(const uint8_t* x, int64_t count) {
  if (kAligned && count >= 4) return __ldg(reinterpret_cast<const uint32_t*>(x));
  uint32_t w = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (i < count) w |= uint32_t(x[i]) << 8 * i;
  return w;
}

// ---- k contiguous ------------------------------------------------------------------------------

// Block (32, 8): 32 chunks of 16 k, 8 rows. kWidth: bytes of a load; x and stride are multiples.
template <int kWidth, class Out>
__global__ void __launch_bounds__(256) pad_kernel(const __grid_constant__ PadParams p) {
  using Element = typename Out::Element;
  for (int64_t r = int64_t(blockIdx.y) * 8 + threadIdx.y; r < p.y_rows;
       r += int64_t(gridDim.y) * 8) {
    const uint8_t* x = p.x + r * p.stride;
    Element* y = static_cast<Element*>(p.y) + r * p.y_k;
    for (int64_t k = (int64_t(blockIdx.x) * 32 + threadIdx.x) * 16; k < p.y_k;
         k += int64_t(gridDim.x) * 32 * 16) {
      const int64_t count = r < p.rows ? p.k - k : 0;
      uint32_t w[4];
      if (kWidth == 16 && count >= 16) {
        const uint4 q = __ldg(reinterpret_cast<const uint4*>(x + k));
        w[0] = q.x;
        w[1] = q.y;
        w[2] = q.z;
        w[3] = q.w;
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) w[i] = load4<(kWidth >= 4)>(x + k + 4 * i, count - 4 * i);
      }
      Out::store(p, r, k, y + k, w);
    }
  }
}

// ---- rows contiguous ---------------------------------------------------------------------------

// Block 256: a tile of 64 rows (blockIdx.y) and 64 k (blockIdx.x).
template <bool kAligned, class Out>
__global__ void __launch_bounds__(256) pad_transpose_kernel(const __grid_constant__ PadParams p) {
  using Element = typename Out::Element;
  FP8AMP_SHARED(uint32_t, tile, [64][17]);  // [row][k / 4]; the 17th word spreads the banks
  for (int64_t row = int64_t(blockIdx.y) * 64; row < p.y_rows; row += int64_t(gridDim.y) * 64) {
    const int64_t k = int64_t(blockIdx.x) * 64;
    {
      const int r4 = threadIdx.x % 16 * 4, k4 = threadIdx.x / 16 * 4;
      uint32_t w[4], turned[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t count = k + k4 + i < p.k ? p.rows - (row + r4) : 0;
        w[i] = load4<kAligned>(p.x + (k + k4 + i) * p.stride + row + r4, count);
      }
      transpose_bytes(w, turned);
#pragma unroll
      for (int i = 0; i < 4; ++i) tile[r4 + i][k4 / 4] = turned[i];
    }
    __syncthreads();
    const int r = threadIdx.x / 4, quarter = threadIdx.x % 4;
    if (row + r < p.y_rows && k + 16 * quarter < p.y_k) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i] = tile[r][4 * quarter + i];
      Out::store(p, row + r, k + 16 * quarter,
                 static_cast<Element*>(p.y) + (row + r) * p.y_k + k + 16 * quarter, w);
    }
    __syncthreads();
  }
}

}  // namespace fp8amp::kernels::cuda
