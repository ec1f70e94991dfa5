// Sum of FP8 shards in FP32 with one cast at the end: the local half of a two-shot all-reduce.
//
//   value = (shards[0] + shards[1] + ... in rank order) * factor,   out = format(value * scale)
//
// Every shard is multiplied by its own scale_inv in FP32, so the ranks need no common scale; one
// rounding to FP8 instead of one for each rank. A shard's Inf or NaN, and a sum beyond FP32, become
// NaN.
#pragma once
#include <fp8amp/numerics/formats.h>
#include <fp8amp/scaled_tensor.h>

#include <span>

namespace fp8amp {

inline constexpr std::size_t kMaxShards = 1024;

struct SumShardsOptions {
  float factor = 1.0f;  // positive and finite; 1 / N for an average
  ScaleRounding scale_rounding = ScaleRounding::kPowerOfTwo;
  // At most one of the next two. With neither the scale is from the maximum of the values, which
  // reads the shards twice.
  Tensor scale{};  // float32[] from 2^-126 to 2^126: use this scale
  Tensor bound{};  // float32[]: scale from this bound on max |value|, as factor * the sum of the
                   // ranks' maxima; 0 or non-finite: scale 1
  Tensor amax{};   // float32[], out: max |value|, non-finite if any value is
  Tensor found_inf{};  // float32[], out: set to 1 if amax is non-finite, else left alone
  void* stream = nullptr;
};

// shards: 1 to kMaxShards scaled float8 tensors of one format, shape and device (the rows of an
// [N, n] payload, say); out: float8 of either format with a scale_inv, of the same shape and
// device; what is written overlaps no other argument. Source: FP8-LM (arXiv 2310.18313) section 2.1
// asks for the sum; the two-shot form is this library's.
FP8AMP_API void sum_shards(std::span<const ScaledTensor> shards, const ScaledTensor& out,
                           const SumShardsOptions& options = {});

}  // namespace fp8amp
