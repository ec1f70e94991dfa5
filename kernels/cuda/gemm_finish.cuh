// The end of a matrix product: FP32 sums to the output. Columns run along the threads of a warp, so
// every load and store is contiguous; a thread keeps the bias of its column.
#pragma once
#include <fp8amp/dtype.h>

#include "fp8amp/numerics/convert.h"
#include "kernels/cuda/portable.cuh"

namespace fp8amp::kernels::cuda {

struct GemmFinishParams {
  const float* sums;
  int64_t sums_row;
  const float *a_scale_inv, *b_scale_inv;
  bool a_rows, b_rows;
  const void* bias;
  DType bias_type;
  void* d;
  int64_t m, n;
  bool accumulate;
};

// One plain number in memory.
template <DType kType>
struct PlainElement;
template <>
struct PlainElement<DType::kFloat32> {
  using Type = float;
  static __device__ __forceinline__ float load(float x) { return x; }
  static __device__ __forceinline__ float store(float x) { return x; }
};
template <>
struct PlainElement<DType::kFloat16> {
  using Type = uint16_t;
  static __device__ __forceinline__ float load(uint16_t x) { return numerics::half_to_float(x); }
  static __device__ __forceinline__ uint16_t store(float x) { return numerics::float_to_half(x); }
};
template <>
struct PlainElement<DType::kBFloat16> {
  using Type = uint16_t;
  static __device__ __forceinline__ float load(uint16_t x) {
    return numerics::bfloat16_to_float(x);
  }
  static __device__ __forceinline__ uint16_t store(float x) {
    return numerics::float_to_bfloat16(x);
  }
};

__device__ __forceinline__ float load_bias(const void* bias, DType type, int64_t i) {
  if (type == DType::kFloat32) return static_cast<const float*>(bias)[i];
  const uint16_t bits = static_cast<const uint16_t*>(bias)[i];
  return type == DType::kFloat16 ? numerics::half_to_float(bits)
                                 : numerics::bfloat16_to_float(bits);
}

// Block (32, 8): 32 columns, 8 rows; kRows rows a thread and turn, all loads first.
template <DType kType>
__global__ void __launch_bounds__(256)
    gemm_finish_kernel(const __grid_constant__ GemmFinishParams p) {
  using Plain = PlainElement<kType>;
  using Type = typename Plain::Type;
  constexpr int kRows = 4;
  const float one_a = p.a_scale_inv && !p.a_rows ? *p.a_scale_inv : 1.0f;
  Type* d = static_cast<Type*>(p.d);
  for (int64_t column = int64_t(blockIdx.x) * 32 + threadIdx.x; column < p.n;
       column += int64_t(gridDim.x) * 32) {
    const float b = p.b_scale_inv ? p.b_scale_inv[p.b_rows ? column : 0] : 1.0f;
    const float bias = p.bias ? load_bias(p.bias, p.bias_type, column) : 0.0f;
    for (int64_t row = int64_t(blockIdx.y) * 8 + threadIdx.y; row < p.m;
         row += int64_t(gridDim.y) * 8 * kRows) {
      float sum[kRows], old[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int64_t r = row + int64_t(i) * gridDim.y * 8;
        sum[i] = p.sums && r < p.m ? p.sums[r * p.sums_row + column] : 0.0f;
        old[i] = p.accumulate && r < p.m ? Plain::load(d[r * p.n + column]) : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int64_t r = row + int64_t(i) * gridDim.y * 8;
        if (r >= p.m) break;
        const float a = p.a_rows ? p.a_scale_inv[r] : one_a;
        float value = sum[i] * a * b;
        if (p.bias) value = value + bias;
        if (p.accumulate) value = old[i] + value;
        d[r * p.n + column] = Plain::store(value);
      }
    }
  }
}

}  // namespace fp8amp::kernels::cuda
