// How an H100's FP8 tensor cores add the products of one dot product, for studies on the CPU.
//
//   block of 32 products and the accumulator c: top = the largest exponent among them, where that
//   of a product is the sum of its operands' exponents (subnormals: that of the smallest normal);
//   every term is truncated to a multiple of 2^(top - 13); they are added exactly; the sum is
//   truncated to 14 significant bits and becomes c.
//   Fast accumulation: one c for all of K. Else c is added to an FP32 total every 128 products.
//
// |error| < 2^-13 * sum over the blocks of (33 * 2^top + |c|), c after the block; and one FP32
// rounding every 128 products. Source: Khattak and Mikaitis, "Accurate Models of NVIDIA Tensor
// Cores" (arXiv 2512.07004), with the sizes that mmaemu 0.1.0 found on an H100 PCIe. Other GPUs and
// versions of cuBLASLt may differ. NaN and infinity are not modelled.
#pragma once
#include <fp8amp/numerics/scale.h>

namespace fp8amp {

// The accumulator of the GEMM. kDefault: one FP32 chain on the CPU, the device's own on a GPU.
enum class Accumulation : std::uint8_t { kDefault = 0, kHopper = 1 };

namespace numerics {

inline constexpr int kHopperBlock = 32, kHopperChain = 128;
inline constexpr float kHopperUnit = 0x1p-13f;  // of a term, against 2^top

// 2^exponent of a code's value; 0 for zeros, infinities and NaN.
template <class F>
FP8AMP_HD float hopper_exponent(typename F::Bits code) {
  constexpr float kMinNormal = std::bit_cast<float>(std::uint32_t(128 - F::kBias) << 23);
  const float magnitude = bits_float(abs_bits(decode<F>(code)));
  if (magnitude == 0.0f || !is_finite(magnitude)) return 0.0f;
  const float power = floor_power_of_two(magnitude);
  return power > kMinNormal ? power : kMinNormal;
}

// `top` below is 2^top, or 0 where every term is 0.
FP8AMP_HD float hopper_scale(float top) { return top > 0.0f ? 1.0f / kHopperUnit / top : 0.0f; }
// A product or the accumulator in units of kHopperUnit * top; below 2^15, so 33 of them fit.
FP8AMP_HD std::int32_t hopper_term(float x, float scale) { return std::int32_t(x * scale); }
FP8AMP_HD float hopper_sum(std::int32_t sum, float top) {
  return bits_float(float_bits(float(sum)) & ~0x3ffu) * (top * kHopperUnit);
}

}  // namespace numerics
}  // namespace fp8amp
