// Copies of an FP8 operand in the one layout that every tensor core takes: k contiguous, k and rows
// padded with zeros.
#pragma once
#include <fp8amp/dtype.h>
#include <fp8amp/numerics/scale_layout.h>

#include <cstdint>

namespace fp8amp::kernels::cuda {

struct PadArgs {
  const std::uint8_t* x;  // element (r, k) is at x[r * x_row + k * x_k]; one stride is 1
  DType x_type;           // E4M3 or E5M2
  std::int64_t x_row, x_k;
  std::int64_t rows, k;
  void* y;                   // [y_rows, y_k] row-major, aligned to 16 bytes
  DType y_type;              // x_type: the codes; kBFloat16: their values, exact
  std::int64_t y_rows, y_k;  // y_k: a multiple of 16
  // kBFloat16: if given, the values times these, rounded to BF16 (exact for powers of two)
  const float* scale_inv;
  numerics::ScaleLayout layout;  // of [rows, k]
  void* stream;
};
void pad(const PadArgs& args);

}  // namespace fp8amp::kernels::cuda
