// FP32 <-> E4M3, E5M2, FP16, BF16: one rounding, integer and IEEE FP32 operations only, so that
// every machine gives the same bits.
//
// encode<F>() saturates finite values to +-F::kMax. NaN becomes the positive F::kNaNCode, as
// cuda_fp8.h does. Nearest: ties to even. Stochastic: random bits are added below the last kept bit
// and the sum is truncated, so that E[decode(encode(x))] = x; the value is clamped to the largest
// finite one before the bits are added, else a carry out of 448 would become NaN.
#pragma once
#include <fp8amp/numerics/formats.h>

#include <bit>

namespace fp8amp::numerics {

FP8AMP_HD std::uint32_t float_bits(float x) { return std::bit_cast<std::uint32_t>(x); }
FP8AMP_HD float bits_float(std::uint32_t u) { return std::bit_cast<float>(u); }

inline constexpr std::uint32_t kInfBits = 0x7f800000u;
FP8AMP_HD bool is_finite(float x) { return (float_bits(x) & 0x7fffffffu) < kInfBits; }

// Random bits that a stochastic encode consumes: the low kRandomBits of `random`.
inline constexpr int kRandomBits = 20;

// x -> code of F. `random` is read for Rounding::kStochastic only.
//
// With e = max(2^exponent(|x|), smallest normal), adding e * 2^(23 - man) makes the FPU round |x|
// to F's spacing (nearest even). The sum's bits then hold the rounded mantissa below and the
// exponent above: one path for normals and subnormals. The product saturates at Inf where an
// exponent addition would wrap; the final min catches it.
template <class F>
FP8AMP_HD typename F::Bits encode(float x, Rounding rounding = Rounding::kNearest,
                                  Overflow overflow = Overflow::kSaturate,
                                  std::uint32_t random = 0) {
  constexpr int kShift = 23 - F::kMantissaBits;
  constexpr std::uint32_t kMinNormal = std::uint32_t(128 - F::kBias) << 23;
  const std::uint32_t u = float_bits(x), a = u & 0x7fffffffu;
  if (a > kInfBits || (a == kInfBits && overflow == Overflow::kNaN)) return F::kNaNCode;
  const typename F::Bits sign = (u >> 31) ? F::kSign : typename F::Bits(0);
  const float magnitude = bits_float(a);
  if (magnitude >= F::kMax) return typename F::Bits(F::kMaxCode | sign);
  std::uint32_t code;
  if (rounding == Rounding::kNearest) {
    std::uint32_t e = a & kInfBits;
    e = e > kMinNormal ? e : kMinNormal;
    const std::uint32_t magic = e + (std::uint32_t(kShift) << 23);
    const std::uint32_t t = float_bits(magnitude + bits_float(magic));
    // t - magic: rounded mantissa, with the hidden bit for normals, in units of F's spacing; (e >>
    // kShift) minus the offset: the exponent.
    code = (t - magic) + ((e - kMinNormal) >> kShift);
  } else {
    // Subnormals of F become fixed point by adding F's smallest normal (exact to FP32's own
    // rounding), which lends them a hidden bit.
    const std::uint32_t small = a < kMinNormal ? 1u : 0u;
    const float y = small ? magnitude + bits_float(kMinNormal) : magnitude;
    constexpr int kUp = kShift > kRandomBits ? kShift - kRandomBits : 0,
                  kDown = kShift < kRandomBits ? kRandomBits - kShift : 0;
    const std::uint32_t r = random & ((1u << kRandomBits) - 1);
    const std::uint32_t sum = (float_bits(y) + (r << kUp >> kDown)) >> kShift;
    code = sum - (std::uint32_t(127 - F::kBias) << F::kMantissaBits) - (small << F::kMantissaBits);
  }
  return typename F::Bits((code < F::kMaxCode ? code : F::kMaxCode) | sign);
}

// Code of F -> FP32, exact. FP8 NaN codes give a quiet NaN with the code's sign.
template <class F>
FP8AMP_HD float decode(typename F::Bits code) {
  constexpr int kShift = 23 - F::kMantissaBits;
  constexpr bool kHasInf = F::kNaNCode != F::kMaxCode + 1;
  const std::uint32_t sign = (code & F::kSign) ? 0x80000000u : 0u;
  const std::uint32_t a = code & typename F::Bits(F::kSign - 1);
  if (a > F::kMaxCode) {
    if (kHasInf && a == std::uint32_t(F::kMaxCode) + 1) return bits_float(sign | kInfBits);
    return bits_float(sign | 0x7fc00000u);
  }
  // Subnormals: (float)a is exact and so is the product with a power of two.
  if (a < (1u << F::kMantissaBits)) {
    constexpr float kStep =
        std::bit_cast<float>(std::uint32_t(128 - F::kBias - F::kMantissaBits) << 23);
    return bits_float(sign | float_bits(float(a) * kStep));
  }
  return bits_float(sign | ((a << kShift) + (std::uint32_t(127 - F::kBias) << 23)));
}

// IEEE conversions of plain (unscaled) FP16 and BF16 tensors: nearest even, Inf stays Inf.
FP8AMP_HD std::uint16_t float_to_half(float x) {
  const std::uint32_t u = float_bits(x), a = u & 0x7fffffffu;
  const std::uint16_t sign = std::uint16_t(u >> 16 & 0x8000u);
  if (a > kInfBits) return std::uint16_t(0x7e00u | sign | (a >> 13 & 0x3ffu));
  if (a >= 0x477ff000u) return std::uint16_t(0x7c00u | sign);  // 65520 and above round to Inf
  return encode<Fp16>(x);
}
FP8AMP_HD float half_to_float(std::uint16_t h) { return decode<Fp16>(h); }

FP8AMP_HD std::uint16_t float_to_bfloat16(float x) {
  const std::uint32_t u = float_bits(x);
  if ((u & 0x7fffffffu) > kInfBits) return std::uint16_t(u >> 16 | 0x40u);
  return std::uint16_t((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}
FP8AMP_HD float bfloat16_to_float(std::uint16_t h) { return bits_float(std::uint32_t(h) << 16); }

}  // namespace fp8amp::numerics
