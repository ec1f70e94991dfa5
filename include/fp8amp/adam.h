// Adam and AdamW on parameters, gradients and states in low precision: one pass, no temporaries, no
// host synchronisation.
//
//   level  master weight     gradient  exp_avg (m)         exp_avg_sq (v)      bytes/parameter
//   O1     FP16 + 2^k scale  E4M3      FP32                FP32                11
//   O2     FP16 + 2^k scale  E4M3      E4M3 + exact scale  FP16 + exact scale  6
//   O3     as O2, and the weight that is computed with in E4M3 + 2^k scale     7
//
// At O1 and O2 the master is the weight. At O3 it may live elsewhere (in a shard); the same pass
// writes the compute weight beside it.
//
// The new scales are known before the pass from bounds on the new maxima (numerics/adam_update.h);
// the exact maxima are collected in the same pass for the next step. A plain FP32 parameter (norm
// gains, biases) takes FP32 states.
#pragma once
#include <fp8amp/numerics/adam_update.h>
#include <fp8amp/scaled_tensor.h>

#include <array>
#include <cstdint>
#include <span>

namespace fp8amp {

// One parameter, its gradient and its states; all of one shape and device. float32 parameters and
// states have no scale_inv; that of the others is from 2^-126 to 2^126. Parameters and states of a
// list, their scales, amax and step share no memory with each other, a gradient or the options;
// gradients may share theirs. Values on a GPU are not checked: reading them would wait.
struct AdamParameter {
  ScaledTensor param;       // float16 (scaled, power of two), float32, or float8_e4m3 (scaled)
  ScaledTensor grad;        // float8 (scaled), float32, bfloat16, float16
  ScaledTensor exp_avg;     // float32, or float8_e4m3 (scaled)
  ScaledTensor exp_avg_sq;  // float32, float16 (scaled), or float8 (scaled; diverges in long runs,
                            // for studies)
  Tensor amax;  // float32[4]: maxima of |param|, |exp_avg|, exp_avg_sq, |grad| as stored; read, and
                // the first three rewritten
  Tensor step;  // float32[]: number of steps taken, a whole one from 0 to 2^24 - 1; incremented
  std::uint32_t id = 0;  // names the tensor in the random stream
  // float8_e4m3 or float16, scaled; undefined: none. Becomes the cast of the new `param` as stored,
  // to nearest, under a power of two from the bound on `param`: the bits that quantize() of the new
  // `param` gives under that scale. Only written; its maximum before the cast is amax[0].
  ScaledTensor compute_weight{};
};

enum class Level : std::uint8_t { kAny = 0, kO1 = 1, kO2 = 2, kO3 = 3 };

struct AdamOptions {
  float lr = 1e-3f;
  Tensor lr_tensor{};  // float32[], takes the place of lr if defined: read when the step runs, so
                       // that a captured graph follows a schedule
  std::array<double, 2> betas = {0.9, 0.999};
  float eps = 1e-8f;
  float weight_decay = 0.0f;
  numerics::WeightDecay decay = numerics::WeightDecay::kDecoupled;  // AdamW; kL2: Adam
  bool maximize = false;
  // nearest: updates below half a step of FP16 are lost
  Rounding master_rounding = Rounding::kStochastic;
  // nearest: codes 1-4 of E4M3 never decay at beta1 = 0.9
  Rounding moment_rounding = Rounding::kStochastic;
  Rounding second_moment_rounding = Rounding::kNearest;
  std::uint64_t seed = 0;
  Level level = Level::kAny;  // others: refuse states of another precision
  Tensor grad_scale{};        // float32[]: multiplied into every gradient (unscaling, clipping);
                              // undefined: 1
  Tensor found_inf{};         // float32[]: non-zero: nothing at all changes; may be undefined
  void* stream = nullptr;
};

// Writes amax[3] of every parameter (max |grad|) and found_inf = 1 if any gradient is non-finite,
// else 0. Reads the gradients once. found_inf shares no memory with the parameters.
FP8AMP_API void grad_amax(std::span<const AdamParameter> parameters, const Tensor& found_inf,
                          void* stream = nullptr);

// One step over all parameters. grad_amax must have run on the same gradients: nothing changes
// where amax[3] * |grad_scale| of any parameter is non-finite.
FP8AMP_API void adam_update(std::span<const AdamParameter> parameters, const AdamOptions& options);

// grad_amax and adam_update: a gradient anywhere that is non-finite, before or after grad_scale,
// skips the step of every parameter. Returns nothing; `options.found_inf`, if given, is set to 1
// then, else to 0. It must be given on a GPU, and not share memory with another option.
FP8AMP_API void adam_step(std::span<const AdamParameter> parameters, AdamOptions options);

// Parameter with zeroed states for `level` (not kAny), at O3 with the compute weight of `param`;
// `param` and `grad`, of one shape and device, keep their memory.
FP8AMP_API AdamParameter make_adam_parameter(const ScaledTensor& param, const ScaledTensor& grad,
                                             Level level, std::uint32_t id);

}  // namespace fp8amp
