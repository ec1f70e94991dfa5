// The storage formats as compile-time constants, and the host/device marker of this layer.
//
//   format  sign exponent mantissa  max     min normal  min subnormal  Inf / NaN
//   E4M3    1    4        3         448     2^-6        2^-9           no Inf; NaN 0x7F, 0xFF
//   E5M2    1    5        2         57344   2^-14       2^-16          Inf 0x7C; NaN 0x7D..0x7F
//   FP16    1    5        10        65504   2^-14       2^-24          IEEE 754
//   BF16    1    8        7         3.39e38 2^-126      2^-133         IEEE 754 layout
//
// Compile this layer with -ffp-contract=off (nvcc: --fmad=false) wherever its results must be those
// of the library: GCC and nvcc fuse multiplications and additions by default.
//
// Source: OCP 8-bit Floating Point Specification 1.0 (E4M3, E5M2), IEEE 754-2019 (FP16).
#pragma once
#include <cstdint>

#if defined(__CUDACC__)
#define FP8AMP_HD __host__ __device__ __forceinline__
#else
#define FP8AMP_HD inline
#endif

namespace fp8amp {

// Rounding of a value to a narrower format.
enum class Rounding : std::uint8_t { kNearest = 0, kStochastic = 1 };
// Rounding of the scale itself: the power of two below the ideal scale, or the ideal scale.
enum class ScaleRounding : std::uint8_t { kPowerOfTwo = 0, kExact = 1 };
// What +-Inf becomes: the largest finite value (weights, activations, states), or NaN (gradients,
// where a saturated Inf would hide an overflow from GradScaler and from every later reader). NaN
// always becomes NaN.
enum class Overflow : std::uint8_t { kSaturate = 0, kNaN = 1 };

namespace numerics {

struct E4M3 {
  using Bits = std::uint8_t;
  static constexpr int kMantissaBits = 3, kBias = 7;
  static constexpr Bits kMaxCode = 0x7e, kNaNCode = 0x7f, kSign = 0x80;
  static constexpr float kMax = 448.0f;
};

struct E5M2 {
  using Bits = std::uint8_t;
  static constexpr int kMantissaBits = 2, kBias = 15;
  static constexpr Bits kMaxCode = 0x7b, kNaNCode = 0x7f, kSign = 0x80;
  static constexpr float kMax = 57344.0f;
};

struct Fp16 {
  using Bits = std::uint16_t;
  static constexpr int kMantissaBits = 10, kBias = 15;
  static constexpr Bits kMaxCode = 0x7bff, kNaNCode = 0x7fff, kSign = 0x8000;
  static constexpr float kMax = 65504.0f;
};

}  // namespace numerics
}  // namespace fp8amp
