// Conversions of whole groups (kGroup elements) between the storage types and FP32, bit for bit
// those of numerics/convert.h, and the random words of numerics/random.h. No branches on the data.
//
//   Group v = load_group<DType::kE4M3>(codes);                                        any type ->
//   FP32 store_group<DType::kFloat32>(y, v);                                               FP32,
//   FP16, BF16: nearest even, Inf stays Inf encode_group<E4M3, Rounding::kStochastic,
//   Overflow::kSaturate>(y, v, scale, random_group(key, first, draw));
#pragma once
#include <fp8amp/dtype.h>
#include <fp8amp/numerics/convert.h>
#include <fp8amp/numerics/random.h>

#include "kernels/cpu/isa/simd.h"

namespace fp8amp::kernels::cpu::FP8AMP_ISA {

using numerics::E4M3;
using numerics::E5M2;
using numerics::Fp16;
using numerics::kInfBits;

struct Group {
  F32 v[4];
};

// ---- FP16 <-> FP32 without hardware: the formulas of numerics::decode and encode, lane by lane
inline F32 half_to_float_portable(U32 h_up) {  // FP16 code << 16, no NaN but the quiet one
  constexpr float kStep = 0x1p-24f;
  const U32 sign = h_up & 0x80000000u, a = h_up >> 16 & 0x7fffu;
  const U32 normal = (a << 13) + (112u << 23);
  const U32 small = bits(__builtin_convertvector(as_signed(a), F32) * kStep);
  const U32 special = a << 13 | kInfBits;
  U32 r = select(greater(a, all(0x3ffu)), normal, small);
  r = select(greater(a, all(0x7bffu)), special, r);
  return floats(r | sign);
}
inline U32 encode_half_portable(U32 y) {  // magnitude, at most 65504
  const U32 lim = all(std::uint32_t(113) << 23), e = max_bits(y & kInfBits, lim),
            magic = e + (13u << 23);
  return bits(floats(y) + floats(magic)) - magic + ((e - lim) >> 13);
}

// Two vectors of FP16 codes whose NaN are all 0x7e00 or 0xfe00.
inline void halves_to_floats(U16 h, F32& lo, F32& hi) {
#if defined(FP8AMP_SIMD_AVX512)
  lo = std::bit_cast<F32>(_mm512_maskz_cvtph_ps(kAll16, lower_half(h)));
  hi = std::bit_cast<F32>(_mm512_maskz_cvtph_ps(kAll16, upper_half(h)));
#elif defined(FP8AMP_SIMD_AVX2)
  const __m256i v = std::bit_cast<__m256i>(h);
  lo = std::bit_cast<F32>(_mm256_cvtph_ps(_mm256_castsi256_si128(v)));
  hi = std::bit_cast<F32>(_mm256_cvtph_ps(_mm256_extracti128_si256(v, 1)));
#else
  const U32Pair w = widen_up(h);
  lo = half_to_float_portable(w.a);
  hi = half_to_float_portable(w.b);
#endif
}
// Magnitudes of at most 65504 -> FP16 codes, nearest even.
inline U16 floats_to_halves(U32 lo, U32 hi) {
#if defined(FP8AMP_SIMD_AVX512)
  return join_halves<U16>(
      _mm512_maskz_cvtps_ph(kAll16, std::bit_cast<__m512>(lo), _MM_FROUND_TO_NEAREST_INT),
      _mm512_maskz_cvtps_ph(kAll16, std::bit_cast<__m512>(hi), _MM_FROUND_TO_NEAREST_INT));
#elif defined(FP8AMP_SIMD_AVX2)
  const __m128i a = _mm256_cvtps_ph(std::bit_cast<__m256>(lo), _MM_FROUND_TO_NEAREST_INT);
  const __m128i b = _mm256_cvtps_ph(std::bit_cast<__m256>(hi), _MM_FROUND_TO_NEAREST_INT);
  return std::bit_cast<U16>(_mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1));
#else
  return narrow(encode_half_portable(lo), encode_half_portable(hi));
#endif
}

// ---- storage types to FP32
// Codes of an FP16 tensor, NaN made canonical as numerics::decode does.
inline U16 canonical_halves(U16 h) {
  const I16 a = std::bit_cast<I16>(h & std::uint16_t(0x7fff));
  const U16 nan = (h & std::uint16_t(0x8000)) | std::uint16_t(0x7e00);
  return a > std::int16_t(0x7c00) ? nan : h;
}
// E4M3 code -> FP16 bits of value / 256: the arithmetic shift leaves the sign in bits 15 and 14,
// the magnitude in bits 7..13.
inline U16 e4m3_halves(U16 code_up) {
  const U16 h = std::bit_cast<U16>(std::bit_cast<I16>(code_up) >> 1) & std::uint16_t(0xbfff);
  const U16 nan = std::bit_cast<U16>((h | std::uint16_t(0x8000)) == std::uint16_t(0xbf80));
  return h + (nan & std::uint16_t(0x7e00 - 0x3f80));
}

template <DType T>
inline Group load_group(const void* p) {
  const char* x = static_cast<const char*>(p);
  Group g;
  if constexpr (T == DType::kFloat32) {
    for (int j = 0; j < 4; ++j) g.v[j] = load<F32>(x + j * kBytes);
  } else if constexpr (T == DType::kBFloat16) {
    for (int j = 0; j < 2; ++j) {
      const U32Pair w = widen_up(load<U16>(x + j * kBytes));
      g.v[2 * j] = floats(w.a);
      g.v[2 * j + 1] = floats(w.b);
    }
  } else if constexpr (T == DType::kFloat16) {
    for (int j = 0; j < 2; ++j)
      halves_to_floats(canonical_halves(load<U16>(x + j * kBytes)), g.v[2 * j], g.v[2 * j + 1]);
  } else {
    const U16Pair w = widen_up(load<U8>(x));
    const bool e4m3 = T == DType::kE4M3;
    halves_to_floats(e4m3 ? e4m3_halves(w.a) : canonical_halves(w.a), g.v[0], g.v[1]);
    halves_to_floats(e4m3 ? e4m3_halves(w.b) : canonical_halves(w.b), g.v[2], g.v[3]);
    if (e4m3)
      for (int j = 0; j < 4; ++j) g.v[j] = g.v[j] * 256.0f;
  }
  return g;
}

// ---- FP32 to plain types (numerics::float_to_half, float_to_bfloat16)
inline U16 ieee_halves(F32 lo, F32 hi) {
  U32 code[2];
  const F32 x[2] = {lo, hi};
  const U16 h = floats_to_halves(min_bits(magnitude(lo), all(0x477fe000u)),
                                 min_bits(magnitude(hi), all(0x477fe000u)));
  for (int j = 0; j < 2; ++j) {  // what does not fit, and signs
    const U32 u = bits(x[j]), a = u & 0x7fffffffu;
    const U32 nan = 0x7e00u | (a >> 13 & 0x3ffu);
    const U32 top =
        select(greater(a, all(kInfBits)), nan, all(0x7c00u)) & greater(a, all(0x477fefffu));
    code[j] = top | (u >> 16 & 0x8000u);
  }
  const U16 top = narrow(code[0], code[1]);
  const U16 keep = std::bit_cast<U16>((top & std::uint16_t(0x7fff)) == std::uint16_t(0));
  return top | (h & keep);
}
inline U32 bfloat16_codes(F32 x) {
  const U32 u = bits(x), r = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
  return select(greater(u & 0x7fffffffu, all(kInfBits)), u >> 16 | 0x40u, r);
}

template <DType T>
inline void store_group(void* p, const Group& g) {
  char* y = static_cast<char*>(p);
  if constexpr (T == DType::kFloat32) {
    for (int j = 0; j < 4; ++j) store(y + j * kBytes, g.v[j]);
  } else {
    for (int j = 0; j < 2; ++j) {
      const F32 a = g.v[2 * j], b = g.v[2 * j + 1];
      store(y + j * kBytes, T == DType::kFloat16 ? ieee_halves(a, b)
                                                 : narrow(bfloat16_codes(a), bfloat16_codes(b)));
    }
  }
}

// ---- random words: 20 bits for each element of a group
struct RandomGroup {
  U32 r[4];
};
inline U32 mix(U32 x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ x >> 16;
}
using LaneIndex = std::make_integer_sequence<int, kLanes>;
template <int... I>
inline U32 lane_numbers(std::integer_sequence<int, I...>) {
  return U32{std::uint32_t(I)...};
}
// The two words vectors of a group to its four element vectors.
template <int... I>
inline RandomGroup spread(U32 w0, U32 w1, std::integer_sequence<int, I...>) {
  const U32 mask = all(std::uint32_t(0xfffff));
  if constexpr (kLanes == 4) {
    return {w0 & mask, w1 & mask, w0 >> 12, w1 >> 12};
  } else if constexpr (kLanes == 8) {
    return {w0 & mask, w0 >> 12, w1 & mask, w1 >> 12};
  } else {  // both halves of a vector take the same eight words
    const U32 shift = {(I < 8 ? 0u : 12u)...};
    return {__builtin_shufflevector(w0, w0, (I % 8)...) >> shift & mask,
            __builtin_shufflevector(w0, w0, (I % 8 + kLanes / 2)...) >> shift & mask,
            __builtin_shufflevector(w1, w1, (I % 8)...) >> shift & mask,
            __builtin_shufflevector(w1, w1, (I % 8 + kLanes / 2)...) >> shift & mask};
  }
}
// A group inside which the low 32 bits of the word index wrap: once in 2^33 elements.
[[gnu::noinline, gnu::cold]] inline RandomGroup random_group_wrapping(std::uint32_t key,
                                                                      std::uint64_t first,
                                                                      numerics::Draw draw) {
  RandomGroup g;
  for (int i = 0; i < kGroup; ++i)
    g.r[i / kLanes][i % kLanes] = numerics::random_bits(key, first + std::uint64_t(i), draw);
  return g;
}
// The words of a group. `count`: lane_numbers(LaneIndex{}) + the index of the first one; high:
// numerics::mix(key ^ upper half of that index).
inline U32Pair random_words(std::uint32_t high, U32 count) {
  return {mix(count ^ high), mix((count + std::uint32_t(kLanes)) ^ high)};
}
inline U32Pair second_words(const U32Pair& first) {
  return {first.a * numerics::second_word(1), first.b * numerics::second_word(1)};
}
inline RandomGroup spread(const U32Pair& words) { return spread(words.a, words.b, LaneIndex{}); }
// Of elements first, first + 1, ...; `first` is a multiple of 16.
inline RandomGroup random_group(std::uint32_t key, std::uint64_t first, numerics::Draw draw) {
  const std::uint64_t word = first / 2;
  if (std::uint32_t(word) > 0xffffffffu - kGroup / 2) [[unlikely]]
    return random_group_wrapping(key, first, draw);
  const U32Pair words = random_words(numerics::mix(key ^ std::uint32_t(word >> 32)),
                                     lane_numbers(LaneIndex{}) + std::uint32_t(word));
  return spread(draw == numerics::Draw::kSecond ? second_words(words) : words);
}

// ---- FP32 to codes of a format: numerics::quantize_element, and encode_second_moment with
// Underflow::kKeepPositive
enum class Underflow {
  kToZero,
  kKeepPositive
};  // kKeepPositive: a value > 0 becomes at least the smallest code

// Codes of one vector without the sign, plus kRaise, of magnitude(value) * scale.
template <class F, Rounding R>
inline constexpr std::uint32_t kRaise =
    std::uint32_t((R == Rounding::kNearest ? 128 : 127) - F::kBias) << F::kMantissaBits;
template <class F, Rounding R>
inline U32 raised_code_of(U32 y, U32 random) {
  constexpr int kShift = 23 - F::kMantissaBits;
  constexpr std::uint32_t kMinNormal = std::uint32_t(128 - F::kBias) << 23;
  const U32 a =
      min_bits(y, bits(all(F::kMax)));  // before any bits are added: they would carry 448 into NaN
  if constexpr (R == Rounding::kNearest) {
    const U32 e = max_bits(a & kInfBits, all(kMinNormal)),
              magic = e + (std::uint32_t(kShift) << 23);
    // t - magic is the rounded mantissa, the rest the exponent: see numerics::encode
    return bits(floats(a) + floats(magic)) - magic + (e >> kShift);
  } else {
    constexpr int kUp = kShift > numerics::kRandomBits ? kShift - numerics::kRandomBits : 0;
    constexpr int kDown = kShift < numerics::kRandomBits ? numerics::kRandomBits - kShift : 0;
    const U32 small = std::bit_cast<U32>(
        floats(a) <
        floats(all(kMinNormal)));  // GCC makes two of an integer comparison with a constant
    const U32 sum = bits(floats(a) + floats(small & kMinNormal)) + (random << kUp >> kDown);
    return (sum >> kShift) + (small << F::kMantissaBits);
  }
}
template <class F, Rounding R>
inline U32 code_of(U32 y, U32 random) {
  return raised_code_of<F, R>(y, random) - kRaise<F, R>;
}

// `random` is read for Rounding::kStochastic only; scale is positive and finite.
template <class F, Rounding R, Overflow O, Underflow D = Underflow::kToZero>
inline void encode_group(typename F::Bits* y, const Group& value, float scale,
                         const RandomGroup& random) {
  constexpr bool kByte = sizeof(typename F::Bits) == 1;
  constexpr std::uint32_t kLimit = O == Overflow::kNaN ? kInfBits - 1 : kInfBits;
  U32 code[4];
  for (int j = 0; j < 4; ++j) {
    const U32 u = bits(value.v[j]), a = u & 0x7fffffffu;
    U32 scaled = bits(floats(a) * scale);
    if constexpr (D == Underflow::kKeepPositive) {
      constexpr std::uint32_t kSmallest = std::uint32_t(128 - F::kBias - F::kMantissaBits) << 23;
      scaled = max_bits(scaled, greater(u, U32{}) & kSmallest);
    }
    const U32 c =
        code_of<F, R>(scaled, random.r[j]) | (u >> (kByte ? 24 : 16) & std::uint32_t(F::kSign));
    code[j] = select(greater(a, all(kLimit)), all(std::uint32_t(F::kNaNCode)), c);
  }
  if constexpr (kByte) {
    store(y, narrow(code[0], code[1], code[2], code[3]));
  } else {
    store(y, narrow(code[0], code[1]));
    store(y + kGroup / 2, narrow(code[2], code[3]));
  }
}

}  // namespace fp8amp::kernels::cpu::FP8AMP_ISA
