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

// ---- words to FP32
__device__ __forceinline__ void halves_to_floats(std::uint32_t word, float* v) {
  __half2_raw h;
  h.x = static_cast<unsigned short>(word);
  h.y = static_cast<unsigned short>(word >> 16);
  const float2 f = __half22float2(__half2(h));
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

// Vector `i` of x, which is 16-byte aligned.
template <DType T>
__device__ __forceinline__ Vector load_vector(const void* x, std::int64_t i) {
  constexpr int kWords = kVector * static_cast<int>(size_in_bytes(T)) / 16;  // of 16 bytes
  const uint4* p = static_cast<const uint4*>(x) + i * kWords;
  Vector r;
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    const uint4 q = __ldg(p + k);
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
// Random bits of the elements of vector `i`.
struct RandomVector {
  std::uint32_t word[8];
  __device__ __forceinline__ RandomVector(std::uint32_t key, std::uint64_t i) {
#pragma unroll
    for (int k = 0; k < 8; ++k) word[k] = numerics::random_word(key, i * 8 + k);
  }
  __device__ __forceinline__ std::uint32_t bits(int element) const {
    return element < 8 ? word[element] & 0xfffffu : word[element - 8] >> 12;
  }
};

template <class F>
__device__ __forceinline__ std::uint32_t nearest_codes(float a, float b) {
  if constexpr (sizeof(typename F::Bits) == 1) {
    constexpr __nv_fp8_interpretation_t kFormat = F::kBias == 7 ? __NV_E4M3 : __NV_E5M2;
    return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, kFormat);
  } else {
    const auto saturate = [](float x) {
      return fabsf(x) > Fp16::kMax ? copysignf(Fp16::kMax, x) : x;
    };
    const __half2_raw h = __floats2half2_rn(saturate(a), saturate(b));
    return std::uint32_t(h.x) | std::uint32_t(h.y) << 16;
  }
}

// y's codes as words: four codes a word for FP8, two for FP16. `y` is scaled already.
template <class F>
struct CodeWords {
  static constexpr int kPerWord = 4 / static_cast<int>(sizeof(typename F::Bits));
  std::uint32_t w[kVector / kPerWord];
};
template <class F, Rounding R>
__device__ __forceinline__ CodeWords<F> encode_vector(const Vector& y, const RandomVector* random) {
  constexpr int kBits = 8 * static_cast<int>(sizeof(typename F::Bits)), kPerWord = 32 / kBits;
  CodeWords<F> r;
#pragma unroll
  for (int i = 0; i < kVector / kPerWord; ++i) {
    std::uint32_t word = 0;
    if constexpr (R == Rounding::kNearest) {
#pragma unroll
      for (int j = 0; j < kPerWord; j += 2)
        word |= nearest_codes<F>(y.v[i * kPerWord + j], y.v[i * kPerWord + j + 1]) << kBits * j;
    } else {
#pragma unroll
      for (int j = 0; j < kPerWord; ++j)
        word |= std::uint32_t(numerics::encode<F>(y.v[i * kPerWord + j], R, Overflow::kSaturate,
                                                  random->bits(i * kPerWord + j)))
                << kBits * j;
    }
    r.w[i] = word;
  }
  return r;
}

template <class F>
__device__ __forceinline__ void store_codes(void* y, std::int64_t i, const CodeWords<F>& c) {
  constexpr int kWords = kVector * static_cast<int>(sizeof(typename F::Bits)) / 16;
  uint4* p = static_cast<uint4*>(y) + i * kWords;
#pragma unroll
  for (int k = 0; k < kWords; ++k)
    p[k] = make_uint4(c.w[4 * k], c.w[4 * k + 1], c.w[4 * k + 2], c.w[4 * k + 3]);
}

// Plain FP32, FP16 or BF16: nearest even, Inf stays Inf, NaN as in numerics/convert.h.
template <DType T>
__device__ __forceinline__ void store_vector(void* y, std::int64_t i, const Vector& a) {
  constexpr int kWords = kVector * static_cast<int>(size_in_bytes(T)) / 16;
  uint4* p = static_cast<uint4*>(y) + i * kWords;
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    std::uint32_t w[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (T == DType::kFloat32) {
        w[j] = __float_as_uint(a.v[4 * k + j]);
      } else {
        const float lo = a.v[8 * k + 2 * j], hi = a.v[8 * k + 2 * j + 1];
        if constexpr (T == DType::kFloat16)
          w[j] = numerics::float_to_half(lo) | std::uint32_t(numerics::float_to_half(hi)) << 16;
        else
          w[j] = numerics::float_to_bfloat16(lo) | std::uint32_t(numerics::float_to_bfloat16(hi))
                                                       << 16;
      }
    }
    p[k] = make_uint4(w[0], w[1], w[2], w[3]);
  }
}

}  // namespace fp8amp::kernels::cuda
