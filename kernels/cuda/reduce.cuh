// Maxima and sums over a warp and a block. Integer maxima only: no result depends on the order.
#pragma once
#include "kernels/cuda/portable.cuh"

namespace fp8amp::kernels::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

// A flag that several blocks may set: 0 or 1.
__device__ __forceinline__ void raise_flag(float* flag) {
  atomicMax(reinterpret_cast<std::uint32_t*>(flag), __float_as_uint(1.0f));
}

__device__ __forceinline__ std::uint32_t warp_max(std::uint32_t v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    const std::uint32_t other = __shfl_xor_sync(kAllLanes, v, offset);
    v = v > other ? v : other;
  }
  return v;
}
__device__ __forceinline__ std::uint32_t warp_sum(std::uint32_t v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_xor_sync(kAllLanes, v, offset);
  return v;
}

// Valid in thread 0. All threads of the block of kBlock must call it; a second call needs a
// __syncthreads() between.
template <int kBlock>
__device__ __forceinline__ std::uint32_t block_max(std::uint32_t v) {
  FP8AMP_SHARED(std::uint32_t, partial, [kBlock / 32]);
  v = warp_max(v);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x < 32) v = warp_max(threadIdx.x < kBlock / 32 ? partial[threadIdx.x] : 0u);
  return v;
}
template <int kBlock>
__device__ __forceinline__ std::uint32_t block_sum(std::uint32_t v) {
  FP8AMP_SHARED(std::uint32_t, partial, [kBlock / 32]);
  v = warp_sum(v);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x < 32) v = warp_sum(threadIdx.x < kBlock / 32 ? partial[threadIdx.x] : 0u);
  return v;
}

}  // namespace fp8amp::kernels::cuda
