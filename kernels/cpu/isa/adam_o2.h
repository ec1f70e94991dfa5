// The O2 step: g E4M3, m E4M3, v FP16, p FP16; 11 bytes of traffic per parameter. AVX2 and AVX-512 (needs F16C).
//
// Three short loops over a block in L1 instead of one long one: the constants of each fit in the registers, and many independent
// sqrt -> div chains fit in the out-of-order window (1.0 ns per element against 1.6 in one loop on Zen 3).
//
// What a well-formed step never meets is left out of the loops and mended after each, for the block: NaN codes of g and m, and results
// beyond FP16. So every bit is that of numerics::adam_element.
#pragma once
#include <algorithm>
#include <cmath>

#include "kernels/cpu/isa/loops.h"
#include "kernels/cpu/isa/simd_convert.h"

namespace fp8amp::kernels::cpu::FP8AMP_ISA {

using numerics::AdamScalars;

inline constexpr std::int64_t kBlock = 512;  // 4 KiB of buffers; 1024 is no faster

#if defined(FP8AMP_SIMD_AVX2) || defined(FP8AMP_SIMD_AVX512)
#define FP8AMP_ADAM_O2 1

// Signed maxima: codes without their sign.
inline U16 max_codes(U16 a, U16 b) {
  const I16 x = std::bit_cast<I16>(a), y = std::bit_cast<I16>(b);
  return std::bit_cast<U16>(x > y ? x : y);
}
inline U8 max_codes(U8 a, U8 b) {
  typedef std::int8_t I8 __attribute__((vector_size(kBytes)));
  const I8 x = std::bit_cast<I8>(a), y = std::bit_cast<I8>(b);
  return std::bit_cast<U8>(x > y ? x : y);
}
template <class V>
inline std::uint32_t largest_lane(V v) {
  std::uint32_t r = 0;
  for (std::size_t i = 0; i < sizeof v / sizeof v[0]; ++i) r = r > v[i] ? r : v[i];
  return r;
}

// E4M3 codes -> value / 256, exact; NaN comes out as 480 / 256. The factor sits in the scalars.
inline Group load_e4m3_over_256(const std::uint8_t* p, U8& largest) {
  const U8 code = load<U8>(p);
  largest = max_codes(largest, code & std::uint8_t(0x7f));
  const U16Pair w = widen_up(code);
  Group g;
  for (int j = 0; j < 2; ++j) {
    const U16 h = std::bit_cast<U16>(std::bit_cast<I16>(j ? w.b : w.a) >> 1) & std::uint16_t(0xbfff);
    halves_to_floats(h, g.v[2 * j], g.v[2 * j + 1]);
  }
  return g;
}
// As vcvtps2ph: saturates to Inf.
inline U16 signed_floats_to_halves(F32 lo, F32 hi) { return floats_to_halves(bits(lo), bits(hi)); }

// FP16 codes as vcvtps2ph leaves them become those of numerics::encode: Inf saturates, NaN is kNaNCode. Returns the largest magnitude.
inline std::uint32_t mend_halves(std::uint16_t* codes, std::int64_t n) {
  std::uint32_t max = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint16_t a = codes[i] & 0x7fffu;
    if (a > 0x7c00u) codes[i] = Fp16::kNaNCode;
    if (a == 0x7c00u) codes[i] = static_cast<std::uint16_t>((codes[i] & Fp16::kSign) | Fp16::kMaxCode);
    max = std::max<std::uint32_t>(max, codes[i] & 0x7fffu);
  }
  return max;
}
constexpr std::uint32_t kHalfInf = 0x7c00;

// One block: the codes at its start, and what goes from loop to loop.
struct O2Block {
  std::uint16_t* p;
  const std::uint8_t* g;
  std::uint8_t* m;
  std::uint16_t* v;
  std::int64_t n;  // a multiple of kGroup
  std::uint64_t first;
  alignas(64) float moment[kBlock], update[kBlock];  // m', m' / (sqrt(v') + eps)
};

// NaN codes of g or m in the block, whose v is stored already and whose m is not.
inline void mend_nan_inputs(O2Block& b) {
  for (std::int64_t i = 0; i < b.n; ++i) {
    const bool g_nan = (b.g[i] & 0x7f) == E4M3::kNaNCode;
    if (g_nan) b.v[i] = Fp16::kNaNCode;
    if (g_nan || (b.m[i] & 0x7f) == E4M3::kNaNCode) b.moment[i] = b.update[i] = numerics::bits_float(0x7fc00000u);
  }
}

// 1: m', v' and the update; v' is stored. Returns its largest code. `nan_inputs` tells whether g or m held NaN.
inline std::uint32_t o2_moments(const AdamScalars& s, O2Block& b, bool& nan_inputs) {
  const F32 grad = all(s.grad * 256.0f), m_keep = all(s.m_keep * 256.0f), m_add = all(s.m_add);
  const F32 v_keep = all(s.v_keep), v_add = all(s.v_add), v_scale = all(s.v_scale), eps = all(s.eps);
  U8 largest_input{};
  U16 max{};
  for (std::int64_t i = 0; i < b.n; i += kGroup) {
    const Group G = load_e4m3_over_256(b.g + i, largest_input), M = load_e4m3_over_256(b.m + i, largest_input);
    for (int j = 0; j < 2; ++j) {
      std::uint16_t* codes = b.v + i + j * (kGroup / 2);
      F32 V[2];
      halves_to_floats(load<U16>(codes), V[0], V[1]);
      for (int k = 0; k < 2; ++k) {
        const F32 g = G.v[2 * j + k] * grad, m = M.v[2 * j + k] * m_keep + m_add * g, v = V[k] * v_keep + v_add * (g * g);
        store(b.moment + i + (2 * j + k) * kLanes, m);
        store(b.update + i + (2 * j + k) * kLanes, m / (sqrt(v) + eps));
        // v > 0 is stored as at least the smallest code, 2^-24
        V[k] = floats(max_bits(bits(v * v_scale), greater(bits(v), U32{}) & 0x33800000u));
      }
      const U16 h = signed_floats_to_halves(V[0], V[1]);
      store(codes, h);
      max = max_codes(max, h & std::uint16_t(0x7fff));
    }
  }
  nan_inputs = largest_lane(largest_input) == E4M3::kNaNCode;
  return largest_lane(max);
}

// 2: m' is stored.
template <Rounding R>
inline std::uint32_t o2_store_moment(const AdamLoop& l, const O2Block& b) {
  const float scale = l.scalars.m_scale;
  U8 max{};
  for (std::int64_t i = 0; i < b.n; i += kGroup) {
    RandomGroup random;
    if constexpr (R == Rounding::kStochastic) random = random_group(l.m_key, b.first + static_cast<std::uint64_t>(i));
    U32 code[4], sign[4];
    for (int j = 0; j < 4; ++j) {
      const U32 m = load<U32>(b.moment + i + j * kLanes);
      code[j] = code_of<E4M3, R>(bits(floats(m & 0x7fffffffu) * scale), random.r[j]);
      sign[j] = m >> 24 & 0x80u;
    }
    const U8 c = narrow(code[0], code[1], code[2], code[3]);
    max = max_codes(max, c);
    store(b.m + i, c | narrow(sign[0], sign[1], sign[2], sign[3]));
  }
  return largest_lane(max);
}

// 3: the weight.
template <Rounding R>
inline std::uint32_t o2_store_weight(const AdamLoop& l, const O2Block& b) {
  const F32 p_keep = all(l.scalars.p_keep), step = all(l.scalars.step), p_scale = all(l.scalars.p_scale);
  U16 max{};
  for (std::int64_t i = 0; i < b.n; i += kGroup) {
    Group w;
    for (int j = 0; j < 2; ++j) {
      F32 P[2];
      halves_to_floats(load<U16>(b.p + i + j * (kGroup / 2)), P[0], P[1]);
      for (int k = 0; k < 2; ++k)
        w.v[2 * j + k] = P[k] * p_keep - step * load<F32>(b.update + i + (2 * j + k) * kLanes);
      if constexpr (R == Rounding::kNearest)
        store(b.p + i + j * (kGroup / 2), signed_floats_to_halves(w.v[2 * j] * p_scale, w.v[2 * j + 1] * p_scale));
    }
    if constexpr (R == Rounding::kStochastic)
      encode_group<Fp16, R, Overflow::kSaturate>(b.p + i, w, l.scalars.p_scale, random_group(l.p_key, b.first + static_cast<std::uint64_t>(i)));
    for (int j = 0; j < 2; ++j) max = max_codes(max, load<U16>(b.p + i + j * (kGroup / 2)) & std::uint16_t(0x7fff));
  }
  return largest_lane(max);
}

// Factors of 256 must not overflow, and NaN may come from the codes only. A scaled tensor is far inside.
inline bool is_o2(const AdamLoop& l) {
  const auto small = [](float x) { return std::fabs(x) <= 0x1p100f; };
  return l.p_type == DType::kFloat16 && l.g_type == DType::kE4M3 && l.m_type == DType::kE4M3 && l.v_type == DType::kFloat16 &&
         l.v_rounding == Rounding::kNearest && l.scalars.p_l2 == 0.0f && small(l.scalars.grad) && small(l.scalars.m_keep);
}

template <Rounding kMoment, Rounding kWeight>
AdamMaxima adam_o2_rounded(const AdamLoop& l) {
  AdamMaxima max{};
  O2Block b;
  for (std::int64_t i = 0; i < l.n; i += kBlock) {
    b.p = static_cast<std::uint16_t*>(l.p) + i;
    b.g = static_cast<const std::uint8_t*>(l.g) + i;
    b.m = static_cast<std::uint8_t*>(l.m) + i;
    b.v = static_cast<std::uint16_t*>(l.v) + i;
    b.n = std::min(kBlock, l.n - i);
    b.first = l.first + static_cast<std::uint64_t>(i);
    bool nan_inputs = false;
    std::uint32_t v = o2_moments(l.scalars, b, nan_inputs);
    if (nan_inputs) [[unlikely]]
      mend_nan_inputs(b);
    if (v >= kHalfInf || nan_inputs) [[unlikely]]
      v = mend_halves(b.v, b.n);
    std::uint32_t m = o2_store_moment<kMoment>(l, b);
    if (nan_inputs) [[unlikely]]
      for (std::int64_t k = 0; k < b.n; ++k)
        if (b.moment[k] != b.moment[k]) b.m[k] = E4M3::kNaNCode, m = E4M3::kNaNCode;
    std::uint32_t p = o2_store_weight<kWeight>(l, b);
    if (p >= kHalfInf) [[unlikely]]
      p = mend_halves(b.p, b.n);
    max = {std::max(max.p, p), std::max(max.m, m), std::max(max.v, v)};
  }
  return max;
}

inline AdamMaxima adam_o2(const AdamLoop& l) {
  const bool m = l.m_rounding == Rounding::kStochastic, p = l.p_rounding == Rounding::kStochastic;
  constexpr Rounding kN = Rounding::kNearest, kS = Rounding::kStochastic;
  return m ? (p ? adam_o2_rounded<kS, kS>(l) : adam_o2_rounded<kS, kN>(l)) : (p ? adam_o2_rounded<kN, kS>(l) : adam_o2_rounded<kN, kN>(l));
}

#endif
}  // namespace fp8amp::kernels::cpu::FP8AMP_ISA
