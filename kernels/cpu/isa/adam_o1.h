// The O1 step: g E4M3, m and v FP32, p FP16; 21 bytes of traffic per parameter, in one loop. Mends
// as adam_o2.h does.
#pragma once
#include "kernels/cpu/isa/adam_o2.h"

namespace fp8amp::kernels::cpu::FP8AMP_ISA {

#ifdef FP8AMP_ADAM_O2

inline bool is_o1(const AdamLoop& l) {
  return l.p_type == DType::kFloat16 && l.g_type == DType::kE4M3 && l.m_type == DType::kFloat32 &&
         l.v_type == DType::kFloat32 && l.scalars.p_l2 == 0.0f &&
         std::fabs(l.scalars.grad) <= 0x1p100f;
}

struct O1Block {
  std::uint16_t* p;
  const std::uint8_t* g;
  float *m, *v;
  std::int64_t n;  // a multiple of kGroup
  std::uint64_t first;
};

// NaN codes of g: everything of the element becomes NaN, whatever it was.
inline void mend_nan_gradients(const O1Block& b, AdamMaxima& max) {
  constexpr std::uint32_t kNaN = 0x7fc00000u;
  for (std::int64_t i = 0; i < b.n; ++i)
    if ((b.g[i] & 0x7f) == E4M3::kNaNCode) {
      b.m[i] = b.v[i] = numerics::bits_float(kNaN);
      b.p[i] = Fp16::kNaNCode;
      max = {Fp16::kNaNCode, std::max(max.m, kNaN), std::max(max.v, kNaN)};
    }
}

template <Rounding R>
AdamMaxima o1_block(const AdamLoop& l, const O1Block& b) {
  const AdamScalars& s = l.scalars;
  const F32 grad = all(s.grad * 256.0f), m_keep = all(s.m_keep), m_add = all(s.m_add);
  const F32 v_keep = all(s.v_keep), v_add = all(s.v_add), eps = all(s.eps), step = all(s.step);
  const F32 p_keep = all(s.p_keep), p_scale = all(s.p_scale);
  const float scale = s.p_scale;
  std::uint16_t* const p = b.p;
  float *const m = b.m, *const v = b.v;
  const std::uint8_t* const g = b.g;
  BlockWords words(l.key, b.first);
  U8 largest_input{};
  U16 max_p{};
  U32 max_m{}, max_v{};
  for (std::int64_t i = 0, n = b.n; i < n; i += kGroup) {
    const Group G = load_e4m3_over_256(g + i, largest_input);
    Group w;
    for (int j = 0; j < 2; ++j) {
      std::uint16_t* const codes = p + i + j * (kGroup / 2);
      F32 P[2];
      load_halves(codes, P[0], P[1]);
      for (int k = 0; k < 2; ++k) {
        const std::int64_t at = i + (2 * j + k) * kLanes;
        const F32 x = G.v[2 * j + k] * grad;
        const F32 M = load<F32>(m + at) * m_keep + m_add * x;
        const F32 V = load<F32>(v + at) * v_keep + v_add * (x * x);
        store(m + at, M);
        store(v + at, V);
        max_m = max_bits(max_m, magnitude(M));
        max_v = max_bits(max_v, magnitude(V));
        w.v[2 * j + k] = P[k] * p_keep - step * (M / (sqrt(V) + eps));
      }
      if constexpr (R == Rounding::kNearest) {
        const U16 h = signed_floats_to_halves(w.v[2 * j] * p_scale, w.v[2 * j + 1] * p_scale);
        store(codes, h);
        max_p = max_codes(max_p, h & std::uint16_t(0x7fff));
      }
    }
    if constexpr (R == Rounding::kStochastic) {
      encode_group<Fp16, R, Overflow::kSaturate>(p + i, w, scale,
                                                 spread(second_words(words.next())));
      for (int j = 0; j < 2; ++j)
        max_p = max_codes(max_p, load<U16>(p + i + j * (kGroup / 2)) & std::uint16_t(0x7fff));
    }
  }
  AdamMaxima max{largest_lane(max_p), largest(max_m), largest(max_v)};
  if (max.p >= kHalfInf) [[unlikely]]
    max.p = mend_halves(p, b.n);
  if (largest_lane(largest_input) == E4M3::kNaNCode) [[unlikely]]
    mend_nan_gradients(b, max);
  return max;
}

inline AdamMaxima adam_o1(const AdamLoop& l) {
  const auto block = l.p_rounding == Rounding::kStochastic ? o1_block<Rounding::kStochastic>
                                                           : o1_block<Rounding::kNearest>;
  AdamMaxima max{};
  for (std::int64_t i = 0; i < l.n; i += kBlock) {
    const O1Block b{static_cast<std::uint16_t*>(l.p) + i,
                    static_cast<const std::uint8_t*>(l.g) + i,
                    static_cast<float*>(l.m) + i,
                    static_cast<float*>(l.v) + i,
                    std::min(kBlock, l.n - i),
                    l.first + static_cast<std::uint64_t>(i)};
    const AdamMaxima r = block(l, b);
    max = {std::max(max.p, r.p), std::max(max.m, r.m), std::max(max.v, r.v)};
  }
  return max;
}

#endif
}  // namespace fp8amp::kernels::cpu::FP8AMP_ISA
