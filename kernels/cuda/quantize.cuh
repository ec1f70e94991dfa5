// Kernels of the casts. A thread takes a vector of 16 elements a turn; what is left over, and
// tensors that are not 16-byte aligned, go element by element.
#pragma once
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/scale.cuh"
#include "kernels/cuda/vectors.cuh"
#include "kernels/element.h"

namespace fp8amp::kernels::cuda {

// A tensor to be read as FP32: its values times *scale_inv.
struct Input {
  const void* x;
  const float* scale_inv;  // may be null: 1
  std::int64_t n,
      vectors;  // vectors: n / 16, or 0 if any tensor of the cast is not 16-byte aligned

  __device__ __forceinline__ float factor() const { return scale_inv ? *scale_inv : 1.0f; }
};

// Calls vector(i) for every vector and element(i) for every element behind them, each once, spread
// over the grid.
template <class OnVector, class OnElement>
__device__ __forceinline__ void for_each(const Input& a, const OnVector& vector,
                                         const OnElement& element) {
  const std::int64_t first = std::int64_t(blockIdx.x) * kThreads + threadIdx.x,
                     stride = std::int64_t(gridDim.x) * kThreads;
  for (std::int64_t i = first; i < a.vectors; i += stride) vector(i);
  for (std::int64_t i = a.vectors * kVector + first; i < a.n; i += stride) element(i);
}

__device__ __forceinline__ void scale_vector(Vector& a, float factor) {
#pragma unroll
  for (float& v : a.v) v = v * factor;
}

// ---- 16 elements from `first` on, of which `count` are inside; the others are 0
template <DType X>
__device__ __forceinline__ Vector load_16(const void* x, std::int64_t first, std::int64_t count,
                                          bool aligned) {
  if (aligned && count >= kVector) return load_vector<X>(x, first / kVector);
  Vector a;
#pragma unroll
  for (int i = 0; i < kVector; ++i) a.v[i] = i < count ? load_element(x, X, first + i) : 0.0f;
  return a;
}
__device__ __forceinline__ Vector load_floats_16(const float* x, std::int64_t first,
                                                 std::int64_t count, bool aligned) {
  return load_16<DType::kFloat32>(x, first, count, aligned);
}

template <DType X>
__device__ __forceinline__ void store_16_values(void* y, std::int64_t first, const Vector& a,
                                                std::int64_t count, bool aligned) {
  if (aligned && count >= kVector) return store_vector<X>(y, first / kVector, a);
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    if (i < count) store_element(y, X, first + i, a.v[i]);
}

// ---- amax: *amax = max(*amax, bits of max |x|); `choice` tells a cast that does not need it to
// skip
template <DType X>
__global__ void __launch_bounds__(kThreads)
    amax_kernel(const __grid_constant__ Input a, std::uint32_t* amax,
                const __grid_constant__ ScaleChoice choice) {
  if (!needs_amax(choice)) return;
  std::uint32_t max = 0;
  for_each(
      a,
      [&](std::int64_t i) {
        max = numerics::max_bits(max, largest_magnitude(load_vector<X>(a.x, i)));
      },
      [&](std::int64_t i) { max = numerics::max_bits(max, magnitude(load_element(a.x, X, i))); });
  max = block_max<kThreads>(max);
  // a positive factor and its rounding are monotonic: the maximum may take it last
  if (threadIdx.x == 0 && max != 0) atomicMax(amax, magnitude(__uint_as_float(max) * a.factor()));
}

// ---- quantize
struct QuantizeParams {
  Input in;
  void* y;
  ScaleChoice choice;
  Overflow overflow;
  std::uint32_t key;
  float* scale_inv;     // written by this kernel unless null
  std::uint32_t* amax;  // raised to the bits of max |x| unless null
  float* found_inf;     // may be null
};

// Inf becomes NaN where the policy says so: the conversions would saturate it.
__device__ __forceinline__ void apply_overflow(Vector& a, Overflow overflow) {
  if (overflow != Overflow::kNaN) return;
#pragma unroll
  for (float& v : a.v)
    if (magnitude(v) == numerics::kInfBits) v = __uint_as_float(0x7fffffffu);
}
// The same where largest_magnitude(a), or a bound of it, is known.
__device__ __forceinline__ void apply_overflow(Vector& a, std::uint32_t largest,
                                               Overflow overflow) {
  if (largest >= numerics::kInfBits) apply_overflow(a, overflow);
}

// An amax that the scale was chosen from is complete, and other blocks still read it.
__device__ __forceinline__ void publish_maximum(std::uint32_t max, const QuantizeParams& p) {
  max = block_max<kThreads>(max);
  if (threadIdx.x != 0) return;
  if (p.amax && max != 0 && !needs_amax(p.choice)) atomicMax(p.amax, max);
  if (p.found_inf && max >= numerics::kInfBits) raise_flag(p.found_inf);
}

// The end of every cast: scale_inv, amax and found_inf.
__device__ __forceinline__ void publish_cast(float scale, std::uint32_t max,
                                             const QuantizeParams& p) {
  if (p.scale_inv && blockIdx.x == 0 && threadIdx.x == 0)
    *p.scale_inv = numerics::inverse_scale(scale);
  if (p.amax || p.found_inf) publish_maximum(max, p);
}

template <DType X, class F, Rounding R>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(const __grid_constant__ QuantizeParams p) {
  const float scale = choose_scale_of_block(p.choice), factor = p.in.factor();
  std::uint32_t max = 0;
  for_each(
      p.in,
      [&](std::int64_t i) {
        Vector a = load_vector<X>(p.in.x, i);
        if (p.in.scale_inv) scale_vector(a, factor);
        const std::uint32_t largest = largest_magnitude(a);
        max = numerics::max_bits(max, largest);
        apply_overflow(a, largest, p.overflow);
        scale_vector(a, scale);
        if constexpr (R == Rounding::kStochastic) {
          const bool in_range = __uint_as_float(largest) * scale <= F::kMax;
          const RandomVector random(p.key, std::uint64_t(i));
          store_codes<F>(p.y, i, encode_vector<F, R>(a, &random, in_range));
        } else {
          store_codes<F>(p.y, i, encode_vector<F, R>(a, nullptr));
        }
      },
      [&](std::int64_t i) {
        const float value = load_element(p.in.x, X, i) * factor;
        max = numerics::max_bits(max, magnitude(value));
        const std::uint32_t random =
            R == Rounding::kStochastic ? numerics::random_bits(p.key, std::uint64_t(i)) : 0u;
        static_cast<typename F::Bits*>(p.y)[i] =
            numerics::quantize_element<F>(value, scale, R, p.overflow, random);
      });
  publish_cast(scale, max, p);
}

// ---- after a cast whose scale depends on what the cast itself replaces: the scale is chosen once
// more
struct FinishParams {
  ScaleChoice choice;
  float* history;     // kDelayed with an update, else null
  const float* amax;  // of this cast
  float* scale_inv;   // may be the memory of choice.amax
};
inline __global__ void finish_quantize_kernel(const __grid_constant__ FinishParams p) {
  const float scale = choose_scale(p.choice);
  if (p.history) {
    p.history[1] = scale;
    const float amax = *p.amax;
    if (numerics::is_finite(amax)) {
      for (std::int64_t i = p.choice.history_length - 1; i > 0; --i)
        p.history[2 + i] = p.history[1 + i];
      p.history[2] = amax;
      const float count = p.history[0] + 1.0f, most = float(p.choice.history_length);
      p.history[0] = count < most ? count : most;
    } else {  // dropped; the warm-up starts again
      p.history[0] = 0.0f;
    }
  }
  *p.scale_inv = numerics::inverse_scale(scale);
}

// ---- dequantize
template <DType X, DType Y>
__global__ void __launch_bounds__(kThreads)
    dequantize_kernel(const __grid_constant__ Input a, void* y) {
  const float factor = a.factor();
  for_each(
      a,
      [&](std::int64_t i) {
        Vector v = load_vector<X>(a.x, i);
        if (a.scale_inv) scale_vector(v, factor);
        store_vector<Y>(y, i, v);
      },
      [&](std::int64_t i) {
        const float v = load_element(a.x, X, i);
        store_element(y, Y, i, a.scale_inv ? v * factor : v);
      });
}

}  // namespace fp8amp::kernels::cuda
