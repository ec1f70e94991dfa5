// Vectors of the width of the instruction-set level, as GCC/Clang vector extensions: one source for
// SSE4, AVX2, AVX-512 and NEON. Intrinsics stand only where the compilers miss an instruction
// (narrowing, widening, FP16, square root), each beside a portable twin.
//
// The loops work on groups of kGroup elements, whatever the storage type: four F32 vectors, two U16
// vectors or one U8 vector. kGroup is a multiple of 16, the period of the random words.
// simd_convert.h converts groups.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__SSE4_2__)
#include <immintrin.h>
#endif

// Bytes of one vector. Tests may ask for another width than the level's: the compiler splits or
// joins registers.
#ifndef FP8AMP_SIMD_BYTES
#if defined(__AVX512BW__)
#define FP8AMP_SIMD_BYTES 64
#elif defined(__AVX2__)
#define FP8AMP_SIMD_BYTES 32
#else
#define FP8AMP_SIMD_BYTES 16
#endif
#endif
// Which intrinsics fit this width.
#if defined(__AVX512BW__) && FP8AMP_SIMD_BYTES == 64
#define FP8AMP_SIMD_AVX512 1
#elif defined(__AVX2__) && defined(__F16C__) && FP8AMP_SIMD_BYTES == 32
#define FP8AMP_SIMD_AVX2 1
#endif

namespace fp8amp::kernels::cpu::FP8AMP_ISA {

inline constexpr int kBytes = FP8AMP_SIMD_BYTES, kLanes = kBytes / 4, kGroup = kBytes;

typedef std::uint8_t U8 __attribute__((vector_size(kBytes)));
typedef std::uint16_t U16 __attribute__((vector_size(kBytes)));
typedef std::int16_t I16 __attribute__((vector_size(kBytes)));
typedef std::uint32_t U32 __attribute__((vector_size(kBytes)));
typedef std::int32_t I32 __attribute__((vector_size(kBytes)));
typedef float F32 __attribute__((vector_size(kBytes)));
typedef double F64 __attribute__((vector_size(kBytes)));

template <class V>
inline V load(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class V>
inline void store(void* p, V v) {
  std::memcpy(p, &v, sizeof v);
}

inline F32 all(float x) { return x - F32{}; }  // keeps -0
inline U32 all(std::uint32_t x) { return U32{} + x; }
inline U16 all(std::uint16_t x) { return U16{} + x; }
inline U32 bits(F32 x) { return std::bit_cast<U32>(x); }
inline F32 floats(U32 x) { return std::bit_cast<F32>(x); }
inline I32 as_signed(U32 x) { return std::bit_cast<I32>(x); }
inline U32 magnitude(F32 x) { return bits(x) & 0x7fffffffu; }

// Minima and maxima of bits of non-negative floats: as signed integers, for which SSE4, AVX2 and
// NEON have instructions.
inline U32 min_bits(U32 a, U32 b) {
  const I32 x = as_signed(a), y = as_signed(b);
  return std::bit_cast<U32>(x < y ? x : y);
}
inline U32 max_bits(U32 a, U32 b) {
  const I32 x = as_signed(a), y = as_signed(b);
  return std::bit_cast<U32>(x > y ? x : y);
}
inline U32 greater(U32 a, U32 b) {
  return std::bit_cast<U32>(as_signed(a) > as_signed(b));
}  // all ones or 0
inline U32 select(U32 mask, U32 a, U32 b) { return std::bit_cast<I32>(mask) ? a : b; }
inline std::uint32_t largest(U32 v) {
  std::uint32_t r = 0;
  for (int i = 0; i < kLanes; ++i) r = r > v[i] ? r : v[i];
  return r;
}

// IEEE square root, correctly rounded.
inline F32 sqrt(F32 x) {
#if defined(FP8AMP_SIMD_AVX512)
  return std::bit_cast<F32>(_mm512_maskz_sqrt_ps(0xffff, std::bit_cast<__m512>(x)));
#elif defined(FP8AMP_SIMD_AVX2)
  return std::bit_cast<F32>(_mm256_sqrt_ps(std::bit_cast<__m256>(x)));
#elif defined(__SSE4_2__) && FP8AMP_SIMD_BYTES == 16
  return std::bit_cast<F32>(_mm_sqrt_ps(std::bit_cast<__m128>(x)));
#else
  for (int i = 0; i < kLanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

// ---- shuffles of any width
template <class V, int... I>
inline V even_of(V a, V b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, 2 * I...);
}
template <class V, int kFirst, int... I>
inline V zip(V a, V b, std::integer_sequence<int, I...>) {
  constexpr int kCount = sizeof...(I);
  return __builtin_shufflevector(a, b, (kFirst + I / 2 + (I % 2) * kCount)...);
}
// Half of the lanes, from kFirst on.
template <int kFirst, class V, int... I>
inline auto half_of(V x, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(x, x, (kFirst + I)...);
}
#if defined(FP8AMP_SIMD_AVX512)  // with maskz_ intrinsics: GCC 12 warns of uninitialised variables
                                 // in the plain ones
inline constexpr __mmask16 kAll16 = 0xffff;
template <class V>
inline __m256i lower_half(V x) {
  const __m512i v = std::bit_cast<__m512i>(x);
  return std::bit_cast<__m256i>(__builtin_shufflevector(v, v, 0, 1, 2, 3));
}
template <class V>
inline __m256i upper_half(V x) {
  const __m512i v = std::bit_cast<__m512i>(x);
  return std::bit_cast<__m256i>(__builtin_shufflevector(v, v, 4, 5, 6, 7));
}
template <class V>
inline V join_halves(__m256i a, __m256i b) {
  return std::bit_cast<V>(__builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7));
}
#endif

// ---- widening: one vector to two of lanes twice as wide, in order; the value lands in the upper
// half of its lane
struct U16Pair {
  U16 a, b;
};
struct U32Pair {
  U32 a, b;
};
inline U16Pair widen_up(U8 x) {  // byte << 8
#if defined(FP8AMP_SIMD_AVX512)
  return {std::bit_cast<U16>(_mm512_maskz_cvtepu8_epi16(~__mmask32{}, lower_half(x))) << 8,
          std::bit_cast<U16>(_mm512_maskz_cvtepu8_epi16(~__mmask32{}, upper_half(x))) << 8};
#elif defined(FP8AMP_SIMD_AVX2)
  const __m256i v = _mm256_permute4x64_epi64(std::bit_cast<__m256i>(x), 0xd8),
                zero = _mm256_setzero_si256();
  return {std::bit_cast<U16>(_mm256_unpacklo_epi8(zero, v)),
          std::bit_cast<U16>(_mm256_unpackhi_epi8(zero, v))};
#else
  using Index = std::make_integer_sequence<int, kBytes>;
  return {std::bit_cast<U16>(zip<U8, 0>(U8{}, x, Index{})),
          std::bit_cast<U16>(zip<U8, kBytes / 2>(U8{}, x, Index{}))};
#endif
}
inline U32Pair widen_up(U16 x) {  // half-word << 16
#if defined(FP8AMP_SIMD_AVX512)
  return {std::bit_cast<U32>(_mm512_maskz_cvtepu16_epi32(kAll16, lower_half(x))) << 16,
          std::bit_cast<U32>(_mm512_maskz_cvtepu16_epi32(kAll16, upper_half(x))) << 16};
#elif defined(FP8AMP_SIMD_AVX2)
  const __m256i v = _mm256_permute4x64_epi64(std::bit_cast<__m256i>(x), 0xd8),
                zero = _mm256_setzero_si256();
  return {std::bit_cast<U32>(_mm256_unpacklo_epi16(zero, v)),
          std::bit_cast<U32>(_mm256_unpackhi_epi16(zero, v))};
#else
  using Index = std::make_integer_sequence<int, kBytes / 2>;
  return {std::bit_cast<U32>(zip<U16, 0>(U16{}, x, Index{})),
          std::bit_cast<U32>(zip<U16, kBytes / 4>(U16{}, x, Index{}))};
#endif
}

// The lower and the upper half of the lanes, exact.
inline F64 lower_doubles(F32 x) {
#if defined(FP8AMP_SIMD_AVX512)
  return std::bit_cast<F64>(_mm512_maskz_cvtps_pd(0xff, std::bit_cast<__m256>(lower_half(x))));
#elif defined(FP8AMP_SIMD_AVX2)
  return std::bit_cast<F64>(_mm256_cvtps_pd(_mm256_castps256_ps128(std::bit_cast<__m256>(x))));
#else
  return __builtin_convertvector(half_of<0>(x, std::make_integer_sequence<int, kLanes / 2>{}), F64);
#endif
}
inline F64 upper_doubles(F32 x) {
#if defined(FP8AMP_SIMD_AVX512)
  return std::bit_cast<F64>(_mm512_maskz_cvtps_pd(0xff, std::bit_cast<__m256>(upper_half(x))));
#elif defined(FP8AMP_SIMD_AVX2)
  return std::bit_cast<F64>(_mm256_cvtps_pd(_mm256_extractf128_ps(std::bit_cast<__m256>(x), 1)));
#else
  return __builtin_convertvector(
      half_of<kLanes / 2>(x, std::make_integer_sequence<int, kLanes / 2>{}), F64);
#endif
}

// ---- narrowing, in order; every lane must hold a value that fits
inline U16 narrow(U32 a, U32 b) {
#if defined(FP8AMP_SIMD_AVX512)
  return join_halves<U16>(_mm512_maskz_cvtepi32_epi16(kAll16, std::bit_cast<__m512i>(a)),
                          _mm512_maskz_cvtepi32_epi16(kAll16, std::bit_cast<__m512i>(b)));
#elif defined(FP8AMP_SIMD_AVX2)
  const __m256i r = _mm256_packus_epi32(std::bit_cast<__m256i>(a), std::bit_cast<__m256i>(b));
  return std::bit_cast<U16>(_mm256_permute4x64_epi64(r, 0xd8));
#elif defined(__SSE4_2__) && FP8AMP_SIMD_BYTES == 16
  return std::bit_cast<U16>(_mm_packus_epi32(std::bit_cast<__m128i>(a), std::bit_cast<__m128i>(b)));
#else
  return even_of(std::bit_cast<U16>(a), std::bit_cast<U16>(b),
                 std::make_integer_sequence<int, kBytes / 2>{});
#endif
}
inline U8 narrow(U16 a, U16 b) {
#if defined(FP8AMP_SIMD_AVX512)
  return join_halves<U8>(_mm512_maskz_cvtepi16_epi8(~__mmask32{}, std::bit_cast<__m512i>(a)),
                         _mm512_maskz_cvtepi16_epi8(~__mmask32{}, std::bit_cast<__m512i>(b)));
#elif defined(FP8AMP_SIMD_AVX2)
  const __m256i r = _mm256_packus_epi16(std::bit_cast<__m256i>(a), std::bit_cast<__m256i>(b));
  return std::bit_cast<U8>(_mm256_permute4x64_epi64(r, 0xd8));
#elif defined(__SSE4_2__) && FP8AMP_SIMD_BYTES == 16
  return std::bit_cast<U8>(_mm_packus_epi16(std::bit_cast<__m128i>(a), std::bit_cast<__m128i>(b)));
#else
  return even_of(std::bit_cast<U8>(a), std::bit_cast<U8>(b),
                 std::make_integer_sequence<int, kBytes>{});
#endif
}
inline U8 narrow(U32 a, U32 b, U32 c, U32 d) {
#if defined(FP8AMP_SIMD_AVX2)  // one lane-crossing permutation instead of three
  const __m256i lo = _mm256_packus_epi32(std::bit_cast<__m256i>(a), std::bit_cast<__m256i>(b));
  const __m256i hi = _mm256_packus_epi32(std::bit_cast<__m256i>(c), std::bit_cast<__m256i>(d));
  return std::bit_cast<U8>(_mm256_permutevar8x32_epi32(_mm256_packus_epi16(lo, hi),
                                                       _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
#else
  return narrow(narrow(a, b), narrow(c, d));
#endif
}

}  // namespace fp8amp::kernels::cpu::FP8AMP_ISA
