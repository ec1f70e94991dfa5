// The O2 step: g E4M3, m E4M3, v FP16, p FP16; 11 bytes of traffic per parameter. AVX2 and AVX-512
// (needs F16C).
//
// Three short loops over a block in L1 instead of one long one: the constants of each fit in the
// registers, and many independent chains fit in the out-of-order window. The square roots stand in
// the first loop and the divisions in the second, so that the one unit for both works in the shadow
// of other instructions, and the second loop, which reads no memory, fetches the next block.
// On Zen 3: 1.6 ns per element in one loop, 1.0 in three, from memory a fifth less with the last
// two measures.
//
// What a well-formed step never meets is left out of the loops and mended after each, for the
// block: NaN codes of g and m, and results beyond FP16. So every bit is that of
// numerics::adam_element.
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
inline U16 min_codes(U16 a, U16 b) {
  const I16 x = std::bit_cast<I16>(a), y = std::bit_cast<I16>(b);
  return std::bit_cast<U16>(x < y ? x : y);
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

inline void load_halves(const std::uint16_t* p, F32& lo, F32& hi) {
#ifdef FP8AMP_SIMD_AVX2
  lo = std::bit_cast<F32>(_mm256_cvtph_ps(load<__m128i>(p)));
  hi = std::bit_cast<F32>(_mm256_cvtph_ps(load<__m128i>(p + 8)));
#else
  halves_to_floats(load<U16>(p), lo, hi);
#endif
}
// E4M3 codes -> value / 256, exact; NaN comes out as 480 / 256. The factor sits in the scalars.
inline Group load_e4m3_over_256(const std::uint8_t* p, U8& largest) {
  const U8 code = load<U8>(p);
  largest = max_codes(largest, code & std::uint8_t(0x7f));
  const auto halves = [](U16 code_up) {
    return std::bit_cast<U16>(std::bit_cast<I16>(code_up) >> 1) & std::uint16_t(0xbfff);
  };
  Group g;
#ifdef FP8AMP_SIMD_AVX2  // in the order of the unpacked lanes: no permutation
  const __m256i v = std::bit_cast<__m256i>(code), zero = _mm256_setzero_si256();
  const __m256i lo =
      std::bit_cast<__m256i>(halves(std::bit_cast<U16>(_mm256_unpacklo_epi8(zero, v))));
  const __m256i hi =
      std::bit_cast<__m256i>(halves(std::bit_cast<U16>(_mm256_unpackhi_epi8(zero, v))));
  g.v[0] = std::bit_cast<F32>(_mm256_cvtph_ps(_mm256_castsi256_si128(lo)));
  g.v[1] = std::bit_cast<F32>(_mm256_cvtph_ps(_mm256_castsi256_si128(hi)));
  g.v[2] = std::bit_cast<F32>(_mm256_cvtph_ps(_mm256_extracti128_si256(lo, 1)));
  g.v[3] = std::bit_cast<F32>(_mm256_cvtph_ps(_mm256_extracti128_si256(hi, 1)));
#else
  const U16Pair w = widen_up(code);
  halves_to_floats(halves(w.a), g.v[0], g.v[1]);
  halves_to_floats(halves(w.b), g.v[2], g.v[3]);
#endif
  return g;
}
// Codes without sign, less `raise`, with the signs of `value`.
inline U8 narrow_signed(const U32 (&code)[4], std::uint16_t raise, const U32 (&value)[4]) {
#ifdef FP8AMP_SIMD_AVX2  // one permutation for both
  const auto v = [](U32 x) { return std::bit_cast<__m256i>(x); };
  const __m256i off = _mm256_set1_epi16(static_cast<short>(raise));
  const __m256i lo = _mm256_sub_epi16(_mm256_packus_epi32(v(code[0]), v(code[1])), off);
  const __m256i hi = _mm256_sub_epi16(_mm256_packus_epi32(v(code[2]), v(code[3])), off);
  const __m256i signs = _mm256_packs_epi16(_mm256_packs_epi32(v(value[0]), v(value[1])),
                                           _mm256_packs_epi32(v(value[2]), v(value[3])));
  const __m256i bytes =
      _mm256_or_si256(_mm256_packus_epi16(lo, hi),
                      _mm256_and_si256(signs, _mm256_set1_epi8(static_cast<char>(0x80))));
  return std::bit_cast<U8>(
      _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
#else
  const auto sign = [&](int j) { return value[j] >> 24 & 0x80u; };
  return narrow(narrow(code[0], code[1]) - raise, narrow(code[2], code[3]) - raise) |
         narrow(sign(0), sign(1), sign(2), sign(3));
#endif
}
// As vcvtps2ph: saturates to Inf.
inline U16 signed_floats_to_halves(F32 lo, F32 hi) { return floats_to_halves(bits(lo), bits(hi)); }

// FP16 codes as vcvtps2ph leaves them become those of numerics::encode: Inf saturates, NaN is
// kNaNCode. Returns the largest magnitude.
inline std::uint32_t mend_halves(std::uint16_t* codes, std::int64_t n) {
  std::uint32_t max = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint16_t a = codes[i] & 0x7fffu;
    if (a > 0x7c00u) codes[i] = Fp16::kNaNCode;
    if (a == 0x7c00u)
      codes[i] = static_cast<std::uint16_t>((codes[i] & Fp16::kSign) | Fp16::kMaxCode);
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
  alignas(64) float moment[kBlock];  // m'
  alignas(64) float update[kBlock];  // sqrt(v') + eps, then m' / (sqrt(v') + eps), then p'
  alignas(64) std::uint32_t words[kBlock / 2];  // random, of p
};

// NaN codes of g or m in the block, whose v is stored already and whose m is not.
inline void mend_nan_inputs(O2Block& b) {
  for (std::int64_t i = 0; i < b.n; ++i) {
    const bool g_nan = (b.g[i] & 0x7f) == E4M3::kNaNCode;
    if (g_nan) b.v[i] = Fp16::kNaNCode;
    if (g_nan || (b.m[i] & 0x7f) == E4M3::kNaNCode) b.moment[i] = numerics::bits_float(0x7fc00000u);
  }
}

// 1: m', v' and sqrt(v') + eps; v' is stored. Returns its largest code. `nan_inputs` tells whether
// g or m held NaN.
inline std::uint32_t o2_moments(const AdamScalars& s, O2Block& b, bool& nan_inputs) {
  const F32 grad = all(s.grad * 256.0f), m_keep = all(s.m_keep * 256.0f), m_add = all(s.m_add);
  const F32 v_keep = all(s.v_keep), v_add = all(s.v_add), v_scale = all(s.v_scale),
            eps = all(s.eps);
  const std::uint8_t *const g_codes = b.g, *const m_codes =
                                               b.m;  // a store of bytes may alias the block itself
  std::uint16_t* const v_codes = b.v;
  const std::int64_t n = b.n;
  U8 largest_input{};
  U16 max{};
  for (std::int64_t i = 0; i < n; i += kGroup) {
    const Group G = load_e4m3_over_256(g_codes + i, largest_input),
                M = load_e4m3_over_256(m_codes + i, largest_input);
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      std::uint16_t* codes = v_codes + i + j * (kGroup / 2);
      F32 V[2];
      load_halves(codes, V[0], V[1]);
      for (int k = 0; k < 2; ++k) {
        const F32 g = G.v[2 * j + k] * grad, m = M.v[2 * j + k] * m_keep + m_add * g,
                  v = V[k] * v_keep + v_add * (g * g);
        store(b.moment + i + (2 * j + k) * kLanes, m);
        store(b.update + i + (2 * j + k) * kLanes, sqrt(v) + eps);
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

// The random words of a block, group by group. Their upper half is the same for up to 2^33
// elements: adam() splits there.
class BlockWords {
 public:
  BlockWords(std::uint32_t key, std::uint64_t first)
      : high_(numerics::mix(key ^ static_cast<std::uint32_t>(first / 2 >> 32))),
        count_(lane_numbers(LaneIndex{}) + static_cast<std::uint32_t>(first / 2)) {}
  U32Pair next() {
    const U32Pair words = random_words(high_, count_);
    count_ += std::uint32_t(kGroup / 2);
    return words;
  }

 private:
  std::uint32_t high_;
  U32 count_;
};

// Harmless beyond the end of a tensor.
inline void prefetch(const O2Block& b, std::int64_t i) {
  __builtin_prefetch(b.p + i);
  __builtin_prefetch(b.g + i);
  __builtin_prefetch(b.m + i);
  __builtin_prefetch(b.v + i);
}

// 2: m' is stored, the update made, and the words of p' if they are wanted.
template <Rounding R, Rounding kWeight>
inline std::uint32_t o2_store_moment(const AdamLoop& l, O2Block& b) {
  const F32 scale = all(l.scalars.m_scale);
  const std::int64_t n = b.n;
  BlockWords block_words(l.key, b.first);
  std::uint8_t* const codes = b.m;
  U8 max{};
  for (std::int64_t i = 0; i < n; i += kGroup) {
    prefetch(b, i + kBlock);
    RandomGroup random;
    if constexpr (R == Rounding::kStochastic || kWeight == Rounding::kStochastic) {
      const U32Pair words = block_words.next();
      if constexpr (R == Rounding::kStochastic) random = spread(words);
      if constexpr (kWeight == Rounding::kStochastic) {
        const U32Pair second = second_words(words);
        store(b.words + i / 2, second.a);
        store(b.words + i / 2 + kLanes, second.b);
      }
    }
    U32 code[4], value[4];
    for (int j = 0; j < 4; ++j) {
      value[j] = load<U32>(b.moment + i + j * kLanes);
      float* update = b.update + i + j * kLanes;
      store(update, floats(value[j]) / load<F32>(update));
      code[j] = raised_code_of<E4M3, R>(bits(floats(value[j] & 0x7fffffffu) * scale), random.r[j]);
    }
    const U8 c = narrow_signed(code, kRaise<E4M3, R>, value);
    max = max_codes(max, c & std::uint8_t(0x7f));
    store(codes + i, c);
  }
  return largest_lane(max);
}

// Truncates to FP16: never to Inf.
inline U16 truncate_to_halves(U32 lo, U32 hi) {
#ifdef FP8AMP_SIMD_AVX512
  return join_halves<U16>(
      _mm512_maskz_cvtps_ph(kAll16, std::bit_cast<__m512>(lo), _MM_FROUND_TO_ZERO),
      _mm512_maskz_cvtps_ph(kAll16, std::bit_cast<__m512>(hi), _MM_FROUND_TO_ZERO));
#else
  const __m128i a = _mm256_cvtps_ph(std::bit_cast<__m256>(lo), _MM_FROUND_TO_ZERO);
  const __m128i b = _mm256_cvtps_ph(std::bit_cast<__m256>(hi), _MM_FROUND_TO_ZERO);
  return std::bit_cast<U16>(_mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1));
#endif
}

// The magnitudes of p' * scale are 0 or normal FP16 numbers, or larger.
inline bool is_normal_or_zero(const float* p, float scale, std::int64_t n) {
  constexpr std::uint32_t kMinNormal = 0x38800000u;  // 2^-14
  U32 least = ~U32{};                                // magnitude - 1: zeros are large
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const U32 below = magnitude(load<F32>(p + i) * scale) - 1u;
    least = least < below ? least : below;
  }
  for (int i = 0; i < kLanes; ++i)
    if (least[i] < kMinNormal - 1) return false;
  return true;
}

// 3, stochastic: random bits below FP16's last one, and a conversion that truncates. That is right
// for normal FP16 numbers and 0; a block with anything else is done again from the kept values.
inline std::uint32_t o2_store_weight_stochastic(const AdamLoop& l, O2Block& b) {
  constexpr std::uint32_t kMinNormalCode = 0x400;
  const F32 p_keep = all(l.scalars.p_keep), step = all(l.scalars.step),
            p_scale = all(l.scalars.p_scale);
  const std::int64_t n = b.n;
  std::uint16_t* const codes = b.p;
  U16 max{}, min = all(std::uint16_t(0x7fff));
  for (std::int64_t i = 0; i < n; i += kGroup) {
    const RandomGroup random =
        spread({load<U32>(b.words + i / 2), load<U32>(b.words + i / 2 + kLanes)});
    for (int j = 0; j < 2; ++j) {
      std::uint16_t* p = codes + i + j * (kGroup / 2);
      F32 P[2];
      U32 sum[2];
      load_halves(p, P[0], P[1]);
      for (int k = 0; k < 2; ++k) {
        float* update = b.update + i + (2 * j + k) * kLanes;
        const F32 w = P[k] * p_keep - step * load<F32>(update);
        store(update, w);
        sum[k] = bits(w * p_scale) + (random.r[2 * j + k] >> (numerics::kRandomBits - 13));
      }
      const U16 h = truncate_to_halves(sum[0], sum[1]), code = h & std::uint16_t(0x7fff);
      store(p, h);
      max = max_codes(max, code);
      min = min_codes(min, code);
    }
  }
  const std::uint32_t largest = largest_lane(max);
  // the sum of a subnormal number may reach the smallest normal one
  if (largest < Fp16::kMaxCode &&
      (0x7fff - largest_lane(std::uint16_t(0x7fff) - min) > kMinNormalCode ||
       is_normal_or_zero(b.update, l.scalars.p_scale, n))) [[likely]]
    return largest;
  std::uint32_t mended = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t random =
        numerics::random_bits(l.key, b.first + std::uint64_t(i), numerics::Draw::kSecond);
    codes[i] = numerics::encode<Fp16>(b.update[i] * l.scalars.p_scale, Rounding::kStochastic,
                                      Overflow::kSaturate, random);
    mended = std::max<std::uint32_t>(mended, codes[i] & 0x7fffu);
  }
  return mended;
}

// 3, nearest.
inline std::uint32_t o2_store_weight_nearest(const AdamLoop& l, const O2Block& b) {
  const F32 p_keep = all(l.scalars.p_keep), step = all(l.scalars.step),
            p_scale = all(l.scalars.p_scale);
  const std::int64_t n = b.n;
  std::uint16_t* const codes = b.p;
  U16 max{};
  for (std::int64_t i = 0; i < n; i += kGroup / 2) {
    F32 P[2], w[2];
    load_halves(codes + i, P[0], P[1]);
    for (int k = 0; k < 2; ++k) w[k] = P[k] * p_keep - step * load<F32>(b.update + i + k * kLanes);
    const U16 h = signed_floats_to_halves(w[0] * p_scale, w[1] * p_scale);
    store(codes + i, h);
    max = max_codes(max, h & std::uint16_t(0x7fff));
  }
  return largest_lane(max);
}

// Factors of 256 must not overflow, and NaN may come from the codes only. A scaled tensor is far
// inside.
inline bool is_o2(const AdamLoop& l) {
  const auto small = [](float x) { return std::fabs(x) <= 0x1p100f; };
  return l.p_type == DType::kFloat16 && l.g_type == DType::kE4M3 && l.m_type == DType::kE4M3 &&
         l.v_type == DType::kFloat16 && l.v_rounding == Rounding::kNearest &&
         l.scalars.p_l2 == 0.0f && small(l.scalars.grad) && small(l.scalars.m_keep);
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
    std::uint32_t m = o2_store_moment<kMoment, kWeight>(l, b);
    if (nan_inputs) [[unlikely]]
      for (std::int64_t k = 0; k < b.n; ++k)
        if (b.moment[k] != b.moment[k]) b.m[k] = E4M3::kNaNCode, m = E4M3::kNaNCode;
    std::uint32_t p = kWeight == Rounding::kStochastic ? o2_store_weight_stochastic(l, b)
                                                       : o2_store_weight_nearest(l, b);
    if (p >= kHalfInf) [[unlikely]]
      p = mend_halves(b.p, b.n);
    max = {std::max(max.p, p), std::max(max.m, m), std::max(max.v, v)};
  }
  return max;
}

inline AdamMaxima adam_o2(const AdamLoop& l) {
  const bool m = l.m_rounding == Rounding::kStochastic, p = l.p_rounding == Rounding::kStochastic;
  constexpr Rounding kN = Rounding::kNearest, kS = Rounding::kStochastic;
  return m ? (p ? adam_o2_rounded<kS, kS>(l) : adam_o2_rounded<kS, kN>(l))
           : (p ? adam_o2_rounded<kN, kS>(l) : adam_o2_rounded<kN, kN>(l));
}

#endif
}  // namespace fp8amp::kernels::cpu::FP8AMP_ISA
