// A norm or an activation together with the cast of its result to FP8: the operand of a GEMM is
// never written in 16 or 32 bits. Where the scale comes from the amax of the result itself (current
// scaling), the result is computed twice.
//
// For all of them: x is float32, float16 or bfloat16, and so are dy and dx, of the same dtype;
// gamma, beta, mean, rstd, dgamma and dbeta are float32; `out` is float8 with a scale_inv. All are
// on one device, and no output overlaps another tensor. QuantizeOptions as in quantize(), of which
// they give the very codes for the FP32 result; rounding must be nearest, column_sums undefined.
// Errors name operation, argument and the value seen. The numbers: numerics/normalize.h,
// numerics/activation.h; equal bits on every machine and backend, for any number of threads.
#pragma once
#include <fp8amp/numerics/activation.h>
#include <fp8amp/quantize.h>

namespace fp8amp {

// out = quantize((x - mean) * rstd * gamma + beta), over rows of x[rows, cols]; mean[rows] and
// rstd[rows] = 1 / sqrt(variance + eps) are outputs. gamma[cols], beta[cols] or undefined. eps >=
// 0. `transposed`: undefined, or out's dtype [cols, rows] with the same codes and out's scale.
FP8AMP_API void layer_norm_quantize(const Tensor& x, const Tensor& gamma, const Tensor& beta,
                                    float eps, const ScaledTensor& out, const Tensor& mean,
                                    const Tensor& rstd, const Tensor& transposed = {},
                                    const QuantizeOptions& options = {});
// out = quantize(x * rstd * gamma), rstd = 1 / sqrt(mean of x^2 + eps).
FP8AMP_API void rms_norm_quantize(const Tensor& x, const Tensor& gamma, float eps,
                                  const ScaledTensor& out, const Tensor& rstd,
                                  const Tensor& transposed = {},
                                  const QuantizeOptions& options = {});

// out = quantize(gelu(x)), of any shape; [rows, cols] if `transposed` is defined.
FP8AMP_API void gelu_quantize(const Tensor& x, GeluForm form, const ScaledTensor& out,
                              const Tensor& transposed = {}, const QuantizeOptions& options = {});
// out[rows, cols] = quantize(silu(gate) * up), x[rows, 2 * cols] = gate, up side by side.
FP8AMP_API void swiglu_quantize(const Tensor& x, const ScaledTensor& out,
                                const Tensor& transposed = {}, const QuantizeOptions& options = {});

// The gradients of x, which are operands of GEMMs themselves, from the gradient dy of the result
// before its cast. Inf becomes NaN, whatever options.overflow says.
FP8AMP_API void gelu_backward_quantize(const Tensor& dy, const Tensor& x, GeluForm form,
                                       const ScaledTensor& dx, const Tensor& transposed = {},
                                       const QuantizeOptions& options = {});
// dy[rows, cols]; x and dx[rows, 2 * cols].
FP8AMP_API void swiglu_backward_quantize(const Tensor& dy, const Tensor& x, const ScaledTensor& dx,
                                         const Tensor& transposed = {},
                                         const QuantizeOptions& options = {});

// dx[rows, cols] (plain: it joins the residual stream's gradient), dgamma[cols], and dbeta[cols] or
// undefined, of layer_norm_quantize's result before its cast; mean and rstd are its outputs.
FP8AMP_API void layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                    const Tensor& rstd, const Tensor& gamma, const Tensor& dx,
                                    const Tensor& dgamma, const Tensor& dbeta,
                                    void* stream = nullptr);
FP8AMP_API void rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& rstd,
                                  const Tensor& gamma, const Tensor& dx, const Tensor& dgamma,
                                  void* stream = nullptr);

}  // namespace fp8amp
