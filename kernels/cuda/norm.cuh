// Norm and clipping of a list of tensors. The sums follow the order that kernels/norm.h fixes: a
// thread carries one of the eight sums of a chunk.
#pragma once
#include "kernels/cuda/batch.cuh"
#include "kernels/cuda/vectors.cuh"
#include "kernels/element.h"
#include "kernels/norm.h"

namespace fp8amp::kernels::cuda {

inline constexpr int kMaxNormTensors = 256;  // of a launch
inline constexpr int kChunksPerBlock = kThreads / kNormSums;
inline constexpr std::int64_t kClipChunk = 8 * kThreads;  // elements of a block

struct NormBatch {
  NormTensor tensors[kMaxNormTensors];
  std::int64_t
      first[kMaxNormTensors + 1];  // number of a tensor's first chunk (norm) or block (clip)
  int count;
};

// The eight sums of a chunk, held by eight neighbouring lanes, added in order; in every one of
// them.
__device__ __forceinline__ double add_sums(double mine) {
  const int lane = static_cast<int>(threadIdx.x) % 32, first = lane / kNormSums * kNormSums;
  double sum = 0;
#pragma unroll
  for (int i = 0; i < kNormSums; ++i) sum += __shfl_sync(0xffffffffu, mine, first + i);
  return sum;
}

// sums[i] = sum of squares of chunk i, over all the tensors of the batch
inline __global__ void __launch_bounds__(kThreads)
    sum_of_squares_kernel(const __grid_constant__ NormBatch b, double* sums) {
  const std::int64_t chunk = std::int64_t(blockIdx.x) * kChunksPerBlock + threadIdx.x / kNormSums;
  const bool live = chunk < b.first[b.count];
  double mine = 0, factor = 1;
  if (live) {
    const int t = tensor_of(b.first, b.count, chunk);
    const NormTensor& x = b.tensors[t];
    const std::int64_t begin = (chunk - b.first[t]) * kNormChunk,
                       end = begin + kNormChunk < x.n ? begin + kNormChunk : x.n;
    for (std::int64_t i = begin + threadIdx.x % kNormSums; i < end; i += kNormSums) {
      const double value = load_element(x.x, x.x_type, i);
      mine += value * value;
    }
    const double scale_inv = x.scale_inv ? *x.scale_inv : 1.0f;
    factor = scale_inv * scale_inv;
  }
  const double sum = add_sums(mine);
  if (live && threadIdx.x % kNormSums == 0) sums[chunk] = sum * factor;
}

// next[i] = sum of chunk i of the n sums
inline __global__ void __launch_bounds__(kThreads)
    add_sums_kernel(const double* sums, std::int64_t n, double* next) {
  const std::int64_t chunk = std::int64_t(blockIdx.x) * kChunksPerBlock + threadIdx.x / kNormSums;
  const std::int64_t begin = chunk * kNormChunk,
                     end = begin + kNormChunk < n ? begin + kNormChunk : n;
  double mine = 0;
  for (std::int64_t i = begin + threadIdx.x % kNormSums; i < end; i += kNormSums) mine += sums[i];
  const double sum = add_sums(mine);
  if (begin < n && threadIdx.x % kNormSums == 0) next[chunk] = sum;
}

inline __global__ void finish_norm_kernel(const double* sum, float* norm) {
  *norm = sum ? static_cast<float>(sqrt(*sum)) : 0.0f;
}

// ---- clipping: a block for every kClipChunk elements of a plain tensor, one for a scaled one
inline __global__ void __launch_bounds__(kThreads)
    clip_kernel(const __grid_constant__ NormBatch b, const float* norm, float max_norm) {
  const float factor = max_norm / (*norm + 1e-6f);
  if (!(factor < 1.0f)) return;
  const int t = tensor_of(b.first, b.count, blockIdx.x);
  const NormTensor& x = b.tensors[t];
  if (x.scale_inv) {
    if (threadIdx.x == 0) *x.scale_inv = numerics::multiplied_scale_inv(*x.scale_inv, factor);
    return;
  }
  const std::int64_t begin = (blockIdx.x - b.first[t]) * kClipChunk,
                     end = begin + kClipChunk < x.n ? begin + kClipChunk : x.n;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads)
    store_element(x.x, x.x_type, i, load_element(x.x, x.x_type, i) * factor);
}

}  // namespace fp8amp::kernels::cuda
