// The scale of a cast on the CPU, and what a cast leaves beside the codes.
#pragma once
#include <fp8amp/numerics/scale.h>

#include <algorithm>

#include "kernels/quantize.h"

namespace fp8amp::kernels::cpu {

inline float scale_of(const QuantizeArgs& a, std::uint32_t amax_bits, float previous) {
  return numerics::compute_scale(numerics::bits_float(amax_bits), format_max(a.format),
                                 a.scale_rounding, a.margin, previous);
}

// Delayed scaling: history = number of valid entries, scale of the last update (0: none), amax
// values with the newest first.
inline float* entries(const QuantizeArgs& a) { return a.history + 2; }

template <class Measure>
float delayed_scale(const QuantizeArgs& a, const Measure& measure) {
  const float last = a.history[1];
  if (!a.update_history && last > 0.0f) return last;
  const float previous = last > 0.0f ? last : 1.0f;
  const bool full = a.history[0] >= float(a.history_length);
  if (!full) return scale_of(a, measure(), previous);  // warm-up: current scaling
  const float* largest = std::max_element(entries(a), entries(a) + a.history_length);
  return scale_of(a, numerics::float_bits(*largest), previous);
}

// `measure` returns the bits of the amax of what will be cast; it is called only if the scale
// depends on it.
template <class Measure>
float choose_scale(const QuantizeArgs& a, const Measure& measure) {
  switch (a.source) {
    case ScaleSource::kGiven: return *a.scale;
    case ScaleSource::kKeep: return numerics::inverse_scale(*a.scale_inv);
    case ScaleSource::kDelayed: return delayed_scale(a, measure);
    default: return scale_of(a, measure(), 1.0f);
  }
}

inline void update_history(const QuantizeArgs& a, float scale, float amax) {
  a.history[1] = scale;
  if (!numerics::is_finite(amax)) {  // dropped; the warm-up starts again
    a.history[0] = 0.0f;
    return;
  }
  std::copy_backward(entries(a), entries(a) + a.history_length - 1, entries(a) + a.history_length);
  entries(a)[0] = amax;
  a.history[0] = std::min(a.history[0] + 1.0f, float(a.history_length));
}

// After the cast: history, scale_inv, amax, found_inf.
inline void finish_cast(const QuantizeArgs& a, float scale, float amax) {
  if (a.source == ScaleSource::kDelayed && a.update_history) update_history(a, scale, amax);
  if (a.source != ScaleSource::kKeep) *a.scale_inv = numerics::inverse_scale(scale);
  if (a.amax) *a.amax = amax;
  if (a.found_inf && !numerics::is_finite(amax)) *a.found_inf = 1.0f;
}

}  // namespace fp8amp::kernels::cpu
