// Vectors of 16 elements, the unit that one thread works on: 16-byte loads of every dtype to FP32,
// 16-byte stores of codes, conversions two at a time by the hardware.
//
// The packed conversions (cvt.rn.satfinite on 8.9 and later, cuda_fp8.h's bit arithmetic before)
// give the codes of numerics::encode for every input; what differs by policy is mended before they
// see it. The random words of numerics/random.h come eight for a vector.
#pragma once
#include <fp8amp/dtype.h>
#include <fp8amp/numerics/convert.h>
#include <fp8amp/numerics/random.h>
#include <fp8amp/numerics/scale.h>

#include <bit>
#include <cstring>

#include "kernels/cuda/portable.cuh"

namespace fp8amp::kernels::cuda {

using numerics::E4M3;
using numerics::E5M2;
using numerics::Fp16;

inline constexpr int kVector = 16;
inline constexpr int kThreads = 256;  // of a block

struct Vector {
  float v[kVector];
};

template <class... Pointers>
__host__ __device__ __forceinline__ bool aligned_to_16(Pointers... p) {
  return ((reinterpret_cast<std::uintptr_t>(p) % 16 == 0) && ...);
}

__device__ __forceinline__ std::uint32_t magnitude(float x) {
  return __float_as_uint(x) & 0x7fffffffu;
}
// For bits of |x|: NaN > Inf > finite.
__device__ __forceinline__ std::uint32_t largest_magnitude(const Vector& a) {
  std::uint32_t max = 0;
#pragma unroll
  for (int i = 0; i < kVector; ++i) max = numerics::max_bits(max, magnitude(a.v[i]));
  return max;
}

// __half2 and its bits; it is no trivially copyable type.
__device__ __forceinline__ __half2 word_to_half2(std::uint32_t word) {
  __half2 h;
  std::memcpy(static_cast<void*>(&h), &word, sizeof h);
  return h;
}
__device__ __forceinline__ std::uint32_t half2_to_word(__half2 h) {
  std::uint32_t word;
  std::memcpy(&word, &h, sizeof h);
  return word;
}

// ---- words to FP32
__device__ __forceinline__ void halves_to_floats(std::uint32_t word, float* v) {
  const float2 f = __half22float2(word_to_half2(word));
  v[0] = f.x;
  v[1] = f.y;
}
__device__ __forceinline__ void bfloats_to_floats(std::uint32_t word, float* v) {
  v[0] = __uint_as_float(word << 16);
  v[1] = __uint_as_float(word & 0xffff0000u);
}
template <class F>
__device__ __forceinline__ float2 codes_to_pair(std::uint32_t low_half) {
  constexpr __nv_fp8_interpretation_t kFormat = F::kBias == 7 ? __NV_E4M3 : __NV_E5M2;
  const __half2_raw h =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(low_half), kFormat);
  return __half22float2(__half2(h));
}
template <class F>
__device__ __forceinline__ void codes_to_floats(std::uint32_t word, float* v) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float2 f = codes_to_pair<F>(word >> 16 * i);
    v[2 * i] = f.x;
    v[2 * i + 1] = f.y;
  }
}

// Vector `i` of x, which is 16-byte aligned. kReadOnly: nothing writes x while the kernel runs.
template <DType T, bool kReadOnly = true>
__device__ __forceinline__ Vector load_vector(const void* x, std::int64_t i) {
  constexpr int kWords = kVector * static_cast<int>(size_in_bytes(T)) / 16;  // of 16 bytes
  const uint4* p = static_cast<const uint4*>(x) + i * kWords;
  Vector r;
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    const uint4 q = kReadOnly ? __ldg(p + k) : p[k];
    const std::uint32_t w[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (T == DType::kFloat32) r.v[4 * k + j] = __uint_as_float(w[j]);
      if constexpr (T == DType::kFloat16) halves_to_floats(w[j], r.v + 8 * k + 2 * j);
      if constexpr (T == DType::kBFloat16) bfloats_to_floats(w[j], r.v + 8 * k + 2 * j);
      if constexpr (T == DType::kE4M3) codes_to_floats<E4M3>(w[j], r.v + 4 * j);
      if constexpr (T == DType::kE5M2) codes_to_floats<E5M2>(w[j], r.v + 4 * j);
    }
  }
  return r;
}

// ---- FP32 to codes
// Random words of the elements of vector `i`: those of numerics::random_word, with what they share
// worked out once. Elements k and k + 8 take the low and the high 20 bits of word k.
struct RandomVector {
  std::uint32_t start;
  __device__ __forceinline__ RandomVector(std::uint32_t key, std::uint64_t i)
      : start(std::uint32_t(8 * i) ^ numerics::mix(key ^ std::uint32_t(8 * i >> 32))) {}
  __device__ __forceinline__ std::uint32_t word(
      std::uint32_t k, numerics::Draw draw = numerics::Draw::kFirst) const {
    const std::uint32_t w = numerics::mix(start ^ k);
    return draw == numerics::Draw::kSecond ? numerics::second_word(w) : w;
  }
  static __device__ __forceinline__ std::uint32_t bits(std::uint32_t word, bool high) {
    return high ? word >> 12 : word & 0xfffffu;
  }
};

// Two codes: in the word, those of FP8 in its lower half. kInRange: no |y| is above F::kMax, or
// NaN.
template <class F, bool kInRange = false>
__device__ __forceinline__ std::uint32_t nearest_codes(float a, float b) {
  if constexpr (sizeof(typename F::Bits) == 1) {
    constexpr __nv_fp8_interpretation_t kFormat = F::kBias == 7 ? __NV_E4M3 : __NV_E5M2;
    return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, kFormat);
  } else {
    const auto saturate = [](float x) {
      return !kInRange && fabsf(x) > Fp16::kMax ? copysignf(Fp16::kMax, x) : x;
    };
    return half2_to_word(__floats2half2_rn(saturate(a), saturate(b)));
  }
}

// Stochastic rounding of |y| as a sum whose bits from kShift on are the code, if that is no more
// than F::kMaxCode: times 2^(bias - 127), F's exponent field stands in FP32's and F's subnormals
// are FP32's, rounded where numerics::encode rounds them. For a larger |y|, Inf and NaN the code of
// the sum is larger too, or kMaxCode.
template <class F>
struct StochasticSum {
  static constexpr int kShift = 23 - F::kMantissaBits;
  static constexpr std::uint32_t kLimit = ((std::uint32_t(F::kMaxCode) + 1) << kShift) - 1;
  static __device__ __forceinline__ std::uint32_t of(float y, std::uint32_t random) {
    constexpr int kBits = numerics::kRandomBits;
    constexpr float kRebias = std::bit_cast<float>(std::uint32_t(F::kBias) << 23);
    const std::uint32_t aligned =
        kShift > kBits ? random << (kShift - kBits) : random >> (kBits - kShift);
    return __float_as_uint(fabsf(y) * kRebias) + aligned;
  }
  // The code in the upper bits of a word, with the sign of y.
  static __device__ __forceinline__ std::uint32_t upper(std::uint32_t sum, float y) {
    constexpr int kUp = 32 - 8 * static_cast<int>(sizeof(typename F::Bits)) - kShift;
    return sum << kUp | (__float_as_uint(y) & 0x80000000u);
  }
};
// Two such codes: in the word, those of FP8 in its lower half.
template <class F>
__device__ __forceinline__ std::uint32_t stochastic_codes(std::uint32_t sum_a, float a,
                                                          std::uint32_t sum_b, float b) {
  return __byte_perm(StochasticSum<F>::upper(sum_a, a), StochasticSum<F>::upper(sum_b, b),
                     sizeof(typename F::Bits) == 1 ? 0x4473 : 0x7632);
}

// Any y. Not inlined: where it is called is out of the way of what the processor fetches.
template <class F>
__device__ __noinline__ std::uint32_t encode_any(float y, Rounding rounding, std::uint32_t random) {
  return numerics::encode<F>(y, rounding, Overflow::kSaturate, random);
}

// y's codes as words: four codes a word for FP8, two for FP16. `y` is scaled already.
template <class F>
struct CodeWords {
  static constexpr int kPerWord = 4 / static_cast<int>(sizeof(typename F::Bits));
  std::uint32_t w[kVector / kPerWord];

  // codes of elements 2 k and 2 k + 1
  __device__ __forceinline__ void set_pair(int k, std::uint32_t codes) {
    if constexpr (kPerWord == 2)
      w[k] = codes;
    else
      w[k / 2] = k % 2 == 0 ? codes : __byte_perm(w[k / 2], codes, 0x5410);
  }
};
// codes(a, random_a, b, random_b) for every two elements.
template <class F, class Codes>
__device__ __forceinline__ CodeWords<F> encode_pairs(const Vector& y, const RandomVector& random,
                                                     const Codes& codes) {
  CodeWords<F> r;
#pragma unroll
  for (int k = 0; k < kVector / 4; ++k) {
    const std::uint32_t a = random.word(2 * k), b = random.word(2 * k + 1);
    r.set_pair(k, codes(y.v[2 * k], RandomVector::bits(a, false), y.v[2 * k + 1],
                        RandomVector::bits(b, false)));
    r.set_pair(k + 4, codes(y.v[2 * k + 8], RandomVector::bits(a, true), y.v[2 * k + 9],
                            RandomVector::bits(b, true)));
  }
  return r;
}
// `random` and `in_range` are read for Rounding::kStochastic only. in_range: no |y| is above
// F::kMax, and none is NaN.
template <class F, Rounding R>
__device__ __forceinline__ CodeWords<F> encode_vector(const Vector& y, const RandomVector* random,
                                                      bool in_range = false) {
  using Stochastic = StochasticSum<F>;
  if constexpr (R == Rounding::kNearest) {
    CodeWords<F> r;
#pragma unroll
    for (int k = 0; k < kVector / 2; ++k)
      r.set_pair(k, nearest_codes<F>(y.v[2 * k], y.v[2 * k + 1]));
    return r;
  } else if (in_range) {
    return encode_pairs<F>(y, *random, [](float a, std::uint32_t ra, float b, std::uint32_t rb) {
      return stochastic_codes<F>(Stochastic::of(a, ra), a, Stochastic::of(b, rb), b);
    });
  } else {
    return encode_pairs<F>(y, *random, [](float a, std::uint32_t ra, float b, std::uint32_t rb) {
      constexpr int kBits = 8 * static_cast<int>(sizeof(typename F::Bits));
      return encode_any<F>(a, R, ra) | encode_any<F>(b, R, rb) << kBits;
    });
  }
}

template <class F>
__device__ __forceinline__ void store_codes(void* y, std::int64_t i, const CodeWords<F>& c) {
  constexpr int kWords = kVector * static_cast<int>(sizeof(typename F::Bits)) / 16;
  uint4* p = static_cast<uint4*>(y) + i * kWords;
#pragma unroll
  for (int k = 0; k < kWords; ++k)
    p[k] = make_uint4(c.w[4 * k], c.w[4 * k + 1], c.w[4 * k + 2], c.w[4 * k + 3]);
}

__device__ inline __noinline__ std::uint32_t float_to_half_any(float x) {
  return numerics::float_to_half(x);
}

// word(k): elements of two bytes 2 k and 2 k + 1.
template <class Word>
__device__ __forceinline__ void store_words(void* y, std::int64_t i, const Word& word) {
  uint4* p = static_cast<uint4*>(y) + 2 * i;
#pragma unroll
  for (int k = 0; k < 8; k += 4)
    p[k / 4] = make_uint4(word(k), word(k + 1), word(k + 2), word(k + 3));
}

// Plain FP32, FP16 or BF16: nearest even, Inf stays Inf, NaN as in numerics/convert.h.
template <DType T>
__device__ __forceinline__ void store_vector(void* y, std::int64_t i, const Vector& a) {
  if constexpr (T == DType::kFloat32) {
    float4* p = static_cast<float4*>(y) + 4 * i;
#pragma unroll
    for (int k = 0; k < 4; ++k)
      p[k] = make_float4(a.v[4 * k], a.v[4 * k + 1], a.v[4 * k + 2], a.v[4 * k + 3]);
  } else if (T == DType::kFloat16 && largest_magnitude(a) <= numerics::kInfBits) {
    store_words(y, i, [&](int k) {  // the hardware's conversion, which knows but one NaN
      return half2_to_word(__floats2half2_rn(a.v[2 * k], a.v[2 * k + 1]));
    });
  } else {
    const auto narrow = [](float x) -> std::uint32_t {
      return T == DType::kFloat16 ? float_to_half_any(x) : numerics::float_to_bfloat16(x);
    };
    store_words(y, i, [&](int k) { return narrow(a.v[2 * k]) | narrow(a.v[2 * k + 1]) << 16; });
  }
}

}  // namespace fp8amp::kernels::cuda
