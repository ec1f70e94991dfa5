// Norm of gradients, and clipping.
#pragma once
#include <fp8amp/scaled_tensor.h>

#include <span>

namespace fp8amp {

// norm (float32[]) = 2-norm over all elements of all tensors, from dequantised values, in a fixed
// order of FP64 sums: equal bits at every ISA level and thread count. NaN if any element is NaN;
// Inf if any is Inf, or if the norm exceeds FLT_MAX. norm must not overlap a gradient.
FP8AMP_API void grad_norm(std::span<const ScaledTensor> grads, const Tensor& norm,
                          void* stream = nullptr);

// Multiplies every gradient by min(1, max_norm / (norm + 1e-6)), torch's rule. A scaled gradient
// changes its scale_inv only (never below 2^-126). A non-finite gradient stays non-finite, so that
// grad_amax makes the optimizer skip the step. Finite gradients whose norm exceeds FLT_MAX are
// multiplied by 0, as torch does. What is written (norm, scales, plain gradients) overlaps no other
// argument: no gradient is there twice.
FP8AMP_API void clip_grad_norm(std::span<const ScaledTensor> grads, float max_norm,
                               const Tensor& norm, void* stream = nullptr);

}  // namespace fp8amp
