// Sum of FP8 shards with requantisation: arguments and the two backends.
#pragma once
#include <fp8amp/dtype.h>
#include <fp8amp/numerics/formats.h>

#include <cstdint>
#include <span>

namespace fp8amp::kernels {

struct Shard {
  const void* x;
  const float* scale_inv;
};

// value = (x_0 * *scale_inv_0 + x_1 * *scale_inv_1 + ...) * factor, added from left to right in
// FP32; y = format(value * scale), Inf becomes NaN; *scale_inv = 1 / scale, *amax = max |value|.
struct SumShardsArgs {
  std::span<const Shard> shards;  // 1 to kMaxShards
  DType x_type;
  void* y;
  DType format;
  float* scale_inv;
  std::int64_t n;
  float factor;
  ScaleRounding scale_rounding;
  const float* scale;  // may be null: the scale is from *bound
  const float* bound;  // may be null: from the maximum of the values
  float* amax;         // may be null
  float* found_inf;    // may be null; raised to 1
  void* stream;
};

namespace cpu {
void sum_shards(const SumShardsArgs& args);
}
namespace cuda {
void sum_shards(const SumShardsArgs& args);
}

}  // namespace fp8amp::kernels
