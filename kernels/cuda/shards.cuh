// Sum of FP8 shards: a thread carries 16 sums in registers while it reads the shards one after
// another, in rank order. A first pass takes the maximum where the scale needs it.
#pragma once
#include <fp8amp/shards.h>

#include "kernels/cuda/quantize.cuh"
#include "kernels/shards.h"

namespace fp8amp::kernels::cuda {

struct ShardsParams {
  Shard shards[kMaxShards];
  int count;
  Input range;  // x and scale_inv unused
  float factor;
  void* y;
  ScaleChoice choice;
  float* scale_inv;
  std::uint32_t* amax;  // raised to the bits of max |value|, may be null
  float* found_inf;     // may be null
};
static_assert(sizeof(ShardsParams) <= 32764);

template <DType X>
__device__ __forceinline__ Vector sum_vector(const ShardsParams& p, std::int64_t i) {
  Vector sum = load_vector<X>(p.shards[0].x, i);
  scale_vector(sum, *p.shards[0].scale_inv);
#pragma unroll 4
  for (int s = 1; s < p.count; ++s) {
    const Vector x = load_vector<X>(p.shards[s].x, i);
    const float scale_inv = *p.shards[s].scale_inv;
#pragma unroll
    for (int k = 0; k < kVector; ++k) sum.v[k] = sum.v[k] + x.v[k] * scale_inv;
  }
  scale_vector(sum, p.factor);
  return sum;
}

template <DType X>
__device__ __forceinline__ float sum_element(const ShardsParams& p, std::int64_t i) {
  float sum = load_element(p.shards[0].x, X, i) * *p.shards[0].scale_inv;
  for (int s = 1; s < p.count; ++s)
    sum = sum + load_element(p.shards[s].x, X, i) * *p.shards[s].scale_inv;
  return sum * p.factor;
}

template <DType X>
__global__ void __launch_bounds__(kThreads)
    measure_shards_kernel(const __grid_constant__ ShardsParams p) {
  std::uint32_t max = 0;
  for_each(
      p.range,
      [&](std::int64_t i) {
        max = numerics::max_bits(max, largest_magnitude(sum_vector<X>(p, i)));
      },
      [&](std::int64_t i) { max = numerics::max_bits(max, magnitude(sum_element<X>(p, i))); });
  max = block_max<kThreads>(max);
  if (threadIdx.x == 0) atomicMax(p.amax, max);
}

// `complete`: p.amax is, and other blocks still read it.
template <DType X, class F>
__global__ void __launch_bounds__(kThreads)
    sum_shards_kernel(const __grid_constant__ ShardsParams p, bool complete) {
  const float scale = choose_scale_of_block(p.choice);
  std::uint32_t max = 0;
  for_each(
      p.range,
      [&](std::int64_t i) {
        Vector v = sum_vector<X>(p, i);
        max = numerics::max_bits(max, largest_magnitude(v));
        apply_overflow(v, Overflow::kNaN);
        scale_vector(v, scale);
        store_codes<F>(p.y, i, encode_vector<F, Rounding::kNearest>(v, nullptr));
      },
      [&](std::int64_t i) {
        const float value = sum_element<X>(p, i);
        max = numerics::max_bits(max, magnitude(value));
        static_cast<typename F::Bits*>(p.y)[i] =
            numerics::quantize_element<F>(value, scale, Rounding::kNearest, Overflow::kNaN, 0);
      });
  if (blockIdx.x == 0 && threadIdx.x == 0) *p.scale_inv = numerics::inverse_scale(scale);
  max = block_max<kThreads>(max);
  if (threadIdx.x != 0) return;
  if (p.amax && !complete) atomicMax(p.amax, max);
  if (p.found_inf && max >= numerics::kInfBits) raise_flag(p.found_inf);
}

}  // namespace fp8amp::kernels::cuda
