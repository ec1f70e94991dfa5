// FP8 GEMM: arguments and the two backends.
#pragma once
#include <fp8amp/dtype.h>
#include <fp8amp/numerics/hopper.h>
#include <fp8amp/numerics/scale_layout.h>

#include <cstdint>

namespace fp8amp::kernels {

// D[m, n] (row-major) = sum_k A[m, k] B[k, n] * *a_scale_inv * *b_scale_inv + bias[n] (+ D[m, n]).
// A[m, k] is at a[m * a_row + k * a_k], B[k, n] at b[n * b_row + k * b_k]; one of each pair of
// strides is 1. The scales are those of A[m, k] and of B transposed, [n, k], in the layout of
// numerics/scale_layout.h; with blocks along k the sum is
//   sum over pieces of 128 k of (sum over k in the piece) * a_scale_inv * b_scale_inv.
struct GemmArgs {
  const std::uint8_t* a;
  DType a_type;
  std::int64_t a_row, a_k;
  const float* a_scale_inv;  // may be null with kTensor: 1
  ScaleGranularity a_granularity;
  const std::uint8_t* b;
  DType b_type;
  std::int64_t b_row, b_k;
  const float* b_scale_inv;  // may be null with kTensor: 1
  ScaleGranularity b_granularity;
  void* d;
  DType d_type;
  const void* bias;  // may be null
  DType bias_type;
  std::int64_t m, n, k;
  bool accumulate;
  bool fast_accumulation;
  void* stream;
  Accumulation accumulation;  // CPU alone
};

namespace cpu {
void gemm(const GemmArgs& args);
}
namespace cuda {
void gemm(const GemmArgs& args);
bool gemm_prefers_k_contiguous();  // on the current device
}  // namespace cuda

}  // namespace fp8amp::kernels
