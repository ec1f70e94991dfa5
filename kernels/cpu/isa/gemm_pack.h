// Packing of FP8 operands for the GEMM: decodes to FP32 and lays a block out in panels of R rows,
// k-major, as the micro-kernel reads it. The strides of an operand decide which reader runs, so a
// transposed one costs nothing extra. Only codes of the block itself are read.
#pragma once
#include <cstdint>
#include <cstring>

#include "fp8amp/numerics/convert.h"
#include "kernels/cpu/isa/loops.h"
#if defined(__F16C__) && defined(__AVX2__)
#include <immintrin.h>
#define FP8AMP_GEMM_F16C 1
#endif

namespace fp8amp::kernels::cpu::FP8AMP_ISA {

// An operand seen as rows (m or n) by k: code (r, k) is at codes[r * row + k * k_stride], one of
// the strides being 1.
struct Operand {
  const std::uint8_t* codes;
  std::int64_t row, k_stride;
  bool e5m2;
};

// Floats that packing may write past the last panel.
inline constexpr std::int64_t kPackSlack = 16;

// The FP32 value of each code.
template <class F>
struct DecodeTable {
  float value[256];
  DecodeTable() {
    for (int code = 0; code < 256; ++code)
      value[code] = numerics::decode<F>(static_cast<std::uint8_t>(code));
  }
};
template <class F>
const float* decode_table() {
  static const DecodeTable<F> table;
  return table.value;
}

#ifdef FP8AMP_GEMM_F16C

// 16 codes -> FP32. E5M2 is the top byte of FP16. E4M3 goes to the FP16 of value / 256; times 256
// is exact in FP32. F16C heeds no denormals-are-zero mode: subnormal codes keep their value
// whatever the caller has set.
template <class F>
inline void decode16(__m128i codes, __m256& low, __m256& high) {
  __m256i h = _mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 8);
  if constexpr (F::kMantissaBits == 3) {
    h = _mm256_and_si256(_mm256_srai_epi16(h, 1), _mm256_set1_epi16(static_cast<short>(0xbfff)));
    const __m256i magnitude = _mm256_and_si256(h, _mm256_set1_epi16(0x7fff));
    const __m256i nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x3f80));
    h = _mm256_or_si256(h, _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00)));
  }
  low = _mm256_cvtph_ps(_mm256_castsi256_si128(h));
  high = _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1));
  if constexpr (F::kMantissaBits == 3) {
    low = _mm256_mul_ps(low, _mm256_set1_ps(256.0f));
    high = _mm256_mul_ps(high, _mm256_set1_ps(256.0f));
  }
}

inline __m128i load16(const std::uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

inline __m128i load8(const std::uint8_t* p) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}

// Rows of 16 codes -> the same codes column after column: log2(Rows) rounds of interleaves.
template <int Rows>
inline void transpose_codes(__m128i (&v)[Rows]) {
  for (int round = 1; round < Rows; round *= 2) {
    __m128i w[Rows];
    for (int i = 0; i < Rows / 2; ++i) {
      w[2 * i] = _mm_unpacklo_epi8(v[i], v[i + Rows / 2]);
      w[2 * i + 1] = _mm_unpackhi_epi8(v[i], v[i + Rows / 2]);
    }
    for (int i = 0; i < Rows; ++i) v[i] = w[i];
  }
}

// k contiguous: Rows (8 or 16) rows by 16 k into a panel of R. Where R < Rows, the surplus lanes of
// each k are overwritten by the next one, those of the last by the next panel.
template <int R, int Rows, class F>
inline void pack_square(const std::uint8_t* p, std::int64_t row, std::int64_t rows, float* out) {
  __m128i v[Rows];
  for (int r = 0; r < Rows; ++r)
    v[r] = r < R && r < rows ? load16(p + r * row) : _mm_setzero_si128();
  transpose_codes<Rows>(v);
  for (int j = 0; j < Rows; ++j) {
    __m256 low, high;
    decode16<F>(v[j], low, high);
    float* low_out = Rows == 8 ? out + 2 * j * R : out + j * R;
    float* high_out = Rows == 8 ? out + (2 * j + 1) * R : out + j * R + 8;
    _mm256_storeu_ps(low_out, low);
    _mm256_storeu_ps(high_out, high);
  }
}

// As many k as vectors can do; returns how many that were. `rows` left in the block, from this
// panel's first on.
template <int R, class F>
std::int64_t pack_with_vectors(const std::uint8_t* p, std::int64_t row, std::int64_t k_stride,
                               std::int64_t rows, std::int64_t kc, float* out) {
  constexpr int kGroup = R <= 8 ? 8 : 16;
  static_assert(R <= kGroup || R % kGroup == 0);
  if (k_stride == 1) {
    if (kc < 16) return 0;
    for (std::int64_t k = 0;; k = k + 32 <= kc ? k + 16 : kc - 16) {  // the last square overlaps
      for (int r = 0; r < R; r += kGroup)
        pack_square<R, kGroup, F>(p + r * row + k, row, rows - r, out + k * R + r);
      if (k + 16 == kc) return kc;
    }
  }
  if constexpr (R <= 8) {
    if (rows < 8) return 0;
    for (std::int64_t k = 0; k + 2 <= kc; k += 2) {
      const __m128i even = load8(p + k * k_stride), odd = load8(p + (k + 1) * k_stride);
      __m256 low, high;
      decode16<F>(_mm_unpacklo_epi64(even, odd), low, high);
      _mm256_storeu_ps(out + k * R, low);
      _mm256_storeu_ps(out + (k + 1) * R, high);
    }
    return kc / 2 * 2;
  }
  if (rows < (R + 15) / 16 * 16) return 0;
  for (std::int64_t k = 0; k < kc; ++k)
    for (int r = 0; r < R; r += 16) {
      __m256 low, high;
      decode16<F>(load16(p + k * k_stride + r), low, high);
      _mm256_storeu_ps(out + k * R + r, low);
      _mm256_storeu_ps(out + k * R + r + 8, high);
    }
  return kc;
}

#else

template <int R, class F>
std::int64_t pack_with_vectors(const std::uint8_t*, std::int64_t, std::int64_t, std::int64_t,
                               std::int64_t, float*) {
  return 0;
}

#endif

// out[k * R + r]; rows past `rows` become zero.
template <int R, class F>
void pack_panel(const std::uint8_t* p, std::int64_t row, std::int64_t k_stride, std::int64_t rows,
                std::int64_t kc, float* out) {
  const float* table = decode_table<F>();
  const int valid = rows < R ? static_cast<int>(rows) : R;
  for (std::int64_t k = pack_with_vectors<R, F>(p, row, k_stride, rows, kc, out); k < kc; ++k) {
    for (int r = 0; r < valid; ++r) out[k * R + r] = table[p[r * row + k * k_stride]];
    for (int r = valid; r < R; ++r) out[k * R + r] = 0.0f;
  }
}

// Rows [r0, r1) by k [k0, k0 + kc) in panels of R rows, one after the other.
template <int R>
void pack(const Operand& x, std::int64_t r0, std::int64_t r1, std::int64_t k0, std::int64_t kc,
          float* out) {
  for (std::int64_t r = r0; r < r1; r += R, out += R * kc) {
    const std::uint8_t* p = x.codes + r * x.row + k0 * x.k_stride;
    if (x.k_stride == 1)  // short pieces of rows, which no prefetcher foresees: 2 %
      for (std::int64_t i = r + R; i < r + 2 * R && i < r1; ++i)
        for (std::int64_t k = 0; k < kc; k += 64) __builtin_prefetch(p + (i - r) * x.row + k);
    if (x.e5m2)
      pack_panel<R, numerics::E5M2>(p, x.row, x.k_stride, r1 - r, kc, out);
    else
      pack_panel<R, numerics::E4M3>(p, x.row, x.k_stride, r1 - r, kc, out);
  }
}

}  // namespace fp8amp::kernels::cpu::FP8AMP_ISA
