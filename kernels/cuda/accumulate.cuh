// sum = format(sum * *sum_scale_inv + x * *x_scale_inv) under a new scale, rounded stochastically:
// a pass that measures the sums (their maximum and checksum key the dither), a pass that stores
// them.
#pragma once
#include "kernels/cuda/quantize.cuh"

namespace fp8amp::kernels::cuda {

struct SumMeasure {
  std::uint32_t max, checksum;  // zero before the first pass
};

struct AccumulateParams {
  Input x;
  void* sum;
  const float* sum_scale_inv;
  SumMeasure* measure;
  float format_max;
};

template <DType X, class F>
struct SumReader {
  static constexpr DType kSum = F::kBias == 7 ? DType::kE4M3 : DType::kE5M2;
  const AccumulateParams& p;
  float x_factor, sum_factor;
  __device__ __forceinline__ explicit SumReader(const AccumulateParams& params)
      : p(params), x_factor(params.x.factor()), sum_factor(*params.sum_scale_inv) {}
  __device__ __forceinline__ float add(float sum, float x) const {
    return sum * sum_factor + x * x_factor;
  }
  __device__ __forceinline__ Vector vector(std::int64_t i) const {
    const Vector x = load_vector<X>(p.x.x, i);
    Vector sum = load_vector<kSum, false>(p.sum, i);
#pragma unroll
    for (int k = 0; k < kVector; ++k) sum.v[k] = add(sum.v[k], x.v[k]);
    return sum;
  }
  __device__ __forceinline__ float element(std::int64_t i) const {
    return add(load_element(p.sum, kSum, i), load_element(p.x.x, X, i));
  }
};

template <DType X, class F>
__global__ void __launch_bounds__(kThreads)
    measure_sum_kernel(const __grid_constant__ AccumulateParams p) {
  const SumReader<X, F> sums(p);
  std::uint32_t max = 0, checksum = 0;
  const auto add = [&](float value) {
    const std::uint32_t bits = magnitude(value);
    max = numerics::max_bits(max, bits);
    checksum += bits > kNaNBits ? kNaNBits : bits;
  };
  for_each(
      p.x,
      [&](std::int64_t i) {
        const Vector v = sums.vector(i);
#pragma unroll
        for (float value : v.v) add(value);
      },
      [&](std::int64_t i) { add(sums.element(i)); });
  max = block_max<kThreads>(max);
  checksum = block_sum<kThreads>(checksum);
  if (threadIdx.x != 0) return;
  atomicMax(&p.measure->max, max);
  atomicAdd(&p.measure->checksum, checksum);
}

__device__ __forceinline__ float scale_of_sum(const AccumulateParams& p) {
  return numerics::compute_scale(__uint_as_float(p.measure->max), p.format_max,
                                 ScaleRounding::kPowerOfTwo);
}

template <DType X, class F>
__global__ void __launch_bounds__(kThreads)
    store_sum_kernel(const __grid_constant__ AccumulateParams p) {
  const SumReader<X, F> sums(p);
  const float scale = scale_of_sum(p);
  const std::uint32_t max = p.measure->max, key = accumulate_key(max, p.measure->checksum);
  const bool in_range = __uint_as_float(max) * scale <= F::kMax;
  for_each(
      p.x,
      [&](std::int64_t i) {
        Vector v = sums.vector(i);
        apply_overflow(v, max, Overflow::kNaN);
        scale_vector(v, scale);
        const RandomVector random(key, std::uint64_t(i));
        store_codes<F>(p.sum, i, encode_vector<F, Rounding::kStochastic>(v, &random, in_range));
      },
      [&](std::int64_t i) {
        static_cast<typename F::Bits*>(p.sum)[i] = numerics::quantize_element<F>(
            sums.element(i), scale, Rounding::kStochastic, Overflow::kNaN,
            numerics::random_bits(key, std::uint64_t(i)));
      });
}

inline __global__ void finish_sum_kernel(const __grid_constant__ AccumulateParams p,
                                         float* sum_scale_inv) {
  *sum_scale_inv = numerics::inverse_scale(scale_of_sum(p));
}

}  // namespace fp8amp::kernels::cuda
