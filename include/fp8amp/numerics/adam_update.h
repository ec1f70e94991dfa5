// One element of Adam / AdamW with decoupled precision, and the scalars of one step. Everything in
// FP32; storage formats are the caller's.
//
//   g  = G * grad                      (+ weight_decay * p for Adam: L2)
//   m' = M * m_keep + (1 - b1) * g     m_keep = b1 * m_scale_inv
//   v' = V * v_keep + (1 - b2) * g^2   v_keep = b2 * v_scale_inv
//   p' = P * p_keep - step * m' / (sqrt(v') + eps')
//        step = lr * sqrt(1 - b2^t) / (1 - b1^t),
//        eps' = eps * sqrt(1 - b2^t), at least 2^-126,
//        p_keep = (1 - lr * weight_decay) * p_scale_inv for AdamW
//
// G, M, V, P are the decoded codes. The folded scalars change last bits against the textbook order:
// the folded form *is* the definition. Sources: Kingma & Ba (arXiv 1412.6980), Loshchilov & Hutter
// (arXiv 1711.05101), FP8-LM (arXiv 2310.18313) section 2.2 for the formats.
#pragma once
#include <fp8amp/numerics/scale.h>

#include <cmath>

namespace fp8amp::numerics {

enum class WeightDecay : std::uint8_t { kL2 = 0, kDecoupled = 1 };

struct AdamHyperparameters {
  float lr = 1e-3f;
  double beta1 = 0.9, beta2 = 0.999;
  float eps = 1e-8f;
  float weight_decay = 0.0f;
  WeightDecay decay = WeightDecay::kDecoupled;
  bool maximize = false;
};

struct AdamScalars {
  float grad;                       // grad_scale_inv * grad_scale (negative to maximise)
  float m_keep, m_add;              // b1 * m_scale_inv, 1 - b1
  float v_keep, v_add;              // b2 * v_scale_inv, 1 - b2
  float eps, step, p_keep;          // see above
  float p_l2;                       // weight_decay * p_scale_inv for Adam, 0 for AdamW
  float p_scale, m_scale, v_scale;  // into the storage formats, chosen before the pass
};

struct AdamElement {
  float p, m, v;
};

FP8AMP_HD AdamElement adam_element(const AdamScalars& s, float P, float G, float M, float V) {
  float g = G * s.grad;
  if (s.p_l2 != 0.0f) g = g + P * s.p_l2;
  const float m = M * s.m_keep + s.m_add * g;
  const float v = V * s.v_keep + s.v_add * (g * g);
  const float u = m / (std::sqrt(v) + s.eps);
  return {P * s.p_keep - s.step * u, m, v};
}

// A second moment > 0 is never stored as 0: the next step would divide by eps alone (a jump of 5e4
// * lr after a gradient spike).
template <class F>
FP8AMP_HD typename F::Bits encode_second_moment(float v, float scale, Rounding rounding,
                                                std::uint32_t random) {
  const typename F::Bits code = encode<F>(v * scale, rounding, Overflow::kSaturate, random);
  return code == 0 && v > 0.0f ? typename F::Bits(1) : code;
}

// b^n by squaring in FP64: IEEE products only, so that host and device agree.
FP8AMP_HD double integer_power(double b, std::uint32_t n) {
  double r = 1.0;
  for (; n != 0; n >>= 1, b *= b)
    if (n & 1) r *= b;
  return r;
}

// Upper bound of |m'| / (sqrt(v') + eps) * step / lr over t steps of exact moments, by
// Cauchy-Schwarz on the two geometric sums: (1-b1)/sqrt(1-b2) * sqrt(sum_i<t (b1^2/b2)^i) *
// sqrt(1-b2^t)/(1-b1^t); 1 at t = 1. The factor 1.25 is for the rounding of m and v. Capped: where
// b1^2 > b2 the sum grows without end, and a scale made for it would leave the weights no bits. A
// larger update saturates the largest weights for one step; the next step's scale fits them. With
// b2 = 0 < b1 there is no other bound.
inline constexpr double kMaxUpdateBound = 256;
FP8AMP_HD double adam_update_bound(double b1, double b2, std::uint32_t t) {
  if (b2 == 0 && b1 > 0) return kMaxUpdateBound;
  const double r = b1 > 0 ? b1 * b1 / b2 : 0.0;
  const double sum = r == 1.0 ? double(t) : (1 - integer_power(r, t)) / (1 - r);
  const double bound = 1.25 * (1 - b1) / std::sqrt(1 - b2) * std::sqrt(sum) *
                       std::sqrt(1 - integer_power(b2, t)) / (1 - integer_power(b1, t));
  return bound < kMaxUpdateBound ? bound : kMaxUpdateBound;
}

// g^2 must stay finite in FP32: a tensor whose largest gradient exceeds 2^60 is scaled down to it
// as a whole. (An infinite v is stored as the largest finite one, and m / sqrt(v) of the next step
// would be a jump of 1e4 * lr and more.)
inline constexpr float kMaxGradient = 0x1p60f;
FP8AMP_HD float gradient_limit(float amax_g) {
  return amax_g > kMaxGradient && is_finite(amax_g) ? kMaxGradient / amax_g : 1.0f;
}

// What is known before the pass: maxima of the stored values and of the dequantised gradient (after
// grad_scale).
struct AdamBounds {
  float p, m, v;  // bounds of |p'|, |m'|, v'
};
FP8AMP_HD AdamBounds adam_bounds(const AdamHyperparameters& h, std::uint32_t t, float amax_p,
                                 float amax_m, float amax_v, float amax_g) {
  const float c1 = float(1 - h.beta1), c2 = float(1 - h.beta2);
  const float g = h.decay == WeightDecay::kL2 ? amax_g + h.weight_decay * amax_p : amax_g;
  const double keep =
      h.decay == WeightDecay::kDecoupled ? std::fabs(1.0 - double(h.lr) * h.weight_decay) : 1.0;
  return {float(keep * amax_p + std::fabs(double(h.lr)) * adam_update_bound(h.beta1, h.beta2, t)),
          float(h.beta1) * amax_m + c1 * g, float(h.beta2) * amax_v + c2 * (g * g)};
}

// Scale of the new weights: a power of two with one bit of head-room above the bound, kept while it
// fits, so that an unchanged weight keeps its bits.
FP8AMP_HD float next_weight_scale(float bound, float format_max, float previous) {
  const float top = bound * previous;
  if (top <= format_max && top >= format_max / 16) return previous;
  return compute_scale(bound, format_max, ScaleRounding::kPowerOfTwo, 1, previous);
}

// Without a gradient ever, m' and v' are 0, and the update is 0 / eps'. Added to any sqrt(v') > 0
// it is lost in rounding.
inline constexpr float kMinEps = 0x1p-126f;

FP8AMP_HD AdamScalars adam_scalars(const AdamHyperparameters& h, std::uint32_t t,
                                   float grad_multiplier, float p_scale_inv, float m_scale_inv,
                                   float v_scale_inv) {
  const double correction1 = 1 - integer_power(h.beta1, t),
               correction2 = std::sqrt(1 - integer_power(h.beta2, t));
  AdamScalars s{};
  s.grad = h.maximize ? -grad_multiplier : grad_multiplier;
  s.m_keep = float(h.beta1) * m_scale_inv;
  s.m_add = float(1 - h.beta1);
  s.v_keep = float(h.beta2) * v_scale_inv;
  s.v_add = float(1 - h.beta2);
  const float eps = float(h.eps * correction2);
  s.eps = eps > kMinEps ? eps : kMinEps;
  s.step = float(h.lr * correction2 / correction1);
  const bool decoupled = h.decay == WeightDecay::kDecoupled;
  s.p_keep = decoupled ? float(1.0 - double(h.lr) * h.weight_decay) * p_scale_inv : p_scale_inv;
  s.p_l2 = decoupled ? 0.0f : h.weight_decay * p_scale_inv;
  s.p_scale = s.m_scale = s.v_scale = 1.0f;
  return s;
}

}  // namespace fp8amp::numerics
