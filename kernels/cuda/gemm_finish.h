// The end of a matrix product that the library cannot do itself: scales, bias, accumulation and the
// one rounding, from FP32 sums.
#pragma once
#include <fp8amp/dtype.h>

#include <cstdint>

namespace fp8amp::kernels::cuda {

// d[m, n] = sums[m, n] * *a_scale_inv * *b_scale_inv + bias[n] (+ d), in FP32, rounded once.
struct GemmFinishArgs {
  const float* sums;  // [m, sums_row]; null: 0; may be d itself
  std::int64_t sums_row;
  const float *a_scale_inv, *b_scale_inv;  // null: 1
  bool a_rows, b_rows;                     // a scale for each m, for each n; else one number
  const void* bias;                        // may be null
  DType bias_type;
  void* d;  // [m, n] contiguous
  DType d_type;
  std::int64_t m, n;
  bool accumulate;
  void* stream;
};
void gemm_finish(const GemmFinishArgs& args);

}  // namespace fp8amp::kernels::cuda
