// The scale of a cast, chosen on the device from what lies there: an amax, a given scale, or the
// history of delayed scaling (fp8amp/recipe.h).
#pragma once
#include <fp8amp/numerics/scale.h>

#include "kernels/cuda/portable.cuh"
#include "kernels/quantize.h"

namespace fp8amp::kernels::cuda {

struct ScaleChoice {
  ScaleSource source;
  const float* scale;      // kGiven
  const float* scale_inv;  // kKeep
  const float* history;    // kDelayed
  std::int64_t history_length;
  bool update_history;
  const float* amax;  // kCurrent, and kDelayed while the history is not full
  float format_max;
  ScaleRounding rounding;
  int margin;
};

// Whether the cast needs the amax of its own input first.
__device__ __forceinline__ bool needs_amax(const ScaleChoice& c) {
  if (c.source == ScaleSource::kCurrent) return true;
  return c.source == ScaleSource::kDelayed && (c.update_history || !(c.history[1] > 0.0f)) &&
         c.history[0] < float(c.history_length);
}

__device__ __forceinline__ float choose_scale(const ScaleChoice& c) {
  using namespace numerics;
  if (c.source == ScaleSource::kGiven) return *c.scale;
  if (c.source == ScaleSource::kKeep) return inverse_scale(*c.scale_inv);
  if (c.source == ScaleSource::kCurrent)
    return compute_scale(*c.amax, c.format_max, c.rounding, c.margin);
  const float last = c.history[1], previous = last > 0.0f ? last : 1.0f;
  if (!c.update_history && last > 0.0f) return last;
  float amax = c.history[2];
  if (needs_amax(c)) {
    amax = *c.amax;
  } else {
    for (std::int64_t i = 1; i < c.history_length; ++i) {
      const float entry = c.history[2 + i];
      amax = amax < entry ? entry : amax;
    }
  }
  return compute_scale(amax, c.format_max, c.rounding, c.margin, previous);
}

// The same for a whole block: thread 0 chooses. Contains a barrier.
__device__ __forceinline__ float choose_scale_of_block(const ScaleChoice& c) {
  FP8AMP_SHARED(float, scale, [1]);
  if (threadIdx.x == 0) scale[0] = choose_scale(c);
  __syncthreads();
  return scale[0];
}

}  // namespace fp8amp::kernels::cuda
