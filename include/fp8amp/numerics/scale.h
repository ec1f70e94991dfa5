// amax -> scale. `scale` multiplies into the format, `scale_inv` multiplies out; both FP32, finite
// and normal, never 0.
//
//   scale = format_max / (amax * 2^margin); kPowerOfTwo: cleared to the power of two below
//   amax == 0         -> previous
//   amax Inf or NaN   -> previous
//   scale > 2^126     -> 2^126, whose inverse is the smallest normal number (that of FLT_MAX is
//                        subnormal and flushes to zero)
//
// amax is the maximum over the *bits* of |x|, so that NaN > Inf > finite: one NaN anywhere makes
// amax non-finite. Source: FP8-LM (arXiv 2310.18313) section 2; Perez et al. (arXiv 2309.17224) for
// the floor to a power of two.
#pragma once
#include <fp8amp/numerics/convert.h>

namespace fp8amp::numerics {

inline constexpr float kMaxScale = 0x1p126f;
inline constexpr float kMinScale = 0x1p-126f;

// max over bits: both arguments must be bits of non-negative numbers.
FP8AMP_HD std::uint32_t max_bits(std::uint32_t a, std::uint32_t b) { return a > b ? a : b; }
FP8AMP_HD std::uint32_t abs_bits(float x) { return float_bits(x) & 0x7fffffffu; }

FP8AMP_HD float floor_power_of_two(float x) { return bits_float(float_bits(x) & kInfBits); }

// 2^n for n in [-126, 127].
FP8AMP_HD float power_of_two(int n) { return bits_float(std::uint32_t(127 + n) << 23); }

FP8AMP_HD float compute_scale(float amax, float format_max, ScaleRounding rounding, int margin = 0,
                              float previous = 1.0f) {
  if (!(amax > 0.0f) || !is_finite(amax)) return previous;
  // The margin first: the quotient may be Inf, for a tiny amax, and is capped below.
  float scale = format_max * power_of_two(-margin) / amax;
  if (!(scale < kMaxScale)) return kMaxScale;
  if (rounding == ScaleRounding::kPowerOfTwo) scale = floor_power_of_two(scale);
  return scale > kMinScale ? scale : kMinScale;
}

FP8AMP_HD float inverse_scale(float scale) { return 1.0f / scale; }

// The scale_inv of a tensor times a positive factor, of either sign (a gradient that was multiplied
// by -1 has a negative one).
FP8AMP_HD float multiplied_scale_inv(float scale_inv, float factor) {
  const float moved = scale_inv * factor;
  const std::uint32_t bits = float_bits(moved);
  return abs_bits(moved) < float_bits(kMinScale)
             ? bits_float((bits & 0x80000000u) | float_bits(kMinScale))
             : moved;
}

// One element of a cast: code of value * scale. The overflow policy looks at the value, not at the
// product: a finite value saturates.
template <class F>
FP8AMP_HD typename F::Bits quantize_element(float value, float scale, Rounding rounding,
                                            Overflow overflow, std::uint32_t random) {
  if (!is_finite(value) && (overflow == Overflow::kNaN || abs_bits(value) > kInfBits))
    return F::kNaNCode;
  return encode<F>(value * scale, rounding, Overflow::kSaturate, random);
}

}  // namespace fp8amp::numerics
