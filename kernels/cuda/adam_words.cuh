// Adam's tensors as the words they are stored in: pairs of elements out of them, and four new
// values at a time back into them, rounded as numerics::encode does.
#pragma once
#include <type_traits>

#include "kernels/cuda/vectors.cuh"

namespace fp8amp::kernels::cuda {

// ---- words of 16 elements, and pairs of elements in them
template <DType T>
struct Words {
  static constexpr int kCount = kVector * static_cast<int>(size_in_bytes(T)) / 4;
  std::uint32_t w[kCount];

  __device__ __forceinline__ void load(const void* x, std::int64_t i) {
    const uint4* p = static_cast<const uint4*>(x) + i * (kCount / 4);
#pragma unroll
    for (int k = 0; k < kCount / 4; ++k) {
      const uint4 q = p[k];
      w[4 * k] = q.x, w[4 * k + 1] = q.y, w[4 * k + 2] = q.z, w[4 * k + 3] = q.w;
    }
  }
  __device__ __forceinline__ void store(void* x, std::int64_t i) const {
    uint4* p = static_cast<uint4*>(x) + i * (kCount / 4);
#pragma unroll
    for (int k = 0; k < kCount / 4; ++k)
      p[k] = make_uint4(w[4 * k], w[4 * k + 1], w[4 * k + 2], w[4 * k + 3]);
  }
  // elements 2 k and 2 k + 1
  __device__ __forceinline__ float2 pair(int k) const {
    if constexpr (T == DType::kFloat32) {
      return {__uint_as_float(w[2 * k]), __uint_as_float(w[2 * k + 1])};
    } else if constexpr (T == DType::kFloat16) {
      float v[2];
      halves_to_floats(w[k], v);
      return {v[0], v[1]};
    } else {
      return codes_to_pair<E4M3>(w[k / 2] >> 16 * (k % 2));
    }
  }
  // FP16: two codes; FP8: two codes in the lower half
  __device__ __forceinline__ void set_codes(int k, std::uint32_t codes) {
    if constexpr (T == DType::kFloat16)
      w[k] = codes;
    else
      w[k / 2] = __byte_perm(w[k / 2], codes, k % 2 == 0 ? 0x3254 : 0x5410);
  }
  __device__ __forceinline__ void set_floats(int k, float a, float b) {
    w[2 * k] = __float_as_uint(a), w[2 * k + 1] = __float_as_uint(b);
  }
};

// ---- values to their stored form
template <DType T>
using FormatOf = std::conditional_t<T == DType::kE4M3, E4M3, Fp16>;

// What a tensor's elements are stored with.
struct Storing {
  float scale;
  Rounding rounding;
  RandomVector random;
  numerics::Draw draw;
};

// Four values at a time: elements 2 k and 2 k + 1, then those 8 behind them. Their codes are made
// from sums (stochastic) or magnitudes (nearest), of which `high` keeps the largest. Where one of
// the four is out of range, NaN, or a second moment whose code may be 0, each is encoded for
// itself, and `max` keeps the largest code.
template <DType T, bool kSecondMoment>
__device__ __forceinline__ void store_four(Words<T>& out, int k, const float (&value)[4],
                                           const Storing& s, std::uint32_t& high,
                                           std::uint32_t& max) {
  using namespace numerics;
  if constexpr (T == DType::kFloat32) {
    out.set_floats(k, value[0], value[1]), out.set_floats(k + 4, value[2], value[3]);
#pragma unroll
    for (float v : value) max = max_bits(max, magnitude(v));
  } else {
    using F = FormatOf<T>;
    using Stochastic = StochasticSum<F>;
    const bool stochastic = s.rounding == Rounding::kStochastic;
    std::uint32_t random[4] = {}, x[4], codes[4];
    float y[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      y[j] = value[j] * s.scale;
      if (stochastic) random[j] = RandomVector::bits(s.random.word(2 * k + j % 2, s.draw), j / 2);
      x[j] = stochastic ? Stochastic::of(y[j], random[j]) : magnitude(y[j]);
    }
    const std::uint32_t most = max_bits(max_bits(x[0], x[1]), max_bits(x[2], x[3]));
    bool each = most > (stochastic ? Stochastic::kLimit : float_bits(F::kMax));
    if constexpr (kSecondMoment)
      each |= min(min(x[0], x[1]), min(x[2], x[3])) <
              (stochastic ? 1u << Stochastic::kShift : float_bits(decode<F>(1)));
    if (each) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        codes[j] = encode_any<F>(y[j], s.rounding, random[j]);
        if (kSecondMoment && codes[j] == 0 && value[j] > 0.0f) codes[j] = 1;
        max = max_bits(max, codes[j] & (F::kSign - 1));
      }
      constexpr int kBits = 8 * static_cast<int>(sizeof(typename F::Bits));
      codes[0] |= codes[1] << kBits, codes[2] |= codes[3] << kBits;
    } else {
      codes[0] = stochastic ? stochastic_codes<F>(x[0], y[0], x[1], y[1])
                            : nearest_codes<F, true>(y[0], y[1]);
      codes[2] = stochastic ? stochastic_codes<F>(x[2], y[2], x[3], y[3])
                            : nearest_codes<F, true>(y[2], y[3]);
      high = max_bits(high, most);
    }
    out.set_codes(k, codes[0]), out.set_codes(k + 4, codes[2]);
  }
}
// The largest code of what store_four has kept.
template <DType T>
__device__ __forceinline__ std::uint32_t largest_code(std::uint32_t high, std::uint32_t max,
                                                      Rounding rounding) {
  if constexpr (T == DType::kFloat32) {
    return max;
  } else {
    using F = FormatOf<T>;
    const std::uint32_t code = rounding == Rounding::kStochastic
                                   ? high >> StochasticSum<F>::kShift
                                   : nearest_codes<F, true>(__uint_as_float(high), 0.0f);
    return numerics::max_bits(max, code);
  }
}

}  // namespace fp8amp::kernels::cuda
