// The course of a cast, whatever its input: where the maximum is collected, and when the scale is
// written.
#pragma once
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/quantize.cuh"

namespace fp8amp::kernels::cuda {

// The maximum is collected in a.amax. Where the caller does not want it but the scale needs it, it
// is collected in *a.scale_inv, which then is written last.
struct CastPlan {
  const QuantizeArgs& a;
  cudaStream_t stream;
  bool measured;  // the amax of the input comes first, unless the device finds that it need not
  float* slot;    // of the maximum; may be null
  bool finish;    // scale_inv and history are written after the cast
  ScaleChoice choice;

  explicit CastPlan(const QuantizeArgs& args)
      : a(args),
        stream(static_cast<cudaStream_t>(a.stream)),
        measured(a.source == ScaleSource::kCurrent || a.source == ScaleSource::kDelayed),
        slot(a.amax     ? a.amax
             : measured ? a.scale_inv
                        : nullptr),
        finish(slot == a.scale_inv || updates()),
        choice{a.source,         a.scale, a.scale_inv,          a.history,        a.history_length,
               a.update_history, slot,    format_max(a.format), a.scale_rounding, a.margin} {}

  QuantizeParams params() const {
    QuantizeParams p{};
    p.y = a.y;
    p.choice = choice;
    p.overflow = a.overflow;
    p.key = a.key;
    p.scale_inv = finish || a.source == ScaleSource::kKeep ? nullptr : a.scale_inv;
    p.amax = reinterpret_cast<std::uint32_t*>(slot);
    p.found_inf = a.found_inf;
    return p;
  }
  void begin() const {
    if (slot) FP8AMP_CUDA_CHECK(cudaMemsetAsync(slot, 0, sizeof *slot, stream));
  }
  void end() const {
    if (finish)
      FP8AMP_LAUNCH(finish_quantize_kernel, dim3(1), dim3(1), 0, stream,
                    FinishParams{choice, updates() ? a.history : nullptr, slot, a.scale_inv});
    FP8AMP_CUDA_CHECK(cudaGetLastError());
  }

 private:
  bool updates() const { return a.update_history && a.source == ScaleSource::kDelayed; }
};

}  // namespace fp8amp::kernels::cuda
