// A norm or an activation and a cast in one: arguments and the two backends. The result is never
// written in 16 or 32 bits; where its amax decides the scale, it is computed twice.
#pragma once
#include <fp8amp/numerics/activation.h>
#include <fp8amp/numerics/normalize.h>

#include "kernels/quantize.h"

namespace fp8amp::kernels {

enum class FusedOp : std::uint8_t {
  kNorm,            // x[rows, cols]; gamma, beta, eps; writes mean and rstd
  kGelu,            // x[rows, cols]
  kSwiGlu,          // x[rows, 2 * cols]: gate, up
  kGeluBackward,    // dy, x[rows, cols]
  kSwiGluBackward,  // dy[rows, cols / 2], x[rows, cols]; result: of gate, of up
};

// cast: x, x_type, x_scale_inv and key are not used; n, rows and cols are of the result, whether
// `transposed` is wanted or not. Without it kGelu and kGeluBackward may have a last row that is
// shorter: n <= rows * cols. Nearest rounding, float8.
struct FusedArgs {
  FusedOp op;
  GeluForm form;
  const void* x;
  DType x_type;  // of dy too: float32, float16 or bfloat16
  const void* dy;
  const float* gamma;
  const float* beta;  // may be null
  float* mean;        // [rows]; null: RMSNorm
  float* rstd;        // [rows]
  float eps;
  QuantizeArgs cast;
};

struct NormBackwardArgs {
  const void* dy;
  const void* x;
  DType x_type;       // of dy and dx too
  const float* mean;  // [rows]; null: RMSNorm
  const float* rstd;
  const float* gamma;
  void* dx;
  float* dgamma;  // [cols]
  float* dbeta;   // [cols], may be null
  std::int64_t rows, cols;
  void* stream;
};

namespace cpu {
void fused_quantize(const FusedArgs& args);
void norm_backward(const NormBackwardArgs& args);
}  // namespace cpu

namespace cuda {
void fused_quantize(const FusedArgs& args);
void norm_backward(const NormBackwardArgs& args);
}  // namespace cuda

}  // namespace fp8amp::kernels
