// How a scale is chosen.
#pragma once
#include <fp8amp/numerics/formats.h>
#include <fp8amp/tensor.h>

#include <cstdint>

namespace fp8amp {

// kCurrent:  amax of the tensor being cast (MS-AMP's just-in-time scaling, FP8-AMAX of 2309.17224).
// kDelayed:  maximum over the last `history` casts; current scaling until the history is full.
//            A non-finite amax is dropped and the warm-up starts again.
// kConstant: scale = 2^bias, amax is never taken (FP8-CSCALE of arXiv 2309.17224).
enum class ScalingRecipe : std::uint8_t { kCurrent = 0, kDelayed = 1, kConstant = 2 };

// State of delayed scaling: float32[history + 2] = number of valid entries (whole, >= 0), scale in
// use (0: none yet), amax values, newest first. Zero-initialised.
FP8AMP_API Tensor allocate_history(std::int64_t history = 16, Device device = kCpu);

}  // namespace fp8amp
