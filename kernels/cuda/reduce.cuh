// Maxima and sums over a warp and a block. Integers only: no result depends on the order.
#pragma once
#include "kernels/cuda/portable.cuh"

namespace fp8amp::kernels::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

// A flag that several blocks may set: 0 or 1.
__device__ __forceinline__ void raise_flag(float* flag) {
  atomicMax(reinterpret_cast<std::uint32_t*>(flag), __float_as_uint(1.0f));
}

struct Max {
  static __device__ __forceinline__ std::uint32_t of(std::uint32_t a, std::uint32_t b) {
    return a > b ? a : b;
  }
};
struct Sum {
  static __device__ __forceinline__ std::uint32_t of(std::uint32_t a, std::uint32_t b) {
    return a + b;
  }
};

template <class Op>
__device__ __forceinline__ std::uint32_t warp_reduce(std::uint32_t v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1)
    v = Op::of(v, __shfl_xor_sync(kAllLanes, v, offset));
  return v;
}

// 0 is neutral. Valid in thread 0. All threads of the block of kBlock must call it; a second call
// of the same Op needs a __syncthreads() between.
template <class Op, int kBlock>
__device__ __forceinline__ std::uint32_t block_reduce(std::uint32_t v) {
  FP8AMP_SHARED(std::uint32_t, partial, [kBlock / 32]);
  v = warp_reduce<Op>(v);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x < 32) v = warp_reduce<Op>(threadIdx.x < kBlock / 32 ? partial[threadIdx.x] : 0u);
  return v;
}
template <int kBlock>
__device__ __forceinline__ std::uint32_t block_max(std::uint32_t v) {
  return block_reduce<Max, kBlock>(v);
}
template <int kBlock>
__device__ __forceinline__ std::uint32_t block_sum(std::uint32_t v) {
  return block_reduce<Sum, kBlock>(v);
}

}  // namespace fp8amp::kernels::cuda
