// What a step knows of one tensor before its pass over the elements, and what it leaves behind:
// shared by the backends.
#pragma once
#include <cfloat>

#include "kernels/adam.h"

namespace fp8amp::kernels {

struct StorageScale {
  float scale, scale_inv;
};

struct AdamStep {
  numerics::AdamScalars scalars;
  float p_scale_inv, m_scale_inv, v_scale_inv;  // of the new codes
  StorageScale w;                               // of the compute weight
  std::uint32_t t;                              // number of this step, from 1
};

FP8AMP_HD bool is_scaled(DType type, const float* scale_inv) {
  return scale_inv != nullptr && type != DType::kFloat32;
}

FP8AMP_HD float storage_max(DType type) {
  return type == DType::kE4M3   ? numerics::E4M3::kMax
         : type == DType::kE5M2 ? numerics::E5M2::kMax
                                : numerics::Fp16::kMax;
}

// Moments: the exact scale of the bound. A bound of 0, Inf or NaN keeps the scale, to the bit.
FP8AMP_HD StorageScale next_moment_scale(DType type, const float* scale_inv, float bound) {
  if (!is_scaled(type, scale_inv)) return {1.0f, 1.0f};
  if (!(bound > 0.0f) || !numerics::is_finite(bound))
    return {numerics::inverse_scale(*scale_inv), *scale_inv};
  const float scale = numerics::compute_scale(bound, storage_max(type), ScaleRounding::kExact);
  return {scale, numerics::inverse_scale(scale)};
}

// Weights, masters and those computed with: a power of two. E4M3 has no bits to spare for
// head-room.
FP8AMP_HD StorageScale next_weight_storage_scale(DType type, const float* scale_inv, float bound) {
  using namespace numerics;
  if (!is_scaled(type, scale_inv)) return {1.0f, 1.0f};
  const float previous = inverse_scale(*scale_inv);
  const float scale =
      type == DType::kFloat16
          ? next_weight_scale(bound, Fp16::kMax, previous)
          : compute_scale(bound, storage_max(type), ScaleRounding::kPowerOfTwo, 0, previous);
  return scale == previous ? StorageScale{scale, *scale_inv}
                           : StorageScale{scale, inverse_scale(scale)};
}

// The maximum of the dequantised gradient from that of its stored values. The scale may be negative
// (a gradient multiplied by a negative number), or null for a gradient that has none.
FP8AMP_HD float gradient_amax(float stored, const float* scale_inv) {
  return std::fabs(stored * (scale_inv ? *scale_inv : 1.0f));
}

// `amax` is the maximum of the dequantised gradient, before `grad_scale` (null: 1). Where this is
// false for any tensor, the step of every one is skipped.
FP8AMP_HD bool gradient_is_finite(float amax, const float* grad_scale) {
  return numerics::is_finite(amax * (grad_scale ? std::fabs(*grad_scale) : 1.0f));
}

FP8AMP_HD AdamStep prepare_adam_step(const AdamTensor& x,
                                     const numerics::AdamHyperparameters& hyper, float grad_scale) {
  using namespace numerics;
  AdamStep step{};
  step.t = std::uint32_t(*x.step) + 1;
  const float amax_g = x.amax[3] * std::fabs(grad_scale), limit = gradient_limit(amax_g);
  // In FP64, for a product of the three may overflow FP32 where the gradients themselves do not;
  // clamped for gradients that are all 0.
  const double product = double(x.g_scale_inv ? *x.g_scale_inv : 1.0f) * grad_scale * limit;
  const float multiplier = float(std::fmax(-double(FLT_MAX), std::fmin(product, double(FLT_MAX))));
  const AdamBounds bounds =
      adam_bounds(hyper, step.t, x.amax[0], x.amax[1], x.amax[2], amax_g * limit);
  step.scalars = adam_scalars(hyper, step.t, multiplier,
                              is_scaled(x.p_type, x.p_scale_inv) ? *x.p_scale_inv : 1.0f,
                              is_scaled(x.m_type, x.m_scale_inv) ? *x.m_scale_inv : 1.0f,
                              is_scaled(x.v_type, x.v_scale_inv) ? *x.v_scale_inv : 1.0f);
  const StorageScale p = next_weight_storage_scale(x.p_type, x.p_scale_inv, bounds.p);
  const StorageScale m = next_moment_scale(x.m_type, x.m_scale_inv, bounds.m);
  const StorageScale v = next_moment_scale(x.v_type, x.v_scale_inv, bounds.v);
  step.scalars.p_scale = p.scale, step.scalars.m_scale = m.scale, step.scalars.v_scale = v.scale;
  step.p_scale_inv = p.scale_inv, step.m_scale_inv = m.scale_inv, step.v_scale_inv = v.scale_inv;
  step.w = next_weight_storage_scale(x.w_type, x.w_scale_inv, bounds.p);
  return step;
}

// Value of the largest code that a pass has written (bits of |x| for float32).
FP8AMP_HD float stored_maximum(DType type, std::uint32_t code, float scale_inv) {
  using namespace numerics;
  switch (type) {
    case DType::kE4M3: return decode<E4M3>(E4M3::Bits(code)) * scale_inv;
    case DType::kE5M2: return decode<E5M2>(E5M2::Bits(code)) * scale_inv;
    case DType::kFloat32: return bits_float(code);
    default: return decode<Fp16>(Fp16::Bits(code)) * scale_inv;
  }
}

// After the pass; p, m, v: the largest codes written.
FP8AMP_HD void finish_adam_step(const AdamTensor& x, const AdamStep& step, std::uint32_t p,
                                std::uint32_t m, std::uint32_t v) {
  if (is_scaled(x.p_type, x.p_scale_inv)) *x.p_scale_inv = step.p_scale_inv;
  if (is_scaled(x.m_type, x.m_scale_inv)) *x.m_scale_inv = step.m_scale_inv;
  if (is_scaled(x.v_type, x.v_scale_inv)) *x.v_scale_inv = step.v_scale_inv;
  if (is_scaled(x.w_type, x.w_scale_inv)) *x.w_scale_inv = step.w.scale_inv;
  x.amax[0] = stored_maximum(x.p_type, p, step.p_scale_inv);
  x.amax[1] = stored_maximum(x.m_type, m, step.m_scale_inv);
  x.amax[2] = stored_maximum(x.v_type, v, step.v_scale_inv);
  *x.step = float(step.t);
}

}  // namespace fp8amp::kernels
